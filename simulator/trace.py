"""A trace as the simulator sees it: jobs in the order of the file, and the raw columns that advice may name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from typing import Any, Protocol

from schedmate.schemas.job import PRIORITY_RANK, PriorityClass
from schedmate.services.dispatcher.core.inputs import Input


class Pace(Protocol):
    """How long a job runs where it is placed."""

    @property
    def start_s(self) -> float:
        """What every start costs, the first one too."""
        ...

    def slowdown(self, shape: Sequence[int]) -> float:
        """Return the run time with so many GPUs on each node over the job's `duration_s`."""
        ...


class TraceError(ValueError):
    """A file, a row or a window that cannot be read; the message says where and what to do."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace. Times in seconds; `gpus` is the whole job's count.

    `gpu_milli` is the share of each GPU that the job asks for (1000: whole GPUs), `gpu_types` are the types
    that will do, none: any. `pool` is the virtual cluster or partition where the
    trace has one, else "default". `local` is the submission in the cluster's local time, `YYYY-MM-DD HH:MM:SS`, where known.
    """

    id: str
    submit_s: float
    gpus: int
    duration_s: float
    pool: str = "default"
    tenant: str = "default"
    local: str | None = None
    gpu_milli: int = 1000
    gpu_types: tuple[str, ...] = ()
    inference: bool = False
    priority: int = PRIORITY_RANK[PriorityClass.NORMAL]
    resumable: bool = True  # it goes on where it was when it is started again; otherwise it begins anew
    pace: Pace | None = None  # where the run time follows the placement
    user: str | None = None
    name: str | None = None
    asks: tuple[Input, ...] = ()  # out of a pool's log: what the pool was told of it as it arrived, taken as it is

    @property
    def share_milli(self) -> int:
        """The thousandths of its GPU that a job of one GPU asks for; a job of several takes whole ones."""
        return self.gpu_milli if self.gpus == 1 else 1000


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in the order of the file; `columns` holds the file's own text by column, one entry a job."""

    name: str
    kind: str
    jobs: tuple[TraceJob, ...]
    columns: dict[str, list[str]] = field(default_factory=dict)
    skipped: int = 0  # rows that are no GPU job: CPU only, never started, a step of a job
    settings: dict[str, Any] = field(default_factory=dict)  # a pool's settings that the trace was published with

    def keep(self, wanted: Callable[[TraceJob], bool]) -> Trace:
        """Return the trace with the jobs that are wanted."""
        at = [n for n, job in enumerate(self.jobs) if wanted(job)]
        columns = {name: [values[n] for n in at] for name, values in self.columns.items()}
        return replace(self, jobs=tuple(self.jobs[n] for n in at), columns=columns)

    def window(self, start: str | None, end: str | None) -> Trace:
        """Return the jobs submitted in [start, end) of the cluster's local time."""
        if start is None and end is None:
            return self
        if any(job.local is None for job in self.jobs):
            raise TraceError(f"{self.name} has no local times: a window by date cannot be taken of it")
        low = _instant(start) if start is not None else ""
        high = _instant(end) if end is not None else "9999-99"
        taken = self.keep(lambda job: low <= (job.local or "") < high)
        if not taken.jobs:
            raise TraceError(f"{self.name} has no job submitted from {start or 'the start'} to {end or 'the end'}")
        return taken

    def staying(self) -> Trace:
        """Return the trace with jobs that never leave: they fill a cluster until nothing more fits."""
        return replace(self, jobs=tuple(replace(job, duration_s=inf) for job in self.jobs))

    def numbers(self, column: str) -> list[float]:
        """Return a column as numbers."""
        if column not in self.columns:
            raise TraceError(f"{self.name} has no column {column!r}; it has {', '.join(self.columns) or 'none'}")
        return list(_numbers(self.name, column, self.columns[column]))


def _numbers(name: str, column: str, values: Iterable[str]) -> Iterable[float]:
    for row, text in enumerate(values, 2):
        try:
            yield float(text)
        except ValueError as error:
            raise TraceError(f"{name}, job {row - 1}: {column} is {text!r}, not a number") from error


def _instant(text: str) -> str:
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S")
    except ValueError as error:
        raise TraceError(f"{text!r} is no date: write YYYY-MM-DD") from error
