"""`schedmate pool advice POOL [on|shadow|off]`: whether a pool acts on advice, and what each source of it has been worth there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.table import Table

from schedmate.cli import rendering
from schedmate.infra.adapters import make_store
from schedmate.infra.settings import load, make_state_dir
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.log import PoolLog
from schedmate.services.dispatcher.recovery import recover_pool
from schedmate.services.dispatcher.settings import DispatcherSettings

Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")]


class Acting(StrEnum):
    """Whether a pool acts on advice."""

    ON = "on"
    SHADOW = "shadow"
    OFF = "off"


class Change(Protocol):
    """Changes a pool's settings, or none, and returns those that are given."""

    def __call__(self, pool: str, changes: dict[str, Any], config: Path | None) -> Coroutine[Any, Any, dict[str, Any]]:
        """Apply."""
        ...


def register(app: typer.Typer, change: Change) -> None:
    """Add the command to those of a pool."""
    app.command()(_command(change))


def _command(change: Change) -> Callable[..., None]:
    def advice(
        pool: Annotated[str, typer.Argument(metavar="POOL")] = "default",
        acting: Annotated[Acting | None, typer.Argument(metavar="[on|shadow|off]")] = None,
        *,
        config: Config = None,
        json: Json = False,
    ) -> None:
        """Tell what advice has been worth in a pool; or let it act (on), be scored without acting (shadow), or neither (off)."""
        if acting is not None:
            asyncio.run(change(pool, {"advice": None if acting is Acting.ON else acting.value}, config))
        told = asyncio.run(_told(pool, change, config))
        if json:
            rendering.print_json(told)
            return
        out = rendering.console()
        out.print(rendering.cell(f"{pool}: advice is {told['advice']}"))
        table = Table("source", "weight", "skill", "pairs", "coverage", "runs", box=None)
        for source in told["sources"]:
            covered = "-" if source["coverage"] is None else f"{source['coverage']:.0%}"
            cells = (
                source["basis"],
                f"{source['weight']:g}",
                f"{source['skill']:+.2f}",
                source["pairs"],
                covered,
                source["runs"],
            )
            table.add_row(*(rendering.cell(cell) for cell in cells))
        if told["sources"]:
            out.print(table)

    return advice


async def _told(pool: str, change: Change, config: Path | None) -> dict[str, Any]:
    given = await change(pool, {}, config)
    settings = load(DispatcherSettings, {}, config)
    make_state_dir(settings)
    store = make_store(settings)
    await store.start()
    try:
        state = (await recover_pool(PoolLog(store, pool))).state
    finally:
        await store.stop()
    mode = str(given.get("advice", "weighed"))
    return {"pool": pool, "advice": "on" if mode == "weighed" else mode, "sources": scores(state)}


def scores(state: PoolState) -> list[dict[str, Any]]:
    """Return what each source of advice has been worth in a pool.

    `weight` is how far it is believed (0 to 1), or would be were the pool acting on it; `skill` the mean verdict over the last pairs of jobs (-1
    to 1, 0 for one that knows nothing), `pairs` how many were judged; `coverage` the share of the last runs between its p10 and p90.
    """
    return [
        {
            "basis": basis, "weight": known.weight, "skill": known.skill, "pairs": known.decided, "believed": known.believed,
            "coverage": known.covered if known.judged else None, "runs": known.judged,
        }
        for basis, known in sorted(state.trust.items())
    ]  # fmt: skip
