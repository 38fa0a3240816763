"""Commands about nodes and pools: nodes, drain, undrain, cordon, declare-dead, reserve, reservations, unreserve, top."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live

from schedmate.cli import rendering
from schedmate.client import Client

Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE")]
WhyOption = Annotated[str, typer.Option("--why", help="Goes into the pool's log and the audit.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (nodes, drain, undrain, cordon, reserve, reservations, unreserve, top):
        app.command()(command)
    app.command(name="declare-dead")(declare_dead)


def nodes(*, json: Json = False) -> None:
    """List nodes with their GPUs and their standing."""
    with Client.from_environment() as client:
        found = client.nodes()
    if json:
        rendering.print_json(found)
    else:
        rendering.console().print(rendering.nodes_table(found))


def drain(node: NodeArgument, *, why: WhyOption = "", json: Json = False) -> None:
    """Start nothing more on a node; what runs there runs to its end."""
    _command(node, "drain", why, json=json)


def undrain(node: NodeArgument, *, why: WhyOption = "", json: Json = False) -> None:
    """Use a node again: lifts a drain and a cordon."""
    _command(node, "undrain", why, json=json)


def cordon(node: NodeArgument, *, why: WhyOption = "", json: Json = False) -> None:
    """Mark a node unschedulable until it has been checked."""
    _command(node, "cordon", why, json=json)


def declare_dead(node: NodeArgument, *, why: WhyOption = "", json: Json = False) -> None:
    """Vouch that nothing runs on a node any more: its runs count as lost and are tried elsewhere."""
    _command(node, "declare-dead", why, json=json)


def reserve(
    node: Annotated[list[str] | None, typer.Argument(metavar="[NODE]...", help="Nodes; or none and --count.")] = None,
    *,
    end: Annotated[str, typer.Option("--to", help="When it ends.")],
    start: Annotated[str, typer.Option("--from", help="When it begins: YYYY-MM-DDTHH:MM[:SS][ZONE], local without a zone.")] = "now",
    count: Annotated[int, typer.Option(min=0, help="So many nodes, those that are used least.")] = 0,
    pool: Annotated[str, typer.Option(help="Pool of the nodes.")] = "default",
    why: WhyOption = "",
    json: Json = False,
) -> None:  # fmt: skip
    """Reserve nodes for maintenance: nobody starts there who would be in the way, and who can resume is stopped as it begins."""
    start_at = None if start == "now" else _moment(start, "--from")
    with Client.from_environment() as client:
        answer = client.reserve(
            pool, start_at=start_at, end_at=_moment(end, "--to"), nodes=node or (), count=count, why=why
        )
    if json:
        rendering.print_json(answer)
    else:
        rendering.console().print(rendering.cell(f"reservation {answer.reservation_id} requested"))


def reservations(
    *, pool: Annotated[str, typer.Option(help="Pool of the nodes.")] = "default", json: Json = False
) -> None:
    """List the reservations of nodes that have not ended."""
    with Client.from_environment() as client:
        found = client.reservations(pool)
    if json:
        rendering.print_json(found)
        return
    for one in found:
        times = " to ".join(
            f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M}" for at in (one.start_at, one.end_at)
        )
        told = (
            f"{one.reservation_id}  {times}  {', '.join(one.nodes)}  {'begun' if one.begun else 'to come'}  {one.why}"
        )
        rendering.console().print(rendering.cell(told.rstrip()))


def unreserve(
    reservation: Annotated[str, typer.Argument(metavar="RESERVATION")],
    *,
    pool: Annotated[str, typer.Option(help="Pool of the reservation.")] = "default",
    why: WhyOption = "",
    json: Json = False,
) -> None:
    """Take a reservation back: its nodes take jobs again."""
    with Client.from_environment() as client:
        answer = client.withdraw_reservation(pool, reservation, why)
    if json:
        rendering.print_json(answer)
    else:
        rendering.console().print(rendering.cell(f"reservation {answer.reservation_id}: withdrawal requested"))


def _moment(text: str, option: str) -> float:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text!r} is no time: write YYYY-MM-DDTHH:MM") from error


def _command(node: str, command: str, why: str, *, json: bool) -> None:
    with Client.from_environment() as client:
        answer = client.command_node(node, command, why)
    if json:
        rendering.print_json(answer)
    else:
        rendering.console().print(rendering.cell(f"{answer.node}: {answer.command} requested"))


def top(
    *,
    pool: Annotated[str, typer.Option(help="Pool to look at.")] = "default",
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    json: Json = False,
) -> None:
    """Watch a pool: nodes, running and waiting jobs."""
    with Client.from_environment() as client:
        if json:
            rendering.print_json(
                {
                    "pool": client.pool(pool),
                    "nodes": client.nodes(),
                    "jobs": list(client.jobs(limit=50, unfinished=True)),
                }
            )
            return
        out = rendering.console()
        if once:
            out.print(_screen(client, pool))
            return
        with Live(_screen(client, pool), console=out, refresh_per_second=4, screen=out.is_terminal) as live:
            while True:
                time.sleep(every)
                live.update(_screen(client, pool))


def _screen(client: Client, pool: str) -> Group:
    seen = client.pool(pool)
    states = ", ".join(f"{count} {state.lower()}" for state, count in sorted(seen.jobs_by_state.items())) or "no jobs"
    leader = (
        f"led by {seen.leader.holder} in term {seen.leader.term}" if seen.leader is not None else "without a leader"
    )
    head = rendering.cell(f"pool {seen.pool} {leader}: {seen.gpus_busy}/{seen.gpus_total} GPUs busy; {states}", "bold")
    return Group(
        head,
        "",
        rendering.nodes_table([n for n in client.nodes() if n.pool == pool]),
        "",
        rendering.jobs_table(client.jobs(limit=50, unfinished=True)),
    )
