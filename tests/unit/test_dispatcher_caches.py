"""What a live pool remembers is what it would find anew: after each step the pool under test is decided again without its memory."""

from __future__ import annotations

from typing import Any

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from tests.dispatching import PoolUnderTest, arrived, cluster, of_kind, report

TINY = (0.10, 0.02, 2_000)
LUCID: dict[str, Any] = {"policy": "lucid", "gpu_sharing": True}


def ordered(job: str, p50_s: float) -> i.EstimateOrdered:
    return i.EstimateOrdered(job, None, p50_s, None, "op")


def profiled(p: PoolUnderTest, job: str, **asks: Any) -> None:
    p.step(arrived(job, **asks), i.ProfileArrived(job, *TINY))


def test_backfilling_that_reaches_the_bound_of_an_entry_goes_on_in_the_next_one():
    p = cluster(1, 8, policy="easy", decisions_max=4)
    p.running("runs", time_limit_s=1000)
    p.step(arrived("first", gpus=8))
    short = [f"short{n}" for n in range(6)]
    p.step(*[arrived(job, time_limit_s=10) for job in short])
    while p.state.more:
        p.step(i.Tick())
    assert {p.state_of(job) for job in short} == {"ASSIGNED"}


def test_who_waited_enough_keeps_its_gpus_through_the_rounds_of_a_recovered_pool_too():
    p = cluster(1, 8, policy="tiresias", wait_max_s=1000.0, preemption_min_run_s=0.0)
    p.step(arrived("before", gpus=8))
    p.step(i.Tick(), after=60.0)
    p.start("before")
    p.step(arrived("waits", gpus=8, resumable=True))
    p.step(i.Tick(), after=1200.0)
    p.exit("before")
    p.step(i.Tick(), after=60.0)
    p.start("waits")
    p.step(arrived("new", gpus=8), after=5000.0)  # "waits" has had its share by then, "new" has not
    for _ in range(2):
        p.step(i.Tick(), after=60.0)
    assert (p.state_of("waits"), p.state_of("new")) == ("RUNNING", "QUEUED")


def test_a_round_after_one_that_placed_a_tenants_job_gives_out_what_its_quota_has_left():
    quotas = {"tenant_quota": {"v": 8, "t": 4}, "borrowers": "resumable", "reclaim_min_run_s": 300.0}
    p = cluster(2, 4, policy="tiresias", preemption_min_run_s=0.0, **quotas)
    p.step(*[arrived(job, tenant="v", gpus=gpus) for job, gpus in (("x0", 3), ("x1", 3), ("n0", 1), ("n1", 1))])
    p.step(i.Tick(), after=60.0)
    for job in ("x0", "x1", "n0", "n1"):
        p.start(job)
    for job in ("x0", "x1"):
        p.exit(job, after=1.0)
    waiting = (("first", "t", 4, False), ("second", "t", 2, True), ("other", "w", 2, True))
    p.step(*[arrived(job, tenant=tenant, gpus=gpus, resumable=resumes) for job, tenant, gpus, resumes in waiting])
    p.step(i.Tick(), after=60.0)
    assert [p.state_of(job) for job, *_ in waiting] == ["QUEUED", "ASSIGNED", "QUEUED"]
    p.step(i.Tick(), after=60.0)
    assert [p.state_of(job) for job, *_ in waiting] == ["QUEUED", "ASSIGNED", "ASSIGNED"]


def test_a_round_stops_nobody_for_a_job_that_waits_for_a_maintenance_to_end():
    p = cluster(2, 8, policy="tiresias", preemption_min_run_s=0.0)
    p.step(i.ReservationMade("r", ("n2",), 0, p.now + 1000, p.now + 2000, "op", ""))
    p.step(arrived("runs", gpus=8, resumable=True, time_limit_s=500), after=60.0)
    p.step(i.Tick(), after=60.0)
    p.start("runs")
    p.step(arrived("large", gpus=8, nodes=2, priority=2, time_limit_s=7200))
    for _ in range(3):
        p.step(i.Tick(), after=60.0)
    assert (p.state_of("runs"), p.state_of("large")) == ("RUNNING", "QUEUED")


def test_nobody_joins_a_job_on_a_gpu_that_its_node_has_come_to_call_unusable():
    p = cluster(1, 2, **LUCID)
    profiled(p, "host", gpus=2)
    p.start("host")
    runs = (i.RunSeen("host", 1, 0, ended=False, started=True),)
    p.step(report("n1", 2, unusable=(1,), runs=runs))
    p.step(report("n2", 2))
    p.step(arrived("alone", gpus=2))
    profiled(p, "b", gpus=2)
    assert p.state_of("b") == "QUEUED"
    p.step(report("n1", 2, runs=runs))
    assert p.state.jobs["b"].beside == "host"


