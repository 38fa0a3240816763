"""Request bodies: JSON into models, a multipart submit into its two parts, errors as problems that name the field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from schedmate.schemas.job import SPEC_BYTES_MAX, JobRequest
from schedmate.services.ingest.problems import FieldError, Kind, Problem

ERRORS_TOLD_MAX: Final = 20
CHUNK_BYTES: Final = 256 * 1024
JSON_TYPE: Final = "application/json"
MULTIPART_TYPE: Final = "multipart/form-data"

_UNKNOWN_SHA256: Final = "0" * 64

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Submission:
    """A submit as sent: the job, and perhaps a bundle that is still to be read."""

    request: JobRequest
    bundle: UploadFile | None
    announced_sha256: str | None = None
    """The bundle's hash as the job named it; a job that comes with its bundle need not."""


async def json_body(request: Request, model: type[M]) -> M:
    """Return a JSON body as its model; an empty body is an empty object.

    Raises:
        Problem: another content type, no JSON, or wrong fields.
    """
    content = await request.body()
    if not content:
        return _parsed(model, b"{}")
    if content_type(request) != JSON_TYPE:
        raise Problem(Kind.UNSUPPORTED, f"Send the body as {JSON_TYPE}.")
    return _parsed(model, content)


@asynccontextmanager
async def submission(request: Request) -> AsyncIterator[Submission]:
    """Yield what a submit sends, as JSON or as multipart with the parts `job` and `bundle`.

    Raises:
        Problem: another content type, unreadable, or wrong fields.
    """
    kind = content_type(request)
    if kind == JSON_TYPE:
        yield Submission(_parsed(JobRequest, await request.body()), None)
        return
    if kind != MULTIPART_TYPE:
        raise Problem(
            Kind.UNSUPPORTED,
            f"Send the job as {JSON_TYPE}, or as {MULTIPART_TYPE} with the parts `job` (JSON) and `bundle`.",
        )
    try:
        form = await request.form(max_files=2, max_fields=2, max_part_size=2 * SPEC_BYTES_MAX)
    except HTTPException as error:
        raise Problem(Kind.BAD_REQUEST, f"The multipart body cannot be read: {error.detail}") from error
    try:
        unknown = sorted(set(form) - {"job", "bundle"})
        if unknown:
            errors = [
                FieldError(field=name, message="there is no such part; send `job` and `bundle`") for name in unknown
            ]
            raise Problem(Kind.INVALID, "The multipart body has unknown parts.", errors=errors)
        job, bundle = form.get("job"), form.get("bundle")
        if job is None:
            raise Problem(
                Kind.INVALID,
                "The part `job` is missing.",
                errors=[FieldError(field="job", message="send the job as JSON")],
            )
        text = (await job.read(2 * SPEC_BYTES_MAX)) if isinstance(job, UploadFile) else job.encode("utf-8", "replace")
        if isinstance(bundle, str):
            raise Problem(
                Kind.INVALID,
                "The part `bundle` is not a file.",
                errors=[FieldError(field="bundle", message="send it with a file name, as a tar or zip archive")],
            )
        if bundle is None:
            yield Submission(_parsed(JobRequest, text), None)
        else:
            named, whole = _with_placeholder(text)
            yield Submission(_parsed(JobRequest, whole), bundle, named)
    finally:
        await form.close()


def _with_placeholder(text: bytes) -> tuple[str | None, bytes]:
    """Return the bundle that the job names, and the job with some bundle: its hash is known once it has been read."""
    try:
        job = json.loads(text)
    except ValueError:
        return None, text  # told by the model's own parser
    if not isinstance(job, dict) or job.get("bundle") is not None:
        return (job.get("bundle") if isinstance(job, dict) else None), text
    return None, json.dumps({**job, "bundle": _UNKNOWN_SHA256}).encode("utf-8", "surrogatepass")


async def chunks(upload: UploadFile) -> AsyncIterator[bytes]:
    """Yield an uploaded file's bytes."""
    while chunk := await upload.read(CHUNK_BYTES):
        yield chunk


def content_type(request: Request) -> str:
    """Return the request's content type without parameters; lower case, empty when it has none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _parsed(model: type[M], content: bytes) -> M:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False, include_input=False)) from error


def invalid(errors: Sequence[Any]) -> Problem:
    """Return the problem of Pydantic's errors."""
    if errors and errors[0]["type"] == "json_invalid":
        return Problem(Kind.BAD_REQUEST, f"The body is no JSON: {errors[0]['msg']}.")
    told = [
        FieldError(field=".".join(str(part) for part in e["loc"]), message=str(e["msg"]).removeprefix("Value error, "))
        for e in errors[:ERRORS_TOLD_MAX]
    ]
    first = f"{told[0].field or 'the whole'}: {told[0].message}" if told else "see `errors`"
    return Problem(Kind.INVALID, f"Mend the fields in `errors` and send it again; the first is {first}.", errors=told)
