"""What the routes work with: built by the wiring, found on the application's state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Request

from schedmate.infra.blobs.port import Blobs
from schedmate.infra.bus.port import EventBus
from schedmate.infra.clock import Clock, Ids
from schedmate.infra.store.port import Store
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.tracing import current_traceparent, producer_span
from schedmate.schemas.codec import encode
from schedmate.schemas.events import Event
from schedmate.schemas.wire import Envelope, Record
from schedmate.services.ingest.bundles import Bundles
from schedmate.services.ingest.decision_stream import DecisionStream
from schedmate.services.ingest.following import Follower
from schedmate.services.ingest.gate import Gate
from schedmate.services.ingest.leader import Leaders
from schedmate.services.ingest.log_store import LogStore
from schedmate.services.ingest.outbox import Outbox
from schedmate.services.ingest.read_model import ReadModel
from schedmate.services.ingest.settings import IngestSettings
from schedmate.services.ingest.streams import Streams


@dataclass(frozen=True, slots=True)
class Context:
    """Everything behind the routes."""

    settings: IngestSettings
    bus: EventBus
    store: Store
    blobs: Blobs
    clock: Clock
    ids: Ids
    metrics: Metrics
    gate: Gate
    outbox: Outbox
    read_model: ReadModel
    bundles: Bundles
    logs: LogStore
    streams: Streams
    follower: Follower
    decisions: DecisionStream
    leaders: Leaders

    async def publish(self, envelopes: Sequence[Envelope[Event]]) -> None:
        """Publish what a call brought about, inside the call's trace.

        Raises:
            BusError, TimeoutError: it is unknown whether it is on the bus.
        """
        with producer_span(envelopes[0].event.TOPIC):
            traceparent = current_traceparent()
            await self.send([encode(replace(e, traceparent=e.traceparent or traceparent)) for e in envelopes])

    async def send(self, records: Sequence[Record]) -> None:
        """Publish records as they are.

        Raises:
            BusError, TimeoutError: it is unknown whether they are on the bus.
        """
        async with asyncio.timeout(self.settings.publish_timeout_s):
            await self.bus.publish(records)


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(_context)]
