"""What is remembered of a job: a plain document, merged by minimum, maximum and set, so that repeats and disorder change nothing."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from schedmate.schemas.events import (
    JobCancelled,
    JobDecision,
    JobFailed,
    JobSucceeded,
    ProgressObserved,
    RunExited,
    RunStarted,
)
from schedmate.schemas.job import JobSpec

VERSION: Final = 1
ATTEMPTS_MAX: Final = 50
CAUSES_MAX: Final = 50

Outcome = Literal["succeeded", "failed", "cancelled"]


class Attempt(BaseModel):
    """One attempt: from its first member's start to its last member's end, as far as reported."""

    started_at: float | None = None
    ended_at: float | None = None
    resumed: bool = False

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
    submitted_at: float | None = None
    attempts: dict[int, Attempt] = Field(default_factory=dict)
    outcome: Outcome | None = None
    outcome_attempt: int = 0
    outcome_at: float | None = None
    causes: list[str] = Field(default_factory=list)
    said: Said | None = None

    @property
    def runtime_s(self) -> float | None:
        """How long the successful attempt ran; None unless the job succeeded, from its start to its end in one attempt."""
        if self.outcome != "succeeded":
            return None
        attempt = self.attempts.get(self.outcome_attempt)
        return None if attempt is None or attempt.resumed else attempt.duration_s

    @property
    def exact_prefix(self) -> str | None:
        """What a job that repeats this one has in common with it."""
        if self.tenant is None or self.user is None or self.name is None or self.command_hash is None:
            return None
        return _digest(self.tenant, self.user, self.name, self.command_hash)

    @property
    def user_prefix(self) -> str | None:
        """What the jobs of one user of one tenant have in common."""
        if self.tenant is None or self.user is None:
            return None
        return _digest(self.tenant, self.user)

    def body(self) -> dict[str, Any]:
        """Return the document. A finished job can be found by its keys, newest last; others have no keys."""
        body = self.model_dump(mode="json")
        body["attempts"] = {str(n): a for n, a in body["attempts"].items()}
        if self.outcome is not None and self.outcome_at is not None:
            for field, prefix in (("exact_key", self.exact_prefix), ("user_key", self.user_prefix)):
                if prefix is not None:
                    body[field] = f"{prefix}/{max(self.outcome_at, 0.0):017.3f}"
        return body

    @classmethod
    def read(cls, body: Any) -> JobRecord:
        """Return the record in a document."""
        return cls.model_validate({k: v for k, v in body.items() if k not in {"exact_key", "user_key"}})


def key_range(prefix: str) -> tuple[str, str]:
    """Return the bounds between which the keys of a prefix lie."""
    return f"{prefix}/", f"{prefix}0"


def command_hash(spec: JobSpec) -> str:
    """Return a hash of what is run on how much: command or script, bundle, size."""
    told = [
        spec.command,
        spec.script,
        spec.bundle,
        spec.workdir if spec.bundle is None else None,
        spec.gpus,
        spec.nodes,
        spec.gpu_type,
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def take_submission(record: JobRecord, spec: JobSpec, submitted_at: float) -> None:
    """Take in what was submitted."""
    record.tenant, record.user, record.name = spec.tenant, spec.user, spec.name
    record.gpus_total, record.command_hash, record.submitted_at = spec.gpus_total, command_hash(spec), submitted_at


def take_start(record: JobRecord, event: RunStarted) -> None:
    """The earliest start of a member counts."""
    attempt = _attempt(record, event.attempt)
    if attempt is not None:
        attempt.started_at = min(attempt.started_at or event.started_at, event.started_at)


def take_exit(record: JobRecord, event: RunExited) -> None:
    """The latest end of a member counts."""
    attempt = _attempt(record, event.attempt)
    if attempt is None:
        return
    if event.started_at is not None:
        attempt.started_at = min(attempt.started_at or event.started_at, event.started_at)
    attempt.ended_at = max(attempt.ended_at or event.ended_at, event.ended_at)


def take_decision(record: JobRecord, event: JobDecision) -> None:
    """Take in the end of a job, or that an attempt resumes."""
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
    """Return how long the run of a progress had been going by then."""
    attempt = record.attempts.get(event.attempt)
    if attempt is None or attempt.started_at is None or at < attempt.started_at:
        return None
    return at - attempt.started_at


def note_cause(record: JobRecord, cause: str) -> None:
    """Remember that an estimate was made because of this."""
    record.causes = [*record.causes, cause][-CAUSES_MAX:]


def _attempt(record: JobRecord, number: int) -> Attempt | None:
    if number not in record.attempts and len(record.attempts) >= ATTEMPTS_MAX:
        return None
    return record.attempts.setdefault(number, Attempt())


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]
