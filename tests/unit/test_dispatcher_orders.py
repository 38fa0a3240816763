"""What an operator orders of one job: an estimate in place of all others, and its place in the queue."""

from __future__ import annotations

import json
from math import inf, nan

import pytest

from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.advice import believed, lasts_s, ordered_s, remaining_s
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import policies, policy_named
from schedmate.services.dispatcher.core.reasons import expected_end, why
from schedmate.services.dispatcher.core.state import PoolState
from tests.dispatching import PoolUnderTest, arrived, cluster, next_round, report


def ordered(job: str, p50_s: float | None, p10_s: float | None = None, p90_s: float | None = None, by: str = "olga"):
    return i.EstimateOrdered(job, p10_s, p50_s, p90_s, by, "known from the release")


def pinned(job: str, place: str, why_: str = "a demo waits for it"):
    return i.JobPinned(job, place, "olga", why_)


def queue(p: PoolUnderTest) -> list[str]:
    return [name for name, _ in p.state.queue.in_order()]


def full(policy: str = "sjf", **config) -> PoolUnderTest:
    """A pool of which one job holds all GPUs, and three wait that nothing is believed of."""
    p = cluster(1, 8, policy=policy, **config)
    p.running("fills", gpus=8, priority=3)
    for name in ("a", "b", "c"):
        p.step(arrived(name, gpus=8), after=1.0)
    return p


# --- the estimate ---


@pytest.mark.parametrize("advice", ["weighed", "shadow", "off"])
def test_an_ordered_estimate_is_taken_whole_whatever_the_pool_believes(advice: str):
    p = full(advice=advice)
    assert queue(p) == ["a", "b", "c"]
    p.step(ordered("c", 60.0))
    assert queue(p) == ["c", "a", "b"]
    assert ordered_s(p.state.jobs["c"], p.state) == pytest.approx(60.0)
    assert p.state.jobs["c"].basis == "operator"
    assert "operator" not in p.state.trust


def test_it_wins_over_what_advisors_say_later_and_gives_way_to_it_when_cleared():
    p = full()
    p.step(i.EstimateArrived("c", 1, 1.0, 2.0, 3.0, "history"))
    p.step(ordered("c", 60.0, 30.0, 90.0))
    p.step(i.EstimateArrived("c", 2, 500.0, 600.0, 700.0, "learned"))
    job = p.state.jobs["c"]
    assert (job.p10_s, job.p50_s, job.p90_s, job.basis) == (30.0, 60.0, 90.0, "operator")
    assert set(p.state.trust) == {"history", "learned"}  # what they say counts for or against them all the same
    p.step(ordered("c", None))
    job = p.state.jobs["c"]
    assert (job.p10_s, job.p50_s, job.p90_s, job.basis) == (500.0, 600.0, 700.0, "learned")
    assert (job.advised, job.ordered_by) == (None, "")
    assert queue(p) == ["a", "b", "c"]


def test_asking_again_and_clearing_what_is_not_there_change_nothing():
    p = full()
    p.step(ordered("b", None))
    assert p.state.repeats == 1
    p.step(ordered("b", 60.0))
    p.step(ordered("b", 60.0))
    assert p.state.repeats == 1
    p.step(ordered("nobody-left", 60.0))
    assert "nobody-left" in p.state.early


