"""Order and bounds of a stream's records: lost ones are fetched again, none is let through twice or too early."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from aiokafka.errors import IllegalStateError

from schedmate.infra.bus.port import Bounds, BusUnavailableError
from schedmate.infra.bus.stream_order import STALLED_S, InOrder, Lanes
from schedmate.infra.clock import VirtualClock
from tests.waiting import eventually


class TP(NamedTuple):
    topic: str
    partition: int


LOGS = TP("logs", 0)


class World:
    """A consumer, a bus and a clock as `InOrder` sees them; `sought` is what it went back to."""

    def __init__(self, *, earliest=0, end=100, committed=None):
        self.earliest, self.end, self.committed_offset = earliest, end, committed
        self.sought: list[int] = []
        self.clock = VirtualClock()
        self.away = False
        thread = SimpleNamespace(call_thread=self.call_thread, _ensure_consumer=lambda: SimpleNamespace(committed=None))
        self.consumer = SimpleNamespace(_thread=thread, seek_wait=self.seek_wait)
        self.order = InOrder(self, self, self.clock)

    async def call_thread(self, _work, _tp):
        return self.committed_offset

    async def seek_wait(self, offsets):
        if self.away:
            raise IllegalStateError("not assigned")
        self.sought += offsets.values()

    async def bounds(self, partitions):
        return {p: Bounds(self.earliest, self.end) for p in partitions}

    async def admits(self, *offsets):
        return [n for n in offsets if await self.order.admits(SimpleNamespace(tp=LOGS, offset=n))]


async def test_records_in_order_are_let_through_from_the_committed_one_on():
    world = World(committed=3)
    assert await world.admits(3, 4, 5) == [3, 4, 5]
    assert world.sought == []


async def test_a_record_that_came_before_is_not_let_through_again():
    world = World()
    assert await world.admits(0, 1, 0, 1, 2) == [0, 1, 2]


async def test_after_lost_records_it_goes_back_once_and_what_came_too_early_comes_again():
    world = World()
    assert await world.admits(0, 1) == [0, 1]
    world.clock.advance(5)
    assert await world.admits(7, 8) == []
    assert world.sought == [2]
    assert await world.admits(2, 3) == [2, 3]


async def test_a_partition_of_which_nothing_comes_though_it_holds_more_is_fetched_again():
    world = World(end=10)
    assert await world.admits(0) == [0]
    for _ in range(4):
        world.clock.advance(STALLED_S / 2 + 0.1)
        left = await world.order.look([LOGS], repair=True)
    assert left == 9
    assert world.sought[0] == 1


@pytest.mark.parametrize(("end", "repair"), [(1, True), (10, False)], ids=["all came", "something is in hand"])
async def test_a_partition_that_is_done_or_slow_is_left_alone(end, repair):
    world = World(end=end)
    await world.admits(0)
    for _ in range(4):
        world.clock.advance(STALLED_S)
        await world.order.look([LOGS], repair=repair)
    assert world.sought == []


async def test_what_retention_took_is_passed_over():
    world = World(committed=3, earliest=50)
    assert await world.admits(50, 51) == [50, 51]
    world.earliest = 60
    world.clock.advance(5)
    assert await world.admits(60) == [60]


async def test_after_a_new_assignment_it_starts_from_what_is_committed_by_then():
    world = World()
    await world.admits(0, 1, 2)
    world.order.forget()
    world.committed_offset = 2
    assert await world.admits(2, 3) == [2, 3]


async def test_a_partition_that_is_gone_or_a_bus_that_is_away_is_no_failure():
    world = World()
    await world.admits(0)
    world.away = True
    world.clock.advance(5)
    assert await world.admits(5) == []

    async def away(_):
        raise BusUnavailableError("away")

    world.bounds = away
    world.clock.advance(5)
    assert await world.order.look([LOGS], repair=True) is None


async def test_items_of_one_key_run_in_order_and_different_keys_at_once():
    seen, running, most = defaultdict(list), 0, 0

    async def work(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        seen[item[0]].append(item[1])
        running -= 1

    lanes = Lanes(work, 4)
    for n in range(10):
        for key in "abcdef":
            await lanes.put(key.encode(), (key, n))
    await lanes.drain()
    assert all(seen[key] == list(range(10)) for key in "abcdef")
    assert 1 < most <= 4
    assert lanes.idle
    assert lanes.waiting == 0


async def test_a_full_set_of_lanes_makes_the_next_item_wait():
    free = asyncio.Event()
    lanes = Lanes(lambda _: free.wait(), 2)
    await lanes.put(b"a", 1)
    await lanes.put(b"a", 2)
    third = asyncio.create_task(lanes.put(b"b", 3))
    await asyncio.sleep(0)
    assert not third.done()
    assert lanes.waiting == 2
    free.set()
    await eventually(third.done)
    await lanes.drain()


async def test_an_item_that_fails_is_told():
    async def work(_):
        raise RuntimeError("broken")

    lanes = Lanes(work, 2)
    await lanes.put(b"a", 1)
    await lanes.put(b"a", 2)
    await eventually(lambda: lanes.failure is not None)
    await lanes.put(b"b", 3)
    assert str(lanes.failure) == "broken"
