"""Event in, effects out: the read model's handler, and the second door."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from schedmate.infra.clock import Clock
from schedmate.infra.deadletters import dead_letter
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.tracing import current_traceparent
from schedmate.schemas import ids
from schedmate.schemas.events import READERS, Event, JobRequested, LogChunked
from schedmate.schemas.wire import HEADER_TOKEN, Delivery, Envelope
from schedmate.services.ingest.access import Scope
from schedmate.services.ingest.gate import Gate
from schedmate.services.ingest.log_store import LogStore
from schedmate.services.ingest.outbox import KeyReusedError, Outbox
from schedmate.services.ingest.projection import job_of
from schedmate.services.ingest.read_model import Coalescer
from schedmate.services.ingest.streams import Streams
from schedmate.services.ingest.submission import SubmissionRefusedError, tenant_of

SERVICE: Final = "ingest"
REQUESTS: Final = JobRequested.TOPIC
PROJECTED: Final = tuple(topic for topic, readers in READERS.items() if SERVICE in readers and topic != REQUESTS)
"""Topics that the read model is made of."""


def lane_of(delivery: Delivery) -> bytes:
    """Name what the read model takes one after another: log chunks of a job. All else it folds in any order, together."""
    if delivery.topic == LogChunked.TOPIC:
        return b"log/" + delivery.record.key
    return f"{delivery.topic}/{delivery.partition}/{delivery.offset}".encode()


class ProjectionHandler:
    """Folds every event into the read model, and takes in log chunks."""

    def __init__(self, coalescer: Coalescer, logs: LogStore, streams: Streams) -> None:
        self._coalescer = coalescer
        self._logs = logs
        self._streams = streams

    async def handle(self, envelope: Envelope[Event]) -> Sequence[Envelope[Event]]:
        """Return nothing: the read model is the effect, and folding again changes nothing."""
        event = envelope.event
        if isinstance(event, LogChunked):
            if await self._logs.add(event):
                self._streams.notify(event.job_id)
            return ()
        await self._coalescer.add(envelope)
        if (job_id := job_of(event)) is not None:
            self._streams.notify(job_id)
        return ()


class RequestsHandler:
    """Accepts jobs from the topic `requests`, by the rules of the HTTP door; what it refuses is dead-lettered at once."""

    def __init__(
        self, outbox: Outbox, gate: Gate, clock: Clock, metrics: Metrics, delivery: Callable[[], Delivery]
    ) -> None:
        self._outbox = outbox
        self._gate = gate
        self._clock = clock
        self._metrics = metrics
        self._delivery = delivery

    async def handle(self, envelope: Envelope[Event]) -> Sequence[Envelope[Event]]:
        """Return nothing for an accepted request (the outbox has published the job), else its dead letter."""
        event = envelope.event
        if not isinstance(event, JobRequested):
            return ()
        delivery = self._delivery()
        principal = await self._gate.requester(delivery.record.header(HEADER_TOKEN))
        if principal is None or not principal.may(Scope.SUBMIT):
            return self._refused(
                delivery, f"the header {HEADER_TOKEN} has no valid token with the scope submit", "unauthorized"
            )
        try:
            job_id = ids.job_id(tenant_of(event.request, principal), event.request_id)
            accepted = await self._outbox.submit(event.request, principal, job_id, current_traceparent())
        except SubmissionRefusedError as error:
            return self._refused(
                delivery, f"{error.field or 'request'}: {error.message}", "forbidden" if error.forbidden else "invalid"
            )
        except KeyReusedError:
            return self._refused(
                delivery, f"request_id {event.request_id!r} belongs to a job with another content", "key_reused"
            )
        if accepted.is_new:
            self._metrics.count(names.JOBS_ACCEPTED, pool=accepted.pool, door="bus")
        return ()

    def _refused(self, delivery: Delivery, error: str, why: str) -> Sequence[Envelope[Event]]:
        self._metrics.count(names.JOBS_REFUSED, why=why)
        return (dead_letter(delivery, SERVICE, error, 1, self._clock.now()),)
