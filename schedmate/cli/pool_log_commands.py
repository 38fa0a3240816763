"""Commands about a pool's recorded log: take it out as a file, measure it with the figures of a simulation, decide it again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from schedmate.cli import rendering
from schedmate.infra.adapters import make_store
from schedmate.infra.settings import load, make_state_dir
from schedmate.services.dispatcher.log import PoolLog
from schedmate.services.dispatcher.settings import DispatcherSettings
from schedmate.simulator.recorded import Entry, Recording, line_of, read_log, recording_of, replayed

Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")]
Log = Annotated[Path | None, typer.Option("--log", help="A log file instead of the store: of `pool export`, or of `simulate --log`.")]  # fmt: skip
Pool = Annotated[str, typer.Argument(metavar="POOL")]

_SHOWN = ("jobs", "finished", "avg_jct_s", "p99_jct_s", "avg_wait_s", "p99_wait_s", "makespan_s", "preemptions", "gar", "sor", "gfr",
          "stranded_gpus", "jtted", "jtted_leaf_groups", "ftf", "lost_gpu_h")  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the commands to those of a pool."""
    for command in (export, metrics):
        app.command()(command)


def export(
    pool: Pool = "default",
    *,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; standard output without one.")] = None,
    config: Config = None,
) -> None:
    """Write a pool's log, one entry a line: `schedmate simulate FILE` and `schedmate pool metrics --log FILE` read it."""
    with nullcontext(sys.stdout) if out is None else out.open("w", encoding="utf-8") as file:
        _each(pool, config, lambda entry: file.write(line_of(entry)))


def metrics(pool: Pool = "default", *, log: Log = None, config: Config = None, json: Json = False) -> None:
    """Measure a pool by its log, with the figures of a simulation (docs/metrics-glossary.md)."""
    if log is not None:
        recording = recording_of(read_log(_there(log)))
    else:
        recording = Recording()
        _each(pool, config, recording.add)
    figures = recording.measured()
    if json:
        rendering.print_json(figures)
        return
    table = Table("figure", "value", box=None)
    for name in _SHOWN:
        table.add_row(name, _shown(figures[name]))
    for state, count in figures["ended"].items():
        table.add_row(f"ended {state}", f"{count:,}")
    for size, row in figures["jwtd"].items():
        if row["jobs"]:
            table.add_row(
                f"wait of {size} GPUs, p50 / p90 / p99 s",
                " / ".join(f"{row[p]:,.1f}" for p in ("p50_s", "p90_s", "p99_s")),
            )
    rendering.console().print(table)


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"  # noqa: PLR2004 - seconds and shares


def replay_file(path: Path, *, json: bool) -> int:
    """Decide a log file again and compare, byte for byte; 1 at the first difference."""
    difference = replayed(read_log(_there(path)))
    if json:
        value: dict[str, Any] = {"log": path.name, "equal": difference is None, "difference": None}
        if difference is not None:
            value["difference"] = {name: getattr(difference, name) for name in difference.__slots__}
        rendering.print_json(value)
    elif difference is None:
        typer.echo(f"{path.name}: all decisions equal")
    else:
        typer.echo(
            f"{path.name}, pool {difference.pool}, entry {difference.seq}, decision {difference.index}: "
            f"recorded {difference.recorded}, replayed {difference.replayed}"
        )
    return 0 if difference is None else 1


def _there(path: Path) -> Path:
    if not path.is_file():
        raise typer.BadParameter(f"there is no log {path}")
    return path


def _each(pool: str, config: Path | None, take: Callable[[Entry], object]) -> None:
    settings = load(DispatcherSettings, {}, config)
    make_state_dir(settings)

    async def run() -> int:
        store = make_store(settings)
        await store.start()
        entries = 0
        try:
            async for entry in PoolLog(store, pool).entries(-1):
                take(entry)
                entries += 1
        finally:
            await store.stop()
        return entries

    if asyncio.run(run()) == 0:
        raise typer.BadParameter(f"the store of these settings has no log of a pool {pool!r}")
