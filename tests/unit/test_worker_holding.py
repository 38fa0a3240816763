"""Who may be on a GPU beside whom: the worker's own rule, and what its files and its journal say of it."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from schedmate.infra.processes.port import EndCause, ExitStatus
from schedmate.schemas.events import MemberAssigned, MemberAssignedV2, RefusalCause, RunUsage
from schedmate.services.worker import announcements, journal
from schedmate.services.worker.fence import Accept, Delivered, Refuse, decide
from schedmate.services.worker.launch import Base, environment
from schedmate.services.worker.member import Member
from tests.worker_orders import assigned, living, standing, stop

WHOLE: dict[str, Any] = {}
HALF: dict[str, Any] = {"gpu_milli": 500}
OPEN: dict[str, Any] = {"packable": True}
USE = RunUsage(measured_s=5.0, gpu_utilisation=0.5, gpu_held_s=5.0, gpu_busy_s=2.5)


def order(seq: int, run: str, **fields: Any) -> MemberAssigned:
    held = {name: fields.pop(name) for name in ("gpu_milli", "packable", "packed_with") if name in fields}
    plain = assigned(seq, run, **{"job_id": f"job of {run}", **fields})
    return MemberAssignedV2(**dict(plain), **held) if held else plain


def there(run: str, **fields: Any) -> Member:
    return Member(assigned=order(1, run, **fields), traceparent=None).started(pid=7, session=5)


def outcome(new: MemberAssigned, *members: Member) -> str | None:
    """Return why the order is refused, None when it is accepted."""
    (step,) = decide([Delivered(new)], standing(*members))[0]
    if isinstance(step, Refuse):
        assert step.cause is RefusalCause.GPU_IN_USE
        return step.detail
    assert isinstance(step, Accept)
    return None


def test_two_halves_are_one_gpu_and_a_thousandth_more_is_refused_with_what_is_left():
    assert outcome(order(2, "b", **HALF), there("a", **HALF)) is None
    told = outcome(order(2, "b", gpu_milli=501), there("a", **HALF))
    assert told == "held: GPU 0 by a.0, which leave 500 of 501"
    third = outcome(order(2, "c", gpu_milli=1), there("a", **HALF), there("b", **HALF))
    assert third == "held: GPU 0 by a.0 and b.0, which leave 0 of 1"


def test_a_share_elsewhere_and_one_that_has_ended_take_nothing():
    gone = there("a", **HALF).ended(ExitStatus(EndCause.EXITED, 0, None, 1.0, 2.0), session=5, log_bytes=0)
    assert outcome(order(2, "b", gpu_milli=900), gone, there("c", gpu_milli=900, gpus=(1,))) is None


@pytest.mark.parametrize(
    ("new", "held"),
    [
        (WHOLE, WHOLE),
        (WHOLE, HALF),
        (HALF, WHOLE),
        (HALF, OPEN),  # who lets one in lets nobody in by a share
        (OPEN, OPEN),  # who may be joined does not join by that
        (WHOLE, OPEN),
        ({"packable": True, "packed_with": "a"}, WHOLE),  # whoever holds it alone was not asked
        ({"packable": True, "packed_with": "a"}, HALF),
        ({"packable": True, "packed_with": "another"}, OPEN),
        ({"packable": False, "packed_with": "a"}, OPEN),
    ],
)
def test_no_gpu_goes_to_two_that_have_not_both_said_so(new: dict[str, Any], held: dict[str, Any]):
    assert outcome(order(2, "b", **new), there("a", **held)) == "held: GPU 0 by a.0"


def test_a_pair_is_of_two_runs_on_the_very_same_gpus():
    two = {"gpus": (0, 1)}
    guest = {"packable": True, "packed_with": "a"}
    host = there("a", **OPEN, **two)
    assert outcome(order(2, "b", **guest, **two), host) is None
    assert outcome(order(2, "b", **guest), host) == "held: GPU 0 by a.0"
    assert outcome(order(2, "b", **guest, gpus=(1, 2)), host) == "held: GPU 1 by a.0"
    assert outcome(order(2, "b", **guest, **two), there("a", **OPEN)) == "held: GPU 0 by a.0"
    own = order(2, "b", **guest, **two, job_id="job of a")
    assert outcome(own, host) == "held: GPU 0 by a.0, GPU 1 by a.0", "another attempt of the same job is no partner"


def test_a_pair_is_never_three_and_who_is_left_of_it_may_be_joined():
    host, guest = there("a", **OPEN), there("b", packable=True, packed_with="a")
    third = {"packable": True, "packed_with": "b"}
    assert outcome(order(2, "c", **third), host, guest) == "held: GPU 0 by a.0 and b.0"
    assert outcome(order(2, "c", packable=True, packed_with="a"), host, guest) == "held: GPU 0 by a.0 and b.0"
    assert outcome(order(2, "c", **third), guest) is None


def test_a_guest_whose_host_has_ended_meanwhile_has_the_gpu_alone():
    assert outcome(order(2, "b", packable=True, packed_with="gone")) is None


@pytest.mark.parametrize("wrong", [{"gpus": (0, 1)}, {"packable": True}, {"packed_with": "a"}])
def test_a_share_that_makes_no_sense_is_refused(wrong: dict[str, Any]):
    assert outcome(order(2, "b", **{**HALF, **wrong})) == "a share is of one GPU, and nobody is packed with it"


def test_orders_of_one_batch_are_weighed_against_each_other():
    batch = [order(1, "a", **HALF), order(2, "b", **HALF), order(3, "c", **HALF), stop(4, "b"), order(5, "d", **HALF)]
    steps = decide([Delivered(one) for one in batch], standing())[0]
    assert [(type(s).__name__, s.assigned.run_id) for s in steps] == [  # type: ignore[union-attr]
        ("Accept", "a"), ("Accept", "b"), ("Refuse", "c"), ("Accept", "d"),
    ]  # fmt: skip


SHAPES = st.sampled_from(
    [
        {}, {"gpu_milli": 300}, {"gpu_milli": 500}, {"gpu_milli": 700}, {"packable": True},
        *({"packable": True, "packed_with": f"r{n}"} for n in range(4)),
    ]
)  # fmt: skip


@given(st.lists(st.tuples(SHAPES, st.sampled_from([(0,), (1,), (0, 1)])), max_size=8))
def test_whatever_is_ordered_no_gpu_is_held_for_more_than_one_whole(
    orders: list[tuple[dict[str, Any], tuple[int, ...]]],
):
    batch = [Delivered(order(n + 1, f"r{n}", **shape, gpus=gpus)) for n, (shape, gpus) in enumerate(orders)]
    accepted = [MemberAssignedV2.of(s.assigned) for s in decide(batch, standing())[0] if isinstance(s, Accept)]
    for gpu in (0, 1):
        on_it = [one for one in accepted if gpu in one.gpus]
        shares = [one.gpu_milli for one in on_it if one.gpu_milli < 1000]
        whole = [one for one in on_it if one.gpu_milli == 1000]
        assert sum(shares) <= 1000
        assert not (shares and whole)
        assert len(whole) <= 2
        if len(whole) == 2:
            first, second = whole
            assert (first.packable, first.gpus) == (True, second.gpus)
            assert second.packed_with == first.run_id


def test_an_order_of_the_version_before_holds_its_gpus_whole_and_alone():
    made = MemberAssignedV2.of(assigned(1))
    assert (made.gpu_milli, made.packable, made.packed_with) == (1000, False, None)
    assert MemberAssignedV2.of(made) is made


@pytest.mark.parametrize("held", [HALF, OPEN, {"packable": True, "packed_with": "b"}])
def test_a_member_s_file_keeps_how_it_holds_its_gpus(held: dict[str, Any]):
    member = there("a", **held)
    again = Member.model_validate_json(member.model_dump_json())
    assert again == member
    assert {name: getattr(again.assigned, name) for name in held} == held


def test_a_member_that_holds_its_gpus_alone_is_written_as_it_was_before():
    told = json.loads(living().model_dump_json())
    assert set(told["assigned"]) == set(MemberAssigned.model_fields)
    assert Member.model_validate_json(json.dumps(told)) == living()
    assert (
        "usage"
        not in json.loads(
            living().ended(ExitStatus(EndCause.EXITED, 0, None, 1.0, 2.0), session=5, log_bytes=0).model_dump_json()
        )["end"]
    )


def test_the_journal_says_how_a_gpu_is_held_and_nothing_new_where_it_is_held_alone():
    plain = json.loads(journal.started_line(living(), at=1.0))
    assert tuple(plain) == journal.KEYS
    assert json.loads(journal.started_line(there("a", **HALF), at=1.0)) == {
        **plain, "run_id": "a", "job_id": "job of a", "gpu_milli": 500,
    }  # fmt: skip
    packed = json.loads(journal.started_line(there("a", packable=True, packed_with="b"), at=1.0))
    assert (packed["packable"], packed["packed_with"]) == (True, "b")
    assert set(packed) <= {*journal.KEYS, *journal.SHARED_KEYS}


def test_the_program_is_told_its_share_where_it_has_not_the_whole():
    base = Base(path="/usr/bin", home="/home/u", lang="C.UTF-8", tz="UTC", user="u")
    shared = environment(order(1, "a", **HALF, gpus=(2,)), base, "/c")
    assert (shared["CUDA_VISIBLE_DEVICES"], shared["SCHEDMATE_GPU_MILLI"]) == ("2", "500")
    for held in (WHOLE, OPEN):
        assert "SCHEDMATE_GPU_MILLI" not in environment(order(1, "a", **held), base, "/c")


def test_an_exit_carries_what_was_measured_in_a_version_of_its_own():
    ends = ExitStatus(EndCause.EXITED, 0, None, 1.0, 2.0)
    kinds = {}
    for usage in (None, USE):
        member = living().ended(ends, session=5, log_bytes=0, usage=usage)
        again = Member.model_validate_json(member.model_dump_json())
        event = announcements.run_exited(again).event
        kinds[usage is None] = (event.VERSION, getattr(event, "usage", None))
    assert kinds == {True: (1, None), False: (2, USE)}


def test_of_all_ways_to_hold_a_gpu_two_only_go_together_as_shares_or_as_a_pair():
    ways = {"whole": WHOLE, "half": HALF, "open": OPEN, "guest": {"packable": True, "packed_with": "a"}}
    good = {
        (new, old)
        for new, old in product(ways, ways)
        if outcome(order(2, "b", **ways[new]), there("a", **ways[old])) is None
    }
    # a guest whose own host is gone is open to another one
    assert good == {("half", "half"), ("guest", "open"), ("guest", "guest")}
