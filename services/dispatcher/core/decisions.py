"""What the core decides: plain values, applied to the state as they are made, recorded in the log as they are.

They are never changed once made. The classes are not `frozen`: its guard sets every field by a call, and a core makes five of them a job.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final


@dataclass(unsafe_hash=True, slots=True)
class Decision:
    """Base of the decisions; its place in the entry is its index."""

    KIND: ClassVar[str] = ""


@dataclass(unsafe_hash=True, slots=True)
class Moved(Decision):
    """A job changed its state. `event` as in `JobEvent`; the other fields are for the events that carry them."""

    KIND = "moved"
    job: str
    attempt: int
    event: str
    reason: str
    detail: str = ""
    intent: int = 0  # STOP: a StopIntent
    not_before: float = 0.0  # REQUEUE
    spends: str = ""  # REQUEUE: the budget that pays
    avoid: str | None = None  # REQUEUE: a node not to go back to while others could do
    resume_from: str | None = None  # REQUEUE
    category: str | None = None  # FAIL
    proposed_change: str | None = None  # FAIL
    alone: bool = False  # REQUEUE: it has its GPUs to itself from now on


@dataclass(unsafe_hash=True, slots=True)
class Noted(Decision):
    """A job's reason changed while its state stayed (a stop that outlasts its bound, an unreachable node, a raised intent)."""

    KIND = "noted"
    job: str
    attempt: int
    reason: str
    detail: str = ""
    intent: int = 0


@dataclass(unsafe_hash=True, slots=True)
class Seat(Decision):
    """One member's place: a node in one of its sessions, and GPUs."""

    node: str
    session: int
    gpus: tuple[int, ...]


@dataclass(unsafe_hash=True, slots=True)
class Placed(Decision):
    """All GPUs of the gang are leased. `free` and `fitting` say what the placer saw on the first seat's node and in all."""

    KIND = "placed"
    job: str
    attempt: int
    seats: tuple[Seat, ...]
    master_addr: str
    master_port: int
    passed_over: int
    free: int
    fitting: int
    p50_s: float | None = None
    basis: str | None = None
    resume_from: str | None = None
    gpu_milli: int = 1000  # thousandths of its GPU that are leased
    beside: str | None = None  # the job that runs on the same GPUs already
    profiling: bool = False  # it runs in the profiler


@dataclass(unsafe_hash=True, slots=True)
class Stop(Decision):
    """To a node: end this member."""

    KIND = "stop"
    node: str
    job: str
    attempt: int
    member: int
    grace_s: float


@dataclass(unsafe_hash=True, slots=True)
class Release(Decision):
    """To a node: the member's end is recorded."""

    KIND = "release"
    node: str
    job: str
    attempt: int
    member: int


@dataclass(unsafe_hash=True, slots=True)
class NodeMarked(Decision):
    """A node changed its standing: cordoned, drained, uncordoned, lost, unreachable."""

    KIND = "node"
    node: str
    mark: str
    why: str = ""


DECISIONS: Final[dict[str, type[Decision]]] = {
    cls.KIND: cls for cls in (Moved, Noted, Placed, Stop, Release, NodeMarked)
}
_FIELDS: Final = {cls: tuple((f.name, f.default) for f in fields(cls)) for cls in (*DECISIONS.values(), Seat)}


def to_json(value: Decision) -> dict[str, Any]:
    """Return a decision as a JSON object; fields that stand at their default are left out."""
    out: dict[str, Any] = {"kind": value.KIND}
    for name, default in _FIELDS[type(value)]:
        item = getattr(value, name)
        if item == default and type(item) is type(default):
            continue
        if name == "seats":
            item = [[seat.node, seat.session, list(seat.gpus)] for seat in item]
        out[name] = item
    return out


def from_json(value: dict[str, Any]) -> Decision:
    """Return the decision of a JSON object."""
    given = dict(value)
    cls = DECISIONS[given.pop("kind")]
    if cls is Placed:
        given["seats"] = tuple(Seat(node, session, tuple(gpus)) for node, session, gpus in given["seats"])
    return cls(**given)
