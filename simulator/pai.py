"""Alibaba's PAI trace (cluster-trace-gpu-v2020): tasks, with the submission times of their jobs and the lives of their instances.

The tables are published without a header. `pai_task_table` alone tells GPUs and run times; where `pai_job_table.csv` lies beside it, a
task arrives when its job was submitted and belongs to the job's user (else it arrives when it was launched: its queueing is not in
the table). `pai_instance_table`, with the other two beside it, tells run times more closely: from the first start to the last end of
a task's instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import Final

from schedmate.simulator.rows import Row, header_of, rows_of
from schedmate.simulator.trace import TraceError, TraceJob

TASKS: Final = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
JOBS: Final = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
INSTANCES: Final = (
    "job_name", "task_name", "inst_name", "worker_name", "inst_id", "status", "start_time", "end_time", "machine",
)  # fmt: skip
TABLES: Final = {"pai_task_table": TASKS, "pai_job_table": JOBS, "pai_instance_table": INSTANCES}
_STATES: Final = {"Terminated", "Failed", "Running", "Waiting", "Interrupted"}

Submissions = dict[str, tuple[float, str]]
"""Job -> (submission, user)."""
Lives = dict[tuple[str, str], tuple[float, float]]
"""(job, task) -> first start and last end of its instances."""


def table_of(header: list[str]) -> str | None:
    """Return which of the tables has this first row, its header or (as published) its first values."""
    for name, columns in TABLES.items():
        if len(header) == len(columns) and (tuple(header) == columns or header[columns.index("status")] in _STATES):
            return name
    return None


def rows_of_table(path: Path, table: str) -> Iterator[Row]:
    """Yield the rows of a table, whether or not it has a header."""
    columns = TABLES[table]
    return rows_of(path, None if tuple(header_of(path)) == columns else list(columns))


def tasks_reader(path: Path, table: str) -> tuple[Path, Callable[[Row], TraceJob | None]]:
    """Return the file with the tasks, and what makes a job of each of its rows; None of a row: it takes no GPU, or never ran.

    Raises:
        TraceError: the table tells no GPUs, and the one that does is not beside it.
    """
    tasks, jobs = path.with_name("pai_task_table.csv"), path.with_name("pai_job_table.csv")
    if table == "pai_job_table":
        raise TraceError(f"{path.name} tells no GPUs: give pai_task_table.csv; what this table knows is taken from beside it")  # fmt: skip
    lives: Lives | None = None
    if table == "pai_instance_table":
        if not tasks.is_file():
            raise TraceError(f"{path.name} tells no GPUs: it needs pai_task_table.csv beside it")
        lives = _lives(path)
    else:
        tasks = path
    submissions = _submissions(jobs) if jobs.is_file() else {}
    return tasks, lambda row: _task(row, submissions, lives)


def _task(row: Row, submissions: Submissions, lives: Lives | None) -> TraceJob | None:
    """A task: `inst_num` instances of `plan_gpu` hundredths of a GPU."""
    job, task = row.text("job_name"), row.text("task_name")
    if not row.values["plan_gpu"].strip() or row.number("plan_gpu") == 0:
        return None
    if lives is not None:
        if (job, task) not in lives:
            return None
        start, end = lives[job, task]
    else:
        if not row.values["start_time"].strip() or not row.values["end_time"].strip():
            return None
        start, end = row.number("start_time"), row.number("end_time")
    if start == 0 or end < start:
        return None
    hundredths = row.number("plan_gpu")
    submit, user = submissions.get(job, (start, "default"))
    kind = row.values["gpu_type"].strip()
    return TraceJob(
        f"{job}/{task}", min(submit or start, start), row.count("inst_num", 1) * max(ceil(hundredths / 100), 1), end - start,
        tenant=user, gpu_milli=int(min(hundredths * 10, 1000)), gpu_types=(kind,) if kind and kind != "MISC" else (),
    )  # fmt: skip


def _submissions(path: Path) -> Submissions:
    out: Submissions = {}
    for row in rows_of_table(path, "pai_job_table"):
        if row.values["start_time"].strip():
            out[row.text("job_name")] = (row.number("start_time"), row.values["user"].strip() or "default")
    return out


def _lives(path: Path) -> Lives:
    out: Lives = {}
    for row in rows_of_table(path, "pai_instance_table"):
        if not row.values["start_time"].strip() or not row.values["end_time"].strip():
            continue
        start, end = row.number("start_time"), row.number("end_time")
        if start == 0 or end < start:
            continue
        key = (row.text("job_name"), row.text("task_name"))
        first, last = out.get(key, (start, end))
        out[key] = (min(first, start), max(last, end))
    return out
