"""Commands about events: what is decided, as it is decided; dead letters, and the way back."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from schedmate.cli import rendering
from schedmate.cli.job_commands import find_job
from schedmate.client import Client

Json = Annotated[bool, typer.Option("--json", help="Print JSON only; one object a line while following.")]

app = typer.Typer(help="Follow decisions; list dead letters and send them back.", invoke_without_command=True)


@app.callback()
def events(
    context: typer.Context,
    *,
    job: Annotated[str | None, typer.Option(help="Only this job's; those that were, without following.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only this pool's.")] = None,
    json: Json = False,
) -> None:
    """Follow decisions as they are made (Ctrl-C ends it); with --job, list what was decided about a job."""
    if context.invoked_subcommand is not None:
        return
    with Client.from_environment() as client:
        if job is not None:
            history = client.events(find_job(client, job).job_id)
            if json:
                rendering.print_json(history)
                return
            for decision in history.decisions:
                _line(decision.type, decision.model_dump(mode="json"))
            return
        for told in client.decisions(pool=pool):
            if json:
                rendering.print_json({"type": told.kind, **told.fields})
            else:
                _line(told.kind, dict(told.fields))


def _line(kind: str, fields: dict[str, object]) -> None:
    about = fields.get("job_id") or fields.get("node") or ""
    why = fields.get("detail") or fields.get("why") or fields.get("reason") or ""
    at = fields.get("decided_at")
    when = rendering.moment(at if isinstance(at, float) else None)
    short = kind.removeprefix("schedmate.").rsplit(".", 1)[0]
    rendering.console().print(
        rendering.cell(f"{when}  {fields.get('seq')}.{fields.get('index')}  {short:22} {about}  {why}")
    )


@app.command(name="dead-letters")
def dead_letters(*, limit: Annotated[int, typer.Option(min=1, max=200)] = 100, json: Json = False) -> None:
    """List records that could not be processed, newest first."""
    with Client.from_environment() as client:
        found = client.dead_letters(limit=limit)
    if json:
        rendering.print_json(found)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("ID", "WHEN", "TOPIC", "AT", "SERVICE", "ATTEMPTS", "SENT BACK", "ERROR"):
        table.add_column(name)
    for letter in found:
        place = f"{letter.original_partition}/{letter.original_offset}"
        table.add_row(
            *(
                rendering.cell(value)
                for value in (
                    letter.id, rendering.moment(letter.at), letter.original_topic, place, letter.service, letter.attempts,
                    letter.resends, letter.error,
                )
            )
        )  # fmt: skip
    rendering.console().print(table)


@app.command()
def resend(
    letter: Annotated[str, typer.Argument(metavar="ID", help="Id of the dead letter.")], *, json: Json = False
) -> None:
    """Send a dead letter back to where it came from, unchanged; a repeat is recognised."""
    with Client.from_environment() as client:
        answer = client.resend(letter)
    if json:
        rendering.print_json(answer)
    else:
        rendering.console().print(rendering.cell(f"{letter}: sent back"))
