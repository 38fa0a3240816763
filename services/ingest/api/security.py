"""Principals for routes: who asks, with which scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from schedmate.schemas.events import Event
from schedmate.schemas.wire import Envelope
from schedmate.services.ingest import commands
from schedmate.services.ingest.access import Principal, Scope
from schedmate.services.ingest.api.context import Context, Ctx
from schedmate.services.ingest.problems import Kind, Problem

_BEARER: Final = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="A token of your tenant. On the loopback none is needed, unless SCHEDMATE_API_TOKENS_REQUIRED says so.",
)


async def _principal(request: Request, context: Ctx, _: Annotated[object, Depends(_BEARER)]) -> Principal:
    peer = request.client.host if request.client is not None else ""
    return await context.gate.enter(request.headers.get("authorization"), peer)


def _needs(*scopes: Scope) -> Callable[[Principal], Awaitable[Principal]]:
    async def needed(principal: Annotated[Principal, Depends(_principal)]) -> Principal:
        if not any(principal.may(scope) for scope in scopes):
            raise forbidden(*scopes)
        return principal

    return needed


def forbidden(*scopes: Scope) -> Problem:
    """Return the problem that a scope is missing."""
    wanted = " or ".join(scope.value for scope in scopes)
    return Problem(Kind.FORBIDDEN, f"This needs a token with the scope {wanted}; an operator makes one.")


Anyone = Annotated[Principal, Depends(_principal)]
Submitter = Annotated[Principal, Depends(_needs(Scope.SUBMIT))]
Reader = Annotated[Principal, Depends(_needs(Scope.READ))]
Fetcher = Annotated[Principal, Depends(_needs(Scope.BUNDLES, Scope.READ, Scope.SUBMIT))]


async def operating(context: Context, principal: Principal, call: str, target: str) -> None:
    """Let an operator pass; anybody else's attempt goes into the audit and is refused."""
    if principal.may(Scope.OPERATE):
        return
    refused = commands.audited(
        principal, Scope.OPERATE, call, target, "refused", event_id=context.ids.new(), at=context.clock.now()
    )
    await context.publish([refused])
    raise forbidden(Scope.OPERATE)


async def publish_audited(
    context: Context,
    principal: Principal,
    asked: Sequence[Envelope[Event]],
    call: str,
    *targets: str,
    at: float,
    scope: Scope = Scope.OPERATE,
) -> None:
    """Put what was asked on the bus, and with it who called what: one audit a target.

    Raises:
        BusError, TimeoutError: it is unknown whether it is on the bus.
    """
    audited = [
        commands.audited(principal, scope, call, target, "accepted", event_id=context.ids.new(), at=at)
        for target in targets
    ]
    await context.publish([*asked, *audited])
