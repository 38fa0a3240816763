"""`schedmate analyze DIR --entry FILE`: what kind of workload a job's source says it is, each field with the line it rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from schedmate.cli import rendering
from schedmate.infra.telemetry.redaction import redact
from schedmate.schemas.events import WORKLOAD_FIELDS, WorkloadField
from schedmate.services.code_analyzer.analysis import Analysis, Subject
from schedmate.services.code_analyzer.reading import analyze_directory


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(analyze)


def analyze(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with the job's source.")],
    *,
    entry: Annotated[
        str, typer.Option("--entry", help="The file that is submitted: a script, a program, a notebook, a manifest.")
    ],
    gpus: Annotated[int | None, typer.Option("--gpus", min=0, help="GPUs per node that the job asks for.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Nodes that the job asks for.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Tell what a job is from its source, without running any of it. Unknown stays unknown."""
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder")
    if not (folder / entry).is_file():
        raise typer.BadParameter(f"{entry} is not in {folder}")
    _, analysis = analyze_directory(Subject(entry=entry, gpus=gpus, nodes=nodes), folder)
    if json:
        rendering.print_json(as_json(analysis))
        return
    table = Table("field", "value", "basis", "where", "sure", box=None)
    for name in WORKLOAD_FIELDS:
        found = analysis.fields.get(name)
        if found is not None:
            cells = (name, _text(found), found.basis.value, _where(found), f"{found.confidence:.0%}")
            table.add_row(*(rendering.cell(text) for text in cells))
    out = rendering.console()
    out.print(table)
    unknown = [name for name in WORKLOAD_FIELDS if name not in analysis.fields]
    if unknown:
        out.print(rendering.cell(f"unknown: {', '.join(unknown)}"))
    if analysis.partial_because:
        out.print(rendering.cell(f"not everything could be read: {redact(analysis.partial_because)}"))


def as_json(analysis: Analysis) -> dict[str, Any]:
    """Return an analysis as the command prints it: all fields, null where unknown."""
    fields = analysis.fields
    return {
        "fields": {name: _value(fields[name]) if name in fields else None for name in WORKLOAD_FIELDS},
        "basis": {name: found.basis.value for name, found in fields.items()},
        "evidence": {name: {"file": found.file, "line": found.line} for name, found in fields.items()},
        "confidence": {name: found.confidence for name, found in fields.items()},
        "partial_because": redact(analysis.partial_because) if analysis.partial_because else None,
    }


def _value(found: WorkloadField) -> Any:
    if isinstance(found.value, tuple):
        return [redact(item) for item in found.value]
    return redact(found.value) if isinstance(found.value, str) else found.value


def _text(found: WorkloadField) -> str:
    value = _value(found)
    return ", ".join(value) if isinstance(value, list) else str(value)


def _where(found: WorkloadField) -> str:
    return "" if found.file is None else found.file if found.line is None else f"{found.file}:{found.line}"
