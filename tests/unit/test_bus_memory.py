"""The faults of the bus in memory: each does what it says, on a seed, and none breaks what the port promises."""

from __future__ import annotations

import asyncio

import pytest

from schedmate.infra.bus.memory import SESSION_S, Faults, MemoryBus
from schedmate.infra.bus.port import BusUnavailableError, OffsetOutOfRangeError, Partition
from schedmate.infra.clock import SystemClock, VirtualClock
from schedmate.schemas.topology import Topic
from schedmate.schemas.wire import Delivery, Record

P0 = Partition("t", 0)


def some(count: int, keys: int = 8) -> list[Record]:
    return [Record("t", b"k%d" % (n % keys), b"%d" % n) for n in range(count)]


async def made(faults: Faults | None = None, partitions: int = 4) -> MemoryBus:
    bus = MemoryBus(SystemClock(), faults)
    await bus.create_topics([Topic("t", partitions, 60, "delete", 10_000)])
    return bus


async def run(faults: Faults) -> list[tuple[int, int]]:
    bus = await made(faults)
    outcome: list[tuple[int, int]] = []
    for record in some(30):
        try:
            await bus.publish([record])
        except BusUnavailableError as error:
            outcome.append((-1, len(str(error))))
    consumer = bus.group("g", ["t"])
    await consumer.start()
    for _ in range(40):
        outcome += [(d.partition, d.offset) for d in await consumer.poll(5, 0)]
    await consumer.stop()
    return outcome


async def test_the_same_seed_gives_the_same_faults_and_another_seed_others() -> None:
    def noisy(seed: int) -> Faults:
        return Faults(seed, write_twice=0.3, redeliver=0.3, reorder=0.5, fail_before_write=0.2, fail_after_write=0.2)

    assert await run(noisy(1)) == await run(noisy(1))
    assert await run(noisy(1)) != await run(noisy(2))


async def test_a_publish_that_fails_before_the_write_wrote_nothing_and_after_it_all() -> None:
    bus = await made()
    bus.faults.next_publishes.extend(["before", "after"])
    for written in (0, 3):
        with pytest.raises(BusUnavailableError):
            await bus.publish(some(3))
        assert len(bus.records("t")) == written
    await bus.publish(some(3))
    assert len(bus.records("t")) == 6


async def test_redelivery_gives_everything_since_the_last_commit_again_after_a_revocation() -> None:
    bus = await made(partitions=1)
    await bus.publish(some(10))
    revoked: list[frozenset[Partition]] = []

    async def on_revoked(partitions: frozenset[Partition]) -> None:
        revoked.append(partitions)
        await consumer.commit({P0: 10})  # is lost

    consumer = bus.group("g", ["t"], on_revoked=on_revoked)
    await consumer.start()
    assert len(await consumer.poll(100, 0)) == 10
    await consumer.commit({P0: 4})
    bus.faults.redeliver = 1.0
    assert [d.offset for d in await consumer.poll(100, 0)] == [4, 5, 6, 7, 8, 9]
    assert revoked == [frozenset({P0})]


async def test_reordering_mixes_partitions_and_keeps_each_in_order() -> None:
    bus = await made(Faults(seed=5, reorder=1.0))
    await bus.publish(some(40))
    consumer = bus.group("g", ["t"])
    await consumer.start()
    found: list[Delivery] = []
    async with asyncio.timeout(5):
        while len(found) < 40:
            found += await consumer.poll(3, 0)
    for number in range(4):
        offsets = [d.offset for d in found if d.partition == number]
        assert offsets == sorted(offsets)
    assert [d.partition for d in found] != sorted(d.partition for d in found)


async def test_an_outage_refuses_every_call_until_it_is_over() -> None:
    bus = await made()
    consumer = bus.group("g", ["t"])
    await consumer.start()
    reader = bus.reader({P0: 0})
    await reader.start()
    bus.faults.unavailable = True
    for call in (
        bus.identity(),
        bus.partitions("t"),
        bus.check_topics(["t"]),
        bus.bounds([P0]),
        bus.publish(some(1)),
        bus.create_topics([]),
        consumer.poll(1, 0),
        consumer.commit({}),
        consumer.lag(),
        reader.poll(1, 0),
        reader.at_end(),
        bus.group("g", ["t"]).start(),
    ):
        with pytest.raises(BusUnavailableError):
            await call
    bus.faults.heal()
    await bus.publish(some(1))


async def test_a_truncated_partition_and_one_made_anew_are_out_of_range_for_a_reader() -> None:
    bus = await made(partitions=1)
    await bus.publish(some(10))
    reader = bus.reader({P0: 0})
    await reader.start()
    bus.truncate(P0, 5)
    with pytest.raises(OffsetOutOfRangeError):
        await reader.poll(10, 0)
    reader = bus.reader({P0: 8})
    await reader.start()
    bus.recreate("t")
    with pytest.raises(OffsetOutOfRangeError):
        await reader.poll(10, 0)


async def test_a_member_that_no_longer_polls_is_replaced_after_its_session() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock)
    await bus.create_topics([Topic("t", 2, 60, "delete", 10_000)])
    dead, living = bus.group("g", ["t"]), bus.group("g", ["t"])
    await dead.start()
    await living.start()
    assert not await living.poll(1, 0)
    assert not living.assignment()
    clock.advance(SESSION_S)
    assert not await living.poll(1, 0)
    assert len(living.assignment()) == 2
    assert not await dead.poll(1, 0)
    assert not dead.assignment(), "it comes back and waits for its share"
    assert not await living.poll(1, 0)
    assert not await dead.poll(1, 0)
    assert len(living.assignment()) == len(dead.assignment()) == 1


async def test_a_waiting_poll_follows_a_virtual_clock() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock)
    await bus.create_topics([Topic("t", 1, 60, "delete", 10_000)])
    consumer = bus.group("g", ["t"])
    await consumer.start()
    polling = asyncio.ensure_future(consumer.poll(1, 60))
    for _ in range(5):
        await asyncio.sleep(0)
    clock.advance(59)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not polling.done()
    clock.advance(1)
    assert await asyncio.wait_for(polling, 5) == []
