"""Source bundles by hash: brought by submitters, fetched by workers and the analyzer."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Request, Response
from starlette.responses import StreamingResponse

from schedmate.services.ingest import models
from schedmate.services.ingest.api import bodies
from schedmate.services.ingest.api.context import Ctx
from schedmate.services.ingest.api.documentation import BODY, BUNDLE_BODY, problems
from schedmate.services.ingest.api.security import Fetcher, Submitter
from schedmate.services.ingest.bundles import BundleRefusedError, BundleTooLargeError
from schedmate.services.ingest.problems import FieldError, Kind, Problem, not_found

router: Final = APIRouter(tags=["bundles"])

Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the archive, in small letters.")]
_CONTENT_TYPES: Final = frozenset(
    {"application/octet-stream", "application/x-tar", "application/gzip", "application/zip", "application/x-gzip"}
)


@router.put(
    "/v1/bundles/{sha256}",
    operation_id="put_bundle",
    status_code=201,
    summary="Upload a source bundle",
    responses=problems(*BODY, Kind.BUNDLE_REFUSED),
    openapi_extra=BUNDLE_BODY,
)
async def put_bundle(sha256: Digest, request: Request, context: Ctx, principal: Submitter) -> models.BundleAnswer:
    """Store a tar or zip archive under its sha256. It is checked, never extracted; the same again changes nothing."""
    if bodies.content_type(request) not in _CONTENT_TYPES:
        raise Problem(Kind.UNSUPPORTED, "Send the archive as application/octet-stream.")
    try:
        bundle = await context.bundles.take(request.stream(), principal.tenant, sha256)
    except BundleTooLargeError as error:
        raise Problem(Kind.TOO_LARGE, f"{error}. Leave out data and environments; keep the source.") from error
    except BundleRefusedError as error:
        raise Problem(Kind.BUNDLE_REFUSED, str(error), errors=[FieldError(field="", message=str(error))]) from error
    return models.BundleAnswer(sha256=bundle.sha256, size_bytes=bundle.size_bytes, entries=len(bundle.names))


@router.get(
    "/v1/bundles/{sha256}",
    operation_id="get_bundle",
    summary="Fetch a source bundle",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The archive as it was uploaded.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems(Kind.NOT_FOUND, Kind.INVALID),
    },
)
async def get_bundle(sha256: Digest, context: Ctx, principal: Fetcher) -> Response:
    """Return a bundle. A tenant gets its own; a token with the scope bundles, which workers hold, gets any."""
    found = await context.bundles.found(sha256, principal)
    if found is None:
        raise not_found("bundle with this hash")
    headers = {"Content-Length": str(found.size_bytes), "ETag": f'"{sha256}"'}
    return StreamingResponse(context.bundles.stream(sha256), media_type="application/octet-stream", headers=headers)
