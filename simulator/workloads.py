"""What SchedMate would know of a trace's jobs beside their rows: a side file, one JSON object a line, by job id.

| field | what |
|---|---|
| `job_id` | the job of the trace |
| `workload` | what code-analyzer says of its source, by the names of `schemas.events.WORKLOAD_FIELDS` |
| `content_hash`, `command_hash` | as ingest and code-analyzer make them: equal for what is equal |
| `outcome` | how it ends: `succeeded` (the default), `failed` or `cancelled`; told at its end, never before |
| `shown_s` | the whole run time that its own printed progress tells while it runs; absent: it prints none |
| `kind` | what it is drawn to be where GPUs are shared, a name out of `simulator/residents.py` |

All but the id may be absent. A job that the file does not name has nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final

from schedmate.schemas.events import WORKLOAD_FIELDS
from schedmate.services.dispatcher.core.sharing import Profile
from schedmate.services.history_estimator.jobs import Outcome
from schedmate.simulator.residents import TABLE
from schedmate.simulator.trace import TraceError, TraceJob

OUTCOMES: Final = ("succeeded", "failed", "cancelled")
_TEXTS: Final = ("content_hash", "command_hash", "kind")
_FIELDS: Final = frozenset({"job_id", "workload", "outcome", "shown_s", *_TEXTS})


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one job."""

    workload: Mapping[str, Any] = field(default_factory=dict)
    content_hash: str | None = None
    command_hash: str | None = None
    outcome: Outcome = "succeeded"
    shown_s: float | None = None
    kind: str | None = None

    @property
    def profile(self) -> Profile | None:
        """How it uses a GPU, None where no kind is told."""
        return TABLE[self.kind][0] if self.kind is not None else None


def known_of(path: Path, jobs: Sequence[TraceJob]) -> list[Known]:
    """Return what the file says, in the order of the jobs.

    Raises:
        TraceError: the file cannot be read, a line makes no sense, or it names none of the jobs.
    """
    told = _read(path)
    if not any(job.id in told for job in jobs):
        raise TraceError(f"{path.name} says nothing of any job of the trace")
    nothing = Known()
    return [told.get(job.id, nothing) for job in jobs]


def _read(path: Path) -> dict[str, Known]:
    if not path.is_file():
        raise TraceError(f"there is no file {path} of workloads")
    out: dict[str, Known] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            value = json.loads(line)
            job_id, known = _known(value)
        except (ValueError, TypeError, KeyError) as error:
            raise TraceError(f"{path.name}, line {number}: {error}") from error
        if job_id in out:
            raise TraceError(f"{path.name}, line {number}: job {job_id} stands twice")
        out[job_id] = known
    return out


def _known(value: Any) -> tuple[str, Known]:
    if not isinstance(value, dict) or not isinstance(value.get("job_id"), str):
        raise ValueError("it is no object with a job_id")  # noqa: TRY004 - one kind of error a line
    if unknown := sorted(set(value) - _FIELDS):
        raise ValueError(f"nothing is called {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
    workload = value.get("workload", {})
    if not isinstance(workload, dict) or (strange := sorted(set(workload) - set(WORKLOAD_FIELDS))):
        raise ValueError(f"the workload has fields that code-analyzer does not tell: {', '.join(strange)}" if isinstance(workload, dict) else "the workload is no object")  # fmt: skip
    for name in _TEXTS:
        if not isinstance(value.get(name, ""), str):
            raise ValueError(f"{name} is no text")  # noqa: TRY004
    outcome, shown_s, kind = value.get("outcome", "succeeded"), value.get("shown_s"), value.get("kind")
    if outcome not in OUTCOMES:
        raise ValueError(f"the outcome is one of {', '.join(OUTCOMES)}")
    if shown_s is not None and not (isinstance(shown_s, int | float) and isfinite(shown_s) and shown_s > 0):
        raise ValueError("shown_s is a number of seconds above 0")
    if kind is not None and kind not in TABLE:
        raise ValueError(f"no kind is called {kind!r}; there are {', '.join(TABLE)}")
    plain = {name: tuple(v) if isinstance(v, list) else v for name, v in workload.items()}
    return value["job_id"], Known(plain, value.get("content_hash"), value.get("command_hash"), outcome, shown_s, kind)
