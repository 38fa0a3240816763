"""A job's output: by byte range, and followed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from starlette.responses import StreamingResponse

from schedmate.schemas import ids
from schedmate.services.ingest import models
from schedmate.services.ingest.api.context import Ctx
from schedmate.services.ingest.api.documentation import events, problems
from schedmate.services.ingest.api.jobs import visible_job
from schedmate.services.ingest.api.security import Reader
from schedmate.services.ingest.api.serving import stream
from schedmate.services.ingest.following import newest_attempt, run_end, text_of
from schedmate.services.ingest.problems import Kind, Problem
from schedmate.services.ingest.streams import KEEP_ALIVE, server_sent

router: Final = APIRouter(tags=["logs"])

READ_BYTES_MIN: Final = 16
READ_BYTES_MAX: Final = 1024 * 1024
_OFFSET_MAX: Final = 10**15 - 1

Attempt = Annotated[int | None, Query(ge=1, le=1_000_000, description="Attempt; the newest when absent.")]
Member = Annotated[int, Query(ge=0, le=4095, description="Member of the gang.")]
Offset = Annotated[
    int, Query(ge=-_OFFSET_MAX, le=_OFFSET_MAX, description="First byte; a negative one counts from the end.")
]


@router.get(
    "/v1/jobs/{job_id}/log",
    operation_id="get_job_log",
    summary="Read a job's output",
    response_model=models.LogPage,
    responses={
        200: {
            "description": "A piece of the output: JSON, or with `raw` its very bytes.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems(Kind.NOT_FOUND, Kind.INVALID),
    },
)
async def get_job_log(
    job_id: str,
    context: Ctx,
    principal: Reader,
    attempt: Attempt = None,
    member: Member = 0,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=READ_BYTES_MIN, le=READ_BYTES_MAX, description="Most bytes of one answer.")] = 65536,
    raw: Annotated[
        bool,
        Query(description="Answer with the bytes themselves; Log-Offset, Log-End and Log-Total say which they are."),
    ] = False,
) -> models.LogPage | Response:
    """Return a piece of a member's output, up to the first gap: a gap is told by the call that starts in it.

    A character is never cut; what is invalid UTF-8 is replaced, unless `raw` asks for the bytes.
    """
    view = await visible_job(context, principal, job_id)
    number = attempt if attempt is not None else newest_attempt(view)
    if number is None:
        message = "the job has not started an attempt yet; `why` says what it waits for"
        raise Problem(Kind.NOT_FOUND, f"There is no log: {message}.")
    if member >= view["asked"]["nodes"]:
        raise Problem(
            Kind.NOT_FOUND, f"The job has the members 0 to {view['asked']['nodes'] - 1}; ask for one of them."
        )
    run_id = ids.run_id(job_id, number)
    end = run_end(view, number, member)
    read = await context.logs.read(run_id, member, offset, limit)
    final = end.over and read.total >= (end.log_bytes or 0)
    if raw:
        headers = {"Log-Offset": str(read.start), "Log-End": str(read.end), "Log-Total": str(read.total)}
        return Response(read.content, media_type="application/octet-stream", headers=headers)
    text, stop = text_of(read, limit, final=final)
    return models.LogPage(
        job_id=job_id,
        run_id=run_id,
        attempt=number,
        member=member,
        offset=read.start,
        end=stop,
        total=max(read.total, end.log_bytes or 0),
        gaps=[models.LogGap(start=a, end=b) for a, b in read.gaps],
        complete=final and stop >= read.total,
        text=text,
    )


@router.get(
    "/v1/jobs/{job_id}/log/follow",
    operation_id="follow_job_log",
    summary="Follow a job's output",
    response_class=StreamingResponse,
    responses={
        **events(
            "Server-sent events `attempt`, `log`, `gap`, `end`; JSON in `data`. Ends with the job, or the attempt asked for."
        ),
        **problems(Kind.NOT_FOUND, Kind.INVALID),
    },
)
async def follow_job_log(
    job_id: str,
    context: Ctx,
    principal: Reader,
    attempt: Attempt = None,
    member: Member = 0,
    offset: Offset = 0,
) -> StreamingResponse:
    """Tell a member's output as it comes, through all attempts until the job's end, or of one attempt until its end."""
    await visible_job(context, principal, job_id)

    async def told() -> AsyncIterator[bytes]:
        async for one in context.follower.follow(job_id, attempt, member, offset):
            yield KEEP_ALIVE if one is None else server_sent(*one)

    return stream(context.streams, told)
