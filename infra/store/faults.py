"""What can go wrong with a store, on purpose: seeded, scripted, in the units of the injected clock.

Example:
    faults = Faults(seed=7, clock=clock, lost_acknowledgement=0.05, delay=0.2, delay_s=(0.0, 0.5))
    store = MemoryStore(faults)
    faults.script("insert", Fault.LOST_ACKNOWLEDGEMENT)   # the next insert happens and is reported as unavailable
    faults.outage(30.0)                                   # nothing answers for 30 s of the clock
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from schedmate.infra.clock import Clock, SeededRandom, SystemClock
from schedmate.infra.store.port import StoreUnavailableError

WRITES: Final = frozenset({"insert", "replace", "put", "put_many", "delete", "drop"})


class Fault(StrEnum):
    """One way for one operation to go wrong."""

    REFUSED = "refused"  # StoreUnavailableError, nothing happened
    LOST_ACKNOWLEDGEMENT = "lost_acknowledgement"  # StoreUnavailableError, but the write has happened
    NONE = "none"  # goes well whatever the probabilities say


class Faults:
    """Decides for each operation of a store whether it is delayed, refused, or done without being acknowledged.

    An operation is first delayed (with probability `delay`, by a time drawn from `delay_s`), then meets an outage if
    there is one, then a scripted fault, then a drawn one. `lost_acknowledgement` concerns writes only. The same seed
    and the same order of operations give the same faults.

    Args:
        seed: of the one source of randomness.
        clock: which delays and outages are measured on.
        refused: probability that an operation fails and nothing has happened.
        lost_acknowledgement: probability that a write happens and fails all the same.
        delay: probability that an operation waits before it begins.
        delay_s: shortest and longest wait.
        outages: spans (from, to) on `clock.monotonic()` in which every operation is refused.
    """

    def __init__(
        self,
        seed: int = 0,
        clock: Clock | None = None,
        *,
        refused: float = 0.0,
        lost_acknowledgement: float = 0.0,
        delay: float = 0.0,
        delay_s: tuple[float, float] = (0.0, 0.0),
        outages: Sequence[tuple[float, float]] = (),
    ) -> None:
        self.seed = seed
        self.injected = 0
        self._clock = clock or SystemClock()
        self._random = SeededRandom(seed)
        self._refused = refused
        self._lost = lost_acknowledgement
        self._delay = delay
        self._delay_s = delay_s
        self._outages = list(outages)
        self._scripts: defaultdict[str, deque[Fault]] = defaultdict(deque)

    def script(self, operation: str, *faults: Fault) -> None:
        """Let the next operations of this name (a method of the port) go wrong like this, in this order."""
        self._scripts[operation].extend(faults)

    def outage(self, seconds: float) -> None:
        """Refuse every operation from now on for so long."""
        now = self._clock.monotonic()
        self._outages.append((now, now + seconds))

    def recover(self) -> None:
        """End every outage."""
        self._outages.clear()

    async def before(self, operation: str) -> bool:
        """Wait and refuse as decided; return whether the acknowledgement of this operation is to be lost."""
        if self._delay and self._random.uniform(0.0, 1.0) < self._delay:
            await self._clock.sleep(self._random.uniform(*self._delay_s))
        now = self._clock.monotonic()
        if any(begin <= now < end for begin, end in self._outages):
            self._refuse(f"{operation}: the store is down (injected outage)")
        fault = self._next(operation)
        if fault is Fault.REFUSED:
            self._refuse(f"{operation}: refused (injected, seed {self.seed})")
        return fault is Fault.LOST_ACKNOWLEDGEMENT

    def lose(self, operation: str) -> None:
        """Raise what a caller sees whose acknowledgement was lost."""
        self._refuse(f"{operation}: done, but the acknowledgement is lost (injected, seed {self.seed})")

    def _next(self, operation: str) -> Fault:
        if self._scripts[operation]:
            return self._scripts[operation].popleft()
        drawn = self._random.uniform(0.0, 1.0) if self._refused or self._lost else 1.0
        if drawn < self._refused:
            return Fault.REFUSED
        if operation in WRITES and drawn < self._refused + self._lost:
            return Fault.LOST_ACKNOWLEDGEMENT
        return Fault.NONE

    def _refuse(self, message: str) -> None:
        self.injected += 1
        raise StoreUnavailableError(message)
