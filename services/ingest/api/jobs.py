"""Jobs: submit, list, look at, ask why, cancel."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response

from schedmate.infra.store.port import Document, Json
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.tracing import current_traceparent
from schedmate.schemas import ids
from schedmate.schemas.job import JobRequest
from schedmate.schemas.states import TERMINAL, JobState
from schedmate.services.ingest import commands, models, presentation
from schedmate.services.ingest import submission as jobs
from schedmate.services.ingest.access import Principal, Scope
from schedmate.services.ingest.api import bodies
from schedmate.services.ingest.api.context import Context, Ctx
from schedmate.services.ingest.api.documentation import BODY, JOB_BODY, WHY_BODY, problems
from schedmate.services.ingest.api.security import Reader, Submitter, publish_audited
from schedmate.services.ingest.bundles import BundleRefusedError, BundleTooLargeError
from schedmate.services.ingest.outbox import Accepted, KeyReusedError
from schedmate.services.ingest.problems import FieldError, Kind, Problem, invalid_field, not_found
from schedmate.services.ingest.projection import View, is_known
from schedmate.services.ingest.read_model import VIEWS

router: Final = APIRouter(tags=["jobs"])

LIMIT_MAX: Final = 500
SCANNED_MAX: Final = 5000
_SCAN_PAGE: Final = 500
_KEY_LEN_MAX: Final = 200
_JOB_ID: Final = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_HIGHEST: Final = "\U0010ffff"


@router.post(
    "/v1/jobs",
    operation_id="submit_job",
    status_code=201,
    summary="Submit a job",
    response_model=models.JobView,
    responses={
        200: {"model": models.JobView, "description": "The job had been submitted under this Idempotency-Key before."},
        201: {"description": "The job is accepted and on the bus."},
        202: {
            "model": models.JobView,
            "description": "The job is written down; it goes on the bus when that answers again.",
        },
        **problems(*BODY, Kind.KEY_REUSED, Kind.CONFLICT, Kind.BUNDLE_REFUSED),
    },
    openapi_extra=JOB_BODY,
)
async def submit_job(
    request: Request,
    response: Response,
    context: Ctx,
    principal: Submitter,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=_KEY_LEN_MAX,
            pattern=r"^[\x21-\x7e]+$",
            description="Names this submission: again with the same key is the same job. Printable ASCII without spaces.",
        ),
    ] = None,
) -> models.JobView:
    """Accept a job, as JSON or as multipart with its source bundle.

    The job's id follows from the tenant and the Idempotency-Key; without a key each call is a new job.
    """
    async with bodies.submission(request) as sent:
        asked = await _with_bundle(context, principal, sent)
    accepted = await _accepted(context, principal, asked, idempotency_key)
    response.status_code = 202 if not accepted.is_published else 201 if accepted.is_new else 200
    response.headers["Location"] = f"/v1/jobs/{accepted.job_id}"
    view = await context.read_model.view(accepted.job_id)
    assert view is not None, "the job document was just written"
    return presentation.job_view(view, context.clock.now())


async def _with_bundle(context: Context, principal: Principal, sent: bodies.Submission) -> JobRequest:
    """Return the request with the hash of the bundle that came with it."""
    if sent.bundle is None:
        return sent.request
    try:
        tenant = jobs.tenant_of(sent.request, principal)
        bundle = await context.bundles.take(bodies.chunks(sent.bundle), tenant, sent.announced_sha256)
    except jobs.SubmissionRefusedError as error:
        raise _refused(error) from error
    except BundleTooLargeError as error:
        raise Problem(Kind.TOO_LARGE, f"{error}. Leave out data and environments; keep the source.") from error
    except BundleRefusedError as error:
        raise Problem(
            Kind.BUNDLE_REFUSED, str(error), errors=[FieldError(field="bundle", message=str(error))]
        ) from error
    entry = sent.request.entry
    if entry is not None and entry.removeprefix("./") not in bundle.names:
        raise invalid_field("entry", f"the bundle has no file {entry!r}; name it as it stands in the archive")
    return sent.request.model_copy(update={"bundle": bundle.sha256})


async def _accepted(context: Context, principal: Principal, asked: JobRequest, key: str | None) -> Accepted:
    try:
        tenant = jobs.tenant_of(asked, principal)
        job_id = ids.job_id(tenant, key) if key is not None else context.ids.new()
        accepted = await context.outbox.submit(asked, principal, job_id, current_traceparent())
    except jobs.SubmissionRefusedError as error:
        context.metrics.count(names.JOBS_REFUSED, why="forbidden" if error.forbidden else "invalid")
        raise _refused(error) from error
    except KeyReusedError as error:
        context.metrics.count(names.JOBS_REFUSED, why="key_reused")
        raise Problem(
            Kind.KEY_REUSED, "This Idempotency-Key belongs to a job with another content. Use a new key for a new job."
        ) from error
    if accepted.is_new:
        context.metrics.count(names.JOBS_ACCEPTED, pool=accepted.pool, door="http")
    return accepted


def _refused(error: jobs.SubmissionRefusedError) -> Problem:
    kind = Kind.FORBIDDEN if error.forbidden else Kind.CONFLICT if error.missing else Kind.INVALID
    return Problem(kind, error.message, errors=[FieldError(field=error.field, message=error.message)])


@router.get(
    "/v1/jobs",
    operation_id="list_jobs",
    summary="List jobs, newest first",
    responses=problems(Kind.INVALID),
)
async def list_jobs(
    context: Ctx,
    principal: Reader,
    state: Annotated[
        list[JobState] | None, Query(description="Only jobs in one of these states.", max_length=10)
    ] = None,
    tenant: Annotated[str | None, Query(max_length=63, description="Only this tenant's jobs.")] = None,
    pool: Annotated[str | None, Query(max_length=63, description="Only jobs of this pool.")] = None,
    user: Annotated[str | None, Query(max_length=200, description="Only this user's jobs.")] = None,
    name: Annotated[str | None, Query(max_length=200, description="Only jobs of this name.")] = None,
    unfinished: Annotated[bool, Query(description="Only jobs that have not ended.")] = False,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Most jobs of one page.")] = 100,
    cursor: Annotated[
        str | None, Query(pattern=r"^[0-9]{15}/[0-9a-f-]{36}$", description="`next_cursor` of the page before.")
    ] = None,
) -> models.JobPage:
    """Return a page of the jobs that the token may see.

    A page may be short, even empty, although there are more: what counts is `next_cursor`.
    """
    wanted = {"tenant": tenant, "pool": pool, "user": user, "name": name}
    states = {s.value for s in state} if state else None
    field, prefix = _index(principal, tenant, unfinished or (states is not None and not states & _TERMINAL))
    low, high = prefix, f"{prefix}{cursor or _HIGHEST}"
    found: list[View] = []
    scanned = 0
    while len(found) < limit and scanned < SCANNED_MAX:
        page = await context.store.find(VIEWS, field, low=low, high=high, limit=_SCAN_PAGE, reverse=True)
        for document in page:
            high, cursor = str(document.body[field]), str(document.body["sort_key"])
            scanned += 1
            if _matches(document.body, wanted, states, unfinished=unfinished):
                found.append(document.body)
                if len(found) == limit:
                    break
        if len(page) < _SCAN_PAGE and len(found) < limit:
            return _page(found, None, context)
    return _page(found, cursor, context)


_TERMINAL: Final = frozenset(s.value for s in TERMINAL)


def _page(found: Sequence[View], cursor: str | None, context: Context) -> models.JobPage:
    now = context.clock.now()
    return models.JobPage(jobs=[presentation.job_view(view, now) for view in found], next_cursor=cursor)


def _index(principal: Principal, tenant: str | None, unfinished: bool) -> tuple[str, str]:
    """Return the indexed field, and how its values begin, that hold what is asked for."""
    if not principal.may(Scope.OPERATE):
        tenant = principal.tenant
    if tenant is not None:
        return "tenant_key", f"{tenant}/"
    return ("open_key" if unfinished else "sort_key"), ""


def _matches(view: View, wanted: Mapping[str, str | None], states: set[str] | None, *, unfinished: bool) -> bool:
    if not is_known(view) or (states is not None and view["state"] not in states):
        return False
    if unfinished and view["state"] in _TERMINAL:
        return False
    asked: Mapping[str, Any] = view["asked"]
    return all(value is None or asked[name] == value for name, value in wanted.items())


def is_job_id(given: str) -> bool:
    """Tell whether this could be a job's id."""
    return bool(_JOB_ID.fullmatch(given))


