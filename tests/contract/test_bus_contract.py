"""What every bus does, said once: the same tests on memory, on SQLite and (marker `servers`) on the real Kafka."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from aiokafka.structs import TopicPartition

from schedmate.infra.bus import sqlite_log
from schedmate.infra.bus.kafka import KafkaBus
from schedmate.infra.bus.limits import record_bytes
from schedmate.infra.bus.memory import MemoryBus
from schedmate.infra.bus.partitioner import murmur2, partition_of, ranges
from schedmate.infra.bus.port import (
    Bounds,
    BusUnavailableError,
    EventBus,
    GroupConsumer,
    MissingTopicError,
    OffsetOutOfRangeError,
    Partition,
    RecordTooLargeError,
    TopologyMismatchError,
)
from schedmate.infra.bus.sqlite import SqliteBus
from schedmate.infra.clock import SeededRandom, SystemClock, SystemIds
from schedmate.schemas.topology import Topic
from schedmate.schemas.wire import Delivery, Record
from tests.servers import shared

MIB = 1024 * 1024
WITHIN_S = 20.0

# From Apache Kafka's own UtilsTest (signed there), and partitions of 8 that follow from it.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


class Backend:
    """One bus as several clients see it, and what tests need besides the port."""

    def __init__(self) -> None:
        self.clients: list[EventBus] = []
        self.topics: list[str] = []

    async def client(self) -> EventBus:
        """A further started client of the same bus."""
        raise NotImplementedError

    async def truncate(self, partition: Partition, before: int) -> None:
        """Drop records before an offset, as retention does."""
        raise NotImplementedError

    async def topic(self, partitions: int = 4, record_bytes_max: int = 1_114_112) -> str:
        """A new topic with a name of its own."""
        name = f"contract-{SystemIds().new()[:13]}"
        self.topics.append(name)
        bus = self.clients[0] if self.clients else await self.client()
        await bus.create_topics([Topic(name, partitions, 3600, "delete", record_bytes_max)])
        return name

    async def close(self) -> None:
        for client in self.clients:
            await client.stop()


class MemoryBackend(Backend):
    def __init__(self) -> None:
        super().__init__()
        self.bus = MemoryBus(SystemClock())

    async def client(self) -> EventBus:
        self.clients.append(self.bus)
        return self.bus

    async def truncate(self, partition: Partition, before: int) -> None:
        self.bus.truncate(partition, before)


class SqliteBackend(Backend):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    async def client(self) -> EventBus:
        bus = SqliteBus(self.path, SystemClock())
        await bus.start()
        self.clients.append(bus)
        return bus

    async def truncate(self, partition: Partition, before: int) -> None:
        bus = self.clients[0]
        assert isinstance(bus, SqliteBus)
        known = await bus.layout([partition.topic])
        base = known.id(partition) << sqlite_log.OFFSET_BITS

        def age(db) -> None:  # as if they had been written long ago
            db.execute("UPDATE records SET at = 0 WHERE id >= ? AND id < ?", (base, base | before))
            sqlite_log.expire(db, SystemClock().now())

        await bus.file.write(age)


class KafkaBackend(Backend):
    def __init__(self, servers: str) -> None:
        super().__init__()
        self.servers = servers

    async def client(self) -> EventBus:
        bus = KafkaBus(self.servers, SystemClock(), client_id="contract")
        await bus.start()
        self.clients.append(bus)
        return bus

    async def truncate(self, partition: Partition, before: int) -> None:
        async with self.admin() as admin:
            await admin.delete_records({TopicPartition(partition.topic, partition.number): RecordsToDelete(before)})

    async def close(self) -> None:
        await super().close()
        if self.topics:
            async with self.admin() as admin:
                await admin.delete_topics(self.topics)

    @contextlib.asynccontextmanager
    async def admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()


@pytest.fixture(params=["memory", "sqlite", pytest.param("kafka", marks=pytest.mark.servers)])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    made: Backend
    if request.param == "memory":
        made = MemoryBackend()
    elif request.param == "sqlite":
        made = SqliteBackend(tmp_path / "bus.db")
    else:
        made = KafkaBackend(shared("SCHEDMATE_TEST_KAFKA").removeprefix("kafka://"))
    try:
        async with asyncio.timeout(90):
            yield made
    finally:
        await made.close()


@pytest.fixture
async def bus(backend: Backend) -> EventBus:
    return await backend.client()


def records(topic: str, count: int, *, keys: int = 8, start: int = 0) -> list[Record]:
    return [Record(topic, b"key-%d" % (n % keys), b"%d" % n) for n in range(start, start + count)]


def values(deliveries: Sequence[Delivery]) -> list[int]:
    return [int(d.record.value) for d in deliveries]


def by_key(deliveries: Sequence[Delivery]) -> Mapping[bytes, list[int]]:
    found: dict[bytes, list[int]] = defaultdict(list)
    for delivery in deliveries:
        found[delivery.record.key].append(int(delivery.record.value))
    return found


async def poll_until(consumer, count: int, into: list[Delivery] | None = None) -> list[Delivery]:
    """Poll until `count` deliveries are there (more than that is an error of the test's expectation)."""
    found = into if into is not None else []
    async with asyncio.timeout(WITHIN_S):
        while len(found) < count:
            found += await consumer.poll(1000, 0.2)
    assert len(found) == count
    return found


async def commit_all(consumer: GroupConsumer, deliveries: Sequence[Delivery]) -> None:
    await consumer.commit({Partition(d.topic, d.partition): d.offset + 1 for d in deliveries})


@contextlib.asynccontextmanager
async def member(bus: EventBus, group: str, topics: Sequence[str], on_revoked=None) -> AsyncIterator[GroupConsumer]:
    consumer = bus.group(group, topics, on_revoked=on_revoked)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def share_out(*consumers: GroupConsumer, topic: str, partitions: int) -> list[Delivery]:
    """Let all members poll until each partition has one holder; return what arrived meanwhile."""
    found: list[Delivery] = []

    def settled() -> bool:
        held = [p for c in consumers for p in c.assignment()]
        return len(held) == partitions == len(set(held)) and all(c.assignment() for c in consumers)

    async def keep_polling(consumer: GroupConsumer) -> None:
        while not settled():
            found.extend(await consumer.poll(1000, 0.1))

    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*map(keep_polling, consumers))
    return found


