"""KafkaBus while its broker is stopped, killed and away: nothing that was acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from schedmate.infra.bus.kafka import KafkaBus
from schedmate.infra.bus.port import BusUnavailableError, EventBus, Partition
from schedmate.infra.clock import SystemClock, SystemRandom
from schedmate.infra.runner import GroupRunner
from schedmate.schemas.codec import decode, encode
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Record
from tests.bus_member import numbered
from tests.servers import OWN_KAFKA, KafkaServer
from tests.waiting import eventually

pytestmark = pytest.mark.servers

TOPIC = "schedmate.commands"
PARTITIONS = [Partition(TOPIC, n) for n in range(topology().topics[TOPIC].partitions)]
KEYS = 16


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path / "kafka", OWN_KAFKA) as server:
        yield server


@contextlib.asynccontextmanager
async def client(broker: KafkaServer, **settings) -> AsyncIterator[KafkaBus]:
    bus = KafkaBus(broker.bootstrap, SystemClock(), client_id="faults", **settings)
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


@pytest.fixture
async def bus(broker: KafkaServer) -> AsyncIterator[KafkaBus]:
    async with client(broker) as made:
        await made.create_topics(topology().topics.values())
        yield made


async def interrupt(broker: KafkaServer, how: str) -> None:
    """Take the broker away and bring it back with its data."""
    await asyncio.to_thread(broker.kill if how == "killed" else broker.stop)
    await asyncio.to_thread(broker.start)


async def read_all(bus: EventBus) -> list[tuple[str, int]]:
    """What the topic holds: (key, number), partition by partition in order."""
    reader = bus.reader(dict.fromkeys(PARTITIONS, 0))
    await reader.start()
    found: list[tuple[str, int]] = []
    async with asyncio.timeout(30):
        while not await reader.at_end():
            for delivery in await reader.poll(1000, 0.5):
                event = decode(delivery.record).event
                found.append((event.key, int(event.why)))
    await reader.stop()
    return found


class Members:
    """Two runners, each with a client of its own, and what they handled."""

    def __init__(self) -> None:
        self.handled: list[tuple[str, int]] = []
        self.runners: list[GroupRunner] = []

    async def _handle(self, envelope):
        await asyncio.sleep(0.001)
        self.handled.append((envelope.event.key, int(envelope.event.why)))
        return ()

    @contextlib.asynccontextmanager
    async def running(self, *buses: KafkaBus) -> AsyncIterator[None]:
        stop = asyncio.Event()
        self.runners = [
            GroupRunner(
                bus, group="g", topics=[TOPIC], handler=self._handle, service="t", clock=SystemClock(), random=SystemRandom()
            )
            for bus in buses
        ]  # fmt: skip
        tasks = [asyncio.ensure_future(runner.run(stop)) for runner in self.runners]
        try:
            yield
        finally:
            stop.set()
            async with asyncio.timeout(40):
                await asyncio.gather(*tasks)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_broker_that_goes_in_the_middle_loses_and_doubles_nothing_acknowledged(
    broker: KafkaServer, bus: KafkaBus, how: str
) -> None:
    members, published, done = Members(), 0, asyncio.Event()

    async def keep_publishing() -> None:
        nonlocal published
        while not done.is_set() or published % 100:
            await bus.publish([encode(numbered(f"job-{n % KEYS}", n)) for n in range(published, published + 10)])
            published += 10

    async with client(broker) as first, client(broker) as second, members.running(first, second):
        await eventually(lambda: all(r.ready() for r in members.runners), 30)
        publishing = asyncio.ensure_future(keep_publishing())
        for _ in range(2):
            before = len(members.handled)
            await eventually(lambda before=before: len(members.handled) > before + 300, 40)
            await interrupt(broker, how)
        before = len(members.handled)
        await eventually(lambda: len(members.handled) > before + 300, 60)
        done.set()
        await asyncio.wait_for(publishing, 40)  # raises if the client surfaced the outage: it should not
        await eventually(lambda: {n for _, n in members.handled} == set(range(published)), 40)
        written = await read_all(bus)
    assert Counter(written) == Counter((f"job-{n % KEYS}", n) for n in range(published)), "lost or doubled in the log"
    in_order: dict[str, list[int]] = defaultdict(list)
    for key, number in written:
        in_order[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in in_order.values())
    first_handled: dict[str, list[int]] = defaultdict(list)
    for key, number in dict.fromkeys(members.handled):
        first_handled[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in first_handled.values())


async def test_a_reader_goes_on_by_itself_after_the_broker_was_killed(broker: KafkaServer, bus: KafkaBus) -> None:
    reader = bus.reader(dict.fromkeys(PARTITIONS, 0))
    await reader.start()
    seen: list[int] = []

    async def read(count: int) -> None:
        async with asyncio.timeout(40):
            while len(seen) < count:
                seen.extend(int(d.record.value) for d in await reader.poll(100, 0.5))

    await bus.publish([Record(TOPIC, b"key", b"%d" % n) for n in range(50)])
    await read(50)
    await interrupt(broker, "killed")
    await bus.publish([Record(TOPIC, b"key", b"%d" % n) for n in range(50, 100)])
    await read(100)
    assert seen == list(range(100))
    assert await reader.at_end()
    await reader.stop()


async def test_an_outage_longer_than_the_limit_is_told_in_time_and_the_same_client_goes_on_afterwards(
    broker: KafkaServer, bus: KafkaBus
) -> None:
    async with client(broker, call_timeout_s=2.0, publish_timeout_s=2.0) as impatient:
        await impatient.publish([Record(TOPIC, b"key", b"before")])
        consumer = impatient.group("g", [TOPIC])
        await consumer.start()
        await asyncio.to_thread(broker.kill)
        for call in (
            lambda: impatient.publish([Record(TOPIC, b"key", b"during")]),
            lambda: impatient.bounds(PARTITIONS),
            impatient.identity,
            lambda: impatient.create_topics(topology().topics.values()),
            lambda: consumer.commit(dict.fromkeys(PARTITIONS, 0)),
            consumer.lag,
        ):
            with pytest.raises(BusUnavailableError):
                await asyncio.wait_for(call(), 12)
        assert isinstance(await asyncio.wait_for(consumer.poll(10, 0.5), 5), list)
        await asyncio.to_thread(broker.start)

        async def publishes() -> bool:
            with contextlib.suppress(BusUnavailableError):
                await impatient.publish([Record(TOPIC, b"key", b"after")])
                return True
            return False

        await eventually(publishes, 30)
        values: list[bytes] = []

        async def consumes() -> bool:
            values.extend(d.record.value for d in await consumer.poll(100, 0.5))
            return b"after" in values

        await eventually(consumes, 40)
        assert list(dict.fromkeys(values)) in ([b"before", b"during", b"after"], [b"before", b"after"])
        await consumer.stop()


async def test_a_broker_that_is_not_there_is_told_within_the_limit() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        bus = KafkaBus(f"127.0.0.1:{taken.getsockname()[1]}", SystemClock(), call_timeout_s=1.5)
        with pytest.raises(BusUnavailableError, match="connecting to Kafka"):
            await asyncio.wait_for(bus.start(), 8)
        await bus.stop()


async def test_the_runner_waits_for_a_broker_that_comes_late(broker: KafkaServer, bus: KafkaBus) -> None:
    members = Members()
    async with client(broker, call_timeout_s=2.0) as early:
        await bus.publish([encode(numbered("job", n)) for n in range(5)])
        await asyncio.to_thread(broker.kill)
        async with members.running(early):
            await asyncio.to_thread(broker.start)
            await eventually(lambda: len(members.handled) >= 5, 60)
    assert sorted(set(members.handled)) == [("job", n) for n in range(5)]


async def test_closing_while_the_broker_is_away_ends_in_time_and_leaves_nothing_behind(
    broker: KafkaServer, bus: KafkaBus
) -> None:
    before = asyncio.all_tasks()
    other = KafkaBus(broker.bootstrap, SystemClock(), call_timeout_s=2.0, publish_timeout_s=1.0)
    await other.start()
    await other.publish([Record(TOPIC, b"key", b"value")])
    consumer, reader = other.group("g", [TOPIC]), other.reader(dict.fromkeys(PARTITIONS, 0))
    await consumer.start()
    await reader.start()
    await asyncio.to_thread(broker.kill)
    with pytest.raises(BusUnavailableError):
        await other.publish([Record(TOPIC, b"key", b"value")])
    async with asyncio.timeout(20):
        for client_of_it in (consumer, reader, other):
            await client_of_it.stop()
    await eventually(lambda: not asyncio.all_tasks() - before - {asyncio.current_task()}, 5)
