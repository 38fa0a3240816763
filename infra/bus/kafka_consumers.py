"""Both ways to read from Kafka: a member of a consumer group, and a reader of given partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, errors
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.structs import ConsumerRecord, TopicPartition

from schedmate.infra.bus.kafka_calls import bounded, ours, theirs, translated
from schedmate.infra.bus.kafka_closing import close_consumer
from schedmate.infra.bus.port import BusUnavailableError, OffsetOutOfRangeError, Partition, RevokedHandler
from schedmate.schemas.wire import Delivery, Record

if TYPE_CHECKING:
    from schedmate.infra.bus.kafka import KafkaBus

SESSION_S: Final = 6.0  # the least that stock Kafka allows: a dead member's partitions move on after this
BEAT_EVERY_S: Final = 0.6  # also how soon the others learn of a new member
REBALANCE_S: Final = 12.0  # how long the group waits for a member that drains
HAND_OVER_S: Final = 10.0  # and how long we let it drain: less than that
JOIN_S: Final = 30.0
_POLL_INTERVAL_S: Final = 60.0
_FETCH_WAIT_MS: Final = 250
_FETCH_BYTES_MAX: Final = 16 * 1024 * 1024
_PARTITION_FETCH_BYTES_MAX: Final = 4 * 1024 * 1024  # more than the largest record of any topic

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class KafkaGroupConsumer:
    """A member of a consumer group.

    Kafka takes all partitions from all members at each rebalance. aiokafka says so from a task of its own; the handler
    runs inside `poll` all the same, and the hand-over waits for it, for HAND_OVER_S at most.
    """

    def __init__(self, bus: KafkaBus, group: str, topics: tuple[str, ...], on_revoked: RevokedHandler | None) -> None:
        self._bus = bus
        self._group = group
        self._topics = topics
        self._on_revoked = on_revoked
        self._consumer: AIOKafkaConsumer | None = None
        self._revoked: frozenset[Partition] = frozenset()
        self._revoking = asyncio.Event()
        self._handed_over: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Join the group."""
        await self._bus.check_topics(self._topics)
        consumer = AIOKafkaConsumer(
            **self._bus.access.arguments(),
            **_FETCHING,
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=int(SESSION_S * 1000),
            heartbeat_interval_ms=int(BEAT_EVERY_S * 1000),
            rebalance_timeout_ms=int(REBALANCE_S * 1000),
            max_poll_interval_ms=int(_POLL_INTERVAL_S * 1000),
        )
        consumer.subscribe(self._topics, listener=_Listener(self))
        self._consumer = consumer
        try:
            await bounded(f"joining group {self._group}", JOIN_S, consumer.start, retry=False)
        except BaseException:
            self._consumer = None
            await close_consumer(consumer)
            raise

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Delivery]:
        """Return what has arrived; runs `on_revoked` when the group is shared out anew."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            if self._revoking.is_set():
                await self._hand_over()
            found = await self._fetch(max_records, max(deadline - loop.time(), 0.0))
            if found or (loop.time() >= deadline and not self._revoking.is_set()):
                return found

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Store the next offset to read for each partition still held."""
        consumer = self._started()
        held = consumer.assignment()
        wanted = {theirs(p): offset for p, offset in offsets.items() if theirs(p) in held}
        if not wanted:
            return
        try:
            await bounded("committing", self._bus.call_timeout_s, lambda: consumer.commit(wanted), retry=False)
        except BusUnavailableError as error:
            if isinstance(error.__cause__, errors.CommitFailedError):
                log.warning("not committed: no longer a member", action="bus.commit_refused", group=self._group)
                return
            raise

    async def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing from these partitions until resumed."""
        consumer = self._started()
        consumer.pause(*({theirs(p) for p in partitions} & consumer.assignment()))

    async def resume(self, partitions: Iterable[Partition]) -> None:
        """Deliver from these partitions again."""
        consumer = self._started()
        consumer.resume(*({theirs(p) for p in partitions} & consumer.assignment()))

    def assignment(self) -> frozenset[Partition]:
        """Return the partitions held now."""
        return frozenset(map(ours, self._consumer.assignment())) if self._consumer is not None else frozenset()

    async def lag(self) -> Mapping[Partition, int]:
        """Return, for each partition held, how many records are not yet committed."""
        held = self.assignment()
        bounds = await self._bus.bounds(held) if held else {}
        committed = await self._bus.committed(self._group, held)
        return {p: b.end - max(committed.get(p, b.earliest), b.earliest) for p, b in bounds.items()}

    async def stop(self) -> None:
        """Leave the group at once."""
        consumer, self._consumer = self._consumer, None
        self._answer()
        if consumer is not None:
            await close_consumer(consumer)

    async def revoked(self, partitions: frozenset[Partition]) -> None:
        """Called by aiokafka's own task: wait until `poll` has handed over."""
        if not partitions or self._on_revoked is None or self._consumer is None:
            return
        self._revoked = partitions
        self._handed_over = asyncio.get_running_loop().create_future()
        self._revoking.set()
        done, _ = await asyncio.wait({self._handed_over}, timeout=HAND_OVER_S)
        if not done:
            log.warning("handed over without being drained: nobody polled", action="bus.hand_over", group=self._group)
            self._answer()

    async def _hand_over(self) -> None:
        try:
            if self._on_revoked is not None and self._revoked:
                await self._on_revoked(self._revoked)
        finally:
            self._answer()

    def _answer(self) -> None:
        self._revoked = frozenset()
        self._revoking.clear()
        if self._handed_over is not None and not self._handed_over.done():
            self._handed_over.set_result(None)
        self._handed_over = None

    async def _fetch(self, max_records: int, timeout_s: float) -> list[Delivery]:
        """Fetch, but let go as soon as partitions are taken away; what was fetched then will be read again."""
        consumer = self._started()
        fetching = asyncio.ensure_future(consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=max_records))
        revoking = asyncio.ensure_future(self._revoking.wait())
        try:
            # while the group is shared out, getmany waits for that, whatever its timeout: hence one of ours
            await asyncio.wait({fetching, revoking}, timeout=timeout_s + 0.05, return_when=asyncio.FIRST_COMPLETED)
            if self._revoking.is_set() or not fetching.done():
                return []
            return _deliveries(fetching.result())
        except errors.KafkaError as error:
            raise translated(error, f"reading as a member of {self._group}") from error
        finally:
            await _ended(fetching, revoking)

    def _started(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise BusUnavailableError(f"the member of group {self._group} is not started")
        return self._consumer


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, member: KafkaGroupConsumer) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._member.revoked(frozenset(map(ours, revoked)))

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Nothing to prepare: offsets are in Kafka."""


class KafkaReader:
    """A reader of given partitions from given offsets; it never lets Kafka reset one."""

    def __init__(self, bus: KafkaBus, offsets: Mapping[Partition, int]) -> None:
        self._bus = bus
        self._positions = dict(offsets)
        self._consumer: AIOKafkaConsumer | None = None

    async def start(self) -> None:
        """Check topics and offsets."""
        await self._check_range()
        consumer = AIOKafkaConsumer(
            **self._bus.access.arguments(),
            **_FETCHING,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
        )
        try:
            await bounded("starting a reader", self._bus.call_timeout_s, lambda: started(consumer), retry=False)
        except BaseException:
            await close_consumer(consumer)
            raise
        consumer.assign([theirs(p) for p in self._positions])
        for (
            partition,
            offset,
        ) in self._positions.items():  # before anything else runs, so that no position is looked for
            consumer.seek(theirs(partition), offset)
        self._consumer = consumer

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Delivery]:
        """Return what has arrived; empty after `timeout_s`."""
        consumer = self._started()
        try:
            async with asyncio.timeout(timeout_s + self._bus.call_timeout_s):
                found = await consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=max_records)
        except errors.OffsetOutOfRangeError as error:
            await self._check_range()
            raise BusUnavailableError(f"reading: Kafka found an offset out of range, then not: {error}") from error
        except errors.KafkaError as error:
            raise translated(error, "reading") from error
        except TimeoutError:
            return []
        deliveries = _deliveries(found)
        for delivery in deliveries:
            self._positions[Partition(delivery.topic, delivery.partition)] = delivery.offset + 1
        return deliveries

    def position(self) -> Mapping[Partition, int]:
        """Return the next offset of each partition."""
        return dict(self._positions)

    async def at_end(self) -> bool:
        """Tell whether every partition has been read to where it ended just now."""
        bounds = await self._bus.bounds(self._positions)
        return all(offset >= bounds[p].end for p, offset in self._positions.items())

    async def stop(self) -> None:
        """Stop reading."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_consumer(consumer)

    async def _check_range(self) -> None:
        for partition, bounds in (await self._bus.bounds(self._positions)).items():
            wanted = self._positions[partition]
            if not bounds.earliest <= wanted <= bounds.end:
                raise OffsetOutOfRangeError(partition, wanted, bounds.earliest, bounds.end)

    def _started(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise BusUnavailableError("the reader is not started")
        return self._consumer


_FETCHING: Final[Mapping[str, Any]] = {
    "fetch_max_wait_ms": _FETCH_WAIT_MS,
    "fetch_max_bytes": _FETCH_BYTES_MAX,
    "max_partition_fetch_bytes": _PARTITION_FETCH_BYTES_MAX,
}


def _deliveries(found: Mapping[TopicPartition, Sequence[ConsumerRecord[bytes, bytes]]]) -> list[Delivery]:
    return [
        Delivery(
            Record(
                record.topic, record.key or b"", record.value or b"", tuple((k, v or b"") for k, v in record.headers)
            ),
            record.partition,
            record.offset,
        )
        for records in found.values()
        for record in records
    ]


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()


async def started(consumer: AIOKafkaConsumer) -> None:
    """Start a consumer without a group, and let its own task begin: one stopped before that leaves its sockets open."""
    await consumer.start()
    await asyncio.sleep(0)