class TestKeysAndPartitions:
    def test_a_key_s_partition_is_kafka_s_own(self) -> None:
        for key, hashed in MURMUR2.items():
            assert murmur2(key) == hashed & 0xFFFFFFFF
            assert partition_of(key, 8) == (hashed & 0x7FFFFFFF) % 8

    def test_it_is_the_client_s_own_for_keys_of_every_length(self, seed: int) -> None:
        random = SeededRandom(seed)
        for length in range(64):
            key = bytes(int(random.uniform(0, 255.99)) for _ in range(length))
            assert murmur2(key) == aiokafka_murmur2(key)

    def test_members_share_topics_of_equal_partitions_alike(self) -> None:
        shares = ranges({"a": ["x", "y"], "b": ["x", "y"], "c": ["x", "y"]}, {"x": 8, "y": 8})
        assert len(shares) == 16
        assert all(shares[Partition("x", n)] == shares[Partition("y", n)] for n in range(8))
        assert sorted(list(shares.values()).count(m) for m in "abc") == [4, 6, 6]

    async def test_records_go_to_the_partition_of_their_key_and_keep_its_order(self, bus, backend) -> None:
        topic = await backend.topic(partitions=4)
        written = []
        for start in range(0, 100, 25):
            written += await bus.publish(records(topic, 25, start=start))
        for place, record in zip(written, records(topic, 100), strict=True):
            assert place.partition == Partition(topic, partition_of(record.key, 4))
        for number in range(4):
            offsets = [w.offset for w in written if w.partition.number == number]
            assert offsets == list(range(len(offsets)))
        async with member(bus, "g", [topic]) as consumer:
            found = await poll_until(consumer, 100)
        assert all(numbers == sorted(numbers) for numbers in by_key(found).values())
        assert sorted(values(found)) == list(range(100))

    async def test_key_value_and_headers_arrive_as_they_were(self, bus, backend) -> None:
        topic = await backend.topic()
        headers = (("b", b"\x00\xff"), ("a", b""), ("b", b"again"), ("ünï", "é".encode()))
        sent = [
            Record(topic, b"\x00\xfe key", bytes(range(256)), headers),
            Record(topic, b"", b""),
            Record(topic, b"k", b"x" * 70_000),
        ]
        await bus.publish(sent)
        async with member(bus, "g", [topic]) as consumer:
            found = await poll_until(consumer, 3)
        assert sorted((d.record for d in found), key=lambda r: r.key) == sorted(sent, key=lambda r: r.key)
        assert all(d.topic == topic for d in found)

    async def test_publishing_nothing_writes_nothing(self, bus, backend) -> None:
        await backend.topic()
        assert list(await bus.publish([])) == []

    async def test_publishing_again_after_a_lost_acknowledgement_is_a_repeat_at_a_new_offset(
        self, bus, backend
    ) -> None:
        topic = await backend.topic(partitions=1)
        if isinstance(bus, MemoryBus):
            bus.faults.next_publishes.append("after")
            with pytest.raises(BusUnavailableError, match="acknowledgement"):
                await bus.publish(records(topic, 2))
        else:
            await bus.publish(records(topic, 2))  # as the caller sees it: an error that leaves it open
        await bus.publish(records(topic, 2))
        reader = bus.reader({Partition(topic, 0): 0})
        await reader.start()
        assert values(await poll_until(reader, 4)) == [0, 1, 0, 1]
        await reader.stop()


