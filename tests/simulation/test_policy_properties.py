"""What every policy owes, whatever the cluster, the jobs, the quotas and the faults: found by name, so a new one is held to it too."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobEvent
from schedmate.services.dispatcher.core.config import Budget, PoolConfig
from schedmate.services.dispatcher.core.decisions import Moved, Placed
from schedmate.services.dispatcher.core.decisions import to_json as decision_to_json
from schedmate.services.dispatcher.core.inputs import JobArrived, ReservationMade
from schedmate.services.dispatcher.core.policy import policies, policy_named
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import Step
from schedmate.simulator.advice import Told, advisor
from schedmate.simulator.cluster import Cluster, NodeSpec
from schedmate.simulator.engine import Simulation
from schedmate.simulator.faults import Faults
from schedmate.simulator.maintenance import Reservations
from schedmate.simulator.outcome import Costs, Outcome
from schedmate.simulator.trace import Trace, TraceJob
from tests.pool_invariants import Watcher, check_held

POLICIES = sorted(policies())
ADVISED = [name for name in POLICIES if policy_named(name).uses_estimates]
ADVICE = ["none", "random", "noisy:1", "oracle"]
QUOTAS: list[dict[str, int]] = [{}, {}, {"a": 4}, {"a": 2, "b": 6}, {"a": 30, "b": 30}]


@dataclass
class World:
    """A cluster with its jobs, settings and faults."""

    cluster: Cluster
    jobs: tuple[TraceJob, ...]
    config: PoolConfig
    faults: Faults
    advice: str
    costs: Costs = field(default_factory=Costs)
    reservations: Reservations = field(default_factory=dict)

    def run(self, policy: str, recorder: Callable[[PoolState, Step], None]) -> Outcome:
        """Simulate the world under a policy."""
        source = advisor(self.advice, Trace("made", "csv", self.jobs), 1, one_pool=True)
        return Simulation(
            self.jobs, self.cluster, policy, source, config=self.config, costs=self.costs, faults=self.faults,
            recorder=recorder, reservations=self.reservations,
        ).run()  # fmt: skip


@st.composite
def worlds(draw: st.DrawFn) -> World:
    gpus = draw(st.lists(st.sampled_from([1, 2, 4, 8, 8]), min_size=1, max_size=4))
    racked = draw(st.booleans())
    labels = st.sampled_from([None, "r1", "r2"]), st.sampled_from([None, "s1"])
    nodes = tuple(
        NodeSpec(f"n{n}", count, rack=draw(labels[0]) if racked else None, spine=draw(labels[1]) if racked else None)
        for n, count in enumerate(gpus)
    )
    sizes = st.tuples(
        st.integers(0, 2000), st.integers(1, 12), st.sampled_from([0, 5, 300, 3000]), st.sampled_from("abc")
    )
    drawn = draw(st.lists(sizes, min_size=1, max_size=14))
    jobs = tuple(
        TraceJob(f"j{n}", submit, count, run, tenant=tenant, inference=draw(st.booleans()), asks=gang(draw, n, submit, count, tenant))
        for n, (submit, count, run, tenant) in enumerate(drawn)
    )  # fmt: skip
    config = PoolConfig(
        advice=draw(st.sampled_from(["weighed", "raw"])),
        tenant_quota=draw(st.sampled_from(QUOTAS)),
        borrowers=draw(st.sampled_from(["any", "any", "none"])),
        reclaim_min_run_s=draw(st.sampled_from([0.0, 60.0])),
        tenant_gpus_max=draw(st.sampled_from([None, None, 6])),
        inference_zone=draw(st.sampled_from(["", "", "r1", "n0,s1"])),
        placer=draw(st.sampled_from(["", "", "freest"])),
        ageing_s=draw(st.sampled_from([0.0, 0.0, 500.0])),
        wait_max_s=draw(st.sampled_from([0.0, 0.0, 800.0])),
        advice_wait_max_s=draw(st.sampled_from([1000.0, 1e6])),
        infrastructure=Budget(cap=draw(st.sampled_from([1, 10_000])), base_s=1.0, cap_s=60.0, free=1),
    )
    faults = draw(
        st.one_of(
            st.just(Faults()),
            st.builds(Faults, mtbf_s=st.sampled_from([500.0, 5000.0]), mttr_s=st.just(300.0), seed=st.integers(0, 99)),
            st.lists(st.tuples(st.sampled_from(nodes), st.integers(0, 3000), st.integers(1, 2000)), max_size=3).map(
                lambda spans: Faults(
                    tuple(
                        (("default", node.name), tuple(sorted((a, a + b) for one, a, b in spans if one is node)))
                        for node in nodes
                    )
                )
            ),
        )
    )
    reserved = [
        ReservationMade(f"r{n}", (node.name,), 0, float(start), float(start + length), "op", "")
        for n, (node, start, length) in enumerate(
            draw(
                st.lists(
                    st.tuples(st.sampled_from(nodes), st.integers(0, 4000), st.sampled_from([100, 2000])), max_size=2
                )
            )
        )
    ]
    return World(
        Cluster({"default": nodes}, one_pool=True), jobs, config, faults, draw(st.sampled_from(ADVICE)),
        Costs(checkpoint_s=draw(st.sampled_from([0.0, 70.0]))), {"default": tuple(reserved)},
    )  # fmt: skip


def gang(draw: st.DrawFn, n: int, submit: int, gpus: int, tenant: str) -> tuple[JobArrived, ...]:
    """Draw whether a job is a gang over two nodes, and what they must share; () for a job as the simulator asks for it."""
    if gpus % 2 or not draw(st.booleans()):
        return ()
    within = draw(st.sampled_from([None, "rack", "spine"]))
    return (
        JobArrived(f"j{n}", tenant, tenant, 1, gpus // 2, 2, None, 0, None, 0, submit, "", None, resumable=True, within=within),
    )  # fmt: skip


class Recorder:
    """Holds every step to what must be true of any pool, and keeps what was decided as lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.watcher = Watcher()
        self.reclaimed = self.placed_gpus = 0

    def __call__(self, state: PoolState, done: Step) -> None:
        check_held(state, done.decisions)
        self.watcher.saw(done.decisions)
        self.lines += [json.dumps([state.at, decision_to_json(x)], sort_keys=True) for x in done.decisions]
        for x in done.decisions:
            if isinstance(x, Placed):
                self.placed_gpus += sum(len(seat.gpus) for seat in x.seats)
            elif isinstance(x, Moved) and x.event == JobEvent.STOP and x.reason == Reason.RECLAIMED:
                self.reclaimed += 1


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=30, deadline=None)
@given(world=worlds())
def test_no_gpu_has_two_owners_gangs_are_whole_quotas_are_kept_and_work_is_conserved_where_promised(
    policy: str, world: World
) -> None:
    recorder = Recorder()
    outcome = world.run(policy, recorder)
    for job, start, end, wait in zip(world.jobs, outcome.start_s, outcome.end_s, outcome.wait_s, strict=True):
        if end is not None:
            assert start is not None
            assert start >= job.submit_s
            held = end - job.submit_s - wait
            assert held >= job.duration_s - 1e-6
    if not world.faults:
        assert recorder.reclaimed <= recorder.placed_gpus, "more was reclaimed than placements can have needed"
        assert outcome.failures == outcome.failed == 0


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=8, deadline=None)
@given(world=worlds())
def test_the_same_world_is_decided_in_the_same_bytes(policy: str, world: World) -> None:
    one, two = Recorder(), Recorder()
    first, second = world.run(policy, one), world.run(policy, two)
    assert one.lines == two.lines
    assert (first.start_s, first.end_s, first.lost_gpu_s) == (second.start_s, second.end_s, second.lost_gpu_s)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20, deadline=None)
