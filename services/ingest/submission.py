"""From a request to a job: what is decided once, the document that keeps it, the event that tells it (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from schedmate.infra.store.port import Json
from schedmate.schemas import ids
from schedmate.schemas.events import JobSubmitted
from schedmate.schemas.job import SPEC_BYTES_MAX, JobRequest, JobSpec
from schedmate.schemas.wire import Envelope
from schedmate.services.ingest.access import Principal, Scope

SOURCE: Final = "schedmate/ingest"


class SubmissionRefusedError(Exception):
    """The job cannot be accepted as asked; `field` names what is wrong.

    `forbidden`: it is a matter of rights. `missing`: what it names is not here (yet).
    """

    def __init__(self, field: str, message: str, *, forbidden: bool = False, missing: bool = False) -> None:
        super().__init__(message)
        self.field = field
        self.message = message
        self.forbidden = forbidden
        self.missing = missing


@dataclass(frozen=True, slots=True)
class TenantDefaults:
    """What a tenant decides for its jobs."""

    pool: str | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Json]) -> TenantDefaults:
        """Return the defaults of a document of the collection `tenants`."""
        pool = body.get("pool")
        return cls(pool=str(pool) if pool is not None else None)


def tenant_of(request: JobRequest, principal: Principal) -> str:
    """Return the tenant that a job will belong to.

    Raises:
        SubmissionRefusedError: it is another tenant's, and the principal is no operator.
    """
    tenant = request.tenant or principal.tenant
    if tenant != principal.tenant and not principal.may(Scope.OPERATE):
        raise SubmissionRefusedError(
            "tenant",
            f"the token belongs to tenant {principal.tenant}; leave the tenant out, or use a token of {tenant}",
            forbidden=True,
        )
    return tenant


def decide(request: JobRequest, principal: Principal, defaults: TenantDefaults, pool_default: str) -> JobSpec:
    """Return the job with every default decided: tenant, user and pool.

    Raises:
        SubmissionRefusedError: the tenant is not the principal's, or the job is too large for an event.
    """
    given = request.model_dump(exclude={"tenant", "user", "pool"})
    spec = JobSpec(
        **given,
        tenant=tenant_of(request, principal),
        user=request.user or principal.name,
        pool=request.pool or defaults.pool or pool_default,
    )
    size_bytes = len(spec.model_dump_json())
    if size_bytes > SPEC_BYTES_MAX:
        raise SubmissionRefusedError(
            "", f"the job is {size_bytes} bytes as JSON, more than {SPEC_BYTES_MAX}; put what is long into a bundle"
        )
    return spec


def fingerprint(request: JobRequest) -> str:
    """Return the hash of what was asked for: a repeat under the same key must have the same."""
    canonical = json.dumps(request.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(canonical.encode()).hexdigest()


def job_document(
    spec: JobSpec, *, submitted_at: float, traceparent: str | None, request_sha256: str
) -> dict[str, Json]:
    """Return the job document as it is first written: an outbox entry, `unpublished` until its event is on the bus."""
    return {
        "spec": spec.model_dump(mode="json"),
        "submitted_at": submitted_at,
        "traceparent": traceparent,
        "request_sha256": request_sha256,
        "unpublished": submitted_at,
    }


def published(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return the document with the mark that its event is on the bus."""
    return {key: value for key, value in body.items() if key != "unpublished"}


def with_outcome(body: Mapping[str, Json], decisions: Sequence[Json]) -> dict[str, Json]:
    """Return the document with the decisions of a job that has ended: topics forget, job documents do not."""
    return {**body, "decisions": list(decisions)}


def is_published(body: Mapping[str, Json]) -> bool:
    """Tell whether the document's event is known to be on the bus."""
    return "unpublished" not in body


def spec_of(body: Mapping[str, Any]) -> JobSpec:
    """Return the job of a document."""
    return JobSpec.model_validate(body["spec"])


def submitted_event(job_id: str, body: Mapping[str, Json]) -> Envelope[JobSubmitted]:
    """Return the event of a job document: the same, whoever publishes it and however often."""
    spec = spec_of(body)
    submitted_at = float(body["submitted_at"])
    return Envelope(
        id=ids.derived("submitted", job_id),
        source=SOURCE,
        time=submitted_at,
        event=JobSubmitted(job_id=job_id, pool=spec.pool, spec=spec, submitted_at=submitted_at),
        traceparent=body.get("traceparent"),
    )