class TestSizes:
    async def test_a_value_of_one_mebibyte_passes(self, bus, backend) -> None:
        topic = await backend.topic()
        big = Record(topic, b"key", b"x" * MIB, (("ce_id", b"1" * 200),))
        await bus.publish([big, *[Record(topic, b"key", b"y" * 300_000)] * 5])
        async with member(bus, "g", [topic]) as consumer:
            found = await poll_until(consumer, 6)
        assert found[0].record == big

    async def test_a_larger_record_is_refused_by_name_and_nothing_is_written(self, bus, backend) -> None:
        topic = await backend.topic(partitions=1)
        small, big = Record(topic, b"k", b"1"), Record(topic, b"k", b"x" * 1_114_112)
        with pytest.raises(RecordTooLargeError, match=topic):
            await bus.publish([small, big, small])
        assert (await bus.bounds([Partition(topic, 0)]))[Partition(topic, 0)] == Bounds(0, 0)
        await bus.publish([small])

    async def test_the_limit_is_exact(self, bus, backend) -> None:
        topic = await backend.topic(partitions=1, record_bytes_max=20_000)
        empty = record_bytes(Record(topic, b"k", b"", (("h", b"v"),)))
        fits = Record(topic, b"k", b"x" * (20_000 - empty), (("h", b"v"),))
        await bus.publish([fits])
        with pytest.raises(RecordTooLargeError):
            await bus.publish([Record(topic, b"k", fits.value + b"x", fits.headers)])
        assert (await bus.bounds([Partition(topic, 0)]))[Partition(topic, 0)].end == 1


class TestTopics:
    async def test_topics_are_created_once_and_creating_them_again_changes_nothing(self, bus, backend) -> None:
        topic = await backend.topic(partitions=3)
        await bus.publish(records(topic, 5))
        await bus.create_topics([Topic(topic, 3, 3600, "delete", 1_114_112)])
        assert await bus.partitions(topic) == 3
        assert sum(b.end for b in (await bus.bounds([Partition(topic, n) for n in range(3)])).values()) == 5

    async def test_new_settings_of_a_topic_are_taken_over(self, bus, backend) -> None:
        topic = await backend.topic(record_bytes_max=20_000)
        with pytest.raises(RecordTooLargeError):
            await bus.publish([Record(topic, b"k", b"x" * 30_000)])
        await bus.create_topics([Topic(topic, 4, 7200, "delete", 60_000)])
        await bus.publish([Record(topic, b"k", b"x" * 30_000)])

    async def test_another_number_of_partitions_is_refused(self, bus, backend) -> None:
        topic = await backend.topic(partitions=3)
        with pytest.raises(TopologyMismatchError, match=topic):
            await bus.create_topics([Topic(topic, 4, 3600, "delete", 1_114_112)])

    async def test_a_missing_topic_is_refused_at_once_everywhere(self, bus, backend) -> None:
        there = await backend.topic()
        async with asyncio.timeout(8):
            with pytest.raises(MissingTopicError, match="nowhere"):
                await bus.check_topics([there, "nowhere"])
            with pytest.raises(MissingTopicError, match="nowhere"):
                await bus.partitions("nowhere")
            with pytest.raises(MissingTopicError, match="nowhere"):
                await bus.publish([Record("nowhere", b"k", b"v")])
            with pytest.raises(MissingTopicError, match="nowhere"):
                await bus.bounds([Partition("nowhere", 0)])
            with pytest.raises(MissingTopicError, match="nowhere"):
                await bus.group("g", [there, "nowhere"]).start()
            with pytest.raises(MissingTopicError, match="nowhere"):
                await bus.reader({Partition("nowhere", 0): 0}).start()
            with pytest.raises(MissingTopicError, match=there):
                await bus.bounds([Partition(there, 99)])
        await bus.check_topics([there])

    async def test_all_clients_of_a_bus_see_one_identity(self, bus, backend) -> None:
        other = await backend.client()
        assert await bus.identity() == await other.identity()
        assert await bus.identity()