@given(world=worlds())
def test_whatever_fits_is_run_in_the_end_whatever_has_failed_on_the_way(policy: str, world: World) -> None:
    """With a budget that is never spent, nodes that come back and borrowing for all, every job of a node's size ends."""
    world.config = PoolConfig.from_json(
        world.config.to_json()
        | {"infrastructure": Budget(10**9, 1.0, 60.0, 1), "borrowers": "any", "tenant_gpus_max": None}
    )
    world.costs = Costs()  # nobody loses more than he gains between two failures
    outcome = world.run(policy, Recorder())
    largest = max(node.gpus for node in world.cluster.pools["default"])
    for job, end in zip(world.jobs, outcome.end_s, strict=True):
        assert job.gpus > largest or job.asks or end is not None, f"{job.id} fits an empty node and never ended"


# --- the longest wait ---

WAIT_MAX_S = 500.0


@pytest.mark.parametrize("policy", ADVISED)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_longest_wait_is_bounded_however_wrong_the_advice_that_is_believed(
    policy: str, data: st.DataObject
) -> None:
    """A stream of jobs that are said to be short and one that is said to be long, in a pool that believes every word.

    Whoever has waited for the bound goes first, in the order of submission, and nobody goes past it: then it waits only for those that
    run. With n jobs submitted before it, none longer than D, it starts within bound + (n + 1) x D.
    """
    longest = 400
    stream = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, 60), st.integers(1, 4), st.integers(longest // 2, longest), st.sampled_from([1.0, 50.0, 5e3])
            ),
            min_size=30, max_size=50,
        )
    )  # fmt: skip
    at, jobs = 0, [TraceJob("victim", 1, data.draw(st.integers(1, 4)), 100)]
    for pause, gpus, run, _ in stream:
        jobs.append(TraceJob(f"s{len(jobs)}", at, gpus, run))
        at += pause

    liar = Told("liar", [1e7, *(said for *_, said in stream)])
    cluster = Cluster({"default": (NodeSpec("n0", 4),)}, one_pool=True)
    config = PoolConfig(advice_wait_max_s=WAIT_MAX_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PoolState, "trust_in", lambda self, basis: 1.0)  # noqa: ARG005
        outcome = Simulation(jobs, cluster, policy, liar, config=config, recorder=Recorder()).run()
    before = sum(1 for job in jobs if job.submit_s <= 1) - 1
    start = outcome.start_s[0]
    assert start is not None
    assert start - 1 <= WAIT_MAX_S + (before + 1) * (longest + 40), f"it waited for {start - 1:.0f} s"
    assert max(end if end is not None else inf for end in outcome.end_s) < inf
