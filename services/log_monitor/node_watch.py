"""Reads what nodes say of their own faults: all partitions of `nodes`, in no group, for any job may have run on any node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from schedmate.infra.bus.port import BusUnavailableError, EventBus, OffsetOutOfRangeError, Partition, Reader
from schedmate.infra.clock import Clock
from schedmate.schemas.codec import UndecodableError, decode
from schedmate.schemas.events import NodeFaultObserved
from schedmate.schemas.wire import Delivery

POLL_S: Final = 0.25
RETRY_S: Final = 1.0
RECORDS_MAX: Final = 500
TYPE_HEADER: Final = "ce_type"
TYPE: Final = NodeFaultObserved.ce_type().encode()

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NodeWatch:
    """Hands each fault that a node observed to `on_fault`, from the recent past on."""

    def __init__(
        self, bus: EventBus, clock: Clock, on_fault: Callable[[NodeFaultObserved], None], *, history_records: int
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._on_fault = on_fault
        self._history_records = history_records

    async def run(self, stop: asyncio.Event) -> None:
        """Read until `stop`. An outage of the bus is waited for; what retention took is skipped, for it is old."""
        while not stop.is_set():
            reader: Reader | None = None
            try:
                reader = self._bus.reader(await self._recent())
                await reader.start()
                while not stop.is_set():
                    for delivery in await reader.poll(RECORDS_MAX, POLL_S):
                        self._take(delivery)
            except (BusUnavailableError, OffsetOutOfRangeError) as error:
                log.warning("reading nodes again", action="node_watch.again", error=str(error))
                await self._clock.sleep(RETRY_S)
            finally:
                if reader is not None:
                    await reader.stop()

    async def _recent(self) -> dict[Partition, int]:
        topic = NodeFaultObserved.TOPIC
        partitions = [Partition(topic, number) for number in range(await self._bus.partitions(topic))]
        bounds = await self._bus.bounds(partitions)
        return {p: max(b.earliest, b.end - self._history_records) for p, b in bounds.items()}

    def _take(self, delivery: Delivery) -> None:
        if delivery.record.header(TYPE_HEADER) != TYPE:
            return
        try:
            event = decode(delivery.record).event
        except UndecodableError as error:
            log.warning("not an event", action="node_watch.undecodable", offset=delivery.offset, error=str(error))
            return
        if isinstance(event, NodeFaultObserved):
            self._on_fault(event)
