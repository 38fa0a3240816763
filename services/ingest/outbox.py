"""The outbox: a job is written, published, marked. Whoever finds it unmarked publishes it again, as the very same event."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

import structlog

from schedmate.infra.bus.port import BusError, EventBus
from schedmate.infra.clock import Clock
from schedmate.infra.store.port import Document, DuplicateKeyError, Json, Store, StoreUnavailableError
from schedmate.infra.telemetry.tracing import current_trace_id, producer_span
from schedmate.schemas.codec import encode
from schedmate.schemas.job import JobRequest
from schedmate.schemas.wire import Record
from schedmate.services.ingest import submission
from schedmate.services.ingest.access import Principal
from schedmate.services.ingest.bundles import Bundles
from schedmate.services.ingest.read_model import JOBS, ReadModel

TENANTS: Final = "tenants"
WAITING_COUNTED_MAX: Final = 1000
_SWEEP_LEN: Final = 100

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class KeyReusedError(Exception):
    """The key stands for another job already."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job that is written down. `is_new` is False for a repeat; `is_published` False while the bus does not answer."""

    job_id: str
    pool: str
    is_new: bool
    is_published: bool


class Outbox:
    """Accepts jobs from both doors."""

    def __init__(
        self,
        *,
        bus: EventBus,
        store: Store,
        bundles: Bundles,
        read_model: ReadModel,
        clock: Clock,
        pool_default: str,
        publish_timeout_s: float,
        sweep_after_s: float,
    ) -> None:
        self._bus = bus
        self._store = store
        self._bundles = bundles
        self._read_model = read_model
        self._clock = clock
        self._pool_default = pool_default
        self._publish_timeout_s = publish_timeout_s
        self._sweep_after_s = sweep_after_s

    async def submit(self, request: JobRequest, principal: Principal, job_id: str, traceparent: str | None) -> Accepted:
        """Accept a job under an id; the same id with the same request again is the same job.

        Raises:
            SubmissionRefusedError: the job cannot be accepted as asked.
            KeyReusedError: the id stands for another job.
            StoreError, BlobError: it is unknown whether the job was written: ask again with the same key.
        """
        tenant = submission.tenant_of(request, principal)
        request_sha256 = submission.fingerprint(request)
        known = await self._store.get(JOBS, job_id)
        is_new = False
        if known is None:
            body = await self._decided(request, principal, tenant, request_sha256, traceparent)
            known = await self._written(job_id, body)
            is_new = known.body is body
        if known.body["request_sha256"] != request_sha256:
            raise KeyReusedError
        pool = str(known.body["spec"]["pool"])
        if submission.is_published(known.body):
            return Accepted(job_id, pool, is_new, is_published=True)
        event = submission.submitted_event(job_id, known.body)
        _, is_published = await asyncio.gather(self._read_model.apply([event]), self._publish(known))
        return Accepted(job_id, pool, is_new, is_published)

    async def _written(self, job_id: str, body: dict[str, Json]) -> Document:
        try:
            await self._store.insert(JOBS, job_id, body)
        except DuplicateKeyError as error:  # a concurrent repeat, or our own write that was retried
            known = await self._store.get(JOBS, job_id)
            if known is None:
                raise StoreUnavailableError(f"job {job_id} is there and is not") from error
            return known
        return Document(job_id, 1, body)

    async def _decided(
        self, request: JobRequest, principal: Principal, tenant: str, request_sha256: str, traceparent: str | None
    ) -> dict[str, Json]:
        if request.bundle is not None and not await self._bundles.may_use(request.bundle, tenant, principal):
            raise submission.SubmissionRefusedError(
                "bundle",
                "no bundle with this hash was uploaded by the tenant; upload it first (PUT /v1/bundles/SHA256)",
                missing=True,
            )
        document = await self._store.get(TENANTS, tenant)
        defaults = submission.TenantDefaults.from_body(document.body if document is not None else {})
        spec = submission.decide(request, principal, defaults, self._pool_default)
        return submission.job_document(
            spec, submitted_at=self._clock.now(), traceparent=traceparent, request_sha256=request_sha256
        )

    async def _publish(self, document: Document) -> bool:
        """Publish a job document's event and mark it; False when the bus did not answer in time."""
        event = submission.submitted_event(document.id, document.body)
        try:
            await self._send(encode(event))
        except (BusError, TimeoutError) as error:
            log.warning("a job waits in the outbox", action="ingest.outbox", job_id=document.id, error=str(error))
            return False
        await self._store.replace(JOBS, document.id, submission.published(document.body), version=document.version)
        return True

    async def _send(self, record: Record) -> None:
        """Publish, as part of whatever trace this happens in; a sweep is part of none."""
        publishing = producer_span(record.topic) if current_trace_id() else contextlib.nullcontext()
        with publishing:
            async with asyncio.timeout(self._publish_timeout_s):
                await self._bus.publish([record])

    async def waiting(self) -> int:
        """Return how many jobs are written and not known to be on the bus; at most `WAITING_COUNTED_MAX`."""
        unpublished = await self._store.find(JOBS, "unpublished", low=0.0, high=float("inf"), limit=WAITING_COUNTED_MAX)
        return len(unpublished)

    async def sweep(self) -> int:
        """Publish what has been unmarked for a while; return how many were published."""
        before = self._clock.now() - self._sweep_after_s
        waiting = await self._store.find(JOBS, "unpublished", low=0.0, high=before, limit=_SWEEP_LEN)
        count = 0
        for document in waiting:
            if not await self._publish(document):
                break
            count += 1
        return count
