"""Dead letters: what could not be processed, and the way back. For operators."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request

from schedmate.infra.deadletters import resend
from schedmate.infra.store.port import Document
from schedmate.infra.telemetry.tracing import current_traceparent
from schedmate.schemas import ids
from schedmate.schemas.codec import UndecodableError, decode
from schedmate.schemas.events import DeadLettered, JobRequested, MemberAssigned
from schedmate.schemas.wire import Record
from schedmate.services.ingest import models, presentation
from schedmate.services.ingest import submission as jobs
from schedmate.services.ingest.access import Principal
from schedmate.services.ingest.api import bodies
from schedmate.services.ingest.api.context import Context, Ctx
from schedmate.services.ingest.api.documentation import BODY, problems
from schedmate.services.ingest.api.security import Anyone, operating, publish_audited
from schedmate.services.ingest.node_projection import resends
from schedmate.services.ingest.outbox import KeyReusedError
from schedmate.services.ingest.problems import Kind, Problem, not_found
from schedmate.services.ingest.read_model import DEAD_LETTERS, LAST_ID

router: Final = APIRouter(tags=["dead letters"])

ASSIGNMENTS: Final = MemberAssigned.TOPIC
_ID: Final = re.compile(r"^[0-9]{15}-[0-9A-Za-z._-]{1,200}$")
_KEPT: Final = (
    "original_topic", "original_partition", "original_offset", "original_key", "service", "error", "attempts", "at",
)  # fmt: skip


@router.get(
    "/v1/dead-letters",
    operation_id="list_dead_letters",
    summary="List dead letters, newest first",
    responses=problems(Kind.INVALID),
)
async def list_dead_letters(
    context: Ctx,
    principal: Anyone,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(pattern=_ID.pattern, description="`next_cursor` of the page before.")] = None,
) -> models.DeadLetterPage:
    """Return records that could not be processed, with what went wrong. Needs the scope operate."""
    await operating(context, principal, "list dead letters", "dead-letters")
    page = await context.store.scan(DEAD_LETTERS, low="", high=cursor or LAST_ID, limit=limit, reverse=True)
    return models.DeadLetterPage(
        dead_letters=[presentation.dead_letter_view(d) for d in page],
        next_cursor=page[-1].id if len(page) == limit else None,
    )


@router.post(
    "/v1/dead-letters/{letter_id}/resend",
    operation_id="resend_dead_letter",
    status_code=202,
    summary="Send a dead letter back",
    responses=problems(*BODY, Kind.NOT_FOUND, Kind.CONFLICT),
)
async def resend_dead_letter(letter_id: str, request: Request, context: Ctx, principal: Anyone) -> models.ResendAnswer:
    """Put the record back on its topic, as it was. Needs the scope operate; audited.

    A request for a job is submitted in the operator's name instead, since its token was not kept.
    """
    await bodies.json_body(request, models.CommandRequest)
    target = f"dead-letter/{letter_id}" if _ID.fullmatch(letter_id) else "dead-letter/?"
    await operating(context, principal, "resend", target)
    document = await context.store.get(DEAD_LETTERS, letter_id) if _ID.fullmatch(letter_id) else None
    if document is None:
        raise not_found("dead letter with this id")
    record = resend(_event(document))
    if record.topic == ASSIGNMENTS:
        raise Problem(
            Kind.CONFLICT,
            "Assignments are written by the dispatcher alone; what a worker missed, it makes good from the next report.",
        )
    job_id = None
    if record.topic == JobRequested.TOPIC:
        job_id = await _submitted(context, principal, record)
    else:
        await context.send([record])
    await publish_audited(context, principal, [], "resend", target, at=context.clock.now())
    count = resends(document.body) + 1
    await context.store.replace(
        DEAD_LETTERS, document.id, {**document.body, "resends": count}, version=document.version
    )
    return models.ResendAnswer(id=letter_id, topic=record.topic, resends=count, job_id=job_id)


def _event(document: Document) -> DeadLettered:
    body = document.body
    return DeadLettered(
        **{name: body[name] for name in _KEPT},
        original_value=urlsafe_b64decode(body["original_value"]),
        original_headers=tuple((name, value) for name, value in body["original_headers"]),
    )


async def _submitted(context: Context, principal: Principal, record: Record) -> str:
    """Submit a request that could not be accepted before; return the job's id."""
    try:
        envelope = decode(record)
        assert isinstance(envelope.event, JobRequested), "the codec holds types to their topics"
        asked = envelope.event.request
        job_id = ids.job_id(jobs.tenant_of(asked, principal), envelope.event.request_id)
        await context.outbox.submit(asked, principal, job_id, envelope.traceparent or current_traceparent())
    except KeyReusedError as error:
        raise Problem(Kind.CONFLICT, "The request's id belongs to a job with another content by now.") from error
    except (UndecodableError, jobs.SubmissionRefusedError) as error:
        raise Problem(Kind.CONFLICT, f"The request still cannot be accepted: {error}.") from error
    return job_id
