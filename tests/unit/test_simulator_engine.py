"""The event loop around the core: hand-made cases, and random ones that must keep the invariants."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.decisions import to_json as decision_to_json
from schedmate.services.dispatcher.core.policy import policies, policy_named
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import recover, step
from schedmate.simulator.advice import advisor, check_advice
from schedmate.simulator.cluster import Cluster, NodeSpec, uniform
from schedmate.simulator.engine import Simulation, SimulationError
from schedmate.simulator.outcome import Costs, Outcome
from schedmate.simulator.pools import simulated
from schedmate.simulator.runs import Setting, run_all, run_one
from schedmate.simulator.trace import Trace, TraceError, TraceJob

POLICIES = sorted(policies())
ADVICE = ["none", "constant", "random", "noisy:1", "oracle", "history", "history:median"]


def trace_of(*jobs: tuple[float, int, float]) -> Trace:
    made = tuple(TraceJob(f"j{n}", submit, gpus, run) for n, (submit, gpus, run) in enumerate(jobs))
    return Trace("made", "csv", made, {"guess": [str(-job.duration_s) for job in made]})


def simulate(trace: Trace, cluster: Cluster, policy: str, advice: str = "none", **more) -> Outcome:
    raw = "raw" if advice.startswith(("oracle", "column")) else "weighed"
    source = advisor(advice, trace, 1, one_pool=True)
    return Simulation(trace.jobs, cluster, policy, source, config=PoolConfig(advice=raw), **more).run()


def test_the_head_of_the_queue_blocks_and_skipping_does_not():
    trace = trace_of((0, 4, 100), (1, 8, 10), (2, 1, 5))
    assert simulate(trace, uniform(1, 8), "fifo").start_s == [0, 100, 110]
    assert simulate(trace, uniform(1, 8), "fifo-skip").start_s == [0, 100, 2]


def test_the_shortest_goes_first_when_it_is_known_and_the_first_when_nothing_is():
    trace = trace_of((0, 8, 10), (1, 8, 50), (2, 8, 5))
    assert simulate(trace, uniform(1, 8), "sjf", "oracle").start_s == [0, 15, 10]
    assert simulate(trace, uniform(1, 8), "sjf", "constant").start_s == [0, 10, 60]
    assert simulate(trace, uniform(1, 8), "sjf", "column:guess").start_s == [0, 10, 60]


def test_at_one_instant_ends_come_before_arrivals_before_placement():
    assert simulate(trace_of((0, 8, 10), (10, 8, 1)), uniform(1, 8), "fifo").start_s == [0, 10]


def test_a_job_takes_the_fullest_node_that_fits_the_first_on_a_tie():
    trace = trace_of((0, 5, 100), (0, 6, 100), (0, 2, 100), (0, 2, 100))
    outcome = simulate(trace, uniform(3, 8), "fifo", keep_seats=True)
    assert [[s.node for s in seats] for seats in outcome.seats or []] == [["n0"], ["n1"], ["n1"], ["n0"]]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (12, [("n1", 8), ("n2", 4)]),  # an empty node, the remainder on the freest other
        (16, [("n1", 8), ("n2", 8)]),
        (20, [("n1", 8), ("n2", 8), ("n0", 4)]),
        (3, [("n0", 3)]),
    ],
)
def test_a_larger_job_takes_empty_nodes_and_what_remains_the_freest_other(gpus: int, expected: list):
    outcome = simulate(trace_of((0, 3, 100), (1, gpus, 10)), uniform(3, 8), "fifo", keep_seats=True)
    assert [(s.node, len(s.gpus)) for s in (outcome.seats or [])[1]] == expected
    assert (outcome.nodes_used[1], outcome.nodes_least[1]) == (len(expected), -(-gpus // 8))


def test_a_remainder_that_fits_nowhere_waits():
    assert simulate(trace_of((0, 5, 50), (0, 5, 60), (1, 12, 10)), uniform(2, 8), "fifo").start_s[2] == 60


def test_a_job_that_is_larger_than_its_pool_never_starts_and_holds_nobody_back():
    outcome = simulate(trace_of((0, 24, 10), (1, 8, 10)), uniform(2, 8), "fifo")
    assert (outcome.start_s, outcome.end_s) == ([None, 1], [None, 11])


def test_srtf_stops_who_has_most_left_and_charges_a_restart():
    outcome = simulate(trace_of((0, 8, 100), (10, 8, 20)), uniform(1, 8), "srtf", "oracle")
    assert outcome.end_s == [100 + 20 + 40, 30]
    assert (outcome.preemptions, outcome.lost_gpu_s, outcome.wait_s) == (1, 40 * 8, [20, 0])


def test_work_since_the_last_checkpoint_is_lost():
    outcome = simulate(trace_of((0, 16, 100), (10, 16, 20)), uniform(2, 8), "srtf", "oracle", costs=Costs(40, 60, 7.0))
    assert outcome.end_s == [100 + 20 + 60 + 3, 30]
    assert outcome.lost_gpu_s == 63 * 16


def test_srtf_stops_nobody_in_vain():
    """Four of a node's eight GPUs are held by a job that stays: an eight-GPU job cannot be helped by stopping the other."""
    outcome = simulate(trace_of((0, 4, 15), (0, 4, 500), (10, 8, 20)), uniform(1, 8), "srtf", "oracle")
    assert (outcome.preemptions, outcome.start_s[2]) == (1, 15)


