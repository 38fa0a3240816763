"""Lanes: work of one key one after another, of different keys at once, up to a bound; and how far each partition is done."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from schedmate.schemas.wire import Delivery

_CANCELLED_WITHIN_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Progress:
    """How far one partition is done while a member holds it. Once closed, nothing more of it is begun."""

    next: int
    unfinished: dict[int, None] = field(default_factory=dict)  # ascending: offsets are accepted in order
    committed: int = -1
    open: bool = True

    @property
    def done_to(self) -> int:
        """The next offset to read, were this member to die now: the lowest that is unfinished."""
        return next(iter(self.unfinished), self.next)


@dataclass(frozen=True, slots=True)
class _Item:
    delivery: Delivery
    progress: Progress


class Lanes:
    """Runs `work` on deliveries. What `work` raises is kept as `failure`: it has no business raising.

    `lane_of` names what is worked on one after another: the record's key, unless told otherwise.
    """

    def __init__(
        self,
        work: Callable[[Delivery], Awaitable[None]],
        concurrency: int,
        lane_of: Callable[[Delivery], bytes] | None = None,
    ) -> None:
        self._work = work
        self._concurrency = concurrency
        self._lane_of = lane_of or _key
        self._lanes: dict[bytes, deque[_Item]] = {}
        self._waiting: deque[bytes] = deque()  # keys that have something to begin
        self._tasks: dict[asyncio.Future[None], Progress] = {}
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.failure: BaseException | None = None

    def accept(self, delivery: Delivery, progress: Progress) -> None:
        """Take a delivery behind those of its key; its offset is unfinished until `work` has returned."""
        progress.unfinished[delivery.offset] = None
        self.in_flight += 1
        self.in_flight_bytes += len(delivery.record.value)
        key = self._lane_of(delivery)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
            self._waiting.append(key)
        lane.append(_Item(delivery, progress))
        self._begin()

    async def drain(self, progresses: Collection[Progress], timeout_s: float) -> None:
        """Close these, wait for what runs of them, cancel what still runs after `timeout_s`."""
        for progress in progresses:
            progress.open = False
        running = [task for task, progress in self._tasks.items() if not progress.open]
        if running:
            await asyncio.wait(running, timeout=timeout_s)
            await self.cancel([task for task in running if not task.done()])
        self._begin()  # forgets what was accepted and not begun: the next holder gets it again

    async def cancel(self, tasks: Sequence[asyncio.Future[None]] | None = None) -> None:
        """Cancel tasks (all of them by default); one that does not heed it is left behind."""
        chosen = list(self._tasks) if tasks is None else tasks
        for task in chosen:
            task.cancel()
        if chosen:
            await asyncio.wait(chosen, timeout=_CANCELLED_WITHIN_S)

    def _begin(self) -> None:
        """Start the next delivery of as many waiting keys as there is room for."""
        while self._waiting and len(self._tasks) < self._concurrency:
            key = self._waiting.popleft()
            lane = self._lanes[key]
            while lane and not lane[0].progress.open:
                self._leave(lane.popleft())
            if not lane:
                del self._lanes[key]
                continue
            item = lane.popleft()
            task = asyncio.ensure_future(self._work(item.delivery))
            self._tasks[task] = item.progress
            task.add_done_callback(lambda done, key=key, item=item: self._ended(done, key, item))  # type: ignore[misc]

    def _ended(self, task: asyncio.Future[None], key: bytes, item: _Item) -> None:
        del self._tasks[task]
        self._leave(item)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failure = self.failure or error
        elif not task.cancelled():
            item.progress.unfinished.pop(item.delivery.offset, None)
        if self._lanes[key]:
            self._waiting.append(key)
        else:
            del self._lanes[key]
        self._begin()

    def _leave(self, item: _Item) -> None:
        self.in_flight -= 1
        self.in_flight_bytes -= len(item.delivery.record.value)


def _key(delivery: Delivery) -> bytes:
    return delivery.record.key
