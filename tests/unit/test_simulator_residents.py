"""Jobs that share GPUs, and the profiler, in the event loop: hand-made cases."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.decisions import to_json as decision_to_json
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.sharing import JUMBO, MEDIUM, TINY, Profile, class_of
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import recover, step
from schedmate.simulator.advice import advisor
from schedmate.simulator.cluster import uniform
from schedmate.simulator.engine import Costs, Simulation, simulated
from schedmate.simulator.residents import TABLE, Residents, drawn, speed_beside
from schedmate.simulator.runs import Setting, run_one
from schedmate.simulator.trace import Trace, TraceJob

TINY_JOB = Profile(0.1, 0.0, 1_000)


def jobs_of(*jobs: tuple[float, int, float]) -> tuple[TraceJob, ...]:
    return tuple(TraceJob(f"j{n}", submit, gpus, run) for n, (submit, gpus, run) in enumerate(jobs))


def lucid(jobs: tuple[TraceJob, ...], nodes: int, gpus: int, profiles: list[Profile], **config) -> Simulation:
    given_ = PoolConfig(**{"profiler_nodes": 1, "profiler_s": 80.0, **config})
    return Simulation(jobs, uniform(nodes, gpus), "lucid", config=given_, residents=Residents(profiles))


def test_a_job_that_ends_in_the_profiler_ends_there_and_another_goes_on_outside():
    jobs = jobs_of((0, 1, 50), (0, 1, 200))
    outcome = lucid(jobs, 2, 2, [TINY_JOB] * 2).run()
    assert outcome.end_s == [50, 80 + 40 + 120]  # 80 s in the profiler, a restart of 40 s, what was left
    assert (outcome.preemptions, outcome.profiled) == (0, 1)
    assert outcome.residents is not None
    told = outcome.residents.figures()["profiling"]
    assert told == {
        "jobs": 2,
        "ended_there": 1,
        "gpu_h": (50 + 80) / 3600,
        "job_s": 130.0,
        "recalled": 0,
        "recalled_wrong": 0,
        "avg_wait_s": 0.0,
    }


def test_a_pair_runs_at_the_speed_of_the_model_and_whoever_stays_at_its_own():
    """Both are profiled one after the other; outside there is one GPU: they share it from 160 on."""
    seen = [Profile(0.6, 0.0, 1_000), Profile(0.65, 0.0, 1_000)]
    speed = speed_beside(*seen)
    assert speed == pytest.approx(1 / 1.25)
    jobs = jobs_of((0, 1, 1000), (0, 1, 280), (0, 1, 5000), (0, 1, 5000))
    simulation = lucid(jobs, 2, 1, [*seen, seen[0], seen[0]])
    outcome = simulation.run()
    second_ends = 160 + (280 - 80 + 40) / speed  # the first is outside from 80 on, the second from 160 on
    assert outcome.end_s[1] == pytest.approx(second_ends)
    assert outcome.residents is not None
    assert outcome.residents.figures()["packing"]["pairs"] >= 1
    assert all(end is not None for end in outcome.end_s)


def test_two_that_share_use_their_gpu_once():
    jobs = jobs_of((0, 1, 300), (0, 1, 300), (0, 1, 300))
    outcome = lucid(jobs, 2, 1, [TINY_JOB] * 3).run()
    assert outcome.integrals.allocated_max == 2
    assert outcome.integrals.allocated == 0


def test_the_declared_profiles_cover_every_class_and_the_model_says_what_the_paper_found():
    kinds = {name: class_of(profile, 24_576) for name, (profile, _) in TABLE.items()}
    assert set(kinds.values()) == {TINY, MEDIUM, JUMBO}
    of_class = {c: [TABLE[name][0] for name, k in kinds.items() if k == c] for c in (TINY, MEDIUM, JUMBO)}
    worst = {
        (a, b): min(speed_beside(x, y) for x in of_class[a] for y in of_class[b])
        for a, b in ((TINY, TINY), (TINY, MEDIUM), (MEDIUM, MEDIUM), (JUMBO, JUMBO))
    }
    assert worst[TINY, TINY] > 0.95
    assert worst[TINY, MEDIUM] > 0.9
    assert worst[MEDIUM, MEDIUM] > 0.7
    assert worst[JUMBO, JUMBO] < 0.5


def test_the_draw_of_profiles_follows_the_seed_alone():
    assert drawn(50, 3) == drawn(50, 3) != drawn(50, 4)
    assert drawn(10, 3) == drawn(50, 3)[:10]


def test_a_run_says_what_was_profiled_and_packed():
    trace = Trace("made", "csv", jobs_of(*((n, 1, 400) for n in range(12))))
    one, two = (run_one(trace, uniform(3, 1), Setting("lucid", "oracle", seed=2)) for _ in range(2))
    del one["cpu_s"], two["cpu_s"]
    assert one == two
    assert one["packing"]["profiles_seed"] == 2
    assert one["profiling"]["jobs"] == 12
    assert "packing" not in run_one(trace, uniform(3, 1), Setting("fifo", "none"))


def test_who_has_ended_is_joined_by_nobody_when_the_trust_in_advice_changes_with_its_end():
    """The end of a job changes the trust, and that the ranks of all others; the one that has just ended must not come back by that."""
    jobs = jobs_of(*((n * 40, 1, 200 + (n * 7919) % 3000) for n in range(250)))
    trace = Trace("made", "csv", jobs)
    made = Simulation(
        jobs, uniform(4, 2), "lucid", advisor("noisy:0.3", trace, 1, one_pool=True), residents=Residents(drawn(250, 1))
    )
    outcome = made.run()
    assert all(end is not None for end in outcome.end_s)
    assert any(known.weight > 0 for pool in made._pools.values() for known in pool.state.trust.values())


@settings(max_examples=30, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(0, 2000), st.sampled_from([1, 1, 2, 4, 9]), st.integers(0, 3000)), min_size=1, max_size=20),
    nodes=st.integers(1, 4),
    seed=st.integers(0, 5),
)  # fmt: skip
def test_every_job_ends_whole_and_a_recovered_pool_decides_the_same(jobs, nodes: int, seed: int):
    trace = jobs_of(*jobs)
    entries: list = []
    config = PoolConfig(gpu_memory_mib=24_576)
    made = [
        Simulation(
            trace, uniform(nodes, 4), "lucid", config=config, costs=Costs(40, 60, 7.0), residents=Residents(drawn(len(trace), seed)),
            recorder=recorder,
        )
        for recorder in (lambda state, done: entries.append((done.inputs, state.at, [decision_to_json(x) for x in done.decisions], done.decisions)), None)
    ]  # fmt: skip
    first, second = (simulation.run() for simulation in made)
    assert (first.start_s, first.end_s, first.nodes_used) == (second.start_s, second.end_s, second.nodes_used)
    for n, job in enumerate(trace):
        end = first.end_s[n]
        assert (end is None) == (job.gpus > nodes * 4)
        if end is not None:
            assert end - job.submit_s - first.wait_s[n] >= job.duration_s - 1e-6
    state, folded = (PoolState("default", simulated(config, "lucid"), policy_named("lucid")) for _ in range(2))
    for inputs, at, decided, decisions in entries:
        state = PoolState.from_json(json.loads(json.dumps(state.to_json())), policy_named)
        done = step(state, inputs, at)
        assert [decision_to_json(x) for x in done.decisions] == decided
        recover(folded, inputs, set(), decisions, at)
        assert folded.to_json() == state.to_json()
