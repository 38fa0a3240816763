"""Readers of job traces; the kind of a file is read from its columns. `docs/traces.md` says where each is published."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from schedmate.schemas.job import PRIORITY_RANK, PriorityClass
from schedmate.simulator.pai import TABLES, rows_of_table, table_of, tasks_reader
from schedmate.simulator.pollux import POLLUX_SETTINGS, pollux_jobs
from schedmate.simulator.recorded import read_log, recording_of
from schedmate.simulator.rows import Row, header_of, rows_of
from schedmate.simulator.trace import Trace, TraceError, TraceJob

RECORDED, PHILLY_JSON, POLLUX, PAI = "recorded", "philly-json", "pollux", "pai"
_POLLUX: Final = frozenset({"name", "time", "application", "num_replicas", "batch_size"})
_SACCT_TRES: Final = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")  # AllocTRES: gres/gpu:a100=2,gres/gpu=2
_SACCT_GRES: Final = re.compile(
    r"(?:^|,)(?:gres:)?gpu(?::([^:,()]+))?:(\d+)"
)  # AllocGRES, of one node: gpu:a100:2(S:0-1)

Reader = Callable[[Row], tuple[TraceJob, datetime | None] | None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of trace: the columns that it has, and how a row becomes a job (None: no GPU job, skipped)."""

    name: str
    needs: frozenset[str]
    read: Reader


def read_trace(path: Path) -> Trace:
    """Read a trace of any known kind.

    Raises:
        TraceError: the file cannot be read, is of no known kind, or has a row that makes no sense.
    """
    if not path.is_file():
        raise TraceError(f"there is no trace {path}")
    name = kind_of(path)
    if name == RECORDED:
        return recording_of(read_log(path)).trace(path.name)
    if name == PHILLY_JSON:
        return _dated(path, name, _philly_json(path), {})
    if name == POLLUX:
        jobs = pollux_jobs(path, rows_of(path))
        return replace(_dated(path, name, ((job, None) for job in jobs), {}), settings=dict(POLLUX_SETTINGS))
    header = header_of(path)
    if (table := table_of(header)) is not None:
        return _pai(path, table)
    kind = next((k for k in KINDS if k.name == name), None)
    if kind is None:
        raise TraceError(_no_trace(path, header))
    return _tabled(path, kind.name, rows_of(path), kind.read)