async def visible_job(context: Context, principal: Principal, job_id: str) -> View:
    """Return the document of a job.

    Raises:
        Problem: there is none, or it is another tenant's.
    """
    view = await context.read_model.view(job_id) if is_job_id(job_id) else None
    if view is None or not presentation.visible(view, principal):
        raise not_found("job with this id")
    return view


@router.get(
    "/v1/jobs/{job_id}",
    operation_id="get_job",
    summary="Look at one job",
    responses=problems(Kind.NOT_FOUND),
)
async def get_job(job_id: str, context: Ctx, principal: Reader) -> models.JobView:
    """Return one job."""
    return presentation.job_view(await visible_job(context, principal, job_id), context.clock.now())


@router.get(
    "/v1/jobs/{job_id}/events",
    operation_id="get_job_events",
    summary="A job's decisions",
    responses=problems(Kind.NOT_FOUND),
)
async def get_job_events(job_id: str, context: Ctx, principal: Reader) -> models.JobHistory:
    """Return what was decided about a job, and which calls were made about it."""
    return presentation.history(await visible_job(context, principal, job_id))


@router.get(
    "/v1/jobs/{job_id}/why",
    operation_id="get_job_why",
    summary="Why a job stands where it stands",
    responses=problems(Kind.NOT_FOUND),
)
async def get_job_why(job_id: str, context: Ctx, principal: Reader) -> models.Why:
    """Ask the pool's leader why a job waits; when it does not answer in a second, tell what was last recorded."""
    view = await visible_job(context, principal, job_id)
    now = context.clock.now()
    if view["state"] not in _TERMINAL and (answer := await context.leaders.why(view["pool"], job_id)) is not None:
        try:
            return presentation.why_from_leader(view, answer, now)
        except ValueError:
            context.leaders.note_senseless(view["pool"])
    return presentation.why_recorded(view)


