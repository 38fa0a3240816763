"""Problem details (RFC 9457): every refusal of the API, as one table and one exception.

A problem says what was wrong and what to do about it. `type` is a URN of ours; the table in the README lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel, Field

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 2


class Kind(Enum):
    """What can go wrong: (name in the URN, HTTP status, title)."""

    BAD_REQUEST = ("bad-request", 400, "The request cannot be read")
    WRONG_HOST = ("wrong-host", 400, "The Host or Origin header is not this server's")
    UNAUTHORIZED = ("unauthorized", 401, "A valid token is needed")
    FORBIDDEN = ("forbidden", 403, "The token does not allow this")
    NOT_FOUND = ("not-found", 404, "There is no such thing here")
    METHOD_NOT_ALLOWED = ("method-not-allowed", 405, "The method is not allowed here")
    TIMEOUT = ("request-timeout", 408, "The request's body did not arrive in time")
    KEY_REUSED = ("idempotency-key-reused", 409, "The Idempotency-Key was used for another job")
    CONFLICT = ("conflict", 409, "The thing is in no state for this")
    TOO_LARGE = ("too-large", 413, "The request is too large")
    UNSUPPORTED = ("unsupported-media-type", 415, "The content type is not supported")
    INVALID = ("invalid", 422, "The request has invalid fields")
    BUNDLE_REFUSED = ("bundle-refused", 422, "The source bundle was refused")
    RATE = ("rate-limited", 429, "Too many requests")
    INTERNAL = ("internal", 500, "The server made a mistake")
    UNAVAILABLE = ("unavailable", 503, "A part that is needed does not answer")

    def __init__(self, slug: str, status: int, title: str) -> None:
        self.slug = slug
        self.status = status
        self.title = title

    @property
    def urn(self) -> str:
        """Return the problem's `type`."""
        return f"urn:schedmate:problem:{self.slug}"


class FieldError(BaseModel):
    """What is wrong with one field; `field` is a dotted path, empty for the whole."""

    field: str
    message: str


class ProblemDetails(BaseModel):
    """RFC 9457 problem details."""

    type: str = Field(description="A URN that names the kind of problem.")
    title: str = Field(description="The kind of problem in words; the same for every occurrence.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What was wrong this time, and what to do.")
    instance: str = Field(description="The path that was asked for.")
    errors: list[FieldError] = Field(default_factory=list, description="The fields that are wrong.")
    trace_id: str | None = Field(default=None, description="The trace of this request, for whoever looks into it.")


class Problem(Exception):  # noqa: N818 - the RFC's word
    """A refusal that becomes a problem document."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})

    def document(self, instance: str, trace_id: str | None) -> ProblemDetails:
        """Return the document of this problem at a path."""
        return ProblemDetails(
            type=self.kind.urn,
            title=self.kind.title,
            status=self.kind.status,
            detail=self.detail,
            instance=instance,
            errors=list(self.errors),
            trace_id=trace_id,
        )


def not_found(what: str) -> Problem:
    """Return the problem that something is not there (or not this tenant's: the two look the same)."""
    return Problem(Kind.NOT_FOUND, f"There is no {what} that you may see.")


def invalid_field(field: str, told: str) -> Problem:
    """Return the problem that one field of the request is wrong; `told` says how, and what to send instead."""
    return Problem(Kind.INVALID, told, errors=[FieldError(field=field, message=told)])


def unavailable(what: str) -> Problem:
    """Return the problem that the bus or a store does not answer."""
    return Problem(
        Kind.UNAVAILABLE,
        f"{what} does not answer. Nothing is lost by trying again in {RETRY_AFTER_S} s; send an Idempotency-Key with submits.",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def overloaded() -> Problem:
    """Return the problem that this instance has as many requests in hand as it takes."""
    return Problem(
        Kind.UNAVAILABLE,
        f"This instance has as many requests in hand as it takes. Try again in {RETRY_AFTER_S} s, or add an instance.",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def rate_limited(wait_s: float) -> Problem:
    """Return the problem that a tenant asked too often."""
    seconds = max(1, int(wait_s + 0.999))
    return Problem(
        Kind.RATE,
        f"This tenant has used up its rate. Try again in {seconds} s.",
        headers={"Retry-After": str(seconds)},
    )


def documented(*kinds: Kind) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of an operation: these problems, by status, as OpenAPI wants them."""
    by_status: dict[int, list[Kind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {
        status: {
            "description": "; ".join(kind.title for kind in group),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
        for status, group in sorted(by_status.items())
    }
