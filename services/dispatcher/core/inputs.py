"""What the core is told: facts, as plain slotted values. Everything is decoded and validated before it comes here.

They are never changed once made, and hashable; see `decisions` for why the classes are not `frozen`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final


class FoldError(ValueError):
    """The input contradicts what a pool can be; it is recorded as refused."""


@dataclass(unsafe_hash=True, slots=True)
class Input:
    """Base of the inputs. `RANK` is the place in a batch's canonical order: ends, node changes, cancels, arrivals, estimates."""

    KIND: ClassVar[str] = ""
    RANK: ClassVar[int] = 0


@dataclass(unsafe_hash=True, slots=True)
class MemberStarted(Input):
    """A member's process runs."""

    KIND = "started"
    RANK = 0
    job: str
    attempt: int
    member: int
    node: str
    session: int
    at: float


@dataclass(unsafe_hash=True, slots=True)
class MemberExited(Input):
    """A member has ended; its group is empty. `cause` as in `ExitCause`."""

    KIND = "exited"
    RANK = 1
    job: str
    attempt: int
    member: int
    node: str
    session: int
    cause: str
    exit_code: int | None
    signal: int | None
    started_at: float | None
    ended_at: float
    gpu_held_s: float | None = None  # for how many GPU seconds its GPUs were measured, None: never
    gpu_busy_s: float = 0.0  # of these, how many they were busy; of a GPU that n runs hold each has an nth


@dataclass(unsafe_hash=True, slots=True)
class MemberRefused(Input):
    """A worker started nothing for the assignment at (seq, index)."""

    KIND = "refused"
    RANK = 1
    job: str
    attempt: int
    member: int
    node: str
    session: int
    seq: int
    index: int
    cause: str
    detail: str


@dataclass(unsafe_hash=True, slots=True)
class Gpu:
    """One GPU of a report. `usable` is False when it is ill, held back or used from outside."""

    index: int
    type: str
    memory_mib: int
    usable: bool


@dataclass(unsafe_hash=True, slots=True)
class RunSeen:
    """One run member of a report."""

    job: str
    attempt: int
    member: int
    ended: bool
    started: bool
    cause: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(unsafe_hash=True, slots=True)
class NodeReported(Input):
    """A node report that says something new: joined, another session, GPUs, runs or applied place changed."""

    KIND = "report"
    RANK = 2
    node: str
    session: int
    boot_id: str
    applied_seq: int
    applied_index: int
    address: str
    port_min: int
    port_max: int
    gpus: tuple[Gpu, ...]
    runs: tuple[RunSeen, ...]
    stopping: bool
    lease_s: float
    rack: str | None = None
    spine: str | None = None


@dataclass(unsafe_hash=True, slots=True)
class NodeSilent(Input):
    """The leader counted out the lease of this session of the node."""

    KIND = "silent"
    RANK = 3
    node: str
    session: int


@dataclass(unsafe_hash=True, slots=True)
class NodeCommanded(Input):
    """An operator's call about a node: drain, undrain, cordon, dead."""

    KIND = "node-command"
    RANK = 3
    node: str
    command: str
    by: str
    why: str


@dataclass(unsafe_hash=True, slots=True)
class ReservationMade(Input):
    """An operator wants nodes free in [start, end): these, or (none named) so many."""

    KIND = "reservation"
    RANK = 3
    reservation: str
    nodes: tuple[str, ...]
    count: int
    start: float
    end: float
    by: str
    why: str


@dataclass(unsafe_hash=True, slots=True)
class ReservationWithdrawn(Input):
    """An operator takes a reservation back."""

    KIND = "reservation-withdrawn"
    RANK = 3
    reservation: str
    by: str
    why: str


@dataclass(unsafe_hash=True, slots=True)
class CancelRequested(Input):
    """Somebody entitled wants the job cancelled."""

    KIND = "cancel"
    RANK = 4
    job: str
    by: str


@dataclass(unsafe_hash=True, slots=True)
class JobArrived(Input):
    """A job of this pool. `spec` is the accepted job as JSON text, opaque to the core; `trace` its traceparent.

    `gpu_type` may name several types that will do, separated by bars. `gpus` counts per node; a job of 0 `nodes` is packed: `gpus` is the whole job's count, and the placer chooses its members.
    """

    KIND = "arrived"
    RANK = 5
    job: str
    tenant: str
    user: str
    priority: int
    gpus: int
    nodes: int
    gpu_type: str | None
    gpu_memory_mib: int
    time_limit_s: int | None
    retries: int
    submitted_at: float
    spec: str
    trace: str | None
    resumable: bool = False  # it may be stopped for order: it goes on where it was
    gpu_milli: int = 1000  # thousandths of the GPU that it asks for; below 1000 only with one GPU on one node
    inference: bool = False  # it serves; else it trains
    within: str | None = None  # all members in one "rack" or "spine"


