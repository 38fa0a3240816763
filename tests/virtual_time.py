"""Virtual time: an event loop that jumps to the next timer when nothing else is to do. Hours pass in a second, and no load makes anything late.

For what waits for timers and for other tasks of the loop: what waits for a thread, a process or a socket would see time fly.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

EPOCH = 1_700_000_000.0


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: what the loop would wait for is added to its time. Each turn of the loop takes a nanosecond of its own: else
    two that wait for less than the loop's resolution could wake each other for ever while time stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        self.now += 1e-9
        if not found and timeout is not None and timeout > 0:
            self.now += timeout
        return found


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time."""

    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


class LoopClock:
    """The loop's virtual time as a clock."""

    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_simulated(main: Callable[[], Coroutine[Any, Any, Any]], *, virtual_s_max: float = 40_000.0) -> Any:
    """Run a coroutine on virtual time; an endless one ends with TimeoutError after so many virtual seconds."""
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(main(), virtual_s_max))
    finally:
        with contextlib.suppress(Exception):
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
