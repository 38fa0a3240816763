"""Decisions as they are made, as an event stream."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from schedmate.infra.store.port import Json
from schedmate.schemas.events import JobDecision
from schedmate.services.ingest.access import Principal, Scope
from schedmate.services.ingest.api.context import Context, Ctx
from schedmate.services.ingest.api.documentation import events, problems
from schedmate.services.ingest.api.jobs import tenants_of
from schedmate.services.ingest.api.security import Reader
from schedmate.services.ingest.api.serving import stream
from schedmate.services.ingest.decision_stream import Decision, Subscription
from schedmate.services.ingest.problems import Kind
from schedmate.services.ingest.read_model import JOBS
from schedmate.services.ingest.streams import KEEP_ALIVE, server_sent

router: Final = APIRouter(tags=["events"])

_TENANTS_KNOWN_MAX: Final = 10_000
_WAIT_S: Final = 0.5


@router.get(
    "/v1/events",
    operation_id="follow_events",
    summary="Follow decisions",
    response_class=StreamingResponse,
    responses={
        **events(
            "Server-sent events: `ready` once, then one a decision, named by its CloudEvents type; `overrun` ends a slow one."
        ),
        **problems(Kind.INVALID),
    },
)
async def follow_events(
    context: Ctx,
    principal: Reader,
    pool: Annotated[str | None, Query(max_length=63, description="Only this pool's decisions.")] = None,
    job_id: Annotated[str | None, Query(max_length=64, description="Only decisions about this job.")] = None,
) -> StreamingResponse:
    """Tell decisions about the token's own jobs (an operator: about all jobs and nodes) from now on."""

    async def told() -> AsyncIterator[bytes]:
        async with context.decisions.subscribed() as subscription:
            filtered = _Filter(context, principal, pool, job_id)
            ready = False
            silent_since = context.clock.monotonic()
            while not context.streams.closing.is_set():
                if not ready and context.decisions.at_end.is_set():
                    ready = True
                    yield server_sent("ready", {})
                decision = await _next(subscription)
                if decision is not None and await filtered.passes(decision):
                    silent_since = context.clock.monotonic()
                    yield server_sent(decision.event.ce_type(), _told(decision), decision.id)
                elif subscription.overrun and subscription.queue.empty():
                    yield server_sent("overrun", {"detail": "decisions were missed; list the jobs and follow again"})
                    return
                elif context.clock.monotonic() - silent_since > context.settings.stream_keep_alive_s:
                    silent_since = context.clock.monotonic()
                    yield KEEP_ALIVE

    return stream(context.streams, told)


async def _next(subscription: Subscription) -> Decision | None:
    try:
        async with asyncio.timeout(_WAIT_S):
            return await subscription.queue.get()
    except TimeoutError:
        return None


def _told(decision: Decision) -> dict[str, Json]:
    told: dict[str, Json] = decision.event.model_dump(mode="json")
    return {**told, "id": decision.id, "type": decision.event.ce_type(), "traceparent": decision.traceparent}


class _Filter:
    """Which decisions a stream tells: those asked for, of jobs that the principal may see."""

    def __init__(self, context: Context, principal: Principal, pool: str | None, job_id: str | None) -> None:
        self._context = context
        self._principal = principal
        self._pool = pool
        self._job_id = job_id
        self._tenants: OrderedDict[str, str | None] = OrderedDict()

    async def passes(self, decision: Decision) -> bool:
        """Tell whether the stream tells this decision."""
        event = decision.event
        about_job = event.job_id if isinstance(event, JobDecision) else None
        if self._pool is not None and getattr(event, "pool", None) != self._pool:
            return False
        if self._job_id is not None and about_job != self._job_id:
            return False
        if self._principal.may(Scope.OPERATE):
            return True
        tenant = await self._tenant(about_job) if about_job is not None else None
        return tenant is not None and self._principal.sees(tenant)

    async def _tenant(self, job_id: str) -> str | None:
        if job_id not in self._tenants:
            self._tenants[job_id] = tenants_of(await self._context.store.get_many(JOBS, [job_id])).get(job_id)
            if len(self._tenants) > _TENANTS_KNOWN_MAX:
                self._tenants.popitem(last=False)
        return self._tenants[job_id]
