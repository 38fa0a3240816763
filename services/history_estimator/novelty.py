"""Knowing when one does not know: what a learned model is worth for a job of a kind that it never saw.

A kind is a model on a data set. What trees say of a kind that is not among their rows is what they say of some other kind, and may be worth
less than nothing. How much, the history itself tells: each of its kinds is left out in turn, told from the others, and compared with
what it was ("first times"). From the pool's level the estimate then moves towards the model by the share that was worth moving for every one of them,

    trust = least of (mean of (told - level)(truth - level) / mean of (told - level)^2) over the kinds,   between 0 and 1,

so that none of the first times would have been told worse than by the level: few kinds are a small sample of what may come. Its interval is that of
the errors that first times then had. Pure; any learner serves. Logarithms of seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
SUPPORT_MIN: Final = 5
"""So many jobs of a kind make it one that is known."""
KINDS_MAX: Final = 6
KINDS_MIN: Final = 3
LOW, HIGH = 0.1, 0.9


@dataclass(frozen=True, slots=True)
class Guard:
    """The kinds that a model knows; for others the share by which it moves an estimate off the pool's level, and how far off it then is."""

    known: frozenset[float]
    trust: float
    low: float
    high: float

    def first_time(self, kind: float, level: float, told: float) -> tuple[float, float, float] | None:
        """Return low, middle and high of a job of an unknown kind; None where its kind is known, or nothing is known of it at all (NaN)."""
        if kind != kind or kind in self.known:  # noqa: PLR0124 - NaN is not itself
            return None
        middle = level + self.trust * (told - level)
        return middle + self.low, middle, middle + self.high


def guard(kinds: Numbers, levels: Numbers, logs: Numbers, told_without: Callable[[Mask], Numbers]) -> Guard | None:
    """Return the guard of a history; None where no job's kind is known.

    `kinds` are numbers, NaN where nothing is known; `levels` what the pool's prior had said. `told_without(held)` returns what a
    model that saw no held job says of the held ones, in their order.
    """
    names, counts = np.unique(kinds[~np.isnan(kinds)], return_counts=True)
    known = names[counts >= SUPPORT_MIN]
    if not len(names):
        return None
    off: list[tuple[Numbers, Numbers]] = []  # what was told, what was so: both relative to the level
    for kind in known[np.argsort(-counts[counts >= SUPPORT_MIN], kind="stable")][:KINDS_MAX]:
        held = kinds == kind
        if not held.all():
            off.append((told_without(held) - levels[held], logs[held] - levels[held]))
    trust = _trust(off) if len(off) >= KINDS_MIN else 0.0
    errors = [truth - trust * told for told, truth in off] or [logs - levels]
    low, high = outer_quantiles(errors)
    return Guard(frozenset(known.tolist()), trust, min(low, 0.0), max(high, 0.0))


def _trust(off: list[tuple[Numbers, Numbers]]) -> float:
    moved = [(float((told * truth).mean()), float((told * told).mean())) for told, truth in off]
    return min(max(min((right / itself for right, itself in moved if itself > 0), default=0.0), 0.0), 1.0)


def outer_quantiles(errors: list[Numbers]) -> tuple[float, float]:
    """Return how far below and above the errors of one more group may lie, from those of several (an array each).

    Of each group its 10 % and 90 % quantile; of these the one that a new group's stays within in nine of ten cases (split conformal
    prediction, Vovk et al. 2005: rank 0.9 (groups + 1)), which with fewer than nine groups is the outermost.
    """
    rank = min(ceil(HIGH * (len(errors) + 1)), len(errors)) - 1
    lows = sorted((float(np.quantile(e, LOW)) for e in errors), reverse=True)
    highs = sorted(float(np.quantile(e, HIGH)) for e in errors)
    return lows[rank], highs[rank]
