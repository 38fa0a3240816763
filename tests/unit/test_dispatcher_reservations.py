"""Maintenance reservations: who starts before one, what becomes of whom as it begins, and what comes back when it ends."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.beliefs import trust_is
from schedmate.services.dispatcher.core.policy import policies, policy_named
from schedmate.services.dispatcher.core.reasons import why
from schedmate.services.dispatcher.core.step import Step
from tests.dispatching import START, PoolUnderTest, arrived, cluster, of_kind
from tests.pool_invariants import check

AT_ONCE = sorted(name for name in policies() if policy_named(name).rounds_s is None)
HOUR = 3600.0


def reserve(
    p: PoolUnderTest, *nodes: str, start: float = HOUR, end: float = 2 * HOUR, count: int = 0, name: str = "r"
) -> Step:
    """Reserve nodes, times counted from START."""
    return p.step(i.ReservationMade(name, nodes, count, START + start, START + end, "op", "new disks"))


def marks(p: PoolUnderTest) -> list[tuple[str, str]]:
    return [(x.node, x.mark) for x in of_kind(p.told, d.NodeMarked) if x.mark in ("reserved", "unreserved")]


@pytest.mark.parametrize("policy", AT_ONCE)
@pytest.mark.parametrize(
    ("job", "starts"),
    [
        ({"time_limit_s": 3600}, True),
        ({"time_limit_s": 3601}, False),
        ({"time_limit_s": 3601, "resumable": True}, False),
        ({}, False),
        ({"resumable": True}, True),
    ],
)
def test_nobody_starts_who_is_expected_to_end_after_the_beginning(
    policy: str, job: dict[str, object], starts: bool
) -> None:
    p = cluster(gpus=4, policy=policy)
    reserve(p, "n1")
    p.step(arrived("j", gpus=4, **job))
    assert p.state_of("j") == ("ASSIGNED" if starts else "QUEUED")
    check(p.state)


@pytest.mark.parametrize(("p90_s", "starts"), [(3000.0, True), (3600.0, False), (50_000.0, False)])
def test_where_there_is_no_time_limit_the_upper_quantile_of_the_estimate_counts(p90_s: float, starts: bool) -> None:
    """It is rounded up to the next power of 1.1, so 3,600 s do not fit into an hour."""
    p = cluster(gpus=4)
    reserve(p, "n1")
    trust_is(p.state, "learned", 1.0)
    p.step(arrived("j", gpus=4), i.EstimateArrived("j", 1, 100.0, 1000.0, p90_s, "learned"))
    assert p.state_of("j") == ("ASSIGNED" if starts else "QUEUED")


@pytest.mark.parametrize(("weight", "starts"), [(0.0, False), (0.5, False), (1.0, True)])
def test_an_estimate_counts_as_far_as_its_source_is_believed(weight: float, starts: bool) -> None:
    """At half the trust 900 s count as 1,800 s, and three times that is longer than an hour."""
    p = cluster(gpus=4)
    reserve(p, "n1")
    trust_is(p.state, "learned", weight)
    p.step(arrived("j", gpus=4), i.EstimateArrived("j", 1, 100.0, 900.0, 2700.0, "learned"))
    assert p.state_of("j") == ("ASSIGNED" if starts else "QUEUED")


def test_where_advice_is_only_watched_nobody_starts_for_it() -> None:
    p = cluster(gpus=4, advice="shadow")
    reserve(p, "n1")
    trust_is(p.state, "learned", 1.0)
    p.step(arrived("j", gpus=4), i.EstimateArrived("j", 1, 10.0, 100.0, 200.0, "learned"))
    assert p.state_of("j") == "QUEUED"


def test_an_estimate_that_arrives_later_lets_it_start() -> None:
    p = cluster(gpus=4)
    reserve(p, "n1")
    trust_is(p.state, "learned", 1.0)
    p.step(arrived("j", gpus=4))
    assert p.state_of("j") == "QUEUED"
    p.step(i.EstimateArrived("j", 1, 100.0, 1000.0, 2000.0, "learned"))
    assert p.state_of("j") == "ASSIGNED"


@pytest.mark.parametrize("policy", ["fifo", "sjf"])
def test_a_source_that_comes_to_be_believed_lets_it_start(policy: str) -> None:
    p = cluster(gpus=4, policy=policy)
    reserve(p, "n1")
    p.step(arrived("j", gpus=4), i.EstimateArrived("j", 1, 100.0, 1000.0, 2000.0, "learned"))
    assert p.state_of("j") == "QUEUED"
    trust_is(p.state, "learned", 1.0)
    p.step(arrived("other", gpus=8))
    assert p.state_of("j") == "ASSIGNED"


def test_of_whom_nothing_is_known_starts_while_the_beginning_is_beyond_the_horizon() -> None:
    p = cluster(gpus=4, reservation_horizon_s=3 * HOUR)
    reserve(p, "n1", start=3 * HOUR + 1, end=4 * HOUR)
    p.step(arrived("j", gpus=2))
    assert p.state_of("j") == "ASSIGNED"
    p.step(arrived("late", gpus=2), after=2)
    assert p.state_of("late") == "QUEUED"


def test_who_has_but_a_reserved_node_left_is_let_on_the_one_it_failed_on_once_the_other_closes() -> None:
    p = cluster(nodes=2, gpus=4, reservation_horizon_s=HOUR)
    p.step(arrived("holds", gpus=4, time_limit_s=7200))
    other, mine = ("n1", "n2") if p.seats("holds")[0][0] == "n1" else ("n2", "n1")
    reserve(p, other, start=2 * HOUR + 10, end=3 * HOUR)
    p.step(arrived("k", gpus=5))
    k = p.state.jobs["k"]
    k.gpus, k.avoid = 4, (mine,)
    p.state.place_anew(k)
    p.step(i.Tick())
    assert p.state_of("k") == "QUEUED"  # it waits for the other node, which could hold it
    p.step(i.Tick(), after=HOUR + 20)
    assert p.seats("k")[0][0] == mine


def test_whom_no_other_node_could_hold_holds_nobody_back_also_while_there_is_no_room() -> None:
    p = cluster(gpus=8)
    reserve(p, "n1")
    p.step(arrived("big", gpus=6, time_limit_s=7200))
    p.step(arrived("first", gpus=3, time_limit_s=60))
    p.step(arrived("second", gpus=1, time_limit_s=60))
    assert why(p.state, p.state.jobs["big"]).reason == "HELD_BY_RESERVATION"
    assert [p.state_of(job) for job in ("first", "second")] == ["ASSIGNED", "ASSIGNED"]


def test_who_would_fit_but_for_a_maintenance_holds_others_back_once_the_room_is_taken() -> None:
    """It could have the other node, when those that are on it have ended: whoever recovers the pool sees that, too."""
    p = cluster(nodes=2, gpus=8)
    p.step(arrived("long", gpus=8, time_limit_s=7200))
    free = "n2" if p.seats("long")[0][0] == "n1" else "n1"
    reserve(p, free)
    p.step(arrived("big", gpus=6, time_limit_s=7200))
    assert why(p.state, p.state.jobs["big"]).reason == "HELD_BY_RESERVATION"
    p.step(arrived("first", gpus=3, time_limit_s=60))
    assert p.state_of("first") == "ASSIGNED"
    p.step(arrived("second", gpus=1, time_limit_s=60))
    assert p.state_of("second") == "QUEUED"


def test_a_job_goes_to_another_node_where_there_is_one() -> None:
    p = cluster(nodes=2, gpus=4)
    reserve(p, "n1")
    p.running("j", gpus=4)
    assert p.seats("j")[0][0] == "n2"


@pytest.mark.parametrize("policy", AT_ONCE)
def test_whom_only_a_reservation_keeps_waiting_holds_nobody_back(policy: str) -> None:
    p = cluster(gpus=4, policy=policy)
    reserve(p, "n1")
    p.step(
        arrived("long", gpus=1, time_limit_s=8000),
        arrived("short", gpus=2, time_limit_s=60, submitted_at=START + 1),
    )
    assert [p.state_of(job) for job in ("long", "short")] == ["QUEUED", "ASSIGNED"]
    told = why(p.state, p.state.jobs["long"])
    assert told.reason == "HELD_BY_RESERVATION"
    assert "n1 is reserved for maintenance from" in told.detail
    assert "the job may run for 8000 s" in told.detail
    assert told.unblocks.startswith("starts now with a time limit of at most 3600 s")
    assert told.expected_at == START + 2 * HOUR


def test_as_it_begins_who_can_resume_is_stopped_and_as_it_ends_goes_on() -> None:
    p = cluster(gpus=4)
    p.running("resumable", gpus=2, resumable=True)
    p.running("other", gpus=2)
    reserve(p, "n1")
    assert p.state.next_timer() == START + HOUR
    p.step(i.Tick(), after=HOUR)
    assert marks(p) == [("n1", "reserved")]
    assert p.state_of("resumable") == "STOPPING"
    assert p.reason_of("resumable") == "MAINTENANCE"
    assert p.state_of("other") == "RUNNING"
    p.exit("resumable", None, cause="stopped", signal=15, after=5.0)
    assert p.state_of("resumable") == "QUEUED"
    assert p.state.jobs["resumable"].spent == {"preempted": 1}
    told = why(p.state, p.state.jobs["resumable"])
    assert told.reason == "HELD_BY_RESERVATION"
    assert "n1 (in maintenance)" in told.detail
    assert p.state.next_timer() == START + 2 * HOUR
    p.step(i.Tick(), after=HOUR)
    assert marks(p) == [("n1", "reserved"), ("n1", "unreserved")]
    assert p.state_of("resumable") == "ASSIGNED"
    assert p.state.reservations == {}
    check(p.state)


def test_after_the_last_one_waiting_jobs_are_not_told_apart_by_it() -> None:
    p = cluster(gpus=4, policy="fifo-skip")
    p.running("holder", gpus=3)
    reserve(p, "n1")
    p.step(arrived("a", gpus=4, time_limit_s=100), arrived("b", gpus=4, time_limit_s=200))
    p.step(i.Tick(), after=2 * HOUR)
    assert p.state.reservations == {}
    p.step(arrived("small", gpus=1))
    placed = of_kind(p.told, d.Placed)[-1]
    assert (placed.job, placed.passed_over) == ("small", 1), "a and b are of one kind, now and after a recovery"


@pytest.mark.parametrize(
    ("stops", "stopped"), [("resumable", {"resumable"}), ("all", {"resumable", "other"}), ("none", set())]
)
def test_who_is_stopped_as_it_begins_is_a_setting(stops: str, stopped: set[str]) -> None:
    p = cluster(gpus=4, reservation_stops=stops)
    p.running("resumable", gpus=2, resumable=True)
    p.running("other", gpus=2)
    reserve(p, "n1")
    p.step(i.Tick(), after=HOUR)
    assert {x.job for x in of_kind(p.told, d.Stop)} == stopped


def test_a_gang_is_stopped_whole_for_one_of_its_nodes() -> None:
    p = cluster(nodes=2, gpus=4)
    p.running("gang", gpus=4, nodes=2, resumable=True)
    reserve(p, "n2")
    p.step(i.Tick(), after=HOUR)
    assert {x.node for x in of_kind(p.told, d.Stop)} == {"n1", "n2"}


def test_a_number_of_nodes_takes_those_that_are_used_least() -> None:
    p = cluster(nodes=4, gpus=4)
    p.running("a", gpus=4)
    p.running("b", gpus=2)
    reserve(p, count=2)
    assert p.state.reservations["r"].nodes == ("n4", "n3")
    reserve(p, count=1, name="second")
    assert p.state.reservations["second"].nodes == ("n2",)
    done = reserve(p, count=2, name="third")
    assert "asks for 2 nodes, the pool has 1" in done.refused[0]


def test_a_reservation_that_is_withdrawn_lets_everybody_start() -> None:
    p = cluster(nodes=2, gpus=4)
    reserve(p, "n1", "n2", start=0.0)
    p.step(arrived("j", gpus=4))
    assert p.state_of("j") == "QUEUED"
    p.step(i.ReservationWithdrawn("r", "op", "not today"))
    assert p.state_of("j") == "ASSIGNED"
    assert marks(p) == [("n1", "reserved"), ("n2", "reserved"), ("n1", "unreserved"), ("n2", "unreserved")]


def test_one_that_has_come_and_gone_unseen_keeps_nobody_waiting() -> None:
    p = cluster(gpus=4)
    reserve(p, "n1")
    p.step(arrived("j", gpus=4))
    p.step(i.Tick(), after=3 * HOUR)
    assert p.state_of("j") == "ASSIGNED"


def test_an_operators_drain_outlasts_a_reservation() -> None:
    p = cluster(gpus=4)
    reserve(p, "n1", start=0.0, end=HOUR)
    p.step(i.NodeCommanded("n1", "drain", "op", ""))
    p.step(i.Tick(), after=2 * HOUR)
    p.step(arrived("j"))
    assert p.state_of("j") == "QUEUED"
    assert why(p.state, p.state.jobs["j"]).reason == "HELD_BY_CORDON"


def test_the_same_reservation_told_twice_is_one_and_another_of_its_name_changes_nothing() -> None:
    p = cluster(nodes=2, gpus=4)
    reserve(p, "n1")
    assert reserve(p, "n1").refused == {}
    assert reserve(p, "n2").refused == {}
    assert [one.nodes for one in p.state.reservations.values()] == [("n1",)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"nodes": ("n9",)}, "the pool has no node n9"),
        ({"nodes": ("n1",), "start": 10.0, "end": 10.0}, "its end must come after its start"),
        ({"nodes": ("n1",), "start": -20.0, "end": -10.0}, "its end must come after its start and after now"),
        ({"nodes": (), "count": 0}, "asks for 0 nodes"),
    ],
)
def test_a_reservation_that_makes_no_sense_is_refused(given: dict[str, object], told: str) -> None:
    p = cluster(gpus=4)
    nodes = given.pop("nodes")
    done = reserve(p, *nodes, **given)  # type: ignore[misc,arg-type]
    assert told in done.refused[0]
    assert p.state.reservations == {}
    assert "no reservation" in p.step(i.ReservationWithdrawn("r", "op", "")).refused[0]


@pytest.mark.parametrize("over", ["withdrawn", "ended"])
def test_a_repeated_message_does_not_bring_back_a_reservation_that_is_over(over: str) -> None:
    """The bus delivers at least once: what ends it may come before the repeat of what made it."""
    p = cluster(gpus=4)
    reserve(p, "n1", start=10.0, end=2 * HOUR)
    if over == "withdrawn":
        p.step(i.ReservationWithdrawn("r", "op", ""))
    else:
        p.step(i.Tick(), after=2 * HOUR + 1)
    later = p.now - START
    done = reserve(p, "n1", start=later + 10.0, end=later + HOUR)
    assert (p.state.reservations, done.refused) == ({}, {})
    again = p.step(i.ReservationWithdrawn("r", "op", ""))
    assert again.refused == {}
    p.step(arrived("j", gpus=4))
    assert p.state_of("j") == "ASSIGNED"


def test_what_stops_for_a_maintenance_is_asked_again_when_the_setting_changes() -> None:
    p = cluster(gpus=4, reservation_stops="none")
    p.step(arrived("j", gpus=4, resumable=True))
    p.start("j")
    reserve(p, "n1", start=0.0)
    assert p.state_of("j") == "RUNNING"
    p.step(i.ConfigChanged({**p.state.config.to_json(), "reservation_stops": "all"}))
    assert p.state_of("j") == "STOPPING"
