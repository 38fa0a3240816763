"""Publishing follows appending: entries in the order of seq, each until it is acknowledged, and how far is remembered (protocol §1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from schedmate.infra.bus.port import BusUnavailableError, EventBus
from schedmate.infra.clock import Clock
from schedmate.schemas.wire import Record
from schedmate.services.dispatcher.log import PoolLog

_QUEUE_MAX: Final = 16
_REMEMBERED_EVERY_S: Final = 0.5
_RETRY_S: Final = 0.5

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EntryPublisher:
    """Publishes the records of entries that are in the log, and of no other.

    Args:
        pool_log: where the last published seq is remembered.
        bus: where the records go.
        clock: waits between two tries.
        interrupted: called whenever the bus did not answer.
    """

    def __init__(self, pool_log: PoolLog, bus: EventBus, clock: Clock, interrupted: Callable[[], None]) -> None:
        self._log = pool_log
        self._bus = bus
        self._clock = clock
        self._interrupted = interrupted
        self._waiting: asyncio.Queue[tuple[int, Sequence[Record]]] = asyncio.Queue(_QUEUE_MAX)
        self._published = -1
        self._remembered = -1

    async def put(self, seq: int, records: Sequence[Record]) -> None:
        """Take the records of the next entry; waits while too many entries wait."""
        await self._waiting.put((seq, records))

    async def run(self) -> None:
        """Publish what was put, for ever; remember how far now and then."""
        while True:
            try:
                async with asyncio.timeout(
                    _REMEMBERED_EVERY_S
                ):  # wait_for may swallow a cancel that comes with an item
                    seq, records = await self._waiting.get()
            except TimeoutError:
                await self._remember()
                continue
            await self.publish(records)
            self._published = seq
            self._waiting.task_done()
            if seq - self._remembered >= _QUEUE_MAX:
                await self._remember()

    async def drain(self) -> None:
        """Wait until everything is published and remembered."""
        await self._waiting.join()
        await self._remember()

    async def publish(self, records: Sequence[Record]) -> None:
        """Publish until acknowledged."""
        while records:
            try:
                await self._bus.publish(records)
                return
            except BusUnavailableError as error:
                log.warning(
                    "publishing is tried again",
                    action="dispatcher.publish-retry",
                    pool=self._log.pool,
                    error=str(error),
                )
                self._interrupted()
                await self._clock.sleep(_RETRY_S)

    async def _remember(self) -> None:
        if self._published > self._remembered:
            await self._log.set_published(self._published)
            self._remembered = self._published
