"""Faults of the bus in memory: what goes wrong, on a seed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from schedmate.infra.clock import SeededRandom


@dataclass(slots=True)
class Faults:
    """What goes wrong, on a seed. Chances lie in [0, 1]; fields may be changed at any time, `heal` ends all of it.

    None of them breaks what the port promises: order within a partition holds, and what was acknowledged stays.
    """

    seed: int = 0
    write_twice: float = 0.0
    """A publish call is written a second time behind the first, as after a repeated publish: same ids, new offsets."""
    redeliver: float = 0.0
    """Before a group's poll its partitions are taken and given back, and what `on_revoked` commits is lost: everything
    since the last commit arrives again."""
    reorder: float = 0.0
    """A poll takes partitions in another order and holds some back till later, as Kafka does across partitions."""
    fail_before_write: float = 0.0
    """A publish raises BusUnavailableError and has written nothing."""
    fail_after_write: float = 0.0
    """A publish raises BusUnavailableError though all was written: the acknowledgement is lost."""
    next_publishes: deque[Literal["before", "after", "ok"]] = field(default_factory=deque)
    """Scripted fates of the next publish calls, before any chance is taken."""
    unavailable: bool = False
    """Every call raises BusUnavailableError until it is False again. (Kafka's poll hides an outage: it returns nothing.)"""
    _random: SeededRandom | None = None

    def strikes(self, chance: float) -> bool:
        """Draw: does a fault of this chance happen now?"""
        return chance > 0 and self.draw() < chance

    def draw(self) -> float:
        """Return the seed's next number in [0, 1]."""
        if self._random is None:
            self._random = SeededRandom(self.seed)
        return self._random.uniform(0.0, 1.0)

    def heal(self) -> None:
        """No further faults."""
        self.write_twice = self.redeliver = self.reorder = self.fail_before_write = self.fail_after_write = 0.0
        self.next_publishes.clear()
        self.unavailable = False
