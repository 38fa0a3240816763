"""Which of several ways to know a job was nearer for the last jobs of its sort: of jobs of a known kind, those of the kind; of others, those of the class.

Two ways are compared over the ended jobs of which both had spoken. They stand in an order; a later one speaks where it was nearer than the one
that would have spoken before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

KEPT: Final = 0.98
OFF_MAX: Final = 4.0

Said = tuple[str, float]
"""A way, and the logarithm of the run time that it told."""


@dataclass(slots=True)
class Rivals:
    """By pair of ways, the earlier one first: the fading mean misjudgements of both, in logarithms."""

    off: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def nearest(self, ways: Iterable[str]) -> str:
        """Return the way that is to speak, of one or more in their order. The tie goes to the earlier one."""
        taken, *later = ways
        for way in later:
            before, after = self.off.get((taken, way), (0.0, 0.0))
            if after < before:
                taken = way
        return taken

    def learn(self, said: Sequence[Said], log_s: float) -> None:
        """A job has ended of which these ways had spoken, in their order."""
        missed = [(way, min(abs(middle - log_s), OFF_MAX)) for way, middle in said]
        for (one, by), (other, by_other) in combinations(missed, 2):
            before, after = self.off.get((one, other), (0.0, 0.0))
            self.off[one, other] = (KEPT * before + (1.0 - KEPT) * by, KEPT * after + (1.0 - KEPT) * by_other)
