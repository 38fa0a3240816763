"""A keyed, stateful stream on Kafka as a Faust application: the only module that imports Faust.

The state is a Faust table with a changelog topic, so it follows its partition when instances come and go. Facts this rests on (measured on
Faust 0.15): at-least-once only; values set by maximum or by id, never added up; a short session; topics created before.

Per record: decode → handle (keys in order, different keys at once) → publish and await the acknowledgement → acknowledge the record. Faust
flushes its producer, and with it the changelog, before it commits an offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from ssl import SSLContext
from typing import Any, Final

import faust
import structlog

from schedmate.infra.bus.keyed_state import NotHeldError
from schedmate.infra.bus.partitioner import partition_of
from schedmate.infra.bus.port import BusUnavailableError, EventBus, RecordTooLargeError
from schedmate.infra.bus.stream_order import InOrder, Lanes
from schedmate.infra.clock import Clock, Random
from schedmate.infra.deadletters import dead_letter
from schedmate.infra.store.port import StoreUnavailableError
from schedmate.infra.telemetry.tracing import consumer_span, current_traceparent
from schedmate.schemas.codec import UndecodableError, decode, encode
from schedmate.schemas.events import Event
from schedmate.schemas.wire import Delivery, Envelope, Record

Handler = Callable[[Envelope[Event]], Awaitable[Sequence[Envelope[Event]]]]

SESSION_S: Final = 6.0  # the broker's least; a crash is noticed after it
HEARTBEAT_S: Final = 0.6
REBALANCE_S: Final = 6.0
COMMIT_EVERY_S: Final = 1.0
POLL_RECORDS_MAX: Final = 200
BUFFER_RECORDS_MAX: Final = 200
FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
REQUEST_BYTES_MAX: Final = 2 * 1024 * 1024
WATCH_S: Final = 0.2
STOP_TIMEOUT_S: Final = 10.0
BACK_OFF_FIRST_S: Final = 0.1
BACK_OFF_MAX_S: Final = 5.0
KEY_SEPARATOR: Final = b"#"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class StreamCrashedError(Exception):
    """Faust gave up; the process should be started again."""


class _StateTable(faust.Table[bytes, bytes]):
    """A table that finds a key's partition by the record key that it begins with, also outside of the stream."""

    def partition_for_key(self, key: bytes) -> int:
        assert self.partitions is not None, "the table is made with its number of partitions"
        return partition_of(record_key(key), self.partitions)


def record_key(key: bytes) -> bytes:
    """Return the record key that a state key begins with."""
    return key.partition(KEY_SEPARATOR)[0]