class TestGroups:
    async def test_each_group_gets_everything_from_the_beginning(self, bus, backend) -> None:
        topic = await backend.topic()
        await bus.publish(records(topic, 20))
        for group in ("one", "two"):
            async with member(bus, group, [topic]) as consumer:
                assert sorted(values(await poll_until(consumer, 20))) == list(range(20))

    async def test_a_group_reads_several_topics(self, bus, backend) -> None:
        topics = [await backend.topic(), await backend.topic()]
        for topic in topics:
            await bus.publish(records(topic, 10))
        async with member(bus, "g", topics) as consumer:
            found = await poll_until(consumer, 20)
        assert {d.topic for d in found} == set(topics)

    async def test_a_group_goes_on_from_what_was_committed(self, bus, backend) -> None:
        topic = await backend.topic(partitions=1)
        await bus.publish(records(topic, 10))
        async with member(bus, "g", [topic]) as consumer:
            await poll_until(consumer, 10)
            await consumer.commit({Partition(topic, 0): 7})
        async with member(await backend.client(), "g", [topic]) as consumer:
            assert values(await poll_until(consumer, 3)) == [7, 8, 9]

    async def test_what_was_published_but_not_committed_before_a_crash_is_delivered_again(self, bus, backend) -> None:
        topic, results = await backend.topic(partitions=2), await backend.topic(partitions=1)
        await bus.publish(records(topic, 10))
        async with member(bus, "g", [topic]) as consumer:  # handles all, publishes the results, dies before its commit
            found = await poll_until(consumer, 10)
            await bus.publish([Record(results, d.record.key, d.record.value) for d in found])
        async with member(bus, "g", [topic]) as consumer:
            again = await poll_until(consumer, 10)
            await bus.publish([Record(results, d.record.key, d.record.value) for d in again])
            await commit_all(consumer, again)
        assert by_key(again) == by_key(found)
        assert (await bus.bounds([Partition(results, 0)]))[Partition(results, 0)].end == 20

    async def test_stopping_with_records_in_flight_hands_them_to_the_next_member(self, bus, backend) -> None:
        topic = await backend.topic(partitions=1)
        await bus.publish(records(topic, 10))
        async with member(bus, "g", [topic]) as consumer:
            first = await consumer.poll(4, WITHIN_S)
            assert 1 <= len(first) <= 4
            await commit_all(consumer, first[:1])
        async with member(bus, "g", [topic]) as consumer:
            assert values(await poll_until(consumer, 9)) == list(range(1, 10))

    async def test_members_share_the_partitions_and_each_record_goes_to_one_of_them(self, bus, backend) -> None:
        topic = await backend.topic(partitions=4)
        async with (
            member(bus, "g", [topic]) as first,
            member(await backend.client(), "g", [topic]) as second,
        ):
            assert not await share_out(first, second, topic=topic, partitions=4)
            assert len(first.assignment()) == len(second.assignment()) == 2
            await bus.publish(records(topic, 80, keys=40))
            found: dict[str, list[Delivery]] = {"first": [], "second": []}
            async with asyncio.timeout(WITHIN_S):
                while sum(map(len, found.values())) < 80:
                    found["first"] += await first.poll(100, 0.1)
                    found["second"] += await second.poll(100, 0.1)
        for name, consumer_partitions in (("first", 2), ("second", 2)):
            assert len({d.partition for d in found[name]}) == consumer_partitions
        assert sorted(values(found["first"] + found["second"])) == list(range(80))

    async def test_a_hand_over_drains_commits_and_loses_nothing(self, bus, backend) -> None:
        topic = await backend.topic(partitions=4)
        await bus.publish(records(topic, 40))
        seen: list[Delivery] = []
        handed: list[frozenset[Partition]] = []

        async def on_revoked(partitions: frozenset[Partition]) -> None:
            handed.append(partitions)
            await commit_all(first, [d for d in seen if Partition(d.topic, d.partition) in partitions])

        async with member(bus, "g", [topic], on_revoked) as first:
            await poll_until(first, 40, seen)
            async with member_joining(await backend.client(), "g", [topic], first) as second:
                again = await share_out(first, second, topic=topic, partitions=4)
                assert not again, "what was committed in the hand-over is not delivered again"
                assert handed
                await bus.publish(records(topic, 40, start=40))
                late: list[Delivery] = []
                async with asyncio.timeout(WITHIN_S):
                    while len(late) < 40:
                        late += await first.poll(100, 0.1)
                        late += await second.poll(100, 0.1)
        assert sorted(values(seen + late)) == list(range(80))
        assert all(numbers == sorted(numbers) for numbers in by_key(seen + late).values())

    async def test_when_a_member_leaves_the_others_take_over_from_its_commits(self, bus, backend) -> None:
        topic = await backend.topic(partitions=2)
        seen: list[Delivery] = []

        async def poll_and_commit(consumer: GroupConsumer) -> None:
            batch = await consumer.poll(100, 0.1)
            await commit_all(consumer, batch)
            seen.extend(batch)

        async with member(bus, "g", [topic]) as stays:
            async with member_joining(await backend.client(), "g", [topic], stays) as leaves:
                await share_out(stays, leaves, topic=topic, partitions=2)
                await bus.publish(records(topic, 40, keys=20))
                async with asyncio.timeout(WITHIN_S):
                    while len(seen) < 40:
                        await poll_and_commit(stays)
                        await poll_and_commit(leaves)
            await bus.publish(records(topic, 40, keys=20, start=40))
            async with asyncio.timeout(WITHIN_S):
                while len(seen) < 80:
                    await poll_and_commit(stays)
        assert sorted(values(seen)) == list(range(80))

    async def test_a_commit_of_a_partition_that_is_not_held_is_ignored(self, bus, backend) -> None:
        topic = await backend.topic(partitions=2)
        await bus.publish(records(topic, 10))
        async with member(bus, "g", [topic]) as first:
            await poll_until(first, 10)
            async with member_joining(await backend.client(), "g", [topic], first) as second:
                await share_out(first, second, topic=topic, partitions=2)
                lost = next(iter(second.assignment()))
                await first.commit({lost: 10_000})
                assert (await second.lag())[lost] <= 10
                assert all(lag >= 0 for lag in (await second.lag()).values())

    async def test_paused_partitions_deliver_nothing_until_resumed(self, bus, backend) -> None:
        topic = await backend.topic(partitions=2)
        async with member(bus, "g", [topic]) as consumer:
            await share_out(consumer, topic=topic, partitions=2)
            await consumer.pause([Partition(topic, 0)])
            await bus.publish(records(topic, 40, keys=20))
            expected = (await bus.bounds([Partition(topic, 1)]))[Partition(topic, 1)].end
            found = await poll_until(consumer, expected)
            assert {d.partition for d in found} == {1}
            assert not await consumer.poll(100, 0.3)
            await consumer.resume([Partition(topic, 0)])
            await poll_until(consumer, 40, found)
        assert sorted(values(found)) == list(range(40))

    async def test_lag_counts_what_is_not_committed(self, bus, backend) -> None:
        topic = await backend.topic(partitions=1)
        await bus.publish(records(topic, 10))
        async with member(bus, "g", [topic]) as consumer:
            await share_out(consumer, topic=topic, partitions=1) if not consumer.assignment() else None
            assert await consumer.lag() == {Partition(topic, 0): 10}
            await poll_until(consumer, 10)
            assert await consumer.lag() == {Partition(topic, 0): 10}
            await consumer.commit({Partition(topic, 0): 6})
            assert await consumer.lag() == {Partition(topic, 0): 4}

    async def test_a_group_that_retention_overtook_goes_on_with_what_is_left(self, bus, backend) -> None:
        topic = await backend.topic(partitions=1)
        await bus.publish(records(topic, 10))
        async with member(bus, "g", [topic]) as consumer:
            await poll_until(consumer, 10)
            await consumer.commit({Partition(topic, 0): 2})
        await backend.truncate(Partition(topic, 0), 5)
        async with member(bus, "g", [topic]) as consumer:
            assert values(await poll_until(consumer, 5)) == [5, 6, 7, 8, 9]

    async def test_a_poll_returns_empty_in_time_and_wakes_for_what_arrives(self, bus, backend) -> None:
        topic = await backend.topic()
        loop = asyncio.get_running_loop()
        async with member(bus, "g", [topic]) as consumer:
            before = loop.time()
            assert not await consumer.poll(10, 0.3)
            assert 0.2 <= loop.time() - before < 3
            waiting = asyncio.ensure_future(consumer.poll(10, WITHIN_S))
            await asyncio.sleep(0)
            before = loop.time()
            await bus.publish(records(topic, 1))
            assert values(await waiting) == [0]
            assert loop.time() - before < 3