def kind_of(path: Path) -> str | None:
    """Return the kind of a file by its first line, None where it is no trace of a known kind.

    Raises:
        TraceError: the file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(64).lstrip()
    if start.startswith(b'{"pool":'):
        return RECORDED
    if start[:1] in (b"[", b"{"):
        return PHILLY_JSON
    header = header_of(path)
    if set(header) >= _POLLUX:
        return POLLUX
    if table_of(header) is not None:
        return PAI
    return next((kind.name for kind in KINDS if kind.needs <= set(header)), None)


def _pai(path: Path, table: str) -> Trace:
    tasks, job_of = tasks_reader(path, table)
    return _tabled(path, PAI, rows_of_table(tasks, "pai_task_table"), lambda row: _undated(job_of(row)))


def _undated(job: TraceJob | None) -> tuple[TraceJob, None] | None:
    return None if job is None else (job, None)


def _tabled(path: Path, kind: str, rows: Iterable[Row], read: Reader) -> Trace:
    """Read the rows of a table; what is no GPU job is counted."""
    columns: dict[str, list[str]] = {}
    found: list[tuple[TraceJob, datetime | None]] = []
    seen: set[str] = set()
    skipped = 0
    for row in rows:
        job = read(row)
        if job is None:
            skipped += 1
            continue
        if job[0].id in seen:
            raise TraceError(f"{row.file}, line {row.line}: job {job[0].id} stands twice")
        seen.add(job[0].id)
        found.append(job)
        for name, value in row.values.items():
            columns.setdefault(name, []).append(value)
    return _dated(path, kind, found, columns, skipped)


def _dated(
    path: Path,
    kind: str,
    found: Iterable[tuple[TraceJob, datetime | None]],
    columns: dict[str, list[str]],
    skipped: int = 0,
) -> Trace:
    """Count the seconds of dated jobs from the first submission on."""
    jobs = list(found)
    if not jobs:
        raise TraceError(f"{path.name} has no GPU job")
    seen: set[str] = set()
    for job, _ in jobs:
        if job.id in seen:
            raise TraceError(f"{path.name}: job {job.id} stands twice")
        seen.add(job.id)
    moments = [moment for _, moment in jobs if moment is not None]
    if not moments:
        return Trace(path.name, kind, tuple(job for job, _ in jobs), columns, skipped)
    first = min(moments)
    counted = tuple(
        replace(job, submit_s=(moment - first).total_seconds(), local=moment.strftime("%Y-%m-%d %H:%M:%S"))
        for job, moment in jobs
        if moment is not None
    )
    return Trace(path.name, kind, counted, columns, skipped)


def _no_trace(path: Path, header: list[str]) -> str:
    shown = ", ".join(header[:12])
    needs = [(kind.name, sorted(kind.needs)) for kind in KINDS]
    needs += [("pollux", sorted(_POLLUX)), *((f"pai ({table})", list(columns)) for table, columns in TABLES.items())]
    known = "; ".join(f"{name}: {', '.join(columns)}" for name, columns in needs)
    return f"{path.name} is no job trace of a known kind (columns: {shown}). Known kinds and the columns they need: {known}"


# --- the kinds of ../shared/traces ---


def _philly(row: Row) -> tuple[TraceJob, None]:
    return TraceJob(
        row.text("job_id"), row.number("submit_s"), row.count("num_gpus", 1), row.number("duration_s"),
        pool=row.text("vc"), tenant=row.text("vc"), local=row.moment("submit_local").strftime("%Y-%m-%d %H:%M:%S"),
    ), None  # fmt: skip


def _documented(row: Row) -> tuple[TraceJob, None]:
    """The documented CSV: `job_id,submit_s,num_gpus,duration_s`, and where given `pool`, `tenant`, `user`, `name`, `submit_local`, `gpu_milli`, `gpu_type`, `kind`, `priority`, `resumable`."""
    given = row.values
    pool = given.get("pool") or given.get("vc") or "default"
    if given.get("kind", "") not in ("", "training", "inference"):
        raise row.wrong("kind", "it must be training or inference")
    classes = {one.value: rank for one, rank in PRIORITY_RANK.items()}
    priority = given.get("priority") or PriorityClass.NORMAL.value
    if priority not in classes:
        raise row.wrong("priority", f"it must be {', '.join(classes)}")
    if given.get("resumable", "") not in ("", "yes", "no"):
        raise row.wrong("resumable", "it must be yes or no")
    return TraceJob(
        row.text("job_id"), row.number("submit_s"), row.count("num_gpus", 1), row.number("duration_s"),
        pool=pool, tenant=given.get("tenant") or pool,
        local=row.moment("submit_local").strftime("%Y-%m-%d %H:%M:%S") if given.get("submit_local") else None,
        gpu_milli=row.count("gpu_milli", 1) if given.get("gpu_milli") else 1000,
        gpu_types=tuple(t for t in given.get("gpu_type", "").split("|") if t), inference=given.get("kind") == "inference",
        priority=classes[priority], resumable=given.get("resumable") != "no",
        user=given.get("user") or None, name=given.get("name") or None,
    ), None  # fmt: skip


def _muri(row: Row) -> tuple[TraceJob, None]:
    """Muri's files tell milliseconds."""
    return TraceJob(
        row.text("job_id"), row.number("submit_time") / 1000, row.count("num_gpu", 1), row.number("duration") / 1000
    ), None


def _tiresias(row: Row) -> tuple[TraceJob, None]:
    return TraceJob(
        row.text("job_id"), row.number("submit_time"), row.count("num_gpu", 1), row.number("duration")
    ), None


def _openb(row: Row) -> tuple[TraceJob, None] | None:
    """A pod's life is its creation to its deletion; where it was scheduled, the run starts there."""
    gpus = row.count("num_gpu")
    if gpus == 0:
        return None
    created = row.number("creation_time")
    started = row.number("scheduled_time") if row.values["scheduled_time"].strip() else created
    return TraceJob(
        row.text("name"), created, gpus, max(row.number("deletion_time") - max(started, created), 0),
        tenant=row.values.get("qos") or "default",
        gpu_milli=min(row.count("gpu_milli"), 1000) or 1000, gpu_types=tuple(t for t in row.values["gpu_spec"].split("|") if t),
    ), None  # fmt: skip


# --- as published ---


def _helios(row: Row) -> tuple[TraceJob, datetime] | None:
    """Helios and Acme: dated rows of Slurm's accounting; CPU jobs and those that never ran are skipped."""
    if row.number("gpu_num") < 1 or not row.values["duration"].strip():
        return None
    pool = row.values.get("vc") or "default"
    return TraceJob(
        row.text("job_id"), 0.0, row.count("gpu_num", 1), row.number("duration"), pool=pool, tenant=row.values.get("user") or pool
    ), row.moment("submit_time")  # fmt: skip


