"""What is remembered of a job: a plain document, merged by minimum, maximum and set, so that repeats and disorder change nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from pydantic import BaseModel, Field

from schedmate.schemas.events import (
    JobCancelled,
    JobDecision,
    JobFailed,
    JobStopping,
    JobSucceeded,
    ProgressObserved,
    RunExited,
    RunExitedV2,
    RunStarted,
    WorkloadField,
    WorkloadValue,
)
from schedmate.schemas.job import GPU_MILLI_WHOLE, JobFields, JobSpec
from schedmate.schemas.reasons import Reason
from schedmate.schemas.sharing import CLASS_NAMES, sharing_class
from schedmate.services.history_estimator.jobs import Ended, Job, Outcome

VERSION: Final = 1
ATTEMPTS_MAX: Final = 50
CAUSES_MAX: Final = 50
MEMBERS_MAX: Final = 64
"""Members whose use of their GPUs is remembered."""
MEASURED_S_ENOUGH: Final = 60.0
MEASURED_SHARE_MIN: Final = 0.2
"""A run that was measured alone for less than this share of it, and for less than a minute, says nothing of its kind."""

GAVE_WAY: Final = frozenset({Reason.PREEMPTED, Reason.RECLAIMED, Reason.MAINTENANCE, Reason.PROFILED, Reason.UNPACKED})
"""Stops of the scheduler's own: the job was not at fault, and one that can resume goes on where it was."""

KEYS: Final = frozenset({"ended_key", "open_key", "exact_key", "user_key"})


class Used(BaseModel):
    """How a member used its GPUs, as its worker measured it while the member had them alone."""

    utilisation: float
    memory_utilisation: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None


class Attempt(BaseModel):
    """One attempt: from its first member's start to its last member's end, as far as reported. `used` is by member, of the first few."""

    started_at: float | None = None
    ended_at: float | None = None
    resumed: bool = False
    gave_way: bool = False
    used: dict[int, Used] = Field(default_factory=dict)

    @property
    def duration_s(self) -> float | None:
        """How long it ran, or None while an end is missing."""
        if self.started_at is None or self.ended_at is None or self.ended_at < self.started_at:
            return None
        return self.ended_at - self.started_at


class Said(BaseModel):
    """The estimate that was said last: the event's fields, and what caused it."""

    revision: int
    cause: str
    p50_s: float | None
    basis: str
    at: float
    event: dict[str, Any]


class Probe(BaseModel):
    """What was said of the worth of measuring a job, and when."""

    cluster: tuple[str, ...]
    worth: bool
    at: float