def test_a_pinned_job_that_is_said_to_be_shorter_joins_whom_it_was_too_long_for():
    p = cluster(1, 1, **LUCID)
    profiled(p, "host")
    p.step(ordered("host", 1000.0))
    p.start("host")
    p.step(arrived("b"), i.ProfileArrived("b", *TINY), ordered("b", 50_000.0), i.JobPinned("b", "first", "op", ""))
    p.step(i.Tick())
    assert p.state_of("b") == "QUEUED"
    p.step(ordered("b", 500.0))
    assert p.state.jobs["b"].beside == "host"


def test_a_time_limit_that_comes_as_a_pair_is_taken_apart_is_kept():
    p = cluster(1, 1, **LUCID)
    profiled(p, "stays", time_limit_s=1000)
    p.start("stays")
    profiled(p, "goes", resumable=True)
    p.start("goes")
    assert p.state.jobs["stays"].beside == "goes"
    p.step(i.ProfileArrived("stays", 0.9, 0.9, 39_500), after=1001.0)
    assert (p.state_of("stays"), p.reason_of("stays")) == ("STOPPING", "TIME_LIMIT")
    assert (p.state_of("goes"), p.reason_of("goes")) == ("STOPPING", "UNPACKED")


def test_a_node_that_is_cordoned_as_its_maintenance_begins_is_marked_as_both():
    p = cluster(1, 1)
    begins = i.ReservationMade("r", ("n1",), 0, p.now - 1, p.now + 100, "op", "")
    done = p.step(begins, i.NodeCommanded("n1", "cordon", "op", "smoke"))
    assert [x.mark for x in of_kind(done, d.NodeMarked)] == ["cordoned", "reserved"]


def test_a_round_stops_in_the_order_in_which_jobs_were_placed_whichever_started_first():
    p = cluster(1, 2, policy="tiresias", preemption_min_run_s=0.0)
    p.step(arrived("a", resumable=True), arrived("b", resumable=True))
    p.step(i.Tick(), after=60.0)
    p.start("b", after=1.0)
    p.start("a", after=1.0)
    p.step(arrived("large", gpus=2, priority=2), after=1.0)
    p.step(i.Tick(), after=60.0)
    assert [x.job for x in of_kind(p.told, d.Moved) if x.reason == "PREEMPTED"] == ["a", "b"]


def test_whoever_has_had_its_share_gives_way_without_anything_else_happening():
    p = cluster(1, 8, policy="srtf", preemption_min_run_s=0.0)
    p.running("a", gpus=8, resumable=True)
    p.step(arrived("b", gpus=8, resumable=True))
    assert p.state_of("b") == "QUEUED"
    p.step(i.Tick(), after=5000.0)
    assert p.state_of("a") == "STOPPING"


def test_whoever_outlasts_what_was_said_of_it_gives_way_without_anything_else_happening():
    p = cluster(1, 8, policy="srtf", preemption_min_run_s=0.0)
    p.step(arrived("a", gpus=8, resumable=True), ordered("a", 100.0))
    p.start("a")
    p.step(arrived("b", gpus=8, resumable=True), ordered("b", 150.0))
    for _ in range(20):
        p.step(i.Tick(), after=20.0)
    assert p.state_of("a") == "STOPPING"


def test_nobody_is_taken_to_have_outlasted_what_was_said_of_it_before_it_has():
    p = cluster(1, 8, policy="srtf", preemption_min_run_s=0.0)
    p.step(arrived("a", gpus=8, resumable=True), ordered("a", 100.0))
    p.start("a")
    p.step(i.Tick(), after=99.5)
    p.step(arrived("b", gpus=8, resumable=True), ordered("b", 10.0), after=0.1)
    assert (p.state_of("a"), p.state_of("b")) == ("RUNNING", "QUEUED")


def test_who_may_be_backfilled_is_found_as_the_expected_ends_move():
    p = cluster(1, 8, policy="easy")
    p.step(arrived("a", gpus=6), ordered("a", 100.0))
    p.start("a")
    p.step(arrived("b", gpus=8), arrived("c", gpus=2), ordered("c", 120.0))
    assert p.state_of("c") == "QUEUED"
    p.step(i.Tick(), after=202.0)
    assert p.state_of("c") == "ASSIGNED"
