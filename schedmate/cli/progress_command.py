"""`schedmate progress LOG`: how far the job is whose log this is."""

from __future__ import annotations

import asyncio
import json as json_text
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from schedmate.cli import rendering
from schedmate.infra.adapters import make_llm
from schedmate.infra.llm.port import LanguageModelError
from schedmate.infra.settings import ServiceSettings, load
from schedmate.infra.telemetry.redaction import redact
from schedmate.services.log_monitor.metrics import proposal
from schedmate.services.log_monitor.metrics.command import hints_of
from schedmate.services.log_monitor.metrics.far import Hints, Snapshot
from schedmate.services.log_monitor.metrics.whole import as_json, progress_of

CHUNK_BYTES = 256 * 1024
MODEL_TIMEOUT_S = 30.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(progress)


def progress(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="The log as the program wrote it.", exists=True, dir_okay=False)
    ],
    *,
    job: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON with the job's command, gpus and nodes.", exists=True, dir_okay=False),
    ] = None,
    size: Annotated[
        int | None, typer.Option("--bytes", metavar="N", min=0, help="Read the first N bytes only.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Tell how far the job is by its log: step, total, epoch, rate, remaining time, phase and loss; what cannot be told is null."""
    with log.open("rb") as file:
        far = progress_of(_chunks(file, size), _hints(job))
    if proposal.wanted(far):
        with log.open("rb") as file:
            far = asyncio.run(_with_proposal(far, proposal.samples(_chunks(file, size))))
    told = as_json(far)
    if json:
        rendering.print_json(told)
        return
    out = rendering.console()
    for name, value in told.items():
        if value is not None:
            out.print(
                rendering.cell(
                    f"{name.replace('_', ' ')}: {value:g}"
                    if isinstance(value, float)
                    else f"{name.replace('_', ' ')}: {value}"
                )
            )


async def _with_proposal(far: Snapshot, lines: list[str]) -> Snapshot:
    """Ask the configured model for a pattern, when there is one and it answers; the log must bear it out."""
    asked = proposal.question(lines, redact, timeout_s=MODEL_TIMEOUT_S)
    if asked is None:
        return far
    model = make_llm(load(ServiceSettings))
    try:
        if not await model.available():
            return far
        answer = await model.ask(asked)
    except LanguageModelError:
        return far
    finally:
        await model.stop()
    found = proposal.adopted(answer.value, lines)
    return proposal.told(far, found, lines) if found is not None else far


def _chunks(file: BinaryIO, size: int | None) -> Iterator[bytes]:
    left = size
    while left is None or left > 0:
        chunk = file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
        if not chunk:
            return
        left = None if left is None else left - len(chunk)
        yield chunk


def _hints(job: Path | None) -> Hints:
    if job is None:
        return Hints()
    try:
        told = json_text.loads(job.read_text(encoding="utf-8"))
    except ValueError as error:
        raise typer.BadParameter(f"{job} is no JSON: {error}") from error
    if not isinstance(told, dict):
        raise typer.BadParameter(f"{job} holds no object")
    command = told.get("command")
    text = (
        " ".join(str(part) for part in command)
        if isinstance(command, list)
        else str(command or told.get("script") or "")
    )
    return hints_of(text, gpus=_count(told, "gpus"), nodes=_count(told, "nodes"))


def _count(told: dict[str, Any], name: str) -> int:
    value = told.get(name)
    return value if isinstance(value, int) and value > 0 else 1
