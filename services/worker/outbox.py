"""What has to reach the bus, however long that takes: events are kept until acknowledged, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import structlog

from schedmate.infra.bus.port import BusError, BusUnavailableError, EventBus
from schedmate.infra.clock import Clock, Random
from schedmate.schemas.codec import encode
from schedmate.schemas.wire import Envelope

BATCH_MAX: Final = 100
RETRY_FIRST_S: Final = 0.2
RETRY_MAX_S: Final = 5.0
PUBLISH_TIMEOUT_S: Final = 30.0

_log = structlog.get_logger()


class Outbox:
    """Bounded by what the node runs: a handful of events a member. Rebuilt from the members' files after a restart."""

    def __init__(self, bus: EventBus, clock: Clock, random: Random) -> None:
        self._bus = bus
        self._clock = clock
        self._random = random
        self._waiting: deque[tuple[Envelope[Any], asyncio.Future[None]]] = deque()
        self._changed = asyncio.Event()

    def put(self, envelope: Envelope[Any]) -> asyncio.Future[None]:
        """Take an event; the future is done when the bus has acknowledged it."""
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((envelope, acknowledged))
        self._changed.set()
        return acknowledged

    async def run(self) -> None:
        """Publish until cancelled. The bus being away is waited for; nothing is ever dropped for it."""
        pause_s = RETRY_FIRST_S
        while True:
            await self._changed.wait()
            try:
                await self._publish_some()
                pause_s = RETRY_FIRST_S
            except (BusUnavailableError, TimeoutError) as error:
                _log.warning(
                    "events wait for the bus",
                    action="worker.outbox-waits",
                    waiting=len(self._waiting),
                    error=str(error),
                )
                await self._clock.sleep(pause_s * self._random.uniform(0.5, 1.0))
                pause_s = min(pause_s * 2, RETRY_MAX_S)

    async def drained(self) -> None:
        """Wait until nothing waits any more."""
        while self._waiting:
            await asyncio.wait([self._waiting[-1][1]])

    async def _publish_some(self) -> None:
        batch = [self._waiting[i] for i in range(min(len(self._waiting), BATCH_MAX))]
        try:
            await publish(self._bus, [envelope for envelope, _ in batch])
        except BusUnavailableError:
            raise
        except BusError as error:  # this very event can never be published: say so and go on with the others
            if len(batch) > 1:
                batch = batch[:1]
                await publish(self._bus, [batch[0][0]])
            else:
                _log.error(
                    "event cannot be published", action="worker.event-lost", event=batch[0][0].id, error=str(error)
                )
        for _, acknowledged in batch:
            self._waiting.popleft()
            if not acknowledged.done():
                acknowledged.set_result(None)
        if not self._waiting:
            self._changed.clear()


async def publish(bus: EventBus, envelopes: Sequence[Envelope[Any]]) -> None:
    """Publish and wait for the acknowledgement, within a bound. Raises BusError, TimeoutError."""
    async with asyncio.timeout(PUBLISH_TIMEOUT_S):
        await bus.publish([encode(envelope) for envelope in envelopes])