class JobRecord(BaseModel):
    """A job, from its submission to its end."""

    version: int = VERSION
    job_id: str
    pool: str
    tenant: str | None = None
    user: str | None = None
    name: str | None = None
    gpus_total: int | None = None
    command_hash: str | None = None
    content_hash: str | None = None
    gpu_type: str | None = None
    directory: str | None = None
    time_limit_s: float | None = None
    resumable: bool = False
    workload: dict[str, WorkloadValue] = Field(default_factory=dict)
    source: str | None = None  # where an imported job comes from; None: it ran here
    submitted_at: float | None = None
    attempts: dict[int, Attempt] = Field(default_factory=dict)
    outcome: Outcome | None = None
    outcome_attempt: int = 0
    outcome_at: float | None = None
    causes: list[str] = Field(default_factory=list)
    said: Said | None = None
    probe: Probe | None = None

    @property
    def runtime_s(self) -> float | None:
        """How long its work took; None unless the job succeeded, and every attempt that did a part of it is known."""
        return self._ran_s() if self.outcome == "succeeded" else None

    def _ran_s(self) -> float | None:
        attempt, earlier_s = self.attempts.get(self.outcome_attempt), self.earlier_s(self.outcome_attempt)
        if attempt is None or attempt.duration_s is None or earlier_s is None:
            return None
        return attempt.duration_s + earlier_s

    def earlier_s(self, number: int) -> float | None:
        """Return how long those attempts ran whose work this one goes on with; None where that is not known.

        An attempt that gave way is gone on with where the job can resume. One that resumes from a checkpoint after a failure does again what
        was done since, nobody knows how much.
        """
        total = 0.0
        while number in self.attempts:
            before = self.attempts.get(number - 1)
            if before is None or not before.gave_way:
                return None if self.attempts[number].resumed else total
            if not (self.resumable or self.attempts[number].resumed):
                return total
            if before.started_at is not None:
                if before.duration_s is None:
                    return None
                total += before.duration_s
            number -= 1
        return total

    @property
    def complete(self) -> bool:
        """Whether all is known that will be: it has ended, and where it ended well, how long it ran."""
        if self.outcome is None or self.submitted_at is None:
            return False
        attempt = self.attempts.get(self.outcome_attempt)
        return self.outcome != "succeeded" or (attempt is not None and attempt.duration_s is not None)

    @property
    def started_at(self) -> float | None:
        """When its last attempt began; where it goes on with the work of earlier ones, by so much earlier."""
        last = max(self.attempts, default=0)
        began = self.attempts[last].started_at if last else None
        return began - (self.earlier_s(last) or 0.0) if began is not None else None

    def job(self, vector: Sequence[float] | None = None) -> Job | None:
        """Return the job as the estimator knows it, None before its submission is known."""
        if self.submitted_at is None or self.tenant is None:
            return None
        return Job(
            self.job_id, self.submitted_at, self.pool, self.tenant, self.gpus_total or 1, self.user, self.name, self.gpu_type,
            self.command_hash, self.directory, self.content_hash, self.time_limit_s, workload=self.workload, vector=vector,
        )  # fmt: skip

    def ended(self, job: Job) -> Ended | None:
        """Return its end, None before it is complete. Without all that did a part of the work it does not say how long a whole run is."""
        if not self.complete or self.outcome is None or self.outcome_at is None:
            return None
        used = self.used
        return Ended(
            job,
            self._ran_s(),
            self.outcome_at,
            self.outcome,
            gpu_utilisation=fmean(one.utilisation for one in used) if used else None,
            gpu_memory_bytes=max((one.memory_bytes for one in used if one.memory_bytes is not None), default=None),
            sharing_class=_class_of(used),
        )

    @property
    def used(self) -> list[Used]:
        """How its members used their GPUs in the newest attempt that was measured, by member; empty where none was."""
        measured = [number for number, attempt in self.attempts.items() if attempt.used]
        return [used for _, used in sorted(self.attempts[max(measured)].used.items())] if measured else []

    def body(self) -> dict[str, Any]:
        """Return the document. A complete job is found by the instant of its end, one that has not ended by that of its submission."""
        body = self.model_dump(mode="json")
        body["attempts"] = {str(n): _with_text_keys(a) for n, a in body["attempts"].items()}
        if self.complete:
            body["ended_key"] = moment_key(self.outcome_at or 0.0, self.job_id)
        elif self.outcome is None and self.submitted_at is not None:
            body["open_key"] = moment_key(self.submitted_at, self.job_id)
        return body

    @classmethod
    def read(cls, body: Any) -> JobRecord:
        """Return the record in a document."""
        return cls.model_validate({k: v for k, v in body.items() if k not in KEYS})


def moment_key(at: float, job_id: str = "") -> str:
    """Return a key that orders by time."""
    return f"{min(max(at, 0.0), 1e12):017.3f}/{job_id}"


