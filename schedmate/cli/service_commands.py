"""Commands that run things: up, serve, worker, setup, replay, demo."""

from __future__ import annotations

import asyncio
import importlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from schedmate.cli import rendering
from schedmate.cli.pool_log_commands import replay_file
from schedmate.infra.adapters import make_bus, make_store
from schedmate.infra.clock import SystemClock
from schedmate.infra.service import Component, run_service
from schedmate.infra.settings import ServiceSettings, from_command_line, load, make_state_dir
from schedmate.infra.setup import setup as set_up
from schedmate.infra.telemetry.logs import setup_logging

Config = Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


class Service(StrEnum):
    """A service that can be served."""

    INGEST = "ingest"
    CODE_ANALYZER = "code-analyzer"
    HISTORY_ESTIMATOR = "history-estimator"
    LOG_MONITOR = "log-monitor"
    DISPATCHER = "dispatcher"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(context_settings=_PASS_ON)(up)
    app.command(context_settings=_PASS_ON)(serve)
    app.command(context_settings=_PASS_ON)(worker)
    for command in (setup, rebuild, replay, demo):
        app.command()(command)


def up(context: typer.Context) -> int:
    """Run all services and local workers in one process: `schedmate up [--nodes 2 --gpus 4]`; `--help` lists the settings."""
    from schedmate.embedded import UpSettings, run_up  # noqa: PLC0415 - loads every service

    settings = from_command_line(UpSettings, context.args)
    setup_logging(settings.log_level, settings.log_format)
    return asyncio.run(run_up(settings))


def serve(
    context: typer.Context,
    service: Annotated[
        str, typer.Argument(metavar="NAME", help=f"Which: {', '.join(Service)}.", autocompletion=lambda: list(Service))
    ],
) -> int:
    """Run one service: `schedmate serve dispatcher --pools a,b`; `serve NAME --help` lists its settings."""
    if service in {"--help", "-h"}:  # every other flag is the service's
        typer.echo(context.get_help())
        return 0
    if service not in set(Service):
        raise typer.BadParameter(f"{service!r} is no service; there are {', '.join(Service)}")
    module = f"schedmate.services.{service.replace('-', '_')}"
    wiring = importlib.import_module(f"{module}.wiring")
    settings_class = _settings_class(importlib.import_module(f"{module}.settings"))
    return run_service(settings_class, lambda settings: _AfterSetup(settings, wiring.build(settings)), context.args)


def worker(context: typer.Context) -> int:
    """Run a node agent: `schedmate worker --node n1 --gpus 4 [--gpu-type h100] [--pool default]`; `--help` lists its settings."""
    from schedmate.services.worker.settings import WorkerSettings  # noqa: PLC0415 - only this command needs it
    from schedmate.services.worker.wiring import build  # noqa: PLC0415

    return run_service(WorkerSettings, build, context.args)


def _settings_class(module: Any) -> type[ServiceSettings]:
    return next(
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, ServiceSettings) and thing.__module__ == module.__name__
    )


class _AfterSetup:
    """A service that makes sure of topics and collections before it starts."""

    def __init__(self, settings: ServiceSettings, component: Component) -> None:
        self.name = component.name
        self._settings = settings
        self._component = component
        self._is_set_up = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._component, name)

    async def start(self) -> None:
        if not self._is_set_up:
            await _set_up(self._settings)
            self._is_set_up = True
        await self._component.start()

    async def run(self, stop: asyncio.Event) -> None:
        await self._component.run(stop)

    async def close(self) -> None:
        await self._component.close()

    def ready(self) -> Any:
        return self._component.ready()


async def _set_up(settings: ServiceSettings) -> None:
    make_state_dir(settings)
    bus, store = make_bus(settings, SystemClock()), make_store(settings)
    await store.start()
    try:
        await bus.start()
        try:
            await set_up(bus, store)
        finally:
            await bus.stop()
    finally:
        await store.stop()


class _SetupSettings(ServiceSettings):
    SERVICE = "setup"


def setup(*, config: Config = None, json: Json = False) -> None:
    """Create topics, collections and indexes; running it again changes nothing."""
    from schedmate.schemas.topology import topology  # noqa: PLC0415

    asyncio.run(_set_up(load(_SetupSettings, {}, config)))
    made = topology()
    if json:
        rendering.print_json({"topics": sorted(made.topics), "collections": sorted(made.collections)})
    else:
        typer.echo(f"{len(made.topics)} topics and {len(made.collections)} collections are there")


def rebuild(*, config: Config = None, json: Json = False) -> None:
    """Drop the read model behind the API and have it built anew from job documents and topics; ingest notices within seconds."""
    from schedmate.services.ingest.settings import IngestSettings  # noqa: PLC0415 - only this command needs it
    from schedmate.services.ingest.wiring import build  # noqa: PLC0415

    settings = load(IngestSettings, {}, config)

    async def run() -> int:
        await _set_up(settings)
        context = build(settings).context
        await context.store.start()
        try:
            return await context.read_model.rebuild()
        finally:
            await context.store.stop()

    generation = asyncio.run(run())
    if json:
        rendering.print_json({"generation": generation})
    else:
        typer.echo(f"the read model is built anew as generation {generation}; ingest fills it as it reads")


def replay(
    pool: Annotated[str, typer.Argument(metavar="POOL")] = "default",
    *,
    log: Annotated[Path | None, typer.Option("--log", help="A log file instead of the store (`pool export`).")] = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Decide a pool's log again and compare, byte for byte; exit 1 at the first difference."""
    if log is not None:
        return replay_file(log, json=json)
    from schedmate.services.dispatcher.core.state import CORE_VERSION  # noqa: PLC0415
    from schedmate.services.dispatcher.replay import replay as decide_again  # noqa: PLC0415

    settings = load(_SetupSettings, {}, config)

    async def run() -> Any:
        store = make_store(settings)
        await store.start()
        try:
            return await decide_again(store, pool)
        finally:
            await store.stop()

    outcome = asyncio.run(run())
    if outcome.entries == 0:
        raise typer.BadParameter(f"the store of these settings has no log of a pool {pool!r}")
    difference = outcome.difference
    if json:
        rendering.print_json(
            {
                "pool": pool,
                "entries": outcome.entries,
                "decisions": outcome.decisions,
                "equal": difference is None,
                "difference": str(difference) if difference is not None else None,
                "core_version": CORE_VERSION,
                "other_versions": list(outcome.other_versions),
            }
        )
    elif difference is None:
        others = f" (some recorded by core {', '.join(outcome.other_versions)})" if outcome.other_versions else ""
        typer.echo(f"{pool}: {outcome.decisions} decisions of {outcome.entries} entries, all equal{others}")
    else:
        typer.echo(f"{pool}: {difference}")
    return 0 if difference is None else 1


def demo(
    *,
    directory: Annotated[
        Path | None, typer.Option(help="Where its state goes; a fresh temporary directory without one.")
    ] = None,
    examples: Annotated[Path | None, typer.Option(help="Directory of the example programs.")] = None,
    json: Json = False,
) -> int:
    """Run a dozen real jobs on two local nodes of four declared GPUs, watch them, and say what became of each."""
    from schedmate.demo import run_demo  # noqa: PLC0415 - loads every service

    return run_demo(directory, examples, json=json)
