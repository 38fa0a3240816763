"""Accounting data of another scheduler as history: rows of a CSV, or of Slurm's `sacct --parsable2`, to records. Pure.

A row becomes a record under an id that follows from what the row is about, so a second import of the same file changes nothing. A row that
makes no sense is refused with its line and the reason; one that is no GPU job that has ended is left out, counted by why.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from math import isfinite
from typing import Final

from schedmate.schemas.job import JobFields
from schedmate.services.history_estimator.jobs import RUN_S_MAX, Outcome
from schedmate.services.history_estimator.record import Attempt, JobRecord, command_hash

TEXT_MAX: Final = 200
LINE_MAX: Final = 1_000_000
SLURM_NEEDS: Final = frozenset({"JobID", "State", "Start", "End"})
CSV_NEEDS: Final = frozenset({"job_id"})

_OUTCOMES: Final[dict[str, Outcome]] = {
    "COMPLETED": "succeeded", "SUCCEEDED": "succeeded", "SUCCESS": "succeeded", "PASS": "succeeded", "PASSED": "succeeded",
    "TERMINATED": "succeeded", "FAILED": "failed", "FAIL": "failed", "NODE_FAIL": "failed", "BOOT_FAIL": "failed",
    "OUT_OF_MEMORY": "failed", "OOM": "failed", "TIMEOUT": "failed", "DEADLINE": "failed", "CANCELLED": "cancelled",
    "CANCELED": "cancelled", "KILLED": "cancelled", "PREEMPTED": "cancelled", "REVOKED": "cancelled",
}  # fmt: skip
_NOT_ENDED: Final = frozenset({"PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING", "QUEUED", "WAITING", "CONFIGURING", "COMPLETING"})  # fmt: skip
_GRES: Final = re.compile(r"(?:^|,)(?:gres/)?gpu(?::(?P<type>[A-Za-z][^=:,(]*))?[=:](?P<count>\d+)")
_ELAPSED: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")


class RowError(ValueError):
    """A row that makes no sense; the message says what is wrong with it."""


class TableError(ValueError):
    """A file that is no table of jobs; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that was refused."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that is no GPU job that has ended."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a row does not say. `zone` is that of times written without one."""

    pool: str = "default"
    tenant: str = "default"
    zone: tzinfo = UTC


def read_rows(lines: Iterable[str], defaults: Defaults) -> Iterator[JobRecord | Refused | LeftOut]:
    """Yield what each row comes to.

    Raises:
        TableError: the first line names no columns of a known table.
    """
    stream = iter(lines)
    first = next(stream, "").lstrip("\ufeff").rstrip("\r\n")
    separator = "|" if first.count("|") >= first.count(",") and "|" in first else ","
    header = [name.strip() for name in next(csv.reader([first], delimiter=separator), [])]
    slurm = set(header) >= SLURM_NEEDS
    if not slurm and not set(header) >= CSV_NEEDS:
        raise TableError(
            f"no table of jobs: the first line names {', '.join(header[:8]) or 'nothing'}. Slurm: sacct --parsable2 with "
            f"{', '.join(sorted(SLURM_NEEDS))} at least; CSV: job_id, state, gpus, submitted_at, started_at and ended_at (or duration_s)"
        )
    read = _slurm if slurm else _row
    reader = csv.reader(
        (line[:LINE_MAX] for line in stream),
        delimiter=separator,
        quoting=csv.QUOTE_NONE if slurm else csv.QUOTE_MINIMAL,
    )
    while True:
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Refused(reader.line_num + 1, str(error))
            continue
        line = reader.line_num + 1
        if not values:
            continue
        if len(values) != len(header):
            yield Refused(line, f"{len(values)} values where the header has {len(header)} names")
            continue
        try:
            told = read(dict(zip(header, (value.strip() for value in values), strict=True)), defaults)
        except RowError as error:
            yield Refused(line, str(error))
            continue
        yield LeftOut(line, told) if isinstance(told, str) else told


def _slurm(row: Mapping[str, str], defaults: Defaults) -> JobRecord | str:
    """Return the record of a row of sacct, or why it is left out."""
    if "." in row["JobID"]:
        return "a step of a job"
    outcome = _outcome(row["State"])
    if outcome not in ("succeeded", "failed", "cancelled"):
        return outcome
    tres = row.get("AllocTRES") or row.get("AllocGRES") or row.get("ReqTRES") or row.get("ReqGRES") or ""
    gpus, gpu_type = _gpus(tres)
    if gpus == 0:
        return "no GPU"
    nodes = _count(row, "NNodes", _count(row, "AllocNodes", 1))
    started, ended = _moment(row, "Start", defaults.zone), _moment(row, "End", defaults.zone)
    if started is None:
        return "never started"
    if ended is None:
        raise RowError("End is unknown though the job has ended")
    elapsed = _elapsed(row)
    if elapsed is not None and started + elapsed < ended - 1:
        ended = started + elapsed  # suspended in between: the time that it ran counts
    submitted = _moment(row, "Submit", defaults.zone) or _moment(row, "Eligible", defaults.zone) or started
    return _record(
        "slurm", row["JobID"], defaults, outcome=outcome, gpus=gpus, nodes=nodes, gpu_type=gpu_type, submitted=submitted,
        started=started, ended=ended, user=row.get("User"), tenant=row.get("Account"), pool=row.get("Partition"), name=row.get("JobName"),
        command=row.get("SubmitLine"), directory=row.get("WorkDir"), limit_s=_limit(row.get("Timelimit", "")),
    )  # fmt: skip


def _row(row: Mapping[str, str], defaults: Defaults) -> JobRecord | str:
    """Return the record of a row of a CSV, or why it is left out."""
    outcome = _outcome(row.get("state") or row.get("status") or "COMPLETED")
    if outcome not in ("succeeded", "failed", "cancelled"):
        return outcome
    gpus = _count(row, "gpus", _count(row, "num_gpus", 1))
    if gpus == 0:
        return "no GPU"
    submitted = _moment(row, "submitted_at", defaults.zone)
    submitted = submitted if submitted is not None else _number(row, "submit_s")
    started = _moment(row, "started_at", defaults.zone)
    ended, duration = _moment(row, "ended_at", defaults.zone), _number(row, "duration_s")
    started = started if started is not None else submitted
    if started is None and ended is not None and duration is not None:
        started = ended - duration
    if started is None:
        raise RowError("neither submitted_at nor started_at is given")
    if ended is None and duration is None:
        raise RowError("neither ended_at nor duration_s is given")
    if duration is not None:
        ended = started + duration
    limit = _number(row, "time_limit_s")
    return _record(
        "csv", row["job_id"], defaults, outcome=outcome, gpus=gpus, nodes=_count(row, "nodes", 1), gpu_type=row.get("gpu_type"),
        submitted=submitted if submitted is not None else started, started=started, ended=ended or started, user=row.get("user"),
        tenant=row.get("tenant") or row.get("account") or row.get("vc"), pool=row.get("pool") or row.get("partition") or row.get("vc"),
        name=row.get("name") or row.get("job_name"), command=row.get("command"), directory=row.get("workdir"), limit_s=limit,
    )  # fmt: skip


def _record(
    kind: str, job: str, defaults: Defaults, *, outcome: str, gpus: int, nodes: int, gpu_type: str | None, submitted: float,
    started: float, ended: float, user: str | None, tenant: str | None, pool: str | None, name: str | None, command: str | None,
    directory: str | None, limit_s: float | None,
) -> JobRecord:  # fmt: skip
    """Return the record.

    Raises:
        RowError: the times contradict each other, or a name is missing.
    """
    if not job:
        raise RowError("the job has no id")
    run_s = ended - started
    if run_s <= 0:
        raise RowError(f"it ended {-run_s:g} s before it started" if run_s < 0 else "it ended as it started")
    if run_s > RUN_S_MAX:
        raise RowError(f"it ran for {run_s / 86_400:.0f} days: a broken clock")
    if submitted > started:
        raise RowError(f"it started {submitted - started:g} s before it was submitted")
    where, whose = _identifier(pool) or defaults.pool, _identifier(tenant) or defaults.tenant
    text = (command or "")[: TEXT_MAX * 10]
    each = -(-gpus // max(nodes, 1))
    hashed = None
    if text and 1 <= each <= 1024:  # noqa: PLR2004 - what a job may ask for
        hashed = command_hash(
            JobFields.model_construct(name="x", command=tuple(text.split()), gpus=each, nodes=nodes, workdir=directory or None, gpu_type=gpu_type or None)
        )  # fmt: skip
    known: Outcome = "succeeded" if outcome == "succeeded" else "failed" if outcome == "failed" else "cancelled"
    digest = hashlib.sha256("\x1f".join((kind, whose, where, job, f"{submitted:.0f}")).encode()).hexdigest()[:24]
    return JobRecord(
        job_id=f"{kind}-{digest}", pool=where, tenant=whose, user=_text(user), name=_text(name), gpus_total=gpus,
        command_hash=hashed, gpu_type=_identifier(gpu_type), directory=(directory or "")[:4096] or None, time_limit_s=limit_s,
        source=f"{kind}:{job[:TEXT_MAX]}", submitted_at=submitted, attempts={1: Attempt(started_at=started, ended_at=ended)},
        outcome=known, outcome_attempt=1, outcome_at=ended,
    )  # fmt: skip


def _outcome(state: str) -> str:
    """Return the outcome that a state names, or why the row is left out.

    Raises:
        RowError: nobody knows the state.
    """
    word = state.split(" ", maxsplit=1)[0].upper().rstrip("+")
    if word in _NOT_ENDED:
        return "has not ended"
    if word not in _OUTCOMES:
        raise RowError(f"state {state[:40]!r} is not known")
    return _OUTCOMES[word]


def _gpus(tres: str) -> tuple[int, str | None]:
    """Return the GPUs of a list of trackable resources, and their type where exactly one is named."""
    whole, by_type = 0, {}
    for found in _GRES.finditer(tres):
        if found["type"] is None:
            whole = int(found["count"])
        else:
            by_type[found["type"]] = int(found["count"])
    return whole or sum(by_type.values()), next(iter(by_type)) if len(by_type) == 1 else None


def _moment(row: Mapping[str, str], column: str, zone: tzinfo) -> float | None:
    """Return an instant, written as ISO 8601 or as Unix seconds; None where there is none."""
    text = row.get(column, "")
    if text in ("", "Unknown", "None", "N/A"):
        return None
    try:
        value = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise RowError(f"{column} is {text[:40]!r}, no time") from error
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)).timestamp()
    return _finite(column, value)


def _number(row: Mapping[str, str], column: str) -> float | None:
    text = row.get(column, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise RowError(f"{column} is {text[:40]!r}, no number") from error
    return _finite(column, value)


def _finite(column: str, value: float) -> float:
    if not isfinite(value) or abs(value) > 1e11:  # noqa: PLR2004 - Unix seconds of the year 5138
        raise RowError(f"{column} is {value}, out of bounds")
    return value


def _count(row: Mapping[str, str], column: str, default: int) -> int:
    text = row.get(column, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 6:  # noqa: PLR2004 - a million GPUs
        raise RowError(f"{column} is {text[:40]!r}, no count")
    return int(text)


def _elapsed(row: Mapping[str, str]) -> float | None:
    """Return how long a job ran by Slurm's own account, None where it does not say."""
    if (raw := row.get("ElapsedRaw", "")).isdecimal():
        return float(raw)
    found = _ELAPSED.fullmatch(row.get("Elapsed", ""))
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _limit(text: str) -> float | None:
    """Return a limit as Slurm writes it, [DAYS-]HOURS:MINUTES:SECONDS; None for none."""
    found = _ELAPSED.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds) or None


def _identifier(text: str | None) -> str | None:
    """Return a word as a tenant or a pool may be called; None of nothing."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", text or "").lstrip("._-")[:63]
    return word or None


def _text(text: str | None) -> str | None:
    plain = "".join(c for c in text or "" if c.isprintable())[:TEXT_MAX].strip()
    return plain or None