def test_a_higher_class_takes_the_gpus_of_a_lower_one_where_the_pool_says_so():
    jobs = (TraceJob("low", 0, 8, 100, priority=0), TraceJob("high", 10, 4, 20, priority=2))
    trace = Trace("made", "csv", jobs)
    plain = Simulation(trace.jobs, uniform(1, 8), "fifo").run()
    assert (plain.start_s, plain.preemptions) == ([0, 100], 0)
    taken = Simulation(trace.jobs, uniform(1, 8), "fifo", config=PoolConfig(preemption=True)).run()
    assert (taken.start_s, taken.end_s, taken.preemptions) == ([0, 10], [30 + 90 + 40, 30], 1)


def test_tiresias_decides_in_rounds_and_puts_behind_who_has_had_its_share():
    trace = trace_of((0, 8, 10_000), (30, 8, 100))
    outcome = simulate(trace, uniform(1, 8), "tiresias")
    crossing = 18_000 / 8  # 2,250 s: the next round after it is at 2,280
    assert outcome.start_s == [0, 2280]
    assert crossing < 2280
    assert outcome.end_s == [10_000 + 40 + 120, 2380]


def test_easy_goes_before_the_head_only_where_it_does_not_delay_it():
    trace = trace_of((0, 6, 100), (1, 8, 10), (2, 2, 90), (3, 2, 200))
    assert simulate(trace, uniform(1, 8), "easy", "oracle").start_s == [0, 100, 2, 110]
    assert simulate(trace, uniform(1, 8), "easy").start_s == [0, 100, 110, 110]


def test_parts_of_a_gpu_run_side_by_side_and_are_counted_as_parts():
    jobs = tuple(TraceJob(f"j{n}", n, 1, 100, gpu_milli=milli) for n, milli in enumerate((600, 400, 500)))
    outcome = Simulation(jobs, uniform(1, 1), "fifo", keep_seats=True).run()
    assert outcome.start_s == [0, 1, 100]
    assert outcome.integrals.peak == 1.0
    assert outcome.integrals.sor == pytest.approx((0.6 + 1.0) / 2)


def test_a_job_of_several_gpus_takes_whole_ones_and_only_of_the_types_that_will_do():
    nodes = tuple(NodeSpec(f"n{n}", 2, kind) for n, kind in enumerate(("t4", "v100", "a100")))
    asks = (("v100", "a100"), ("v100", "a100"), ("v100", "a100"), ("t5",))
    jobs = tuple(TraceJob(f"j{n}", n, 2, 100, gpu_milli=500, gpu_types=kinds) for n, kinds in enumerate(asks))
    outcome = Simulation(jobs, Cluster({"default": nodes}, one_pool=True), "fifo", keep_seats=True).run()
    assert outcome.start_s == [0, 1, 100, None]
    assert [[s.node for s in seats] for seats in outcome.seats or []] == [["n1"], ["n2"], ["n1"], []]


@st.composite
def clusters(draw) -> Cluster:
    nodes = draw(st.lists(st.sampled_from([1, 2, 4, 8, 8]), min_size=1, max_size=5))
    return Cluster({"default": tuple(NodeSpec(f"n{i}", gpus) for i, gpus in enumerate(nodes))}, one_pool=True)


jobs_of_any_size = st.lists(
    st.tuples(st.integers(0, 4000), st.integers(1, 20), st.integers(0, 6000)), min_size=1, max_size=25
)


@settings(max_examples=60, deadline=None)
@given(jobs=jobs_of_any_size, cluster=clusters(), policy=st.sampled_from(POLICIES), advice=st.sampled_from(ADVICE))
def test_whatever_the_policy_no_gpu_has_two_owners_and_what_fits_is_run(jobs, cluster, policy, advice):
    """The loop refuses an over-allocated node, the core a GPU that has an owner. A seed gives the same bytes twice."""
    trace = trace_of(*jobs)
    first, second = (simulate(trace, cluster, policy, advice) for _ in range(2))
    assert (first.start_s, first.end_s, first.nodes_used) == (second.start_s, second.end_s, second.nodes_used)
    largest = max(node.gpus for node in cluster.pools["default"])
    for n, job in enumerate(trace.jobs):
        start, end = first.start_s[n], first.end_s[n]
        assert job.gpus > largest or end is not None, f"job {n} fits an empty node and never ended"
        if end is not None:
            assert start is not None
            assert start >= job.submit_s
            held = end - job.submit_s - first.wait_s[n]
            charged = held - job.duration_s
            assert (
                charged == pytest.approx(0, abs=1e-6) if not (first.preemptions or first.profiled) else charged > -1e-6
            )


