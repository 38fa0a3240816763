"""Reservations of nodes for maintenance. For operators."""

from __future__ import annotations

import re
from typing import Final

from fastapi import APIRouter, Request
from pydantic import ValidationError

from schedmate.schemas.job import IDENTIFIER_PATTERN
from schedmate.services.ingest import commands, models
from schedmate.services.ingest.api import bodies
from schedmate.services.ingest.api.context import Context, Ctx
from schedmate.services.ingest.api.documentation import BODY, WHY_BODY, json_body, problems
from schedmate.services.ingest.api.security import Anyone, Reader, operating, publish_audited
from schedmate.services.ingest.problems import Kind, Problem, invalid_field, not_found
from schedmate.services.ingest.read_model import NODE_VIEWS

router: Final = APIRouter(tags=["nodes"])

_NAME: Final = re.compile(IDENTIFIER_PATTERN)


@router.get(
    "/v1/pools/{pool}/reservations",
    operation_id="list_reservations",
    summary="List the reservations of a pool",
    responses=problems(Kind.NOT_FOUND),
)
async def list_reservations(pool: str, context: Ctx, principal: Reader) -> models.ReservationList:  # noqa: ARG001
    """Return the reservations that have not ended, as the pool's leader knows them."""
    if not _NAME.fullmatch(pool):
        raise not_found("pool of this name")
    told = await context.leaders.reservations(pool)
    if told is None:
        raise Problem(Kind.UNAVAILABLE, f"Pool {pool} has no leader that answers; try again in a moment.")
    try:
        return models.ReservationList.model_validate({"reservations": told})
    except ValidationError as error:
        raise Problem(Kind.UNAVAILABLE, f"The leader of pool {pool} answers what makes no sense.") from error


@router.post(
    "/v1/pools/{pool}/reservations",
    operation_id="reserve_nodes",
    status_code=202,
    summary="Reserve nodes for maintenance",
    responses=problems(*BODY, Kind.NOT_FOUND),
    openapi_extra=json_body(models.ReservationRequest),
)
async def reserve(pool: str, request: Request, context: Ctx, principal: Anyone) -> models.ReservationAnswer:
    """Ask that nodes be free from one time to another: those named, or so many. Needs the scope operate; audited.

    Before it begins nothing is started there that is expected to end after that; as it begins who can resume is stopped.
    """
    known = bool(_NAME.fullmatch(pool))
    whole = f"pool/{pool if known else '?'}"
    await operating(context, principal, "reserve", whole)
    body = await bodies.json_body(request, models.ReservationRequest)
    targets = [f"node/{node}" for node in dict.fromkeys(body.nodes)] or [whole]
    at = context.clock.now()
    times = (at if body.start_at is None else body.start_at, body.end_at)
    _check(body, times, at)
    if not known:
        raise not_found("pool of this name")
    await _check_nodes(context, pool, body)
    reservation_id = context.ids.new()
    asked = commands.reservation(
        reservation_id, pool, body.nodes, body.count, times, principal, body.why, event_id=context.ids.new(), at=at
    )
    await publish_audited(context, principal, [asked], "reserve", *targets, at=at)
    return models.ReservationAnswer(reservation_id=reservation_id, pool=pool)


def _check(body: models.ReservationRequest, times: tuple[float, float], now: float) -> None:
    if bool(body.nodes) == bool(body.count):
        raise invalid_field("nodes", "Name nodes, or say how many: one of the two.")
    if times[1] <= max(times[0], now):
        raise invalid_field("end_at", "The end must come after the start, and after now.")


async def _check_nodes(context: Context, pool: str, body: models.ReservationRequest) -> None:
    found = await context.store.get_many(NODE_VIEWS, body.nodes) if body.nodes else {}
    for node in body.nodes:
        if node not in found or found[node].body.get("pool") != pool:
            raise not_found(f"node {node} in pool {pool}")


@router.post(
    "/v1/pools/{pool}/reservations/{reservation_id}/withdraw",
    operation_id="withdraw_reservation",
    status_code=202,
    summary="Take a reservation back",
    responses=problems(*BODY, Kind.NOT_FOUND),
    openapi_extra=WHY_BODY,
)
async def withdraw(
    pool: str, reservation_id: str, request: Request, context: Ctx, principal: Anyone
) -> models.ReservationAnswer:
    """Ask that the nodes of a reservation take jobs again. Needs the scope operate; audited."""
    body = await bodies.json_body(request, models.CommandRequest)
    known = bool(_NAME.fullmatch(pool) and _NAME.fullmatch(reservation_id))
    target = f"reservation/{reservation_id if known else '?'}"
    await operating(context, principal, "withdraw", target)
    if not known:
        raise not_found("reservation with this id")
    at = context.clock.now()
    asked = commands.withdrawal(reservation_id, pool, principal, body.why, event_id=context.ids.new(), at=at)
    await publish_audited(context, principal, [asked], "withdraw", target, at=at)
    return models.ReservationAnswer(reservation_id=reservation_id, pool=pool)
