"""EASY backfilling: what a reservation promises is kept, and without advice nobody goes past it."""

from __future__ import annotations

import os
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.backfill import reserve
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.simulator.advice import advisor
from schedmate.simulator.cluster import Cluster, NodeSpec, uniform
from schedmate.simulator.engine import Outcome, Simulation
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import Setting, run_one
from schedmate.simulator.trace import Trace, TraceJob
from tests.dispatching import START, PoolUnderTest, arrived, report

TRACES = os.environ.get("SCHEDMATE_TRACES", "")


def trace_of(jobs: list[tuple[float, int, float]]) -> Trace:
    return Trace("made", "csv", tuple(TraceJob(f"j{n}", at, gpus, run) for n, (at, gpus, run) in enumerate(jobs)), {})


def simulate(trace: Trace, cluster: Cluster, policy: str, advice: str, recorder=None) -> Outcome:
    config = PoolConfig(advice="raw" if advice == "oracle" else "weighed")
    source = advisor(advice, trace, 1, one_pool=True)
    return Simulation(trace.jobs, cluster, policy, source, config=config, recorder=recorder).run()


@st.composite
def workloads(draw) -> tuple[Trace, Cluster]:
    sizes = draw(st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=4))
    cluster = Cluster({"default": tuple(NodeSpec(f"n{n}", gpus) for n, gpus in enumerate(sizes))}, one_pool=True)
    job = st.tuples(st.integers(0, 500), st.integers(1, max(sizes)), st.integers(1, 900))
    return trace_of(draw(st.lists(job, min_size=2, max_size=30))), cluster


@settings(max_examples=100, deadline=None)
@given(workloads())
def test_with_true_run_times_the_head_starts_no_later_than_its_first_reservation_said(workload):
    trace, cluster = workload
    promised: dict[str, float] = {}

    def note(state: PoolState, _) -> None:
        head = next((state.jobs[job_id] for job_id, _ in state.queue.in_order()), None)
        if head is not None:
            at = reserve(state, head).at
            assert at < inf, "of every job that runs it is known when it ends"
            promised.setdefault(head.id, at)

    outcome = simulate(trace, cluster, "easy", "oracle", note)
    for n, job in enumerate(trace.jobs):
        assert outcome.start_s[n] is not None
        assert outcome.start_s[n] <= promised.get(job.id, inf) + 1e-6


@settings(max_examples=60, deadline=None)
@given(workloads(), st.sampled_from(["none", "constant", "random"]))
def test_without_advice_that_is_believed_nobody_goes_before_the_head(workload, advice):
    trace, cluster = workload
    easy, fifo = (simulate(trace, cluster, policy, source) for policy, source in (("easy", advice), ("fifo", "none")))
    assert easy.start_s == fifo.start_s


def test_a_job_that_ends_before_the_reservation_goes_first_and_a_longer_one_does_not():
    trace = trace_of([(0, 6, 100), (1, 8, 10), (2, 2, 98), (3, 2, 96), (4, 2, 200)])
    assert simulate(trace, uniform(1, 8), "easy", "oracle").start_s == [0, 100, 110, 3, 110]
    assert simulate(trace, uniform(1, 8), "fifo", "none").start_s == [0, 100, 110, 110, 110]


def test_a_long_job_goes_first_beside_the_reserved_nodes():
    trace = trace_of([(0, 6, 100), (0, 5, 500), (1, 8, 10), (2, 2, 5000)])
    outcome = simulate(trace, uniform(2, 8), "easy", "oracle")
    assert outcome.start_s == [0, 0, 100, 2]  # on the node of the long one, though the other one fits tighter


def told(job: str, p50_s: float, p90_s: float | None = None) -> i.EstimateArrived:
    return i.EstimateArrived(job, 1, None, p50_s, p90_s, "history")


def test_running_jobs_end_and_waiting_ones_last_by_their_upper_quantile():
    p = PoolUnderTest(policy="easy", advice="raw")
    p.step(report("n1", 8), arrived("runs", gpus=6), told("runs", 50.0, 400.0))
    p.step(arrived("head", gpus=8), told("head", 10.0))
    assert reserve(p.state, p.state.jobs["head"]).at == START + 400.0
    p.step(arrived("wide", gpus=1), told("wide", 50.0, 500.0), arrived("narrow", gpus=1), told("narrow", 300.0, 390.0))
    assert p.state_of("wide") == "QUEUED"
    assert p.state_of("narrow") == "ASSIGNED"


def test_a_time_limit_is_known_without_advice():
    p = PoolUnderTest(policy="easy")
    p.step(report("n1", 8), arrived("runs", gpus=5, time_limit_s=100))
    p.step(arrived("head", gpus=8))
    p.step(arrived("longer", time_limit_s=100), arrived("shorter", time_limit_s=80), arrived("unknown"), after=10.0)
    assert [p.state_of(j) for j in ("head", "longer", "shorter", "unknown")] == [
        "QUEUED",
        "QUEUED",
        "ASSIGNED",
        "QUEUED",
    ]


def test_nodes_that_are_of_no_use_to_the_head_serve_others():
    p = PoolUnderTest(policy="easy")
    p.step(report("n1", 8, gpu_type="a100"), report("n2", 8, gpu_type="t4"), arrived("runs", gpu_type="a100"))
    p.step(arrived("head", gpus=8, gpu_type="a100"))
    p.step(arrived("any"), arrived("same", gpu_type="a100"))
    assert [p.state_of(j) for j in ("head", "any", "same")] == ["QUEUED", "ASSIGNED", "QUEUED"]
    assert p.seats("any") == [("n2", (0,))]


def test_a_gang_is_promised_nodes_of_one_type():
    p = PoolUnderTest(policy="easy", advice="raw")
    nodes = [report(f"{kind}{n}", 2, gpu_type=kind) for kind in ("a100", "t4") for n in (1, 2)]
    p.step(
        *nodes,
        *(
            x
            for n, length in enumerate((10.0, 500.0, 20.0, 30.0))
            for x in (arrived(f"r{n}", gpus=2), told(f"r{n}", length))
        ),
    )
    p.step(arrived("gang", gpus=2, nodes=2))
    reserved = reserve(p.state, p.state.jobs["gang"])
    assert reserved.at == START + 30.0
    assert reserved.nodes == {p.seats("r2")[0][0], p.seats("r3")[0][0]}


def test_a_head_that_has_waited_for_too_long_is_gone_past_by_nobody():
    p = PoolUnderTest(policy="easy", advice_wait_max_s=50.0)
    p.step(report("n1", 8), arrived("runs", gpus=6, time_limit_s=1000), arrived("head", gpus=8))
    p.step(arrived("early", time_limit_s=10), after=10.0)
    p.step(arrived("late", time_limit_s=10), after=60.0)
    assert [p.state_of(j) for j in ("head", "early", "late")] == ["QUEUED", "ASSIGNED", "QUEUED"]


@pytest.mark.skipif(
    not Path(TRACES, "tiresias-60").is_dir() if TRACES else True, reason="no traces: set SCHEDMATE_TRACES"
)
def test_on_the_sixty_jobs_easy_is_fifo_without_advice_and_better_with_true_run_times():
    trace = read_trace(Path(TRACES, "tiresias-60", "60_job.csv"))
    fifo, easy, known = (
        run_one(trace, uniform(4, 4), Setting(policy, advice))["avg_jct_s"]
        for policy, advice in (("fifo", "none"), ("easy", "none"), ("easy", "oracle"))
    )
    assert easy == fifo
    assert known < fifo
