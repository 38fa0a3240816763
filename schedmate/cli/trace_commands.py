"""Commands about traces: what a file is, and a generated one."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from schedmate.cli import rendering
from schedmate.simulator.generate import HEADER, philly_like, rows
from schedmate.simulator.readers import kind_of, read_trace
from schedmate.simulator.trace import TraceError

app = typer.Typer(help="Job traces: read one, generate one (docs/traces.md).", no_args_is_help=True)


@app.command("list")
def list_(
    folder: Annotated[Path | None, typer.Argument(help="Where to look; default: the folder that SCHEDMATE_TRACES names.", exists=True, file_okay=False)] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:  # fmt: skip
    """List the traces in a folder and the folders in it, with their kinds (docs/traces.md)."""
    named = os.environ.get("SCHEDMATE_TRACES", "")
    root = folder or Path(named or "no folder")
    if not root.is_dir():
        raise typer.BadParameter("name a folder that is there, or let SCHEDMATE_TRACES name one")
    found = [
        {"trace": str(path.relative_to(root)), "kind": kind, "bytes": path.stat().st_size}
        for path in sorted(root.rglob("*"))
        if path.is_file() and (kind := _kind(path)) is not None
    ]
    if json:
        rendering.print_json(found)
        return
    for row in found:
        rendering.console().print(
            f"{row['kind']:12} {row['bytes']:>14,}  {rendering.harmless(str(row['trace']))}", soft_wrap=True
        )
    if not found:
        rendering.console().print(f"no trace of a known kind in {rendering.harmless(str(root))}", soft_wrap=True)


def _kind(path: Path) -> str | None:
    """Return the kind of a file, None where it cannot be read as a trace of any kind."""
    try:
        return kind_of(path)
    except (TraceError, OSError):
        return None


@app.command()
def show(
    trace: Annotated[Path, typer.Argument(help="A trace of jobs.", exists=True, dir_okay=False)],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Read a trace and say what is in it."""
    read = read_trace(trace)
    jobs = read.jobs
    told = {
        "trace": read.name,
        "kind": read.kind,
        "jobs": len(jobs),
        "rows_skipped": read.skipped,
        "pools": len({job.pool for job in jobs}),
        "gpus_max": max(job.gpus for job in jobs),
        "mean_run_s": sum(job.duration_s for job in jobs) / len(jobs),
        "gpu_hours": sum(job.duration_s * job.gpus for job in jobs) / 3600,
        "first_submit_s": min(job.submit_s for job in jobs),
        "last_submit_s": max(job.submit_s for job in jobs),
    }
    if json:
        rendering.print_json(told)
        return
    for name, value in told.items():
        rendering.console().print(f"{name:16}{value:,.1f}" if isinstance(value, float) else f"{name:16}{value}")


@app.command()
def generate(
    *,
    jobs: Annotated[int, typer.Option(min=1, max=10_000_000, help="How many jobs.")] = 2000,
    seed: Annotated[int, typer.Option(help="The same seed, the same trace.")] = 0,
    per_day: Annotated[float, typer.Option(min=1, help="Jobs a day.")] = 1500.0,
) -> None:
    """Write a seeded trace like Philly's to standard output."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(rows(philly_like(jobs, seed, per_day)))