@settings(max_examples=40, deadline=None)
@given(jobs=jobs_of_any_size, cluster=clusters(), policy=st.sampled_from(POLICIES), advice=st.sampled_from(ADVICE))
def test_a_pool_that_is_recovered_from_its_snapshot_decides_the_same(jobs, cluster, policy, advice):
    """Whatever a policy remembers follows from the snapshot: state kept beside it would show here."""
    trace = trace_of(*jobs)
    entries: list = []
    raw = "raw" if advice == "oracle" else "weighed"
    config = PoolConfig(advice=raw)
    recorded = Simulation(
        trace.jobs, cluster, policy, advisor(advice, trace, 1, one_pool=True), config=config,
        recorder=lambda state, done: entries.append((done.inputs, state.at, [decision_to_json(d) for d in done.decisions])),
    )  # fmt: skip
    recorded.run()
    settings_ = simulated(config, policy)
    state, folded = (PoolState("default", settings_, policy_named(policy)) for _ in range(2))
    for inputs, at, decisions in entries:
        state = PoolState.from_json(json.loads(json.dumps(state.to_json())), policy_named)
        done = step(state, inputs, at)
        assert [decision_to_json(d) for d in done.decisions] == decisions
        recover(folded, inputs, set(), done.decisions, at)  # nobody decides: what was decided is carried out
        assert folded.to_json() == state.to_json()


def test_the_log_of_a_run_holds_every_entry_and_parallel_runs_equal_single_ones(tmp_path: Path):
    trace = trace_of((0, 4, 100), (1, 8, 10), (2, 1, 5))
    log = tmp_path / "log.jsonl"
    run_one(trace, uniform(1, 8), Setting("fifo", "none", log=log))
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [e["seq"] for e in entries] == list(range(len(entries)))
    assert sum(d["kind"] == "placed" for e in entries for d in e["decisions"]) == 3
    asked = [Setting(p, a, seed=5) for p in ("fifo", "srtf") for a in ("none", "random")]
    alone, beside = (list(run_all(trace, uniform(1, 8), asked, n)) for n in (1, 2))
    for one in (*alone, *beside):
        del one["cpu_s"]
    assert alone == beside


@pytest.mark.parametrize("processes", [1, 2])
def test_the_progress_of_all_runs_comes_to_all_their_jobs(processes: int):
    trace = trace_of(*((float(n), 1 + n % 3, 50.0) for n in range(2500)))
    told: list[int] = []
    list(run_all(trace, uniform(4, 4), [Setting("fifo", "none"), Setting("smallest", "none")], processes, told.append))
    assert sum(told) == 5000
    assert min(told) >= 0


@pytest.mark.parametrize("source", ["nobody", "noisy", "noisy:x", "noisy:-1", "column:", "noisy:1,y"])
def test_a_source_of_advice_that_nobody_knows_is_refused(source: str):
    with pytest.raises(TraceError):
        check_advice(source)


def test_a_column_that_is_not_there_is_said(tmp_path: Path):
    trace = trace_of((0, 1, 1))
    with pytest.raises(TraceError, match="has no column 'other'"):
        advisor("column:other", trace, 0, one_pool=True)
    beside = tmp_path / "told.csv"
    beside.write_text("job_id,p\nelse,1\n")
    with pytest.raises(TraceError, match="says nothing of 1 jobs"):
        advisor(f"column:{beside}:p", trace, 0, one_pool=True)


def test_the_median_of_history_is_that_of_what_has_ended_before():
    trace = trace_of(*((0, 1, run) for run in (10, 30, 20)))
    source = advisor("history:median", trace, 0, one_pool=True)
    assert source is not None
    assert source.estimate_s(0, "default") is None
    for n in range(3):
        source.finished(n, "default", 0.0)
    assert source.estimate_s(0, "default") == 20
    for _ in range(200):
        source.finished(1, "default", 0.0)
    assert source.estimate_s(0, "default") == 30


def test_an_instant_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("schedmate.simulator.engine.STEPS_PER_INSTANT_MAX", 0)
    with pytest.raises(SimulationError, match="does not come to rest"):
        simulate(trace_of((0, 1, 1)), uniform(1, 1), "fifo")
