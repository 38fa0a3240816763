"""The fence: what a worker does with each order, allowed and refused (protocol §2)."""

from __future__ import annotations

from typing import Any

import pytest

from schedmate.infra.processes.port import MemberKey
from schedmate.schemas.events import RefusalCause
from schedmate.services.worker.fence import Accept, Delivered, Place, Refuse, Release, Standing, Stop, decide
from tests.worker_orders import assigned, ended, living, release, standing, stop


def steps(*orders: Any, at: Standing) -> list[Any]:
    return decide([Delivered(order) for order in orders], at)[0]


KEY = MemberKey("r1", 0)

REFUSED = {
    "another session": (assigned(9, session=4), standing(), RefusalCause.STALE_SESSION),
    "a session to come": (assigned(9, session=6), standing(), RefusalCause.STALE_SESSION),
    "not above the fence, and unknown": (assigned(3), standing(applied=Place(3, 0)), RefusalCause.SUPERSEDED),
    "below the fence, and unknown": (assigned(2), standing(applied=Place(3, 1)), RefusalCause.SUPERSEDED),
    "a GPU that a living run holds": (assigned(9, "r2"), standing(living("r1")), RefusalCause.GPU_IN_USE),
    "one of several GPUs held": (assigned(9, "r2", gpus=(3, 0)), standing(living("r1")), RefusalCause.GPU_IN_USE),
    "a GPU that the node lacks": (assigned(9, gpus=(4,)), standing(), RefusalCause.GPU_MISSING),
    "a GPU that is ill": (assigned(9), standing(gpus_present=frozenset({1, 2, 3})), RefusalCause.GPU_MISSING),
    "a worker that goes away": (assigned(9), standing(is_stopping=True), RefusalCause.STOPPING),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_assignment_is_refused_for(name: str) -> None:
    order, at, cause = REFUSED[name]
    (step,) = steps(order, at=at)
    assert isinstance(step, Refuse)
    assert step.cause is cause
    assert step.assigned.seq == order.seq


DROPPED = {
    "a living run again": (assigned(1), standing(living(), applied=Place(1, 0))),
    "an ended run again": (assigned(1), standing(ended(), applied=Place(1, 0))),
    "a run that the journal saw start long ago": (assigned(1), standing(applied=Place(8, 0), ever_started=frozenset({KEY}))),
    "a known run above the fence": (assigned(9), standing(living())),
    "a known run of an earlier session": (assigned(1, session=2), standing(living(), applied=Place(1, 0))),
    "a stop for a run that is unknown": (stop(9), standing()),
    "a stop for a run that has ended": (stop(9), standing(ended())),
    "a release of a run that is unknown": (release(9), standing()),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPPED)
def test_a_duplicate_is_dropped_silently(name: str) -> None:
    order, at = DROPPED[name]
    assert steps(order, at=at) == []


def test_an_assignment_above_the_fence_is_accepted() -> None:
    order = assigned(4)
    assert steps(order, at=standing(applied=Place(3, 9))) == [Accept(order, None)]


def test_the_index_counts_within_a_seq() -> None:
    order = assigned(3, index=2)
    assert steps(order, at=standing(applied=Place(3, 1))) == [Accept(order, None)]


def test_a_gpu_is_free_again_when_its_run_has_ended() -> None:
    order = assigned(9, "r2")
    assert steps(order, at=standing(ended("r1"))) == [Accept(order, None)]


def test_two_assignments_of_one_batch_do_not_share_a_gpu() -> None:
    first, second = assigned(4, "r1"), assigned(5, "r2")
    accepted, refused = steps(first, second, at=standing())
    assert isinstance(accepted, Accept)
    assert isinstance(refused, Refuse)
    assert refused.cause is RefusalCause.GPU_IN_USE


def test_the_same_assignment_twice_in_a_batch_starts_once() -> None:
    order = assigned(4)
    assert steps(order, order, at=standing()) == [Accept(order, None)]


def test_what_a_batch_starts_and_stops_is_never_started() -> None:
    order = assigned(4)
    assert steps(order, stop(5, grace_s=3), at=standing()) == [Accept(order, None, stop_grace_s=3)]


def test_what_a_batch_starts_and_stops_holds_no_gpu() -> None:
    first, second = assigned(4, "r1"), assigned(6, "r2")
    assert steps(first, stop(5, "r1", 3), second, at=standing()) == [Accept(first, None, 3), Accept(second, None)]


def test_a_stop_reaches_a_living_run() -> None:
    assert steps(stop(9), at=standing(living())) == [Stop(KEY, 10.0)]


def test_a_release_reaches_a_known_run() -> None:
    assert steps(release(9), at=standing(ended())) == [Release(KEY)]


def test_a_release_that_is_repeated_in_a_batch_is_one() -> None:
    assert steps(release(9), release(10), at=standing(ended())) == [Release(KEY)]


@pytest.mark.parametrize(
    ("orders", "after"),
    [
        ([], Place(3, 1)),
        ([assigned(2)], Place(3, 1)),
        ([assigned(4)], Place(4, 0)),
        ([assigned(4), stop(7), assigned(5, "r2")], Place(7, 0)),
        ([assigned(9, session=1)], Place(9, 0)),
        ([release(11, "unknown")], Place(11, 0)),
    ],
)
def test_the_fence_is_the_highest_place_seen_and_never_falls(orders: list[Any], after: Place) -> None:
    assert decide([Delivered(o) for o in orders], standing(applied=Place(3, 1)))[1] == after
