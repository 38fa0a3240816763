"""`schedmate job estimate` and `schedmate job pin`: what an operator orders of one job."""

from __future__ import annotations

import re
from enum import StrEnum
from math import isfinite
from typing import Annotated, Final

import typer

from schedmate.cli import rendering
from schedmate.cli.job_commands import JobArgument, Json, find_job
from schedmate.client import Client
from schedmate.services.ingest.models import OrderAnswer

app = typer.Typer(
    name="job", help="What an operator orders of one job. Needs the scope operate; audited.", no_args_is_help=True
)

WhyOption = Annotated[str, typer.Option("--reason", "--why", help="Goes into the pool's log and the job's reasons.")]
_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


class Place(StrEnum):
    """Where a job shall wait in its priority class; `none`: where the policy has it."""

    FIRST = "first"
    LAST = "last"
    NONE = "none"


def seconds_of(text: str, option: str) -> float:
    """Return a duration in seconds: a number of them, or such as `90s`, `45m`, `2h`, `1d12h`.

    Raises:
        typer.BadParameter: it is none, or not above 0.
    """
    parts = _PART.findall(text)
    try:
        told = sum(float(n) * _UNITS_S[unit] for n, unit in parts) if _PART.sub("", text) == "" else float(text)
    except ValueError:
        told = 0.0
    if not (isfinite(told) and told > 0):
        raise typer.BadParameter(f"{option} {text!r} is no duration: write seconds, or such as 45m, 2h, 1d12h")
    return told


@app.command()
def estimate(
    job: JobArgument,
    *,
    p50: Annotated[str | None, typer.Option(metavar="TIME", help="Median of the run time: 5400, 90m, 1h30m.")] = None,
    p10: Annotated[str | None, typer.Option(metavar="TIME", help="Its 10 % quantile.")] = None,
    p90: Annotated[str | None, typer.Option(metavar="TIME", help="Its 90 % quantile.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Let estimates count again.")] = False,
    why: WhyOption = "",
    json: Json = False,
) -> None:
    """Say how long a job runs, in place of every estimate until it is cleared; the job's time limit bounds it."""
    if clear == (p50 is not None) or (clear and (p10 is not None or p90 is not None)):
        raise typer.BadParameter("say --p50 TIME (and --p10, --p90), or --clear")
    low, middle, high = (
        seconds_of(text, option) if text is not None else None
        for text, option in ((p10, "--p10"), (p50, "--p50"), (p90, "--p90"))
    )
    with Client.from_environment() as client:
        found = find_job(client, job).job_id
        if middle is None:
            answer = client.clear_estimate(found, why=why)
        else:
            answer = client.order_estimate(found, middle, low, high, why=why)
    said = "estimates count again" if middle is None else f"an estimate of {rendering.duration(middle)} requested"
    _tell(answer, said, json=json)


@app.command()
def pin(
    job: JobArgument, place: Annotated[Place, typer.Argument()], *, why: WhyOption = "", json: Json = False
) -> None:
    """Put a job first or last in its priority class, or (none) back where the policy has it."""
    if place is not Place.NONE and not why.strip():
        raise typer.BadParameter("say --reason TEXT: it goes into the pool's log and the job's reasons")
    with Client.from_environment() as client:
        answer = client.pin(find_job(client, job).job_id, place.value, why)
    _tell(answer, "to be let go" if place is Place.NONE else f"to be pinned {place.value}", json=json)


def _tell(answer: OrderAnswer, said: str, *, json: bool) -> None:
    if json:
        rendering.print_json(answer)
    else:
        rendering.console().print(rendering.cell(f"{answer.job_id}: {said}"))