def command_hash(spec: JobFields) -> str:
    """Return a hash of what is run on how much: command or script, bundle, size."""
    told = [
        spec.command,
        spec.script,
        spec.bundle,
        spec.workdir if spec.bundle is None else None,
        spec.gpus,
        spec.nodes,
        spec.gpu_type,
        *([spec.gpu_milli] if spec.gpu_milli < GPU_MILLI_WHOLE else []),
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def take_submission(record: JobRecord, spec: JobSpec, submitted_at: float) -> None:
    """Take in what was submitted."""
    record.tenant, record.user, record.name = spec.tenant, spec.user, spec.name
    record.gpus_total, record.command_hash, record.submitted_at = spec.gpus_total, command_hash(spec), submitted_at
    record.gpu_type, record.time_limit_s = spec.gpu_type, spec.time_limit_s
    record.resumable = spec.resume_flag is not None or spec.checkpoint_dir is not None
    record.directory = spec.workdir if spec.bundle is None else None


def take_analysis(record: JobRecord, content_hash: str, fields: Mapping[str, WorkloadField]) -> None:
    """Take in what the source says."""
    record.content_hash = content_hash
    record.workload = {name: found.value for name, found in sorted(fields.items())}


def take_start(record: JobRecord, event: RunStarted) -> None:
    """The earliest start of a member counts."""
    attempt = _attempt(record, event.attempt)
    if attempt is not None:
        attempt.started_at = min(attempt.started_at or event.started_at, event.started_at)


def take_exit(record: JobRecord, event: RunExited) -> None:
    """The latest end of a member counts, and how it used its GPUs where that was measured for long enough."""
    attempt = _attempt(record, event.attempt)
    if attempt is None:
        return
    if event.started_at is not None:
        attempt.started_at = min(attempt.started_at or event.started_at, event.started_at)
    attempt.ended_at = max(attempt.ended_at or event.ended_at, event.ended_at)
    if isinstance(event, RunExitedV2) and event.member < MEMBERS_MAX and event.usage.gpu_utilisation is not None:
        ran_s = event.ended_at - event.started_at if event.started_at is not None else 0.0
        if event.usage.measured_s >= min(MEASURED_S_ENOUGH, MEASURED_SHARE_MIN * ran_s):
            attempt.used[event.member] = Used(
                utilisation=event.usage.gpu_utilisation,
                memory_utilisation=event.usage.gpu_memory_utilisation,
                memory_bytes=event.usage.gpu_memory_bytes,
                memory_total_bytes=event.usage.gpu_memory_total_bytes,
            )


def take_decision(record: JobRecord, event: JobDecision) -> None:
    """Take in the end of a job, that an attempt resumes, or that it gave way."""
    if isinstance(event, JobStopping) and event.reason in GAVE_WAY and (stopped := _attempt(record, event.attempt)):
        stopped.gave_way = True
    if getattr(event, "resume_from", None) is not None:
        attempt = _attempt(record, event.attempt)
        if attempt is not None and event.NAME == "job.assigned":
            attempt.resumed = True
    outcome: Outcome | None = None
    if isinstance(event, JobSucceeded):
        outcome = "succeeded"
    elif isinstance(event, JobFailed):
        outcome = "failed"
    elif isinstance(event, JobCancelled):
        outcome = "cancelled"
    if outcome is not None and record.outcome is None:
        record.outcome, record.outcome_attempt, record.outcome_at = outcome, event.attempt, event.decided_at


def elapsed_s(record: JobRecord, event: ProgressObserved, at: float) -> float | None:
    """Return how long the work of a progress had been going by then, in this attempt and in those that it goes on with."""
    attempt = record.attempts.get(event.attempt)
    if attempt is None or attempt.started_at is None or at < attempt.started_at:
        return None
    return at - attempt.started_at + (record.earlier_s(event.attempt) or 0.0)


def note_cause(record: JobRecord, cause: str) -> None:
    """Remember that an estimate was made because of this."""
    record.causes = [*record.causes, cause][-CAUSES_MAX:]


def _class_of(used: Sequence[Used]) -> str | None:
    """Return the sharing class of the member that uses its GPU most heavily, None where one of them is not known well enough."""
    classes = [
        sharing_class(one.utilisation, one.memory_utilisation, one.memory_bytes, one.memory_total_bytes)
        for one in used
        if one.memory_utilisation is not None and one.memory_bytes is not None and one.memory_total_bytes is not None
    ]
    return CLASS_NAMES[max(classes)] if classes and len(classes) == len(used) else None


def _with_text_keys(attempt: dict[str, Any]) -> dict[str, Any]:
    """Return an attempt as a store takes it; one that nothing was measured of as it was before anything was."""
    used = attempt.pop("used")
    return attempt | ({"used": {str(member): one for member, one in used.items()}} if used else {})


def _attempt(record: JobRecord, number: int) -> Attempt | None:
    if number not in record.attempts and len(record.attempts) >= ATTEMPTS_MAX:
        return None
    return record.attempts.setdefault(number, Attempt())