@pytest.mark.parametrize(
    ("p10_s", "p50_s", "p90_s"),
    [
        (None, 0.0, None), (None, -1.0, None), (None, inf, None), (None, nan, None), (70.0, 60.0, None),
        (None, 60.0, 50.0), (0.0, 60.0, None), (10.0, None, None), (None, 60.0, inf),
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_changes_nothing(p10_s, p50_s, p90_s):
    p = full()
    before = json.dumps(p.state.to_json()["jobs"])
    done = p.step(ordered("a", p50_s, p10_s, p90_s))
    assert list(done.refused) == [0]
    assert "makes no sense" in done.refused[0]
    assert json.dumps(p.state.to_json()["jobs"]) == before


def test_a_time_limit_bounds_it_everywhere():
    p = cluster(1, 8, policy="sjf")
    p.running("runs", gpus=8, time_limit_s=100)
    p.step(arrived("a", gpus=8, time_limit_s=50), ordered("a", 5000.0, 4000.0, 9000.0), ordered("runs", 900.0))
    job = p.state.jobs["a"]
    assert (job.p10_s, job.p50_s, job.p90_s) == (50.0, 50.0, 50.0)
    assert ordered_s(job, p.state) == remaining_s(job, p.state) == lasts_s(job, p.state) == 50.0
    runs = p.state.jobs["runs"]
    assert runs.started_at is not None
    assert expected_end(p.state, runs) == runs.started_at + 100.0


def test_the_same_holds_of_what_advisors_say_and_of_progress():
    p = cluster(1, 8, policy="sjf")
    p.running("runs", gpus=8, time_limit_s=100)
    p.step(i.EstimateArrived("runs", 1, 300.0, 400.0, 500.0, "history"))
    assert p.state.jobs["runs"].p50_s == 100.0
    p.step(i.ProgressArrived("runs", 1, 5000.0), after=10.0)
    runs = p.state.jobs["runs"]
    assert runs.started_at is not None
    assert expected_end(p.state, runs) == runs.started_at + 100.0


def test_it_says_when_a_running_job_ends_and_progress_does_not_move_that():
    p = cluster(1, 8, policy="easy")
    p.running("runs", gpus=8)
    p.step(ordered("runs", 600.0))
    p.step(i.ProgressArrived("runs", 1, 9000.0))
    runs = p.state.jobs["runs"]
    assert runs.started_at is not None
    assert runs.expected_end == runs.started_at + 600.0
    assert lasts_s(runs, p.state) == 600.0
    p.step(ordered("runs", None))
    assert p.state.jobs["runs"].expected_end is None
    assert not believed(p.state.jobs["runs"], p.state)


def test_srtf_takes_the_gpus_of_a_job_that_an_operator_says_is_long():
    p = cluster(1, 8, policy="srtf", preemption_min_run_s=0.0)
    p.running("runs", gpus=8, resumable=True)
    p.step(arrived("waits", gpus=8), ordered("waits", 60.0), ordered("runs", 9000.0), after=10.0)
    assert p.state_of("runs") == "STOPPING"


def test_nobody_waits_for_an_ordered_estimate_beyond_the_bound_on_the_wait():
    p = full(advice_wait_max_s=1000.0)
    p.step(ordered("c", 1.0), after=1.0)
    assert queue(p)[0] == "c"
    p.step(i.Tick(), after=2000.0)
    assert queue(p) == ["a", "b", "c"]


# --- the pin ---


@pytest.mark.parametrize("policy", sorted(policies()))
def test_a_pinned_job_is_first_or_last_under_every_policy_and_back_when_it_is_let_go(policy: str):
    p = cluster(1, 8, policy=policy)
    p.step(arrived("fills", gpus=8, priority=3))
    if policy_named(policy).rounds_s is not None:
        next_round(p)
    p.start("fills")
    for name in ("a", "b", "c", "d"):
        p.step(arrived(name, gpus=8), after=1.0)
    before = queue(p)
    middle = before[1]
    p.step(pinned(middle, "first"))
    assert queue(p) == [middle, *[name for name in before if name != middle]]
    p.step(pinned(middle, "last"))
    assert queue(p) == [*[name for name in before if name != middle], middle]
    p.step(pinned(middle, "none"))
    assert queue(p) == before


def test_the_one_that_was_pinned_last_is_the_very_first_or_the_very_last():
    p = full("fifo")
    p.step(pinned("b", "first"), after=1.0)
    p.step(pinned("c", "first"), after=1.0)
    assert queue(p) == ["c", "b", "a"]
    p.step(pinned("b", "last"), after=1.0)
    p.step(pinned("c", "last"), after=1.0)
    assert queue(p) == ["a", "b", "c"]


def test_a_pin_moves_nobody_out_of_its_class():
    p = full("fifo")
    p.step(arrived("high", gpus=8, priority=2), arrived("low", gpus=8, priority=0))
    p.step(pinned("c", "first"), pinned("high", "last"), pinned("low", "first"))
    assert queue(p) == ["high", "c", "a", "b", "low"]


def test_whoever_is_overdue_goes_before_a_pinned_job_and_a_pinned_job_when_it_is():
    p = full(wait_max_s=1000.0)
    p.step(pinned("c", "first"), pinned("a", "last"), after=1.0)
    assert queue(p) == ["c", "b", "a"]
    p.step(i.Tick(), after=2000.0)
    assert queue(p) == ["a", "b", "c"]


def test_a_tenants_limit_holds_for_a_pinned_job_and_others_go_past_it():
    p = cluster(1, 8, policy="fifo", tenant_gpus={"team-b": 4})
    p.running("holds", gpus=4, tenant="team-b")
    p.step(arrived("over", gpus=4, tenant="team-b"), pinned("over", "first"))
    p.step(arrived("other", gpus=4))
    assert p.state_of("over") == "QUEUED"
    assert p.state_of("other") == "ASSIGNED"


def test_a_quota_holds_for_a_pinned_job():
    p = cluster(1, 8, policy="fifo", tenant_quota={"team-a": 8})
    p.running("fills", gpus=8)
    p.step(arrived("borrows", gpus=8, tenant="team-b"), pinned("borrows", "first"))
    p.step(arrived("own", gpus=8))
    p.exit("fills")
    assert p.state_of("own") == "ASSIGNED"
    assert p.state_of("borrows") == "QUEUED"


@pytest.mark.parametrize("policy", ["fifo-skip", "srtf", "smallest", "kant-binpack"])
def test_while_a_gang_that_is_pinned_first_does_not_fit_those_behind_it_wait(policy: str):
    p = cluster(2, 8, policy=policy)
    p.running("runs", gpus=8)
    p.step(arrived("gang", gpus=8, nodes=2), pinned("gang", "first"))
    p.step(arrived("small", gpus=8))
    assert p.state_of("small") == "QUEUED"
    p.exit("runs")
    assert p.state_of("gang") == "ASSIGNED"


def test_a_pinned_job_that_could_never_fit_holds_nobody_back():
    p = cluster(2, 8, policy="fifo-skip")
    p.step(arrived("never", gpus=9), pinned("never", "first"))
    p.step(arrived("small", gpus=8))
    assert p.state_of("small") == "ASSIGNED"


def test_nobody_takes_the_gpus_of_a_job_that_is_pinned_first_for_the_orders_sake():
    for place, state in (("none", "STOPPING"), ("first", "RUNNING")):
        p = cluster(1, 8, policy="srtf", preemption_min_run_s=0.0)
        p.running("runs", gpus=8, resumable=True)
        p.step(ordered("runs", 9000.0), pinned("runs", place), after=5.0)
        p.step(arrived("short", gpus=8), ordered("short", 60.0), after=5.0)
        assert p.state_of("runs") == state, place


def test_a_round_gives_a_pinned_job_its_gpus_and_lets_it_keep_them():
    p = cluster(1, 8, policy="tiresias", preemption_min_run_s=0.0)
    p.step(arrived("runs", gpus=8, resumable=True))
    next_round(p)
    p.start("runs")
    p.step(arrived("waits", gpus=8, resumable=True, submitted_at=p.now), after=1.0)
    next_round(p)
    assert p.state_of("runs") == "RUNNING"
    p.step(pinned("waits", "first"))
    next_round(p)
    assert p.state_of("runs") == "STOPPING"


def test_where_a_pin_makes_no_sense_it_is_refused():
    p = full()
    done = p.step(pinned("a", "second"))
    assert "pinned first or last or none" in done.refused[0]
    p.step(pinned("a", "none"))
    assert p.state.repeats == 1


def test_the_reason_of_a_waiting_job_says_what_was_ordered_by_whom():
    p = full("fifo")
    p.step(pinned("c", "first"), ordered("c", 60.0))
    detail = why(p.state, p.state.jobs["c"]).detail
    assert "olga has pinned it first: a demo waits for it" in detail
    assert "olga has set its estimate to 60 s" in detail
    assert "olga" not in why(p.state, p.state.jobs["a"]).detail


# --- the log ---


def test_what_is_ordered_of_a_job_not_seen_yet_is_held_for_it():
    p = full()
    p.step(ordered("late", 5.0), pinned("late", "first"))
    p.step(arrived("late", gpus=8))
    assert (p.state.jobs["late"].pin, p.state.jobs["late"].p50_s) == ("first", 5.0)
    assert queue(p)[0] == "late"


def test_orders_survive_a_snapshot_and_a_change_of_settings():
    p = full()
    p.step(i.EstimateArrived("b", 1, 1.0, 2.0, 3.0, "history"), ordered("b", 60.0), pinned("a", "last"))
    again = PoolState.from_json(json.loads(json.dumps(p.state.to_json())), policy_named)
    assert json.dumps(again.to_json()) == json.dumps(p.state.to_json())
    assert again.jobs["b"].advised == (1.0, 2.0, 3.0, "history")
    p.step(i.ConfigChanged(PoolConfig(policy="fifo").to_json()))
    assert queue(p) == ["b", "c", "a"]


def test_a_snapshot_of_an_older_core_has_no_orders():
    p = full()
    told = json.loads(json.dumps(p.state.to_json()))
    for job in told["jobs"]:
        for name in ("pin", "pinned_at", "pinned_by", "pin_why", "advised", "ordered_by"):
            del job[name]
    again = PoolState.from_json(told, policy_named)
    assert json.dumps(again.to_json()) == json.dumps(p.state.to_json())


@pytest.mark.parametrize("value", [ordered("a", 60.0, 1.0, 90.0), ordered("a", None), pinned("a", "first")])
def test_an_order_comes_back_from_the_log_as_it_was(value: i.Input):
    assert i.from_json(json.loads(json.dumps(i.to_json(value)))) == value


# --- the limit of a tenant ---


def test_srtf_takes_from_its_own_tenant_what_keeps_it_within_its_limit():
    p = PoolUnderTest(policy="srtf", preemption_min_run_s=0.0, tenant_gpus={"team-a": 8})
    p.step(report("n1", 8), report("n2", 8))
    p.running("long", gpus=4, resumable=True)
    p.running("longer", gpus=4, resumable=True)
    p.running("others", gpus=8, tenant="team-b", resumable=True)
    p.step(ordered("long", 5000.0), ordered("longer", 9000.0), ordered("others", 90_000.0), after=5.0)
    p.step(arrived("short", gpus=4), ordered("short", 60.0), after=5.0)
    assert [p.state_of(name) for name in ("long", "longer", "others")] == ["RUNNING", "STOPPING", "RUNNING"]
    p.step(arrived("large", gpus=9), after=1.0)
    assert p.state_of("large") == "REJECTED"
    p.exit("longer", cause="stopped")
    assert p.state_of("short") == "ASSIGNED"
    assert p.state.tenant_gpus["team-a"] == 8


def test_srtf_stops_nobody_for_a_job_at_its_tenants_limit_that_is_the_longest():
    p = PoolUnderTest(policy="srtf", preemption_min_run_s=0.0, tenant_gpus={"team-a": 8})
    p.step(report("n1", 8), report("n2", 8))
    p.running("short", gpus=8, resumable=True)
    p.step(ordered("short", 50.0), after=5.0)
    p.step(arrived("long", gpus=4), ordered("long", 6000.0), after=5.0)
    assert p.state_of("short") == "RUNNING"
    assert why(p.state, p.state.jobs["long"]).reason == "TENANT_GPU_LIMIT"


def test_where_the_limit_and_the_room_lack_both_are_made():
    p = PoolUnderTest(policy="srtf", preemption_min_run_s=0.0, tenant_gpus={"team-a": 8})
    p.step(report("n1", 8))
    p.running("mine", gpus=4, resumable=True)
    p.running("theirs", gpus=4, tenant="team-b", resumable=True)
    p.step(ordered("mine", 5000.0), ordered("theirs", 9000.0), after=5.0)
    p.step(arrived("short", gpus=8), ordered("short", 60.0), after=5.0)
    assert [p.state_of(name) for name in ("mine", "theirs")] == ["STOPPING", "STOPPING"]
