"""Publishing entries: in order, until acknowledged, remembered, and ended when told to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from schedmate.infra.bus.memory import MemoryBus
from schedmate.infra.bus.port import Partition
from schedmate.infra.clock import SystemClock
from schedmate.infra.store.memory import MemoryStore
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Record
from schedmate.services.dispatcher.log import PoolLog
from schedmate.services.dispatcher.publisher import EntryPublisher
from tests.waiting import eventually

TOPIC = "schedmate.decisions"


@dataclass
class Bench:
    bus: MemoryBus
    log: PoolLog
    publisher: EntryPublisher
    interruptions: list[int]

    async def published(self) -> list[bytes]:
        reader = self.bus.reader({Partition(TOPIC, n): 0 for n in range(await self.bus.partitions(TOPIC))})
        await reader.start()
        found = [x.record.value for x in await reader.poll(100, 0.01)]
        await reader.stop()
        return found


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    clock = SystemClock()
    bus, store, interruptions = MemoryBus(clock), MemoryStore(), list[int]()
    await bus.start()
    await bus.create_topics(topology().topics.values())
    await store.start()
    await store.setup(topology().collections.values())
    log = PoolLog(store, "default")
    yield Bench(bus, log, EntryPublisher(log, bus, clock, lambda: interruptions.append(1)), interruptions)
    await bus.stop()


def records(seq: int) -> list[Record]:
    return [Record(TOPIC, b"k", f"{seq}/{n}".encode()) for n in range(2)]


async def test_a_cancel_that_comes_with_an_item_ends_the_publisher(bench: Bench) -> None:
    running = asyncio.create_task(bench.publisher.run())
    await asyncio.sleep(0)
    await bench.publisher.put(0, records(0))
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=5)
    assert done == {running}


async def test_entries_are_published_in_order_and_remembered(bench: Bench) -> None:
    running = asyncio.create_task(bench.publisher.run())
    for seq in range(40):
        await bench.publisher.put(seq, records(seq))
    await bench.publisher.drain()
    assert await bench.published() == [f"{seq}/{n}".encode() for seq in range(40) for n in range(2)]
    assert await bench.log.published() == 39
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_was_published_is_remembered_in_a_quiet_moment_too(bench: Bench) -> None:
    running = asyncio.create_task(bench.publisher.run())
    await bench.publisher.put(0, [])

    async def remembered() -> bool:
        return await bench.log.published() == 0

    await eventually(remembered)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_nothing_overtakes_an_entry_that_the_bus_does_not_take(bench: Bench) -> None:
    running = asyncio.create_task(bench.publisher.run())
    bench.bus.faults.unavailable = True
    await bench.publisher.put(0, records(0))
    await bench.publisher.put(1, records(1))
    await eventually(lambda: bench.interruptions)
    assert await bench.log.published() == -1
    bench.bus.faults.unavailable = False
    await bench.publisher.drain()
    assert await bench.published() == [b"0/0", b"0/1", b"1/0", b"1/1"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