@dataclass(unsafe_hash=True, slots=True)
class EstimateArrived(Input):
    """Advice: how long the job may run. A higher revision replaces a lower one.

    The last three: how the same job, or one like it, used each of its GPUs before; all of them, or nothing is known.
    """

    KIND = "estimate"
    RANK = 6
    job: str
    revision: int
    p10_s: float | None
    p50_s: float | None
    p90_s: float | None
    basis: str
    worth_probing: bool | None = None  # is the profiler's time well spent on it? None: nothing is said
    gpu_utilisation: float | None = None
    gpu_memory_mib: int | None = None
    sharing_class: str | None = None


@dataclass(unsafe_hash=True, slots=True)
class EstimateOrdered(Input):
    """An operator says how long the job runs, whatever advice says; no p50 clears that."""

    KIND = "estimate-order"
    RANK = 6
    job: str
    p10_s: float | None
    p50_s: float | None
    p90_s: float | None
    by: str
    why: str = ""


@dataclass(unsafe_hash=True, slots=True)
class JobPinned(Input):
    """An operator puts the job "first" or "last" in its class, or (place "none") back where it belongs."""

    KIND = "pin"
    RANK = 6
    job: str
    place: str
    by: str
    why: str = ""


@dataclass(unsafe_hash=True, slots=True)
class ProfileArrived(Input):
    """Advice: how the job uses each of its GPUs: shares of its time and of its memory's time, from 0 to 1, and memory. A later one counts."""

    KIND = "profile"
    RANK = 6
    job: str
    utilisation: float
    memory_utilisation: float
    memory_mib: int


@dataclass(unsafe_hash=True, slots=True)
class ProgressArrived(Input):
    """Advice: how long the run will go on from now, and within how much of that (half the interval)."""

    KIND = "progress"
    RANK = 6
    job: str
    attempt: int
    remaining_s: float
    within_s: float = 0.0


@dataclass(unsafe_hash=True, slots=True)
class DiagnosisArrived(Input):
    """Advice: why the attempt ended badly and what to do."""

    KIND = "diagnosis"
    RANK = 6
    job: str
    attempt: int
    category: str
    culpable: str | None
    action: str
    culprit_node: str | None
    node_evidence: bool
    resume_from: str | None
    proposed_change: str | None
    work_was_complete: bool
    confidence: float


@dataclass(unsafe_hash=True, slots=True)
class ConfigChanged(Input):
    """The pool's settings are these from now on."""

    KIND = "config"
    RANK = 3
    config: dict[str, Any]


@dataclass(unsafe_hash=True, slots=True)
class Tick(Input):
    """Nothing but time has passed: a timer may be due."""

    KIND = "tick"
    RANK = 9


INPUTS: Final[dict[str, type[Input]]] = {
    cls.KIND: cls
    for cls in (
        MemberStarted, MemberExited, MemberRefused, NodeReported, NodeSilent, NodeCommanded, CancelRequested, JobArrived,
        EstimateArrived, ProfileArrived, ProgressArrived, DiagnosisArrived, ConfigChanged, Tick, ReservationMade, ReservationWithdrawn,
        EstimateOrdered, JobPinned,
    )
}  # fmt: skip

_NAMES: Final[dict[type[Any], tuple[str, ...]]] = {
    cls: tuple(f.name for f in fields(cls)) for cls in (*INPUTS.values(), Gpu, RunSeen)
}


def to_json(value: Input) -> dict[str, Any]:
    """Return an input as a JSON object with its kind."""
    out: dict[str, Any] = {"kind": value.KIND}
    for name in _NAMES[type(value)]:
        item = getattr(value, name)
        if name in ("gpus", "runs") and isinstance(item, tuple):
            item = [{n: getattr(part, n) for n in _NAMES[type(part)]} for part in item]
        out[name] = item
    return out


def from_json(value: dict[str, Any]) -> Input:
    """Return the input of a JSON object."""
    given = dict(value)
    cls = INPUTS[given.pop("kind")]
    if cls is NodeReported:
        given["gpus"] = tuple(Gpu(**g) for g in given["gpus"])
        given["runs"] = tuple(RunSeen(**r) for r in given["runs"])
    elif cls is ReservationMade:
        given["nodes"] = tuple(given["nodes"])
    return cls(**given)
