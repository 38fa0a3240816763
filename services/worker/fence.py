"""What a worker does with what its partition of `assignments` says (protocol §2). Pure: a batch in, steps out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

from schedmate.infra.processes.port import MemberKey
from schedmate.schemas.events import MemberAssigned, MemberAssignedV2, MemberReleased, MemberStopOrdered, RefusalCause
from schedmate.services.worker.holding import Holders, objection
from schedmate.services.worker.member import Member, key_of


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in the pool's log."""

    seq: int
    index: int


NOWHERE = Place(-1, -1)

Order: TypeAlias = MemberAssigned | MemberStopOrdered | MemberReleased


@dataclass(frozen=True, slots=True)
class Delivered:
    """An order for this node, with the trace it belongs to."""

    order: Order
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Accept:
    """Start the member. `stop_grace_s` is set when the same batch already stops it: then nothing is ever started."""

    assigned: MemberAssigned
    traceparent: str | None
    stop_grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Start nothing, and say why."""

    assigned: MemberAssigned
    traceparent: str | None
    cause: RefusalCause
    detail: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End a member."""

    key: MemberKey
    grace_s: float


@dataclass(frozen=True, slots=True)
class Release:
    """Report the member no more."""

    key: MemberKey


Step: TypeAlias = Accept | Refuse | Stop | Release


@dataclass(frozen=True, slots=True)
class Standing:
    """What the worker knows when a batch arrives.

    `ever_started` has every member that the journal saw start; `gpus_present` the indices of healthy GPUs.
    """

    applied: Place
    session: int
    members: Mapping[MemberKey, Member]
    ever_started: AbstractSet[MemberKey]
    gpus_present: AbstractSet[int]
    is_stopping: bool = False


def decide(batch: Sequence[Delivered], standing: Standing) -> tuple[list[Step], Place]:
    """Return the steps of a batch in order, and the highest place applied after it.

    A batch is read to its end before anything is done: what it starts and also stops is never started.
    """
    steps: list[Step] = []
    applied = standing.applied
    accepted: dict[MemberKey, int] = {}  # where its step stands in `steps`
    released: set[MemberKey] = set()  # repeats are common: the leader releases again until a report lacks the run
    holders = _holders(standing)
    for delivered in batch:
        order = delivered.order
        place = Place(order.seq, order.index)
        is_new = place > applied
        applied = max(applied, place)
        if isinstance(order, MemberAssigned):
            key = key_of(order)
            if key in standing.members or key in standing.ever_started or key in accepted:
                continue  # a duplicate: dropped silently
            refusal = _refusal(order, standing, holders, is_new=is_new)
            if refusal is not None:
                steps.append(Refuse(order, delivered.traceparent, *refusal))
                continue
            accepted[key] = len(steps)
            _hold(holders, MemberAssignedV2.of(order))
            steps.append(Accept(order, delivered.traceparent))
            continue
        key = MemberKey(order.run_id, order.member)
        if isinstance(order, MemberReleased):
            if key in standing.members and key not in released:
                released.add(key)
                steps.append(Release(key))
        elif key in accepted:
            start = steps[accepted[key]]
            assert isinstance(start, Accept)
            steps[accepted[key]] = Accept(start.assigned, start.traceparent, stop_grace_s=order.grace_s)
            holders = {gpu: [one for one in there if key_of(one) != key] for gpu, there in holders.items()}
        elif key in standing.members and standing.members[key].is_living:
            steps.append(Stop(key, order.grace_s))
    return steps, applied


def _holders(standing: Standing) -> dict[int, list[MemberAssignedV2]]:
    holders: dict[int, list[MemberAssignedV2]] = {}
    for member in standing.members.values():
        if member.is_living:
            _hold(holders, member.assigned)
    return holders


def _hold(holders: dict[int, list[MemberAssignedV2]], order: MemberAssignedV2) -> None:
    for gpu in order.gpus:
        holders.setdefault(gpu, []).append(order)


def _refusal(
    assigned: MemberAssigned, standing: Standing, holders: Holders, *, is_new: bool
) -> tuple[RefusalCause, str] | None:
    if assigned.session != standing.session:
        return RefusalCause.STALE_SESSION, f"made for session {assigned.session}, the node is in {standing.session}"
    if not is_new:
        return RefusalCause.SUPERSEDED, f"({assigned.seq}, {assigned.index}) is not above what was applied"
    if standing.is_stopping:
        return RefusalCause.STOPPING, "the worker is going away"
    missing = sorted(set(assigned.gpus) - standing.gpus_present)
    if missing:
        return RefusalCause.GPU_MISSING, f"no healthy GPU {', '.join(map(str, missing))} here"
    why = objection(assigned, holders)
    return (RefusalCause.GPU_IN_USE, why) if why is not None else None
