"""Commands about a pool's settings: limits, policy, budgets. They work on the store; the leader takes a change over within seconds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from schedmate.cli import pool_advice_commands, pool_log_commands, rendering
from schedmate.infra.adapters import make_store
from schedmate.infra.settings import load, make_state_dir
from schedmate.schemas.topology import topology
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import UnknownPolicyError, policy_named
from schedmate.services.dispatcher.settings import DispatcherSettings

COLLECTION = "pool_config"
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")]
Pool = Annotated[str, typer.Argument(metavar="POOL")]

app = typer.Typer(
    help="A pool's settings (limits, policy, budgets) and its log (figures, export).", no_args_is_help=True
)
pool_log_commands.register(app)


@app.command()
def show(pool: Pool = "default", *, config: Config = None, json: Json = False) -> None:
    """Show a pool's settings: what its document says, over the defaults."""
    given = asyncio.run(_change(pool, {}, config))
    settings = {**PoolConfig().to_json(), **given}
    if json:
        rendering.print_json(settings)
        return
    for name, value in settings.items():
        mark = "*" if name in given else " "
        rendering.console().print(rendering.cell(f"{mark} {name}: {value}"))


def settings_of(items: list[str]) -> dict[str, Any]:
    """Read NAME=VALUE items, the values YAML, an empty one None."""
    settings: dict[str, Any] = {}
    for item in items:
        name, separator, text = item.partition("=")
        if not separator:
            raise typer.BadParameter(f"{item}: must be NAME=VALUE")
        try:
            settings[name] = yaml.safe_load(text) if text else None
        except yaml.YAMLError as error:
            raise typer.BadParameter(f"{name}: the value is not YAML") from error
    return settings


@app.command(name="set")
def set_(
    pool: Pool,
    values: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE…", help="Values are YAML; an empty one takes the setting back.")
    ],
    *,
    config: Config = None,
    json: Json = False,
) -> None:
    """Change settings of a pool, e.g. `schedmate pool set default tenant_gpus_max=16 policy=fifo-skip`."""
    changes = settings_of(values)
    given = asyncio.run(_change(pool, changes, config))
    if json:
        rendering.print_json(given)
    else:
        rendering.console().print(rendering.cell(f"{pool}: {given}"))


async def _change(pool: str, changes: dict[str, Any], config: Path | None) -> dict[str, Any]:
    """Apply changes to the pool's document, if they make sense, and return it."""
    settings = load(DispatcherSettings, {}, config)
    make_state_dir(settings)
    store = make_store(settings)
    await store.start()
    try:
        await store.setup(topology().collections.values())
        found = await store.get(COLLECTION, pool)
        given = dict(found.body) if found is not None else {}
        if changes:
            given = {name: value for name, value in {**given, **changes}.items() if value is not None}
            _check(given)
            await store.put(COLLECTION, pool, given)
        return given
    finally:
        await store.stop()


def _check(given: dict[str, Any]) -> None:
    try:
        policy_named(PoolConfig.from_json({**PoolConfig().to_json(), **given}).policy)
    except (TypeError, UnknownPolicyError) as error:
        raise typer.BadParameter(str(error)) from error


pool_advice_commands.register(app, _change)