@router.post(
    "/v1/jobs/{job_id}/cancel",
    operation_id="cancel_job",
    status_code=202,
    summary="Ask to cancel a job",
    responses=problems(*BODY, Kind.NOT_FOUND),
    openapi_extra=WHY_BODY,
)
async def cancel_job(job_id: str, request: Request, context: Ctx, principal: Submitter) -> models.CancelAnswer:
    """Ask the pool to cancel a job. Asking twice is asking once; a job that has ended stays as it is."""
    body = await bodies.json_body(request, models.CommandRequest)
    view = await visible_job(context, principal, job_id)
    state = JobState(view["state"])
    if state in TERMINAL:
        return models.CancelAnswer(job_id=job_id, state=state, requested=False)
    at = context.clock.now()
    asked = commands.cancel(job_id, view["pool"], principal, body.why, at=at)
    await publish_audited(context, principal, [asked], "cancel", f"job/{job_id}", at=at, scope=Scope.SUBMIT)
    return models.CancelAnswer(job_id=job_id, state=state, requested=True)


def tenants_of(documents: Mapping[str, Document]) -> dict[str, str]:
    """Return the tenant of each job whose document is there."""
    return {job_id: _tenant(document.body) for job_id, document in documents.items()}


def _tenant(body: Mapping[str, Json]) -> str:
    return str(body["spec"]["tenant"])
