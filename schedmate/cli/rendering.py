"""Showing things: tables and JSON. What users wrote is text, never markup and never a terminal's commands."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from schedmate.schemas.job import GPU_MILLI_WHOLE, JobKind
from schedmate.services.ingest.models import JobView, NodeView

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PIPED_COLUMNS = 1000  # a table that goes into a file or a pipe is cut nowhere
STATE_STYLES = {
    "RUNNING": "green",
    "ASSIGNED": "cyan",
    "QUEUED": "yellow",
    "STOPPING": "magenta",
    "DIAGNOSING": "magenta",
    "SUCCEEDED": "bold green",
    "FAILED": "bold red",
    "REJECTED": "bold red",
    "CANCELLED": "dim",
}


def console() -> Console:
    """Return the console of standard output."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    return Console(highlight=False, soft_wrap=True, width=_PIPED_COLUMNS)


def harmless(text: str) -> str:
    """Return text with its control characters made visible: an escape sequence shows as itself and does nothing."""
    return _CONTROLS.sub(lambda m: chr(0x2400 + ord(m[0])) if ord(m[0]) < 0x20 else "\ufffd", text)  # noqa: PLR2004


def safe_log(text: str) -> str:
    """Return a job's output for a terminal: line ends, tabs and carriage returns stay, everything else is made visible."""
    return harmless(text)


def print_json(value: Any) -> None:
    """Print JSON and nothing else."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, indent=2 if sys.stdout.isatty() else None) + "\n")


def plain(value: Any) -> Any:
    """Return models as JSON values."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def cell(value: object, style: str = "") -> Text:
    """Return a table's cell."""
    return Text(harmless("" if value is None else str(value)), style=style)


def state_cell(state: str) -> Text:
    """Return a state in its colour."""
    return cell(state, STATE_STYLES.get(state, ""))


def duration(seconds: float | None) -> str:
    """Return seconds in words: `4.2s`, `3m20s`, `2h05m`, `3d04h`; `-` when unknown."""
    if seconds is None:
        return "-"
    if seconds < 60:  # noqa: PLR2004
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:  # noqa: PLR2004
        return f"{hours}h{minutes:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"


def order_words(job: JobView) -> str:
    """Return what operators ordered of a job; empty where nothing."""
    said = []
    if job.pin is not None:
        said.append(f"pinned {job.pin.place} by {job.pin.requested_by}{f': {job.pin.why}' if job.pin.why else ''}")
    ordered = job.ordered_estimate
    if ordered is not None:
        why = f": {ordered.why}" if ordered.why else ""
        said.append(f"estimate {duration(ordered.p50_s)} by {ordered.requested_by}{why}")
    return "; ".join(said)


def moment(at: float | None) -> str:
    """Return a time in the local zone; `-` when unknown."""
    return "-" if at is None else datetime.fromtimestamp(at, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def progress_words(job: JobView) -> str:
    """Return how far a job is."""
    told = job.progress
    if told is None or told.attempt != job.attempt:
        return "-"
    if told.step is not None:
        total = f"/{told.total_steps}" if told.total_steps is not None else ""
        percent = f" {told.fraction:.0%}" if told.fraction is not None else ""
        return f"{told.step}{total}{percent}"
    if told.epoch is not None:
        return f"epoch {told.epoch:g}" + (f"/{told.total_epochs:g}" if told.total_epochs is not None else "")
    return told.phase or "-"


def left_words(job: JobView) -> str:
    """Return how long a running job will go on, with the interval where that is more than a rounding."""
    told = job.progress
    if told is None or told.attempt != job.attempt or told.eta_s is None or job.state != "RUNNING":
        return "-"
    left = duration(told.eta_s)
    if told.eta_low_s is None or told.eta_high_s is None:
        return left
    low, high = duration(told.eta_low_s), duration(told.eta_high_s)
    return left if low == high else f"{left} ({low}-{high})"


def gpu_words(job: JobView) -> str:
    """Return what a job asks for."""
    if job.gpu_milli < GPU_MILLI_WHOLE:
        return f"{job.gpu_milli / GPU_MILLI_WHOLE:g}"
    return f"{job.nodes}x{job.gpus}" if job.nodes > 1 else str(job.gpus)


def request_words(job: JobView) -> str:
    """Return what a job asks for, in full."""
    of_type = f" of type {job.gpu_type}" if job.gpu_type else ""
    together = f" in one {job.within}" if job.within else ""
    serving = " for inference" if job.kind is JobKind.INFERENCE else ""
    return f"{gpu_words(job)} GPUs{of_type}{together}{serving}"


def node_words(job: JobView) -> str:
    """Return where a job runs."""
    return ",".join(p.node for p in job.placements) if job.placements else "-"


def jobs_table(jobs: Iterable[JobView], *, title: str | None = None) -> Table:
    """Return a table of jobs."""
    table = Table(title=title, box=None, pad_edge=False, header_style="bold", expand=False)
    for name in ("JOB", "NAME", "STATE", "GPUS", "NODES", "WAIT", "RUN", "PROGRESS", "LEFT", "REASON"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)  # one line a job; `why` tells it all
    for job in jobs:
        table.add_row(
            cell(job.job_id[:8]),
            cell(job.name),
            state_cell(job.state),
            cell(gpu_words(job)),
            cell(node_words(job)),
            cell(duration(job.wait_s)),
            cell(duration(job.run_s)),
            cell(progress_words(job)),
            cell(left_words(job)),
            cell(job.detail or job.reason),
        )
    return table


def nodes_table(nodes: Sequence[NodeView], *, title: str | None = None) -> Table:
    """Return a table of nodes."""
    table = Table(title=title, box=None, pad_edge=False, header_style="bold")
    labelled = any(node.rack or node.spine for node in nodes)
    for name in ("NODE", "POOL", *(("RACK",) if labelled else ()), "STATE", "GPUS", "TYPE", "RUNS", "REPORTED", "WHY"):
        table.add_column(name)
    for node in nodes:
        kinds = ",".join(sorted({g.type for g in node.gpus}))
        same = "jobs run as the worker's user" if node.same_user else ""
        table.add_row(
            cell(node.node),
            cell(node.pool),
            *((cell("/".join(label for label in (node.spine, node.rack) if label) or "-"),) if labelled else ()),
            cell(node.state, "green" if node.state == "up" else "red"),
            cell(f"{node.gpus_busy}/{node.gpus_total}"),
            cell(kinds),
            cell(node.runs),
            cell(moment(node.reported_at)),
            cell("; ".join(part for part in (node.why, same) if part)),
        )
    return table
