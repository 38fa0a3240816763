"""Intervals of a comparison: the paired block bootstrap.

Runs are compared on the same jobs. A block is a virtual cluster's jobs of a week; jobs of one block wait for each other, so blocks are
drawn, not jobs, and all runs that are compared take the same draw (Künsch, Annals of Statistics 17(3), 1989; Efron and Tibshirani, An
Introduction to the Bootstrap, 1993, section 8.6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Sums = Mapping[str, Sequence[float]]
"""Block -> (jobs, sum of what is compared)."""

DRAWS: Final = 4000
SEED: Final = 20171001
LEVEL: Final = 0.95
OPEN_SHARE: Final = (
    1 - LEVEL
) / 2  # of the draws; with more of them without a positive denominator a ratio has no interval


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its 95 % interval; `low` and `high` are None where there is none (one block, or a denominator near 0)."""

    value: float
    low: float | None
    high: float | None

    @property
    def above_zero(self) -> bool:
        """Is it greater than 0 beyond chance?"""
        return self.low is not None and self.low > 0

    @property
    def below_zero(self) -> bool:
        """Is it less than 0 beyond chance?"""
        return self.high is not None and self.high < 0


def gained(base: Sums, other: Sums) -> Interval:
    """Return how much smaller the mean is in `other` than in `base`."""
    means = _means([base, other])
    return _interval(means[0] - means[1])


def share_closed(base: Sums, other: Sums, reference: Sums) -> Interval | None:
    """Return (base - other) / (base - reference), None where the reference is not better than the base."""
    base_mean, other_mean, reference_mean = _means([base, other, reference])
    most = base_mean - reference_mean
    if most[0] <= 0:
        return None
    share = (base_mean - other_mean) / np.where(most > 0, most, np.nan)
    if np.isnan(share).mean() > OPEN_SHARE:
        return Interval(float(share[0]), None, None)
    return _interval(share)


def _means(runs: Sequence[Sums]) -> NDArray[np.float64]:
    """Return the mean of each run: first over all blocks, then over each draw of blocks."""
    blocks = sorted(runs[0])
    if any(sorted(run) != blocks or any(run[b][0] != runs[0][b][0] for b in blocks) for run in runs):
        raise ValueError("the runs are not of the same jobs: nothing can be compared in pairs")
    sums = np.array([[run[block][1] for block in blocks] for run in runs])
    jobs = np.array([runs[0][block][0] for block in blocks])
    drawn = np.random.default_rng(SEED).integers(len(blocks), size=(DRAWS, len(blocks)))
    drawn = np.vstack([np.arange(len(blocks)), drawn])
    means: NDArray[np.float64] = sums[:, drawn].sum(axis=2) / jobs[drawn].sum(axis=1)
    return means if len(blocks) > 1 else means[:, :1]


def _interval(values: NDArray[np.float64]) -> Interval:
    if len(values) == 1:
        return Interval(float(values[0]), None, None)
    low, high = np.nanquantile(values[1:], [OPEN_SHARE, 1 - OPEN_SHARE])
    return Interval(float(values[0]), float(low), float(high))
