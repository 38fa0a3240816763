"""The bus on Apache Kafka through aiokafka: the production adapter.

The producer waits for all in-sync replicas and is idempotent, so a broker that restarts in the middle neither loses nor
doubles what it acknowledged. Retries are aiokafka's own; what goes beyond the time limit is told as BusUnavailableError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from ssl import SSLContext
from typing import Any, Final, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from schedmate.infra.bus.kafka_calls import Access, bounded, ours, theirs, translated
from schedmate.infra.bus.kafka_closing import STOP_S, close_admin, close_consumer, close_producer
from schedmate.infra.bus.kafka_consumers import KafkaGroupConsumer, KafkaReader, started
from schedmate.infra.bus.limits import check_sizes
from schedmate.infra.bus.measured import measured
from schedmate.infra.bus.partitioner import partition_of
from schedmate.infra.bus.port import (
    Bounds,
    BusError,
    BusUnavailableError,
    MissingTopicError,
    Partition,
    RevokedHandler,
    TopologyMismatchError,
    Written,
)
from schedmate.infra.clock import Clock
from schedmate.schemas.topology import Topic, topology
from schedmate.schemas.wire import Record

CALL_S: Final = 15.0
PUBLISH_S: Final = 20.0
CREATE_S: Final = 60.0
_LIMITS_KEPT_S: Final = 300.0
_LOOK_AGAIN_S: Final = 0.3
_REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024  # the client's own guard; what a topic takes is checked before
_BATCH_BYTES_MAX: Final = 64 * 1024
_SEND_AT_ONCE: Final = 1000
_BYTES_MAX_DEFAULT: Final = 1_048_588  # the broker's default of max.message.bytes
_SET_ON_TOPIC: Final = 1  # DescribeConfigs: the value was set on this very topic

T = TypeVar("T")
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class KafkaBus:
    """`EventBus` on Kafka. `servers` is HOST:PORT[,HOST:PORT]; access by the arguments of aiokafka's clients."""

    def __init__(
        self,
        servers: str,
        clock: Clock,
        *,
        client_id: str = "schedmate",
        security_protocol: str = "PLAINTEXT",
        ssl_context: SSLContext | None = None,
        sasl_mechanism: str = "PLAIN",
        sasl_plain_username: str | None = None,
        sasl_plain_password: str | None = None,
        replication: int = -1,
        call_timeout_s: float = CALL_S,
        publish_timeout_s: float = PUBLISH_S,
    ) -> None:
        """Take what `start` needs. `replication` is for topics made here; -1 leaves it to the brokers' default."""
        self.access = Access(
            servers=servers,
            client_id=client_id,
            security_protocol=security_protocol,
            ssl_context=ssl_context,
            sasl_mechanism=sasl_mechanism,
            sasl_plain_username=sasl_plain_username,
            sasl_plain_password=sasl_plain_password,
            request_timeout_s=min(10.0, call_timeout_s),
        )
        self._clock = clock
        self._replication = replication
        self.call_timeout_s = call_timeout_s
        self._publish_timeout_s = publish_timeout_s
        self._admin: AIOKafkaAdminClient | None = None
        self._offsets: AIOKafkaConsumer | None = None
        self._producer: AIOKafkaProducer | None = None
        self._starting_producer = asyncio.Lock()
        self._partitions: dict[str, int] = {}
        self._limits: dict[str, tuple[int, float]] = {}
        self._retired: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect; the producer follows with the first publish."""
        admin = AIOKafkaAdminClient(**self.access.arguments())
        offsets = AIOKafkaConsumer(**self.access.arguments(), group_id=None, enable_auto_commit=False)
        try:
            await bounded(f"connecting to Kafka at {self.access.servers}", self.call_timeout_s, admin.start)
            await bounded(
                f"connecting to Kafka at {self.access.servers}", self.call_timeout_s, lambda: started(offsets)
            )
        except BaseException:
            await close_admin(admin)
            await close_consumer(offsets)
            raise
        self._admin, self._offsets = admin, offsets

    async def stop(self) -> None:
        """Flush and disconnect, bounded."""
        producer, self._producer = self._producer, None
        offsets, self._offsets = self._offsets, None
        admin, self._admin = self._admin, None
        if producer is not None:
            await close_producer(producer)
        if offsets is not None:
            await close_consumer(offsets)
        if admin is not None:
            await close_admin(admin)
        if self._retired:
            await asyncio.wait(self._retired, timeout=2 * STOP_S)

    async def identity(self) -> str:
        """Return the cluster's id."""
        found = await self._ask("asking for the cluster's id", lambda admin: admin.describe_cluster())
        return str(found["cluster_id"])

    async def create_topics(self, topics: Iterable[Topic]) -> None:
        """Create what is missing and set what differs; overrides that others set on a topic are kept."""
        wanted = {topic.name: topic for topic in topics}
        known = await self._known_partitions()
        missing = [topic for name, topic in wanted.items() if name not in known]
        if missing:
            await self._create(missing)
            known = await self._wait_for_leaders(wanted)
            await self.bounds([Partition(t.name, n) for t in missing for n in range(known[t.name])])  # they answer
        for name, topic in wanted.items():
            if known[name] != topic.partitions:
                raise TopologyMismatchError(
                    f"{name} has {known[name]} partitions, the topology says {topic.partitions}"
                )
        await self._configure(wanted)

    async def check_topics(self, names: Iterable[str]) -> None:
        """Raise MissingTopicError when one does not exist."""
        wanted = list(names)
        if all(name in self._partitions for name in wanted):
            return
        known = await self._known_partitions()
        if not all(name in known for name in wanted):  # a broker that has just started may not know all of them yet
            await asyncio.sleep(_LOOK_AGAIN_S)
            known = await self._known_partitions()
        for name in wanted:
            if name not in known:
                raise MissingTopicError(f"topic {name} does not exist; `schedmate setup` creates all topics")

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        await self.check_topics([topic])
        return self._partitions[topic]

    async def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        """Return the offsets that each partition holds."""
        wanted = list(partitions)
        await self.check_topics({p.topic for p in wanted})
        for partition in wanted:
            if not 0 <= partition.number < self._partitions[partition.topic]:
                raise MissingTopicError(f"{partition.topic} has no partition {partition.number}")
        offsets = self._started(self._offsets)
        names = [theirs(p) for p in wanted]
        earliest = await bounded("reading offsets", self.call_timeout_s, lambda: offsets.beginning_offsets(names))
        ends = await bounded("reading offsets", self.call_timeout_s, lambda: offsets.end_offsets(names))
        return {p: Bounds(earliest[theirs(p)], ends[theirs(p)]) for p in wanted}

    async def committed(self, group: str, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """Return the offsets that a group has committed; a partition without one is left out."""
        names = [theirs(p) for p in partitions]
        if not names:
            return {}
        found = await self._ask(
            "reading committed offsets", lambda admin: admin.list_consumer_group_offsets(group, partitions=names)
        )
        return {ours(name): entry.offset for name, entry in found.items() if entry.offset >= 0}

    @measured
    async def publish(self, records: Sequence[Record]) -> Sequence[Written]:
        """Publish and wait for all acknowledgements."""
        if not records:
            return []
        topics = {record.topic for record in records}
        await self.check_topics(topics)
        check_sizes(records, await self._record_limits(topics))
        producer = await self._running_producer()
        written: list[Written] = []
        try:
            async with asyncio.timeout(self._publish_timeout_s):
                for start in range(0, len(records), _SEND_AT_ONCE):
                    written += await self._send(producer, records[start : start + _SEND_AT_ONCE])
        except TimeoutError as error:
            raise BusUnavailableError(
                f"publishing: Kafka did not acknowledge within {self._publish_timeout_s:g} s"
            ) from error
        except errors.KafkaError as error:
            mapped = translated(error, "publishing")
            if isinstance(mapped, MissingTopicError):
                self._partitions.clear()
            elif isinstance(mapped, BusUnavailableError) and not getattr(error, "retriable", False):
                self._retire(producer)  # fenced, out of sequence, broken: only a new producer goes on
            raise mapped from error
        return written

    def group(
        self, group: str, topics: Sequence[str], *, on_revoked: RevokedHandler | None = None
    ) -> KafkaGroupConsumer:
        """Return a new member of a consumer group."""
        return KafkaGroupConsumer(self, group, tuple(topics), on_revoked)

    def reader(self, offsets: Mapping[Partition, int]) -> KafkaReader:
        """Return a reader of these partitions from these offsets."""
        return KafkaReader(self, offsets)

    # --- publishing -----------------------------------------------------------------------------------------------------

    async def _send(self, producer: AIOKafkaProducer, records: Sequence[Record]) -> list[Written]:
        sent: list[asyncio.Future[Any]] = []
        try:
            for record in records:
                sent.append(  # noqa: PERF401 - each await may wait for room
                    await producer.send(
                        record.topic,
                        value=record.value,
                        key=record.key,
                        partition=partition_of(record.key, self._partitions[record.topic]),
                        headers=list(record.headers),
                    )
                )
            placed = await asyncio.gather(*sent)
        except BaseException:
            for future in sent:
                future.add_done_callback(_take_note)
            raise
        return [Written(Partition(p.topic, p.partition), p.offset) for p in placed]

    async def _running_producer(self) -> AIOKafkaProducer:
        self._started(self._admin)
        async with self._starting_producer:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    **self.access.arguments(),
                    acks="all",
                    enable_idempotence=True,
                    linger_ms=0,
                    max_batch_size=_BATCH_BYTES_MAX,
                    max_request_size=_REQUEST_BYTES_MAX,
                )
                try:
                    await bounded("starting the producer", self.call_timeout_s, producer.start)
                except BaseException:
                    await close_producer(producer)
                    raise
                self._producer = producer
            return self._producer

    def _retire(self, producer: AIOKafkaProducer) -> None:
        if producer is not self._producer:
            return
        self._producer = None
        task = asyncio.ensure_future(close_producer(producer))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)
        log.warning("the producer is replaced", action="bus.producer_replaced")

    async def _record_limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Return how large a record each topic takes, as the topics themselves say (asked now and then)."""
        now = self._clock.monotonic()
        stale = [t for t in topics if t not in self._limits or now - self._limits[t][1] > _LIMITS_KEPT_S]
        if stale:
            found = await self._describe(stale, ["max.message.bytes"])
            for topic in stale:
                told = found.get(topic, {}).get("max.message.bytes")
                self._limits[topic] = (int(told[0]) if told is not None else _expected_limit(topic), now)
        return {topic: self._limits[topic][0] for topic in topics}

    # --- topics ---------------------------------------------------------------------------------------------------------

    async def _known_partitions(self) -> dict[str, int]:
        # all topics, never by name: asking for a missing one by name would create it where brokers do so by themselves
        found = await self._ask("listing topics", lambda admin: admin.describe_topics())
        self._partitions = {t["topic"]: len(t["partitions"]) for t in found if not t["error_code"]}
        return self._partitions

    async def _create(self, topics: Sequence[Topic]) -> None:
        new = [
            NewTopic(t.name, t.partitions, self._replication, replica_assignments={}, topic_configs=_settings(t))
            if self._replication == -1
            else NewTopic(t.name, t.partitions, self._replication, topic_configs=_settings(t))
            for t in topics
        ]
        answer = await self._ask("creating topics", lambda admin: admin.create_topics(new), timeout_s=CREATE_S)
        for name, code, message in answer.topic_errors:
            kind = errors.for_code(code)
            if kind not in {errors.NoError, errors.TopicAlreadyExistsError}:
                raise BusError(f"topic {name} could not be created: {kind.__name__}: {message}")

    async def _wait_for_leaders(self, names: Iterable[str]) -> dict[str, int]:
        """A new topic takes a moment to appear, and its partitions to have leaders."""
        wanted = set(names)

        async def look() -> dict[str, int]:
            found = {t["topic"]: t for t in await self._started(self._admin).describe_topics()}
            for name in wanted:
                partitions = found[name]["partitions"] if name in found else ()
                if not partitions or any(p["leader"] < 0 for p in partitions):
                    raise errors.LeaderNotAvailableError(name)
            return {name: len(topic["partitions"]) for name, topic in found.items() if not topic["error_code"]}

        self._partitions = await bounded("waiting for new topics", self.call_timeout_s, look)
        return self._partitions

    async def _configure(self, topics: Mapping[str, Topic]) -> None:
        """Set what differs. AlterConfigs replaces a topic's whole set of overrides, so all of them go along each time."""
        found = await self._describe(list(topics), None)
        changed: list[ConfigResource] = []
        for name, topic in topics.items():
            if _differs(topic, found):
                kept = {key: value for key, (value, source) in found.get(name, {}).items() if source == _SET_ON_TOPIC}
                changed.append(ConfigResource(ConfigResourceType.TOPIC, name, {**kept, **_settings(topic)}))
        if not changed:
            return
        for answer in await self._ask("configuring topics", lambda admin: admin.alter_configs(changed)):
            for code, message, _, name in answer.resources:
                if code:
                    raise BusError(f"topic {name} could not be configured: {errors.for_code(code).__name__}: {message}")
        self._limits.clear()

        async def look() -> None:
            now = await self._describe([resource.name for resource in changed], None)
            for resource in changed:
                if _differs(topics[resource.name], now):
                    raise errors.StaleMetadata(f"{resource.name} does not have its new settings yet")

        await bounded("waiting for new settings", self.call_timeout_s, look)

    async def _describe(
        self, topics: Sequence[str], keys: Sequence[str] | None
    ) -> dict[str, dict[str, tuple[str, int]]]:
        """Return each topic's settings with where they come from; a topic that may not be described is left out."""
        only = dict.fromkeys(keys, "") if keys is not None else None
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic, only) for topic in topics]
        answers = await self._ask("reading topic settings", lambda admin: admin.describe_configs(asked))
        found: dict[str, dict[str, tuple[str, int]]] = {}
        for answer in answers:
            for code, _, _, name, entries in answer.resources:
                if code == 0:
                    found[name] = {entry[0]: (entry[1], int(entry[3])) for entry in entries}
        return found

    async def _ask(
        self, what: str, call: Callable[[AIOKafkaAdminClient], Awaitable[T]], *, timeout_s: float | None = None
    ) -> T:
        admin = self._started(self._admin)
        return await bounded(what, timeout_s or self.call_timeout_s, lambda: call(admin))

    def _started(self, client: T | None) -> T:
        if client is None:
            raise BusUnavailableError(f"the bus at {self.access.servers} is not started")
        return client


def _settings(topic: Topic) -> dict[str, str]:
    settings = {"cleanup.policy": topic.cleanup, "max.message.bytes": str(topic.record_bytes_max)}
    if topic.cleanup == "delete":
        settings["retention.ms"] = str(topic.retention_s * 1000)
    return settings


def _expected_limit(topic: str) -> int:
    """The limit of a topic whose settings may not be read: what `schedmate setup` gives it, else the brokers' default."""
    known = topology().topics.get(topic)
    return known.record_bytes_max if known is not None else _BYTES_MAX_DEFAULT


def _differs(topic: Topic, found: Mapping[str, Mapping[str, tuple[str, int]]]) -> bool:
    now = found.get(topic.name, {})
    return any(now.get(key, ("", 0))[0] != value for key, value in _settings(topic).items())


def _take_note(future: asyncio.Future[Any]) -> None:
    """Look at an outcome that nobody waits for any more."""
    if not future.cancelled():
        future.exception()
