"""Order and bounds of a stream's records: each once and in the order of its partition, keys one after the other, so many at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import structlog
from aiokafka.errors import IllegalStateError

from schedmate.infra.bus.port import BusUnavailableError, EventBus, Partition
from schedmate.infra.clock import Clock

LOOK_EVERY_S: Final = 1.0
STALLED_S: Final = 2.0

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class InOrder:
    """Lets each record through once and in the order of its partition, and fetches again what was lost on the way.

    Faust's recovery has windows in which records that were fetched are dropped although the position has passed them (its queues are cleared
    when the flow resumes, and only partitions with a committed offset are sought back). Nothing of that is committed, so this goes back to
    where a partition stands; what came too early comes again behind it.
    """

    def __init__(self, app: Any, bus: EventBus, clock: Clock) -> None:
        self._app = app
        self._bus = bus
        self._clock = clock
        self._next: dict[Any, int] = {}
        self._moved_at: dict[Any, float] = {}
        self._looked_at = 0.0

    def forget(self) -> None:
        """The partitions are another's, or will be assigned anew."""
        self._next.clear()
        self._moved_at.clear()

    async def admits(self, message: Any) -> bool:
        """Tell whether this record is the next of its partition."""
        tp, offset = message.tp, message.offset
        expected = await self._expected(tp)
        if offset > expected:
            expected = await self._go_back(tp)
        if offset != expected:
            return False
        self._next[tp] = offset + 1
        self._moved_at[tp] = self._clock.monotonic()
        return True

    async def look(self, partitions: Iterable[Any], *, repair: bool) -> int | None:
        """Return how many records have not come yet, or None when it is too early to look again.

        With `repair` (nothing is in hand) a partition that holds more and of which nothing has come for some time is fetched again.
        """
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return None
        self._looked_at = now
        held = {Partition(tp.topic, tp.partition): tp for tp in partitions}
        try:
            bounds = await self._bus.bounds(held)
        except BusUnavailableError:
            return None
        left = 0
        for partition, bound in bounds.items():
            tp = held[partition]
            missing = max(0, bound.end - await self._expected(tp))
            left += missing
            if not missing:
                self._moved_at[tp] = now
            elif repair and now - self._moved_at.setdefault(tp, now) >= STALLED_S:
                await self._go_back(tp)
        return left

    async def _expected(self, tp: Any) -> int:
        """Return the next offset of a partition: at first the committed one, else the earliest."""
        if tp not in self._next:
            thread = self._app.consumer._thread  # noqa: SLF001 - Faust has no public way to ask for committed offsets
            committed = await thread.call_thread(thread._ensure_consumer().committed, tp)  # noqa: SLF001
            self._next[tp] = max(committed or 0, await self._earliest(tp))
        return self._next[tp]

    async def _go_back(self, tp: Any) -> int:
        """Fetch again from where a partition stands; what retention has taken is passed over."""
        now = self._clock.monotonic()
        self._next[tp] = max(self._next[tp], await self._earliest(tp))
        if now - self._moved_at.get(tp, float("-inf")) >= LOOK_EVERY_S:
            self._moved_at[tp] = now
            log.warning(
                "fetching again",
                action="faust.fetch_again",
                topic=tp.topic,
                partition=tp.partition,
                offset=self._next[tp],
            )
            try:
                await self._app.consumer.seek_wait({tp: self._next[tp]})
            except IllegalStateError:
                log.warning("no longer assigned", action="faust.fetch_again", topic=tp.topic, partition=tp.partition)
        return self._next[tp]

    async def _earliest(self, tp: Any) -> int:
        partition = Partition(tp.topic, tp.partition)
        return (await self._bus.bounds([partition]))[partition].earliest


class Lanes:
    """Runs a coroutine per item: items of one key one after the other, at most `concurrency` at once."""

    def __init__(self, work: Callable[[Any], Awaitable[None]], concurrency: int) -> None:
        self._work = work
        self._room = asyncio.Semaphore(concurrency)
        self._lanes: dict[bytes, deque[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None

    async def put(self, key: bytes, item: Any) -> None:
        """Take an item in; waits while there is no room."""
        await self._room.acquire()
        lane = self._lanes.get(key)
        if lane is not None:
            lane.append(item)
            return
        self._lanes[key] = deque([item])
        task = asyncio.ensure_future(self._run(key))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    @property
    def waiting(self) -> int:
        """How many items are taken in and not done."""
        return sum(len(lane) for lane in self._lanes.values())

    @property
    def idle(self) -> bool:
        """Nothing is in hand."""
        return not self._tasks

    async def drain(self) -> None:
        """Wait until everything taken in is done."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def cancel(self) -> None:
        """Give up what still runs."""
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self.failure = self.failure or task.exception()

    async def _run(self, key: bytes) -> None:
        lane = self._lanes[key]
        try:
            while lane:
                try:
                    await self._work(lane[0])
                finally:
                    lane.popleft()
                    self._room.release()
        finally:
            for _ in lane:
                self._room.release()
            del self._lanes[key]