class FaustState:
    """`KeyedState` in a Faust table: only keys of partitions held and recovered can be seen."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._table: Any = None
        self.held: frozenset[int] = frozenset()

    def attach(self, table: Any) -> None:
        """Use this table from now on."""
        self._table = table

    async def load(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the values of those keys that have one."""
        found: dict[str, bytes] = {}
        for key in keys:
            raw = self._held(key)
            value = self._table.get(raw)
            if value:
                found[key] = value
        return found

    async def save(self, puts: Mapping[str, bytes], removes: Sequence[str]) -> None:
        """Set and remove values. They reach the changelog before the offset of the record at hand is committed."""
        checked = [(self._held(key), value) for key, value in puts.items()]
        gone = [self._held(key) for key in removes]
        for raw, value in checked:
            self._table[raw] = value
        for raw in gone:
            if raw in self._table:
                del self._table[raw]

    async def scan(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield all keys and values of the partitions held."""
        for raw, value in list(self._table.items()) if self._table is not None else []:
            if value and partition_of(record_key(raw), self._partitions) in self.held:
                yield raw.decode(), value

    def _held(self, key: str) -> bytes:
        raw = key.encode()
        if self._table is None or partition_of(record_key(raw), self._partitions) not in self.held:
            raise NotHeldError(f"the state of {key} is not held here")
        return raw


class FaustStream:
    """Runs a handler over topics as a Faust application, with state in one table. `Stream` of `GroupService`."""

    def __init__(  # noqa: D417
        self,
        servers: str,
        bus: EventBus,
        *,
        app_id: str,
        table: str,
        topics: Sequence[str],
        partitions: int,
        handler: Handler,
        state: FaustState,
        service: str,
        clock: Clock,
        random: Random,
        directory: Path,
        on_recovered: Callable[[], Awaitable[None]] | None = None,
        security: Mapping[str, Any] | None = None,
        concurrency: int = 32,
        attempts_max: int = 5,
    ) -> None:
        """Take what `run` needs.

        Args:
            bus: publishes results and dead letters, and tells the lag.
            app_id: the consumer group; the changelog is `APP_ID-TABLE-changelog`.
            partitions: of each topic and of the changelog.
            on_recovered: called each time that state has been recovered after an assignment.
            security: the arguments of aiokafka's clients for TLS and SASL.
        """
        self._servers = servers
        self._bus = bus
        self._app_id = app_id
        self._table_name = table
        self._topics = tuple(topics)
        self._partitions = partitions
        self._handler = handler
        self._state = state
        self._service = service
        self._clock = clock
        self._random = random
        self._directory = directory
        self._on_recovered = on_recovered
        self._security = dict(security or {})
        self._lanes = Lanes(self._deliver, concurrency)
        self._attempts_max = attempts_max
        self._app: Any = None
        self._order: InOrder | None = None
        self._recovered = False
        self._caught_up = False
        self._lag = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set; then finish what is in hand, commit and leave.

        Raises:
            StreamCrashedError: Faust gave up.
        """
        app = self._app = self._make_app()
        self._order = InOrder(app, self._bus, self._clock)
        app.finalize()
        await app.start()
        try:
            while not stop.is_set():
                reason = app.crash_reason if app.crashed else self._lanes.failure
                if reason is not None:
                    raise StreamCrashedError(f"the stream failed: {reason!r}") from reason
                await self._watch(app)
                await self._pause(stop)
        finally:
            self._app = None
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._lanes.drain()
                    await app.stop()
            except TimeoutError:
                log.warning("faust did not stop in time", action="faust.stop", timeout_s=STOP_TIMEOUT_S)
            finally:
                self._state.held = frozenset()
                self._lanes.cancel()

    def ready(self) -> bool:
        """Tell whether the stream has joined, recovered its state and once caught up."""
        return self._app is not None and self._recovered and self._caught_up

    async def lag(self) -> int:
        """Return how many records of the partitions held are not handled yet, as of the last look."""
        return self._lag

    # --- the application ----------------------------------------------------------------------------------------------

    def _make_app(self) -> Any:
        self._directory.mkdir(parents=True, exist_ok=True)
        logging.getLogger("faust").setLevel(logging.WARNING)
        logging.getLogger("mode").setLevel(logging.WARNING)
        app: Any = faust.App(
            self._app_id,
            broker=[f"kafka://{server}" for server in self._servers.split(",")],
            broker_credentials=_credentials(self._security),
            broker_session_timeout=SESSION_S,
            broker_heartbeat_interval=HEARTBEAT_S,
            broker_rebalance_timeout=REBALANCE_S,
            broker_commit_interval=COMMIT_EVERY_S,
            broker_max_poll_records=POLL_RECORDS_MAX,
            consumer_auto_offset_reset="earliest",
            consumer_max_fetch_size=FETCH_BYTES_MAX,
            producer_max_request_size=REQUEST_BYTES_MAX,
            producer_request_timeout=30.0,
            stream_buffer_maxsize=BUFFER_RECORDS_MAX,
            stream_wait_empty=True,
            store="memory://",
            datadir=str(self._directory),
            table_standby_replicas=0,
            topic_disable_leader=True,
            topic_allow_declare=False,
            topic_partitions=self._partitions,
            web_enabled=False,
            autodiscover=False,
            loop=asyncio.get_running_loop(),
        )
        table = _StateTable(app, name=self._table_name, partitions=self._partitions, key_type=bytes, value_type=bytes)
        app.tables.add(table)
        self._state.attach(table)
        table.on_recover(self._recovery_ended)
        app.on_partitions_revoked.connect(self._revoked, weak=False)
        source = app.topic(
            *self._topics, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
        )
        app.agent(source, name="follow")(self._follow)
        return app

    async def _follow(self, stream: Any) -> None:
        """Faust's agent: take records in, each into the lane of its key; they are acknowledged when they are done."""
        assert self._order is not None, "made before the application starts"
        async for event in stream.noack().events():
            if await self._order.admits(event.message):
                await self._lanes.put(event.message.key or b"", event)

    async def _revoked(self, _app: Any, _partitions: Any = frozenset(), **_: Any) -> None:
        """What ran has ended by now (stream_wait_empty): from here on nothing is ours until it is recovered."""
        self._recovered = False
        self._state.held = frozenset()
        if self._order is not None:
            self._order.forget()

    async def _recovery_ended(self) -> None:
        app = self._app
        if app is None or self._order is None:
            return
        self._order.forget()  # what came before this could not be handled, and comes again
        self._state.held = frozenset(tp.partition for tp in app.consumer.assignment() if tp.topic in self._topics)
        self._recovered = True
        log.info("state recovered", action="faust.recovered", partitions=sorted(self._state.held))
        if self._on_recovered is not None:
            await self._on_recovered()

    async def _watch(self, app: Any) -> None:
        """Bring the lag up to date, and look after partitions of which nothing comes though there is more."""
        if not self._recovered or self._order is None:
            return
        ours = [tp for tp in app.consumer.assignment() if tp.topic in self._topics]
        left = await self._order.look(ours, repair=self._lanes.idle)
        if left is not None:
            self._lag = left + self._lanes.waiting
            self._caught_up = self._caught_up or self._lag == 0

    async def _pause(self, stop: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(WATCH_S):
                await stop.wait()
        except TimeoutError:
            return

    # --- one record ---------------------------------------------------------------------------------------------------

    async def _deliver(self, event: Any) -> None:
        message = event.message
        delivery = _delivery(message)
        with consumer_span(delivery, group=self._app_id):
            try:
                envelope = decode(delivery.record)
            except UndecodableError as error:
                await self._give_up(delivery, error, attempts=1)
            else:
                if not await self._handle(delivery, envelope):
                    return
        event.ack()

    async def _handle(self, delivery: Delivery, envelope: Envelope[Event]) -> bool:
        """Handle an event; False when it is another instance's by now, which gets it again."""
        attempts = failures = 0
        while True:
            try:
                results = await self._handler(envelope)
                await self._publish(results)
                return True
            except NotHeldError:
                return False
            except (BusUnavailableError, StoreUnavailableError) as error:
                failures += 1
                log.warning("waiting for what does not answer", action="faust.unavailable", error=str(error))
                await self._back_off(failures)
            except RecordTooLargeError as error:
                await self._give_up(delivery, error, attempts + 1)
                return True
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is retried, then dead-lettered
                attempts += 1
                log.warning("a handler failed", action="faust.handler_failed", topic=delivery.topic, error=repr(error))
                if attempts >= self._attempts_max:
                    await self._give_up(delivery, error, attempts)
                    return True
                await self._back_off(attempts)

    async def _publish(self, results: Sequence[Envelope[Event]]) -> None:
        if not results:
            return
        traceparent = current_traceparent()
        records = [encode(r if r.traceparent is not None else replace(r, traceparent=traceparent)) for r in results]
        await self._bus.publish(records)

    async def _give_up(self, delivery: Delivery, error: Exception, attempts: int) -> None:
        log.error(
            "dead-lettered",
            action="faust.dead_lettered",
            topic=delivery.topic,
            offset=delivery.offset,
            error=repr(error),
        )
        letter = encode(dead_letter(delivery, self._service, error, attempts, self._clock.now()))
        failures = 0
        while True:
            try:
                await self._bus.publish([letter])
                return
            except BusUnavailableError:
                failures += 1
                await self._back_off(failures)

    async def _back_off(self, failures: int) -> None:
        ceiling = min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2 ** min(failures - 1, 10))
        await self._clock.sleep(self._random.uniform(ceiling / 2, ceiling))


def _delivery(message: Any) -> Delivery:
    headers = message.headers or ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    record = Record(
        message.topic, message.key or b"", message.value or b"", tuple((str(n), bytes(v or b"")) for n, v in pairs)
    )
    return Delivery(record, message.partition, message.offset)


def _credentials(security: Mapping[str, Any]) -> Any:
    protocol = security.get("security_protocol", "PLAINTEXT")
    context: SSLContext | None = security.get("ssl_context")
    if protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=security["sasl_plain_username"],
            password=security["sasl_plain_password"],
            mechanism=security["sasl_mechanism"],
            ssl_context=context,
        )
    return faust.SSLCredentials(context=context) if context is not None else None
