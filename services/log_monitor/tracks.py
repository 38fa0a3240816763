"""The state kept per job and per member of a run: plain values, versioned, bounded, set by maximum."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

from pydantic import BaseModel, Field

from schedmate.schemas.events import CheckpointsListed, ExitCause
from schedmate.services.log_monitor.failures.digest import Digest
from schedmate.services.log_monitor.lines import Feed
from schedmate.services.log_monitor.metrics.far import Hints
from schedmate.services.log_monitor.metrics.state import Metrics

VERSION: Final = 1
RUNS_MAX: Final = 4


class Emission(BaseModel):
    """The last progress that was said: at which offset, when, and how far."""

    offset: int
    at: float
    step: int | None
    fraction: float | None
    phase: str | None


class SlownessSaid(BaseModel):
    """The last slow-down that was said: at which offset and how much; `size` 1 when it was said to be over."""

    offset: int
    size: float
    before: float
    since_step: int


class Exit(BaseModel):
    """How a member ended."""

    cause: ExitCause
    exit_code: int | None
    signal: int | None
    log_bytes: int
    started_at: float | None
    ended_at: float
    detail: str = ""

    @property
    def bad(self) -> bool:
        """A failure that somebody should explain; an ordered stop is none."""
        if self.cause is ExitCause.EXITED:
            return self.exit_code != 0
        return self.cause in {ExitCause.LAUNCH_FAILED, ExitCause.LOST, ExitCause.LEASE_EXPIRED}


class MemberTrack(BaseModel):
    """One member of one run."""

    version: int = VERSION
    run_id: str
    attempt: int
    member: int
    node: str
    feed: Feed = Field(default_factory=Feed)
    progress: Metrics = Field(default_factory=Metrics)
    digest: Digest = Field(default_factory=Digest)
    emission: Emission | None = None
    slowness: SlownessSaid | None = None
    exit: Exit | None = None
    listed: CheckpointsListed | None = None
    unread: list[str] = Field(default_factory=list)
    asked: bool = False
    pattern: str | None = None
    failed: int = 0

    @property
    def tail_read(self) -> bool:
        """The member has ended and its output was read to the last byte."""
        return self.exit is not None and self.feed.offset >= self.exit.log_bytes


class Closing(BaseModel):
    """A run is being closed: its diagnosis waits for tails until `deadline` (Unix seconds, this service's clock)."""

    deadline: float
    ready: bool = False
    traceparent: str | None = None


class RunTrack(BaseModel):
    """What concerns all members of one attempt. Members are bits of an integer: a gang may have thousands."""

    run_id: str
    exited: int = 0
    read: int = 0
    bad: bool = False
    reporter: int | None = None
    closing: Closing | None = None


class JobTrack(BaseModel):
    """A job: what its source says of its length, and the attempts that are not settled yet (the newest few)."""

    version: int = VERSION
    job_id: str
    pool: str
    tenant: str | None = None
    members: int | None = None
    total_steps: int | None = None
    total_epochs: float | None = None
    told: Hints = Hints()
    time_limit_s: float | None = None
    checkpoint_dir: str | None = None
    done_attempt: int = 0
    runs: dict[int, RunTrack] = Field(default_factory=dict)
    touched_at: float = 0.0

    @property
    def hints(self) -> Hints:
        """Length of the job as its command and its source tell it."""
        told = self.told
        return replace(
            told, total_steps=self.total_steps or told.total_steps, total_epochs=self.total_epochs or told.total_epochs
        )

    def all_in(self, bits: int) -> bool:
        """Tell whether every member of the gang is among `bits`; never, while the gang's size is not known."""
        return self.members is not None and bits == (1 << self.members) - 1

    def run(self, attempt: int, run_id: str) -> RunTrack | None:
        """Return the track of an attempt, a new one for a new attempt, None for one that is settled or long past."""
        known = self.runs.get(attempt)
        if known is not None:
            return known
        if attempt <= self.done_attempt or (len(self.runs) >= RUNS_MAX and attempt < min(self.runs)):
            return None
        while len(self.runs) >= RUNS_MAX:
            del self.runs[min(self.runs)]
        return self.runs.setdefault(attempt, RunTrack(run_id=run_id))

    def due(self) -> float | None:
        """Return when the earliest closing is due at the latest, or None when no run is being closed."""
        return min((r.closing.deadline for r in self.runs.values() if r.closing is not None), default=None)


class Table(Protocol):
    """Where tracks are kept: a dictionary, a store, or a Faust table."""

    def get(self, key: str) -> bytes | None:
        """Return a value, or None."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Set a value."""
        ...

    def remove(self, key: str) -> None:
        """Remove a value; nothing when there is none."""
        ...


def job_key(job_id: str) -> str:
    """Key of a job's track."""
    return job_id


def member_key(job_id: str, attempt: int, member: int) -> str:
    """Key of a member's track: the job's key, so that it stays in the job's partition, and which member."""
    return f"{job_id}#{attempt}#{member}"


def job_of(key: str) -> str:
    """Return the job that a key belongs to."""
    return key.partition("#")[0]


def load_job(table: Table, job_id: str) -> JobTrack | None:
    """Read a job's track."""
    value = table.get(job_key(job_id))
    return JobTrack.model_validate_json(value) if value is not None else None


def load_member(table: Table, job_id: str, attempt: int, member: int) -> MemberTrack | None:
    """Read a member's track."""
    value = table.get(member_key(job_id, attempt, member))
    return MemberTrack.model_validate_json(value) if value is not None else None


def save_job(table: Table, job: JobTrack) -> None:
    """Write a job's track."""
    table.put(job_key(job.job_id), job.model_dump_json().encode())


def save_member(table: Table, job_id: str, track: MemberTrack) -> None:
    """Write a member's track."""
    table.put(member_key(job_id, track.attempt, track.member), track.model_dump_json().encode())
