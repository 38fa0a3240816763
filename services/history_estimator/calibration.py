"""Intervals that cover what they say: the outer quantiles of a pool are moved by what its ended jobs have shown.

Both ends are tracked on their own (Angelopoulos, Candes and Tibshirani 2023, "Conformal PID control for time series prediction",
the quantile tracker; after Gibbs and Candes 2021, adaptive conformal inference). For an end with the aimed miss rate a, and an offset t
that widens it,

    t <- t + step * (1 - a)   where a job that has ended lay outside,      t <- t - step * a   where it lay inside

so that in the long run a share a lies outside, whatever the jobs do. The feedback comes when a job ends, late and out of order; each job
is judged by the interval that it was given. The step follows the spread of the pool's own misjudgements, and is larger at first. In
logarithms of seconds.

Which of several points stands for the median is chosen by what each was worth for the last jobs of the class (following the leader, with
a fading memory): where jobs come in sweeps it is mostly the point of the spreads (`spread`), where the source tells much of them, the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import Final

MISS: Final = 0.1
OFFSET_MAX: Final = 8.0
STEP: Final = 0.006
STEP_AT_FIRST: Final = 0.04
FIRST_JOBS: Final = 50
SPREAD_MIN: Final = 0.05
SPREAD_KEPT: Final = 0.98


@dataclass(slots=True)
class Tracker:
    """The offsets of one pool and basis; `low` and `high` are added outwards."""

    low: float = 0.0
    high: float = 0.0
    spread: float = 1.0
    jobs: int = 0
    covered: int = 0

    def widened(self, low: float, middle: float, high: float) -> tuple[float, float]:
        """Return the ends of the interval, on either side of the middle."""
        return min(low - self.low, middle), max(high + self.high, middle)

    def learn(self, raw: tuple[float, float], given: tuple[float, float], log_s: float) -> None:
        """A job has ended. `raw` is its interval as it was before the offsets, `given` after."""
        step = (STEP + STEP_AT_FIRST / (1.0 + self.jobs / FIRST_JOBS)) * self.spread
        self.low = _tracked(self.low, step, outside=log_s < given[0])
        self.high = _tracked(self.high, step, outside=log_s > given[1])
        off = max(raw[0] - log_s, log_s - raw[1], 0.0) if not raw[0] <= log_s <= raw[1] else 0.0
        self.spread = max(SPREAD_KEPT * self.spread + (1 - SPREAD_KEPT) * (off + 0.5 * (raw[1] - raw[0])), SPREAD_MIN)
        self.jobs += 1
        self.covered += given[0] <= log_s <= given[1]


def _tracked(offset: float, step: float, *, outside: bool) -> float:
    offset += step * (1.0 - MISS) if outside else -step * MISS
    return min(max(offset, -OFFSET_MAX), OFFSET_MAX)


POINTS: Final = 2
KEPT: Final = 0.98
OFF_MAX: Final = 4.0
SQUARE: Final = 0.07


@dataclass(slots=True)
class Choice:
    """What points of one class of jobs were worth: the fading mean of a loss that counts misses by more than twofold, and squares a little."""

    losses: list[float] = field(default_factory=lambda: [0.0] * POINTS)

    def pick(self, points: Sequence[float]) -> float:
        """Return the point of the least loss so far, the first of equals."""
        return points[min(range(POINTS), key=self.losses.__getitem__)]

    def learn(self, points: Sequence[float], log_s: float) -> None:
        """A job has ended for which these points had been at hand."""
        for place, point in enumerate(points):
            off = min(abs(point - log_s), OFF_MAX)
            loss = float(off > log(2.0)) + SQUARE * off * off
            self.losses[place] = KEPT * self.losses[place] + (1.0 - KEPT) * loss