def _sacct(row: Row) -> tuple[TraceJob, datetime] | None:
    """`sacct -P -X --format=JobID,User,Account,Partition,Submit,Start,End,State,AllocTRES`; steps and CPU jobs are skipped."""
    given = row.values
    gpus, types = _sacct_gpus(row)
    if "." in row.text("JobID") or gpus == 0 or not (given["Start"][:1].isdigit() and given["End"][:1].isdigit()):
        return None
    ran_s = (row.moment("End") - row.moment("Start")).total_seconds()
    if ran_s < 0:
        raise row.wrong("End", "it ended before it started")
    return TraceJob(
        row.text("JobID"), 0.0, gpus, ran_s, pool=given.get("Partition") or "default",
        tenant=given.get("Account") or given.get("User") or "default", gpu_types=types,
    ), row.moment("Submit")  # fmt: skip


def _sacct_gpus(row: Row) -> tuple[int, tuple[str, ...]]:
    """Return the GPUs of a job and their types. A TRES tells the whole job's, with a line for each type and one for all; a GRES a node's."""
    given = row.values
    tres = _SACCT_TRES.findall(given.get("AllocTRES") or given.get("ReqTRES") or "")
    if tres:
        types = tuple(kind for kind, _ in tres if kind)
        return next((int(n) for kind, n in tres if not kind), sum(int(n) for kind, n in tres if kind)), types
    gres = _SACCT_GRES.findall(given.get("AllocGRES") or given.get("ReqGRES") or "")
    nodes = row.count("NNodes", 1) if gres and given.get("NNodes", "").strip() else 1
    return sum(int(n) for _, n in gres) * nodes, tuple(kind for kind, _ in gres if kind)


def _philly_json(path: Path) -> Iterable[tuple[TraceJob, datetime]]:
    """`cluster_job_log` of msr-fiddle/philly-traces: the run time is the sum over attempts, the GPUs those of the first one."""
    try:
        given = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise TraceError(f"{path.name} is no JSON: {error}") from error
    if not isinstance(given, list):
        raise TraceError(f"{path.name}: a list of jobs is expected")
    for number, job in enumerate(given, 1):
        try:
            read = _philly_job(job)
        except KeyError as error:
            raise TraceError(f"{path.name}, job {number}: it has no {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise TraceError(f"{path.name}, job {number}: {error}") from error
        if read is not None:
            yield read


def _philly_job(job: dict[str, Any]) -> tuple[TraceJob, datetime] | None:
    attempts = [a for a in job["attempts"] if a.get("start_time") not in (None, "None") and a.get("end_time") not in (None, "None")]  # fmt: skip
    gpus = sum(len(node["gpus"]) for node in attempts[0]["detail"]) if attempts else 0
    if gpus == 0:
        return None
    ran_s = sum((_plain(a["end_time"]) - _plain(a["start_time"])).total_seconds() for a in attempts)
    if ran_s < 0:
        raise ValueError("it ended before it started")
    return TraceJob(str(job["jobid"]), 0.0, gpus, ran_s, pool=str(job["vc"]), tenant=str(job["vc"])), _plain(
        job["submitted_time"]
    )


def _plain(text: str) -> datetime:
    return datetime.fromisoformat(text.replace(" PST", "").replace(" PDT", "")).replace(tzinfo=None)


KINDS: Final = (
    Kind("philly", frozenset({"job_id", "vc", "submit_s", "submit_local", "num_gpus", "duration_s"}), _philly),
    Kind("csv", frozenset({"job_id", "submit_s", "num_gpus", "duration_s"}), _documented),
    Kind(
        "muri", frozenset({"job_id", "num_gpu", "submit_time", "duration", "resource_time_0", "iteration_time"}), _muri
    ),
    Kind("tiresias", frozenset({"job_id", "num_gpu", "submit_time", "iterations", "duration"}), _tiresias),
    Kind(
        "openb",
        frozenset({"name", "num_gpu", "gpu_milli", "gpu_spec", "creation_time", "deletion_time", "scheduled_time"}),
        _openb,
    ),
    Kind("helios-acme", frozenset({"job_id", "gpu_num", "submit_time", "duration", "state"}), _helios),
    Kind("sacct", frozenset({"JobID", "Submit", "Start", "End", "State"}), _sacct),
)
"""Tried in this order; the philly-week-peer file is of the documented kind, with predictions in further columns."""