@contextlib.asynccontextmanager
async def member_joining(
    bus: EventBus, group: str, topics: Sequence[str], present: GroupConsumer
) -> AsyncIterator[GroupConsumer]:
    """Join while the present member polls: joining may wait for its hand-over."""
    consumer = bus.group(group, topics)
    joining = asyncio.ensure_future(consumer.start())
    async with asyncio.timeout(WITHIN_S):
        while not joining.done():
            assert not await present.poll(100, 0.1)
    await joining
    try:
        yield consumer
    finally:
        await consumer.stop()


class TestReaders:
    async def test_a_reader_starts_at_the_offsets_it_is_given_and_knows_its_end(self, bus, backend) -> None:
        topic = await backend.topic(partitions=2)
        await bus.publish(records(topic, 40, keys=20))
        bounds = await bus.bounds([Partition(topic, 0), Partition(topic, 1)])
        start = {Partition(topic, 0): 3, Partition(topic, 1): bounds[Partition(topic, 1)].end}
        reader = bus.reader(start)
        await reader.start()
        assert reader.position() == start
        assert not await reader.at_end()
        found = await poll_until(reader, bounds[Partition(topic, 0)].end - 3)
        assert [d.offset for d in found] == list(range(3, bounds[Partition(topic, 0)].end))
        assert await reader.at_end()
        assert reader.position() == {p: b.end for p, b in bounds.items()}
        await bus.publish(records(topic, 1))
        assert not await reader.at_end()
        await poll_until(reader, 1)
        await reader.stop()

    async def test_a_reader_is_in_no_group_and_commits_nothing(self, bus, backend) -> None:
        topic = await backend.topic(partitions=1)
        await bus.publish(records(topic, 5))
        for _ in range(2):
            reader = bus.reader({Partition(topic, 0): 0})
            await reader.start()
            assert values(await poll_until(reader, 5)) == [0, 1, 2, 3, 4]
            await reader.stop()

    @pytest.mark.parametrize("offset", [-1, 2, 11])
    async def test_an_offset_outside_of_the_partition_is_refused_at_start(self, bus, backend, offset: int) -> None:
        topic = await backend.topic(partitions=1)
        await bus.publish(records(topic, 10))
        await backend.truncate(Partition(topic, 0), 3)
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await bus.reader({Partition(topic, 0): offset}).start()
        error = caught.value
        assert (error.partition, error.wanted, error.earliest, error.end) == (Partition(topic, 0), offset, 3, 10)

    @pytest.mark.parametrize("offset", [3, 10])
    async def test_the_first_and_the_next_offset_are_in_range(self, bus, backend, offset: int) -> None:
        topic = await backend.topic(partitions=1)
        await bus.publish(records(topic, 10))
        await backend.truncate(Partition(topic, 0), 3)
        reader = bus.reader({Partition(topic, 0): offset})
        await reader.start()
        assert [d.offset for d in await poll_until(reader, 10 - offset)] == list(range(offset, 10))
        await reader.stop()

    async def test_retention_that_overtakes_a_reader_is_an_error_never_a_gap(self, bus, backend) -> None:
        topic = await backend.topic(partitions=1)
        for _ in range(12):  # more than a client fetches ahead
            await bus.publish([Record(topic, b"k", b"x" * 900_000)])
        reader = bus.reader({Partition(topic, 0): 0})
        await reader.start()
        offsets = [d.offset for d in await reader.poll(1, WITHIN_S)]
        await backend.truncate(Partition(topic, 0), 12)

        async def read_on() -> None:
            while True:
                offsets.extend(d.offset for d in await reader.poll(1, 0.5))

        with pytest.raises(OffsetOutOfRangeError) as caught:
            await asyncio.wait_for(read_on(), WITHIN_S)
        assert offsets == list(range(len(offsets)))
        assert (caught.value.wanted, caught.value.earliest) == (len(offsets), 12)
        await reader.stop()

    async def test_bounds_tell_what_can_be_read_and_what_is_written_next(self, bus, backend) -> None:
        topic = await backend.topic(partitions=2)
        first = Partition(topic, partition_of(b"key-0", 2))
        other = Partition(topic, 1 - first.number)
        await bus.publish(records(topic, 10, keys=1))
        await backend.truncate(first, 4)
        assert await bus.bounds([first, other]) == {first: Bounds(4, 10), other: Bounds(0, 0)}
        assert await bus.bounds([]) == {}
