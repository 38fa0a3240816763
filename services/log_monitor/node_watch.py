"""Reads what nodes say of themselves: all partitions of `nodes`, in no group, for any job may have run on any node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from schedmate.infra.bus.port import BusUnavailableError, EventBus, OffsetOutOfRangeError, Partition, Reader
from schedmate.infra.clock import Clock
from schedmate.infra.deadletters import dead_letter
from schedmate.schemas.codec import UndecodableError, decode
from schedmate.schemas.events import Event, NodeFaultObserved, NodeReported
from schedmate.schemas.wire import Delivery, Envelope
from schedmate.services.log_monitor.node_reports import NodeReports

POLL_S: Final = 0.25
RETRY_S: Final = 1.0
RECORDS_MAX: Final = 500

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Publish = Callable[[Sequence[Envelope[Event]]], Awaitable[None]]


class NodeWatch:
    """Hands each fault that a node observed, or that its reports show, to `on_fault`, from the recent past on.

    A record that is no event of ours stops nothing: it goes to the dead letters, once (the id follows from its offset, so that another
    instance, or this one after a restart, says the same again).
    """

    def __init__(
        self,
        bus: EventBus,
        clock: Clock,
        on_fault: Callable[[NodeFaultObserved], None],
        *,
        history_records: int,
        publish: Publish,
        service: str,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._on_fault = on_fault
        self._history_records = history_records
        self._publish = publish
        self._service = service
        self._reports = NodeReports()
        self._dead: dict[int, int] = {}
        """By partition, the highest offset that went to the dead letters: reading again says nothing twice."""

    async def run(self, stop: asyncio.Event) -> None:
        """Read until `stop`. An outage of the bus is waited for; what retention took is skipped, for it is old."""
        while not stop.is_set():
            reader: Reader | None = None
            try:
                reader = self._bus.reader(await self._recent())
                await reader.start()
                while not stop.is_set():
                    poison = [p for d in await reader.poll(RECORDS_MAX, POLL_S) if (p := self._take(d)) is not None]
                    if poison:
                        await self._bury(poison)
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

    def _take(self, delivery: Delivery) -> tuple[Delivery, UndecodableError] | None:
        """Take in a record; return it with its error when it cannot be read."""
        try:
            event = decode(delivery.record).event
        except UndecodableError as error:
            return delivery, error
        if isinstance(event, NodeFaultObserved):
            self._on_fault(event)
        elif isinstance(event, NodeReported):
            for fault in self._reports.take(event):
                self._on_fault(fault)
        return None

    async def _bury(self, poison: Sequence[tuple[Delivery, UndecodableError]]) -> None:
        new = [(d, e) for d, e in poison if d.offset > self._dead.get(d.partition, -1)]
        if not new:
            return
        for delivery, error in new:
            log.warning("not an event", action="node_watch.undecodable", offset=delivery.offset, error=str(error))
        now = self._clock.now()
        await self._publish([dead_letter(delivery, self._service, error, 1, now) for delivery, error in new])
        for delivery, _ in new:
            self._dead[delivery.partition] = max(delivery.offset, self._dead.get(delivery.partition, -1))
