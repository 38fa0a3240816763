"""Time, ids and randomness, injected everywhere; the system's and the virtual ones."""

from __future__ import annotations

import asyncio
import random as _random  # noqa: TID251 - this module is the port
import time as _time
import uuid as _uuid
from typing import Protocol


class Clock(Protocol):
    """What time it is. `now` may jump, `monotonic` never goes back and runs through suspend."""

    def now(self) -> float:
        """Return Unix seconds (UTC)."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back and runs through suspend."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Ids(Protocol):
    """Fresh ids, for what has no cause to derive one from."""

    def new(self) -> str:
        """Return an id never returned before."""
        ...


class Random(Protocol):
    """Randomness (jitter of back-off)."""

    def uniform(self, low: float, high: float) -> float:
        """Return a number in [low, high]."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """Return Unix seconds (UTC)."""
        return _time.time()  # noqa: TID251 - this module is the port

    def monotonic(self) -> float:
        """Return CLOCK_BOOTTIME where there is one: it runs through suspend."""
        return _time.clock_gettime(_time.CLOCK_BOOTTIME) if hasattr(_time, "CLOCK_BOOTTIME") else _time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class SystemIds:
    """Random UUIDs."""

    def new(self) -> str:
        """Return a random UUID."""
        return str(_uuid.uuid4())  # noqa: TID251 - this module is the port


class SystemRandom:
    """The system's randomness."""

    def uniform(self, low: float, high: float) -> float:
        """Return a number in [low, high]."""
        return _random.uniform(low, high)  # noqa: S311 - jitter, not secrets


class VirtualClock:
    """A clock that moves only when told; sleepers wake in order of their time."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Return Unix seconds (UTC)."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """Return seconds since the clock was made."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been moved so far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._elapsed + seconds, waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        """Move the clock and wake whoever is due."""
        self._elapsed += seconds
        due = sorted((s for s in self._sleepers if s[0] <= self._elapsed), key=lambda s: s[0])
        self._sleepers = [s for s in self._sleepers if s[0] > self._elapsed]
        for _, waiter in due:
            if not waiter.done():
                waiter.set_result(None)


class SeededIds:
    """Ids from a seed: the same run gives the same ids."""

    def __init__(self, seed: int) -> None:
        self._random = _random.Random(seed)  # noqa: S311 - a test's seed

    def new(self) -> str:
        """Return the next id of the seed."""
        return str(_uuid.UUID(int=self._random.getrandbits(128), version=4))


class SeededRandom:
    """Randomness from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = _random.Random(seed)  # noqa: S311 - a test's seed

    def uniform(self, low: float, high: float) -> float:
        """Return a number in [low, high]."""
        return self._random.uniform(low, high)
