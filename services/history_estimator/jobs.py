"""What the estimator is told of jobs, as plain values; and the words by which two jobs are the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, Literal

Outcome = Literal["succeeded", "failed", "cancelled"]
Value = str | int | float | bool | tuple[str, ...] | None

RUN_S_MAX: Final = 366 * 86_400.0
"""No run is longer: a duration beyond it is a broken clock, not a job."""

_DATE: Final = r"\d{4}[-_.]?\d{2}[-_.]?\d{2}(?:[-_tT. ]?\d{2}[-_:.]?\d{2}(?:[-_:.]?\d{2})?)?"
_WORD: Final = r"(?:run|trial|exp|seed|try|attempt|job|v)[-_. ]?"
_TRAILING: Final = re.compile(rf"(?:(?:[-_. :#/]+(?:{_WORD})?\(?|\()(?:{_DATE}|\d+)\)?){{1,4}}$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it is known before it runs.

    Times are seconds of one clock; `local_offset_s` makes the cluster's local time of them. `workload` holds the values that the source
    told, by the field names of `schemas.events.WORKLOAD_FIELDS`; `vector` is the embedding of the workload (unit length).
    """

    id: str
    submitted_at: float
    pool: str = "default"
    tenant: str = "default"
    gpus: int = 1
    user: str | None = None
    name: str | None = None
    gpu_type: str | None = None
    command_hash: str | None = None
    directory: str | None = None
    content_hash: str | None = None
    time_limit_s: float | None = None
    local_offset_s: float = 0.0
    workload: Mapping[str, Value] = field(default_factory=dict)
    vector: Sequence[float] | None = None

    @property
    def exact_key(self) -> tuple[str, ...] | None:
        """What a job that repeats this one has in common with it, but for the content of its source."""
        if self.user is None or self.name is None or self.command_hash is None:
            return None
        return (self.tenant, self.user, plain_name(self.name), self.directory or "", self.command_hash, str(self.gpus))

    @property
    def framework(self) -> str | None:
        """The framework that the source names."""
        value = self.workload.get("framework")
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that has ended. `run_s` is None where its run says nothing of how long such a job takes whole (resumed, never started)."""

    job: Job
    run_s: float | None
    ended_at: float
    outcome: Outcome = "succeeded"
    gpu_utilisation: float | None = None
    gpu_memory_bytes: int | None = None
    sharing_class: str | None = None
    steps: float | None = None

    @property
    def usable(self) -> bool:
        """Whether its times make sense: clocks jump, and accounting files hold what they hold."""
        if not isfinite(self.ended_at) or not isfinite(self.job.submitted_at):
            return False
        return self.run_s is None or (isfinite(self.run_s) and 0.0 < self.run_s <= RUN_S_MAX)


def plain_name(name: str) -> str:
    """Return a job's name without its trailing run number or date, in lower case.

    >>> plain_name("bert-base_run-17"), plain_name("gan 2024-05-01"), plain_name("42")
    ('bert-base', 'gan', '42')
    """
    text = name.strip().lower()
    plain = _TRAILING.sub("", text).rstrip("-_. :#/(")
    return plain or text


def count_class(gpus: int) -> int:
    """Return the class of a GPU count: the power of two that it does not pass (1, 2, 4, 8, ...)."""
    return 1 << max(gpus - 1, 0).bit_length()
