"""A live job and its members, as plain values. Changed by `fold` and by applied decisions only."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core.inputs import DiagnosisArrived
from schedmate.services.dispatcher.core.inputs import from_json as input_from_json
from schedmate.services.dispatcher.core.inputs import to_json as input_to_json
from schedmate.services.dispatcher.core.queue import Key, Kind
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI

AVOID_MAX: Final = 8

TOLD, STARTED, ENDED = 0, 1, 2
PINNED_FIRST, PINNED_LAST = "first", "last"
OPERATOR: Final = "operator"
"""The basis of an estimate that an operator has ordered (core/orders.py)."""
_OUTERMOST: Final = 1e300  # before, or behind, whatever a policy ranks by, and behind who is overdue
RUNS: Final = (JobState.ASSIGNED, JobState.RUNNING)
"""A job in one of these holds GPUs, and is not on its way out."""


Said = tuple[float | None, float | None, float | None, str | None]
"""p10, p50, p90, basis."""


@dataclass(slots=True)
class Member:
    """One member of the current attempt. `state` is TOLD, STARTED or ENDED; `cause` as in ExitCause, `refused`, `node_lost` or `declared_dead`."""

    node: str
    session: int
    gpus: tuple[int, ...]
    state: int = TOLD
    exit_code: int | None = None
    signal: int | None = None
    cause: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    stop_ordered: bool = False
    detail: str = ""

    @property
    def done(self) -> bool:
        """It ended by itself with 0."""
        return self.state == ENDED and self.cause == "exited" and self.exit_code == 0

    @property
    def lost(self) -> bool:
        """It ended through no doing of its own: lost, refused, or its lease ran out."""
        return self.state == ENDED and self.cause in _LOST


_LOST: Final = ("lost", "node_lost", "declared_dead", "refused", "lease_expired", "worker_stopped")


@dataclass(slots=True)
class Job:
    """One live job. `order` is its arrival number; `since` when it came to its state; `spent` counts attempts by cause.

    A job of 0 nodes is *packed*: `gpus` is the whole job's count, and the placer chooses its members.
    """

    id: str
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
    order: int
    spec: str
    trace: str | None
    state: JobState = JobState.SUBMITTED
    reason: str = "NOT_YET_CONSIDERED"
    detail: str = ""
    since: float = 0.0
    attempt: int = 0
    place: tuple[int, int] = (-1, -1)  # (seq, index) of the current assignment
    members: list[Member] = field(default_factory=list)
    master_port: int = 0
    started_at: float | None = None
    intent: int = 0
    requeue_cause: str = ""
    requeue_avoid: str | None = None
    cancel_by: str | None = None
    not_before: float = 0.0
    spent: dict[str, int] = field(default_factory=dict)
    avoid: tuple[str, ...] = ()
    resume_from: str | None = None
    diagnosis: DiagnosisArrived | None = None
    suspects: tuple[str, ...] = ()  # nodes on which it failed fast, unconfirmed
    estimate_revision: int = 0
    p10_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    basis: str | None = None
    expected_end: float | None = None
    resumable: bool = False
    gpu_milli: int = 1000  # what it asks for
    held_milli: int = 1000  # what it holds, while it holds GPUs
    profile: tuple[float, float, int] | None = None  # how it uses a GPU (core/sharing.py)
    beside: str | None = None  # the job that holds the same GPUs
    profiling: bool = False  # it holds GPUs of the profiler
    spare: tuple[float | None, float | None, float | None, str | None, bool] | None = (
        None  # core/hearing.py: what is said on another basis; newer?
    )
    read_s: float | None = None  # how long it had run when its own progress was heard of first
    worth_probing: bool | None = None  # advice: is the profiler's time well spent on it? (core/profiling.py)
    sole: bool = False  # it was placed while the pool packed nobody: no worker lets another one onto its GPUs
    alone: bool = False  # it ran out of GPU memory beside others: it has its GPUs alone from then on
    neighbours: bool = False  # others have held its GPUs with it, in this attempt
    inference: bool = False
    within: str | None = None  # all members in one "rack" or "spine"
    served_s: float = 0.0  # how long earlier attempts ran that were stopped
    waited_s: float = 0.0  # how long it waited before the attempts that it has had
    pin: str = ""  # an operator has put it "first" or "last" (core/orders.py)
    pinned_at: float = 0.0
    pinned_by: str = ""
    pin_why: str = ""
    advised: Said | None = None  # what advisors say, while an operator's estimate stands in its place
    ordered_by: str = ""  # whose that is
    queue_key: Key | None = None
    queue_kind: Kind | None = None

    @property
    def gpus_total(self) -> int:
        """GPUs of the whole gang; a share of one counts as one."""
        return self.gpus * (self.nodes or 1)

    @property
    def holds_whole(self) -> bool:
        """Does it (where it holds GPUs) hold whole ones?"""
        return self.held_milli == WHOLE_MILLI

    @property
    def holds_alone(self) -> bool:
        """Are its GPUs free when it has gone?"""
        return self.held_milli == WHOLE_MILLI and self.beside is None


def pinned_key(job: Job, key: Key) -> Key:
    """Return the key by which a job is ordered: the policy's, or where an operator has pinned it within its class."""
    if job.pin == PINNED_FIRST:
        return (key[0], -_OUTERMOST, -job.pinned_at, job.order)
    return (key[0], _OUTERMOST, job.pinned_at, job.order) if job.pin == PINNED_LAST else key


def began_at(job: Job) -> float:
    """Return when the attempt began: as its first member says, else when it was placed."""
    return min((m.started_at for m in job.members if m.started_at is not None), default=job.since)


def ran_s(job: Job) -> float:
    """Return how long a job ran of which every member has ended, all its attempts that were stopped among it."""
    started = min(m.started_at or 0.0 for m in job.members)
    return job.served_s + max(m.ended_at or 0.0 for m in job.members) - started


_JOB_FIELDS: Final = tuple(f.name for f in fields(Job))
_MEMBER_FIELDS: Final = tuple(f.name for f in fields(Member))


def job_to_json(job: Job) -> dict[str, Any]:
    """Return a job as a JSON object; where it stands in the queue is left out."""
    out = {name: getattr(job, name) for name in _JOB_FIELDS}
    out["state"] = job.state.value
    out["place"] = list(job.place)
    out["avoid"], out["suspects"] = list(job.avoid), list(job.suspects)
    out["members"] = [{n: getattr(m, n) for n in _MEMBER_FIELDS} for m in job.members]
    out["diagnosis"] = input_to_json(job.diagnosis) if job.diagnosis is not None else None
    out["queue_key"] = True if job.queue_key is not None else None
    out["queue_kind"] = None
    return out


def job_from_json(value: dict[str, Any]) -> Job:
    """Return the job of a JSON object; `queue_key` only says whether it waited."""
    given = dict(value)
    given["state"] = JobState(given["state"])
    given["place"] = tuple(given["place"])
    profile = given.get("profile")
    given["profile"] = tuple(profile) if profile is not None else None
    spare = given.get("spare")
    given["spare"] = tuple(spare) if spare is not None else None
    advised = given.get("advised")
    given["advised"] = tuple(advised) if advised is not None else None
    given["avoid"], given["suspects"] = tuple(given["avoid"]), tuple(given["suspects"])
    given["members"] = [Member(**{**m, "gpus": tuple(m["gpus"])}) for m in given["members"]]
    diagnosis = given["diagnosis"]
    given["diagnosis"] = input_from_json(diagnosis) if diagnosis is not None else None
    given["queue_key"] = () if given["queue_key"] else None
    return Job(**given)
