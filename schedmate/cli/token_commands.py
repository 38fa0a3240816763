"""Commands about API tokens: they work on the store, not through the API, so that a first token can be made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from schedmate.cli import rendering
from schedmate.infra.adapters import make_store
from schedmate.infra.clock import SystemClock
from schedmate.infra.settings import load
from schedmate.infra.store.port import Store
from schedmate.schemas.topology import topology
from schedmate.services.ingest import tokens as domain
from schedmate.services.ingest.access import Scope
from schedmate.services.ingest.settings import IngestSettings

T = TypeVar("T")
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")]

app = typer.Typer(help="Create, list and revoke API tokens (works on the store of the settings).", no_args_is_help=True)


def _with_store(config: Path | None, act: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        settings = load(IngestSettings, {}, config)
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        store = make_store(settings)
        await store.start()
        try:
            await store.setup(topology().collections.values())
            return await act(store)
        finally:
            await store.stop()

    return asyncio.run(run())


@app.command()
def create(
    *,
    tenant: Annotated[str, typer.Option(help="Tenant that the token acts for.")],
    subject: Annotated[str, typer.Option(help="Who holds it: a user or a service.")],
    scope: Annotated[list[Scope], typer.Option("--scope", help="What it allows; may be given several times.")],
    config: Config = None,
    json: Json = False,
) -> None:
    """Make a token and print it: it is told this once, only its hash is kept."""
    made = _with_store(
        config,
        lambda store: domain.create_token(
            store, SystemClock(), tenant=tenant, subject=subject, scopes=frozenset(scope)
        ),
    )
    if json:
        rendering.print_json({"token": made.text, "id": made.token.id})
    else:
        typer.echo(made.text)


@app.command(name="list")
def list_(*, config: Config = None, json: Json = False) -> None:
    """List tokens, without their texts."""
    found = _with_store(config, domain.list_tokens)
    rows = [
        {"id": t.id, "tenant": t.tenant, "subject": t.subject, "scopes": sorted(t.scopes), "created_at": t.created_at}
        for t in found
    ]
    if json:
        rendering.print_json(rows)
        return
    for token in found:
        line = f"{token.id}  {token.tenant}/{token.subject}  {','.join(sorted(token.scopes))}  {rendering.moment(token.created_at)}"
        rendering.console().print(rendering.cell(line))
    if not rows:
        rendering.console().print("no tokens")


@app.command()
def revoke(token_id: Annotated[str, typer.Argument(metavar="ID")], *, config: Config = None) -> int:
    """Revoke a token by its id; instances notice within seconds."""
    if _with_store(config, lambda store: domain.revoke_token(store, token_id)):
        return 0
    raise typer.BadParameter(f"there is no token {token_id}; `schedmate tokens list` lists them")
