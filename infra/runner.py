"""Group consumption for every service: keys in order, different keys at once, publish before commit (design §5).

`GroupRunner` owns the loop: poll → accept → handle → publish → commit. Invariants:

1. deliveries of one key are handled one after another, in the order of their offsets;
2. a delivery is finished when its results are acknowledged (or it was dead-lettered, or skipped);
3. what is committed never passes the lowest unfinished offset of a partition;
4. on revocation nothing new is begun, what runs is drained within a bound, then committed, then handed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Final, TypeVar

import structlog

from schedmate.infra.blobs.port import BlobsUnavailableError
from schedmate.infra.bus.port import (
    BusUnavailableError,
    EventBus,
    GroupConsumer,
    MissingTopicError,
    Partition,
    RecordTooLargeError,
)
from schedmate.infra.clock import Clock, Random
from schedmate.infra.deadletters import dead_letter
from schedmate.infra.lanes import Lanes, Progress
from schedmate.infra.store.port import StoreUnavailableError
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import count, observe
from schedmate.infra.telemetry.tracing import consumer_span, current_traceparent
from schedmate.schemas.codec import UndecodableError, decode, encode
from schedmate.schemas.events import Event
from schedmate.schemas.wire import Delivery, Envelope, Record

_T = TypeVar("_T")

Handler = Callable[[Envelope[Event]], Awaitable[Sequence[Envelope[Event]]]]

_UNAVAILABLE: Final = (BusUnavailableError, StoreUnavailableError, BlobsUnavailableError)
_BACK_OFF_FIRST_S: Final = 0.1
_BACK_OFF_MAX_S: Final = 5.0
_IDLE_POLL_S: Final = 0.25  # bounds how late `stop` is seen
_BUSY_POLL_S: Final = 0.05  # bounds how late a finished delivery is committed
_FULL_POLL_S: Final = 0.01
_COMMIT_EVERY_S: Final = 0.25
_LAG_EVERY_S: Final = 2.0
_CATCH_UP_EVERY_S: Final = 0.5

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_handling: ContextVar[Delivery] = ContextVar("schedmate_delivery")


def current_delivery() -> Delivery:
    """Return the delivery whose event the calling handler was given: for headers that no event carries."""
    return _handling.get()


class GroupRunner:
    """Runs a handler as a member of a consumer group until told to stop."""

    def __init__(  # noqa: D417
        self,
        bus: EventBus,
        *,
        group: str,
        topics: Sequence[str],
        handler: Handler,
        service: str,
        clock: Clock,
        random: Random,
        concurrency: int = 32,
        in_flight_max: int = 1000,
        in_flight_bytes_max: int = 64 * 1024 * 1024,
        attempts_max: int = 5,
        drain_timeout_s: float = 5.0,
        handler_timeout_s: float = 60.0,
        skip: Callable[[Record], bool] | None = None,
        lane_of: Callable[[Delivery], bytes] | None = None,
    ) -> None:
        """Take what `run` needs.

        Args:
            handler: event in, events out; may be called again for the same event.
            skip: drops a record by its headers, before it is decoded.
            lane_of: names what is handled one after another; a record's key, unless the handler needs less order than that.
            concurrency: keys handled at once.
            in_flight_max: deliveries accepted and not yet finished, beyond which partitions are paused; the same for bytes.
            attempts_max: calls of the handler for one event, before it is dead-lettered.
            drain_timeout_s: how long a revocation or the end waits for running handlers; below the bus' rebalance timeout.
        """
        self._bus = bus
        self._group = group
        self._topics = tuple(topics)
        self._handler = handler
        self._skip = skip
        self._service = service
        self._clock = clock
        self._random = random
        self._in_flight_max = in_flight_max
        self._in_flight_bytes_max = in_flight_bytes_max
        self._attempts_max = attempts_max
        self._drain_timeout_s = drain_timeout_s
        self._handler_timeout_s = handler_timeout_s
        self._consumer: GroupConsumer | None = None
        self._progress: dict[Partition, Progress] = {}
        self._lanes = Lanes(self._work, concurrency, lane_of)
        self._paused = False
        self._committed_at = 0.0
        self._lag_at = float("-inf")
        self._lags: dict[Partition, int] = {}
        self._ends_at_first: dict[Partition, int] = {}
        self._caught_up = False

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set; then drain, commit and leave.

        Raises:
            MissingTopicError: a topic to read or to publish to does not exist.
        """
        consumer = await self._join(stop)
        if consumer is None:
            return
        self._consumer = consumer
        try:
            failures = 0
            while not stop.is_set() and self._lanes.failure is None:
                try:
                    await self._turn(consumer)
                    failures = 0
                except BusUnavailableError as error:
                    failures += 1
                    log.warning("the bus does not answer", action="runner.bus_unavailable", error=str(error))
                    await self._back_off(failures)
            await self._settle(frozenset(self._progress))
        finally:
            self._consumer = None
            await self._lanes.cancel()
            await consumer.stop()
        if self._lanes.failure is not None:
            raise self._lanes.failure

    def ready(self) -> bool:
        """Tell whether the runner has joined its group and has once caught up with what was there."""
        return self._consumer is not None and self._caught_up

    async def lag(self) -> int:
        """Return how many records of the partitions held were not committed at the last look (every two seconds)."""
        return sum(self._lags.values())

    @property
    def lags(self) -> Mapping[str, int]:
        """The same by topic."""
        topics: dict[str, int] = {}
        for partition, lag in self._lags.items():
            topics[partition.topic] = topics.get(partition.topic, 0) + lag
        return topics

    @property
    def in_flight(self) -> int:
        """Deliveries accepted and not yet finished."""
        return self._lanes.in_flight

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def _join(self, stop: asyncio.Event) -> GroupConsumer | None:
        failures = 0
        while not stop.is_set():
            consumer = self._bus.group(self._group, self._topics, on_revoked=self._settle)
            try:
                await consumer.start()
                return consumer
            except BusUnavailableError as error:
                failures += 1
                log.warning("could not join the group", action="runner.join", group=self._group, error=str(error))
                await consumer.stop()
                await self._back_off(failures)
        return None

    async def _turn(self, consumer: GroupConsumer) -> None:
        await self._pause_or_resume(consumer)
        room = max(1, self._in_flight_max - self._lanes.in_flight)
        batch = await consumer.poll(room, self._poll_s())
        for delivery in batch:
            self._accept(delivery)
        await self._commit_when_due(consumer)
        await self._watch_lag(consumer, idle=not batch)

    def _poll_s(self) -> float:
        if self._paused:
            return _FULL_POLL_S
        return _BUSY_POLL_S if self._lanes.in_flight or self._is_dirty() else _IDLE_POLL_S

    async def _pause_or_resume(self, consumer: GroupConsumer) -> None:
        filled = max(
            self._lanes.in_flight / self._in_flight_max, self._lanes.in_flight_bytes / self._in_flight_bytes_max
        )
        if filled >= 1:
            self._paused = True
            await consumer.pause(consumer.assignment())  # each time: partitions may have come
        elif self._paused and filled <= 0.5:  # noqa: PLR2004 - half empty, so that it does not flutter
            self._paused = False
            await consumer.resume(consumer.assignment())

    async def _commit_when_due(self, consumer: GroupConsumer) -> None:
        now = self._clock.monotonic()
        if self._is_dirty() and (not self._lanes.in_flight or now - self._committed_at >= _COMMIT_EVERY_S):
            self._committed_at = now
            await self._commit(consumer, self._progress)

    def _is_dirty(self) -> bool:
        return any(p.done_to > p.committed for p in self._progress.values())

    async def _commit(self, consumer: GroupConsumer, partitions: dict[Partition, Progress]) -> None:
        offsets = {name: p.done_to for name, p in partitions.items() if p.done_to > p.committed}
        if not offsets:
            return
        await consumer.commit(offsets)
        for name, offset in offsets.items():
            partitions[name].committed = offset

    async def _watch_lag(self, consumer: GroupConsumer, *, idle: bool) -> None:
        now = self._clock.monotonic()
        every_s = _LAG_EVERY_S if self._caught_up else _CATCH_UP_EVERY_S
        if now - self._lag_at < every_s and (self._caught_up or not idle or self._lanes.in_flight):
            return
        self._lag_at = now
        self._lags = dict(await consumer.lag())
        if not self._caught_up:
            self._caught_up = await self._has_caught_up()

    async def _has_caught_up(self) -> bool:
        """Tell whether all is done that was there when each partition was first held, whatever has come since."""
        new = self._lags.keys() - self._ends_at_first.keys()
        if new:
            bounds = await self._bus.bounds(new)
            self._ends_at_first |= {partition: b.end for partition, b in bounds.items()}
        return all(
            lag == 0 or (p in self._progress and self._progress[p].done_to >= self._ends_at_first[p])
            for p, lag in self._lags.items()
        )

    def _accept(self, delivery: Delivery) -> None:
        partition = Partition(delivery.topic, delivery.partition)
        progress = self._progress.get(partition)
        if progress is None or delivery.offset < progress.next:
            if progress is not None:
                progress.open = False  # the partition was made anew: what it was counts no more
            progress = self._progress[partition] = Progress(next=delivery.offset)
        progress.next = delivery.offset + 1
        if self._skip is not None and self._skip(delivery.record):
            count(names.RUNNER_HANDLED, topic=delivery.topic, outcome="skipped")
            return
        self._lanes.accept(delivery, progress)

    async def _settle(self, partitions: frozenset[Partition]) -> None:
        """Let go of partitions: begin nothing more of them, drain what runs, commit. Called by the bus, and at the end."""
        going = {name: self._progress[name] for name in partitions if name in self._progress}
        await self._lanes.drain(going.values(), self._drain_timeout_s)
        for progress in going.values():
            progress.committed = -1  # said again: an earlier commit may have been refused meanwhile
        try:
            if self._consumer is not None:
                await self._commit(self._consumer, going)
        except BusUnavailableError as error:
            log.warning("handed over without a commit", action="runner.hand_over", error=str(error))
        for name in partitions:
            self._progress.pop(name, None)
            self._ends_at_first.pop(name, None)
        count(names.RUNNER_REBALANCES, group=self._group)

    # --- one delivery -------------------------------------------------------------------------------------------------

    async def _work(self, delivery: Delivery) -> None:
        started = self._clock.monotonic()
        _handling.set(delivery)  # each delivery is handled in a task, and so in a context, of its own
        with consumer_span(delivery, group=self._group):
            try:
                envelope = decode(delivery.record)
            except UndecodableError as error:
                await self._give_up(delivery, error, attempts=1)
                return
            attempts = 0
            while True:
                try:
                    await self._attempt(envelope)
                    count(names.RUNNER_HANDLED, topic=delivery.topic, outcome="done")
                    observe(names.RUNNER_HANDLE_S, self._clock.monotonic() - started, topic=delivery.topic)
                    return
                except RecordTooLargeError as error:  # it would be as large the next time
                    await self._give_up(delivery, error, attempts + 1)
                    return
                except MissingTopicError:  # a wrong installation, no wrong record: the service ends with this
                    raise
                except Exception as error:  # noqa: BLE001 - whatever a handler raises is retried, then dead-lettered
                    attempts += 1
                    log.warning(
                        "a handler failed",
                        action="runner.handler_failed",
                        topic=delivery.topic,
                        partition=delivery.partition,
                        offset=delivery.offset,
                        attempts=attempts,
                        error=repr(error),
                    )
                    count(names.RUNNER_RETRIES, topic=delivery.topic)
                    if attempts >= self._attempts_max:
                        await self._give_up(delivery, error, attempts)
                        return
                    await self._back_off(attempts)

    async def _attempt(self, envelope: Envelope[Event]) -> None:
        async def handle() -> Sequence[Envelope[Event]]:
            async with asyncio.timeout(self._handler_timeout_s):
                return await self._handler(envelope)

        results = await self._through_outages(handle)
        traceparent = current_traceparent()
        await self._publish(
            [encode(r if r.traceparent is not None else replace(r, traceparent=traceparent)) for r in results]
        )

    async def _publish(self, records: Sequence[Record]) -> None:
        if records:
            await self._through_outages(lambda: self._bus.publish(records))

    async def _through_outages(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Call until bus, store and blobs answer: an outage is nobody's fault and costs no attempt."""
        failures = 0
        while True:
            try:
                return await call()
            except _UNAVAILABLE as error:
                failures += 1
                log.warning("waiting for what does not answer", action="runner.unavailable", error=str(error))
                await self._back_off(failures)

    async def _give_up(self, delivery: Delivery, error: Exception, attempts: int) -> None:
        log.error(
            "dead-lettered",
            action="runner.dead_lettered",
            topic=delivery.topic,
            partition=delivery.partition,
            offset=delivery.offset,
            attempts=attempts,
            error=repr(error),
        )
        letter = dead_letter(delivery, self._service, error, attempts, self._clock.now())
        await self._publish([encode(letter)])
        count(names.RUNNER_HANDLED, topic=delivery.topic, outcome="dead-lettered")
        count(names.DEAD_LETTERS, topic=delivery.topic)

    async def _back_off(self, failures: int) -> None:
        """Wait, longer each time, by a random part less so that members do not come back all at once."""
        ceiling = min(_BACK_OFF_MAX_S, _BACK_OFF_FIRST_S * 2 ** min(failures - 1, 10))
        await self._clock.sleep(self._random.uniform(ceiling / 2, ceiling))
