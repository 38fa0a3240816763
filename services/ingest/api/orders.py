"""What an operator orders of one job: an estimate in place of all others, and its place in the queue. For operators."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request

from schedmate.schemas.events import Event
from schedmate.schemas.states import TERMINAL, JobState
from schedmate.schemas.wire import Envelope
from schedmate.services.ingest import commands, models
from schedmate.services.ingest.access import Principal
from schedmate.services.ingest.api import bodies
from schedmate.services.ingest.api.context import Context, Ctx
from schedmate.services.ingest.api.documentation import BODY, json_body, problems
from schedmate.services.ingest.api.jobs import is_job_id, visible_job
from schedmate.services.ingest.api.security import Anyone, operating, publish_audited
from schedmate.services.ingest.problems import Kind, Problem, invalid_field
from schedmate.services.ingest.projection import View

router: Final = APIRouter(tags=["jobs"])

_CALLS: Final = {"first": "pin-first", "last": "pin-last", "none": "unpin"}


@router.post(
    "/v1/jobs/{job_id}/estimate",
    operation_id="order_estimate",
    status_code=202,
    summary="Say how long a job runs, in place of every estimate",
    responses=problems(*BODY, Kind.NOT_FOUND, Kind.CONFLICT),
    openapi_extra=json_body(models.EstimateOrder),
)
async def order_estimate(job_id: str, request: Request, context: Ctx, principal: Anyone) -> models.OrderAnswer:
    """Put an estimate in the place of every other one until it is cleared. Needs the scope operate; audited.

    It is taken whole, whatever the pool's trust in advice; the job's time limit bounds it, and the bound on the longest wait holds.
    """
    await operating(context, principal, "estimate", _target(job_id))
    body = await bodies.json_body(request, models.EstimateOrder)
    _check_estimate(body)
    view = await _live(context, principal, job_id)
    at = context.clock.now()
    asked = commands.estimate(
        job_id, view["pool"], (body.p10_s, body.p50_s, body.p90_s), principal, body.why, event_id=context.ids.new(), at=at
    )  # fmt: skip
    return await _order(context, principal, view, asked, "clear-estimate" if body.clear else "estimate", at)


@router.post(
    "/v1/jobs/{job_id}/pin",
    operation_id="pin_job",
    status_code=202,
    summary="Put a job first or last in its priority class",
    responses=problems(*BODY, Kind.NOT_FOUND, Kind.CONFLICT),
    openapi_extra=json_body(models.PinOrder),
)
async def pin_job(job_id: str, request: Request, context: Ctx, principal: Anyone) -> models.OrderAnswer:
    """Pin a job in its pool's queue, or let it go. Needs the scope operate; audited.

    Quotas, limits, gangs and the bound on the longest wait hold for it as for any other.
    """
    await operating(context, principal, "pin", _target(job_id))
    body = await bodies.json_body(request, models.PinOrder)
    if body.place != "none" and not body.why.strip():
        raise invalid_field("why", "Say why: it goes into the pool's log and into the reasons of the job.")
    view = await _live(context, principal, job_id)
    at = context.clock.now()
    asked = commands.pin(job_id, view["pool"], body.place, principal, body.why, event_id=context.ids.new(), at=at)
    return await _order(context, principal, view, asked, _CALLS[body.place], at)


def _target(job_id: str) -> str:
    return f"job/{job_id if is_job_id(job_id) else '?'}"


def _check_estimate(body: models.EstimateOrder) -> None:
    p10_s, p50_s, p90_s = body.p10_s, body.p50_s, body.p90_s
    if body.clear:
        if any(quantile is not None for quantile in (p10_s, p50_s, p90_s)):
            raise invalid_field("clear", "Clear the estimate, or say one: not both.")
        return
    if p50_s is None:
        raise invalid_field("p50_s", "Say p50_s, or clear.")
    if p10_s is not None and p10_s > p50_s:
        raise invalid_field("p10_s", "p10_s must not be above p50_s.")
    if p90_s is not None and p90_s < p50_s:
        raise invalid_field("p90_s", "p90_s must not be below p50_s.")


async def _live(context: Context, principal: Principal, job_id: str) -> View:
    view = await visible_job(context, principal, job_id)
    if JobState(view["state"]) in TERMINAL:
        raise Problem(Kind.CONFLICT, f"The job has ended ({view['state']}); nothing can be ordered of it.")
    return view


async def _order(
    context: Context, principal: Principal, view: View, asked: Envelope[Event], call: str, at: float
) -> models.OrderAnswer:
    await publish_audited(context, principal, [asked], call, f"job/{view['job_id']}", at=at)
    return models.OrderAnswer(job_id=view["job_id"], state=JobState(view["state"]))
