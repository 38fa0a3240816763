"""Decisions as they are published, to all open streams of this instance: one reader of the topic, in no group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog

from schedmate.infra.bus.port import BusError, EventBus, Partition
from schedmate.infra.clock import Clock
from schedmate.schemas.codec import UndecodableError, decode
from schedmate.schemas.events import Event, JobDecision, NodeDecision
from schedmate.schemas.wire import Envelope

TOPIC: Final = "schedmate.decisions"
QUEUE_LEN_MAX: Final = 1000
_POLL_LEN_MAX: Final = 500
_POLL_S: Final = 0.25
_AGAIN_S: Final = 1.0

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Decision = Envelope[Event]


@dataclass(slots=True, eq=False)
class Subscription:
    """One stream's queue. `overrun` says that it was too slow and has missed decisions."""

    queue: asyncio.Queue[Decision] = field(default_factory=lambda: asyncio.Queue(QUEUE_LEN_MAX))
    overrun: bool = False

    def offer(self, decision: Decision) -> None:
        """Put a decision in; a full queue marks the subscription instead of holding up the others."""
        try:
            self.queue.put_nowait(decision)
        except asyncio.QueueFull:
            self.overrun = True


class DecisionStream:
    """Reads while somebody listens."""

    def __init__(self, bus: EventBus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._subscriptions: set[Subscription] = set()
        self._reading: asyncio.Task[None] | None = None
        self._at_end = asyncio.Event()

    @property
    def at_end(self) -> asyncio.Event:
        """Set once the reader stands at the end of the topic: from then on nothing is missed."""
        return self._at_end

    @asynccontextmanager
    async def subscribed(self) -> AsyncIterator[Subscription]:
        """Yield a subscription to what is decided from now on."""
        subscription = Subscription()
        self._subscriptions.add(subscription)
        if self._reading is None or self._reading.done():
            self._at_end.clear()
            self._reading = asyncio.create_task(self._read(), name="decision stream")
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading], timeout=2.0)

    async def _read(self) -> None:
        """Read from the end of the topic until nobody listens; the bus being away is waited for."""
        while self._subscriptions:
            try:
                await self._read_on()
            except BusError as error:
                log.warning("the stream of decisions waits for the bus", action="ingest.decisions", error=str(error))
                await self._clock.sleep(_AGAIN_S)

    async def _read_on(self) -> None:
        count = await self._bus.partitions(TOPIC)
        bounds = await self._bus.bounds([Partition(TOPIC, number) for number in range(count)])
        reader = self._bus.reader({partition: b.end for partition, b in bounds.items()})
        await reader.start()
        try:
            self._at_end.set()
            while self._subscriptions:
                for delivery in await reader.poll(_POLL_LEN_MAX, _POLL_S):
                    try:
                        decision = decode(delivery.record)
                    except UndecodableError:
                        continue  # the read model's group dead-letters it
                    if isinstance(decision.event, JobDecision | NodeDecision):
                        for subscription in self._subscriptions:
                            subscription.offer(decision)
        finally:
            await reader.stop()
