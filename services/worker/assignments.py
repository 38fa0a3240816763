"""Reads this node's partition of `assignments` from the journalled offset: after any gap to the end, before anything is acted on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import structlog

from schedmate.infra.bus.partitioner import partition_of
from schedmate.infra.bus.port import BusUnavailableError, EventBus, OffsetOutOfRangeError, Partition, Reader
from schedmate.infra.clock import Clock
from schedmate.infra.deadletters import dead_letter
from schedmate.infra.telemetry.tracing import consumer_span, current_traceparent
from schedmate.schemas.codec import UndecodableError, decode
from schedmate.schemas.events import MemberAssigned, MemberReleased, MemberStopOrdered
from schedmate.schemas.wire import Delivery, Envelope
from schedmate.services.worker.fence import Delivered

TOPIC: Final = MemberAssigned.TOPIC
BATCH_MAX: Final = 500
POLL_S: Final = 1.0
RETRY_S: Final = 1.0
SAVE_OFFSET_EVERY_S: Final = 10.0

_log = structlog.get_logger()

Act = Callable[[Sequence[Delivered], int], Awaitable[None]]
"""Called with this node's orders of a batch, in order, and the offset after it; with none, when only the offset moved."""


class Assignments:
    """Follows one partition. Others share it: their records are passed over without decoding."""

    def __init__(
        self,
        bus: EventBus,
        clock: Clock,
        *,
        node: str,
        pool: str,
        act: Act,
        dead_letters: Callable[[Envelope[Any]], object],
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._node = node
        self._key = node.encode()
        self._pool = pool
        self._act = act
        self._dead_letters = dead_letters
        self._saved_at = 0.0
        self._next = 0
        self.is_caught_up = False

    async def partition(self) -> Partition:
        """Return the partition that this node's orders are on."""
        return Partition(TOPIC, partition_of(self._key, await self._bus.partitions(TOPIC)))

    async def first_offset(self, journalled: int | None, *, same_bus: bool) -> int:
        """Return where to begin.

        A node that remembers nothing begins at the end: nothing there can be meant for a session that has not been reported yet.
        On another bus than the journalled one offsets mean nothing: then at the beginning, and the fence refuses what is old.
        """
        partition = await self.partition()
        bounds = (await self._bus.bounds([partition]))[partition]
        if journalled is None:
            return bounds.end
        return journalled if same_bus else bounds.earliest

    async def follow(self, offset: int) -> None:
        """Read until cancelled. Each gap (start, outage, lost records) is read to its end before anything is acted on."""
        partition = await self.partition()
        self._next = offset
        while True:
            reader = self._bus.reader({partition: self._next})
            try:
                await reader.start()
                await self._catch_up(reader, partition)
                while True:
                    deliveries = await reader.poll(BATCH_MAX, POLL_S)
                    if deliveries:
                        await self._hand_on(self._own(deliveries), reader.position()[partition])
            except OffsetOutOfRangeError as error:
                # records are lost: what they ordered the leader makes good when it reads the next report
                _log.error("assignments were lost", action="worker.offset-out-of-range", error=str(error))
                self._next = error.earliest
            except BusUnavailableError as error:
                _log.warning("assignments cannot be read", action="worker.assignments-wait", error=str(error))
                await self._clock.sleep(RETRY_S)
            finally:
                self.is_caught_up = False
                await reader.stop()

    async def _catch_up(self, reader: Reader, partition: Partition) -> None:
        batch: list[Delivered] = []
        while not await reader.at_end():
            batch += self._own(await reader.poll(BATCH_MAX, POLL_S))
        await self._hand_on(batch, reader.position()[partition], always=True)
        self.is_caught_up = True

    async def _hand_on(self, batch: Sequence[Delivered], offset: int, *, always: bool = False) -> None:
        now = self._clock.monotonic()
        if batch or always or now - self._saved_at >= SAVE_OFFSET_EVERY_S:
            self._saved_at = now
            await self._act(batch, offset)
        self._next = offset

    def _own(self, deliveries: Sequence[Delivery]) -> list[Delivered]:
        return [order for d in deliveries if d.record.key == self._key and (order := self._order(d)) is not None]

    def _order(self, delivery: Delivery) -> Delivered | None:
        try:
            event = decode(delivery.record).event
        except UndecodableError as error:
            _log.error(
                "undecodable assignment",
                action="worker.assignment-undecodable",
                offset=delivery.offset,
                error=str(error),
            )
            self._dead_letters(dead_letter(delivery, "worker", error, 1, self._clock.now()))
            return None
        if not isinstance(event, MemberAssigned | MemberStopOrdered | MemberReleased) or event.node != self._node:
            return None
        if event.pool != self._pool:
            _log.error("an order of another pool", action="worker.foreign-pool", pool=event.pool, run_id=event.run_id)
            return None
        with consumer_span(delivery):
            return Delivered(event, current_traceparent())
