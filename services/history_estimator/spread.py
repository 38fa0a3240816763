"""Run times as a spread over classes of their logarithm, and the one number that stands for it.

A spread is a row of `BINS` shares that sum to 1; bin n stands for exp(n * STEP) seconds. The point that hits most often and the point of
the least squared error are different ones, the mode and the mean (Gneiting 2011, "Making and evaluating point forecasts", J. Amer. Stat.
Assoc. 106, 746-762): where a sweep's runs are tight, or short and long runs alternate, the mean hits none of them, and where nothing is
known, a mode is off by hours. The point here is the one of the greatest

    share within a factor of two - MEAN_PULL * (distance from the mean, in logarithms)^2

and so takes the mode where it holds many jobs, and stays by the mean where all modes are weak.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any, Final

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.float64]]

STEP: Final = 0.2
BINS: Final = 81
PLACES: Final[Numbers] = np.arange(BINS, dtype=np.float64) * STEP
MEAN_PULL: Final = 0.07
"""What a squared unit of logarithm is worth in shares of jobs within a factor of two."""
RECENT_MAX: Final = 100
RECENT_HALF_LIFE: Final = 15.0
"""In submissions: how fast a class's earlier runs fade."""
WITHIN: Final = int(log(2.0) / STEP)
BLUR: Final = 1.5
FLOOR: Final = 0.03
CENTRED: Final = STEP / 2


def _blur() -> Numbers:
    """Return the matrix that spreads each bin over its neighbours, normally, what would leave the range staying at its end."""
    reach = 6
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / BLUR) ** 2)
    out = np.zeros((BINS, BINS))
    for off, weight in zip(range(-reach, reach + 1), weights / weights.sum(), strict=True):
        np.add.at(out, (np.arange(BINS), np.clip(np.arange(BINS) + off, 0, BINS - 1)), weight)
    return out


_BLUR: Final = _blur()


def placed(logs: Numbers) -> tuple[np.ndarray[Any, np.dtype[np.intp]], Numbers]:
    """Return, for logarithms of seconds, the lower of the two bins between which each lies, and its share of the upper one."""
    at = np.clip(logs / STEP, 0.0, BINS - 1.001)
    lower = at.astype(np.intp)
    return lower, at - lower


def spread(logs: Sequence[float] | Numbers, weights: Numbers | None = None) -> Numbers:
    """Return the weight of each bin, of logarithms of seconds; not scaled."""
    taken = np.asarray(logs, dtype=np.float64)
    heavy = np.ones(len(taken)) if weights is None else weights
    lower, upper = placed(taken)
    out: Numbers = np.zeros(BINS)
    np.add.at(out, lower, heavy * (1.0 - upper))
    np.add.at(out, lower + 1, heavy * upper)
    return out


def recent(logs: Sequence[float], ended: Sequence[bool], long_run: Numbers) -> Numbers:
    """Return the spread of the runs submitted last, newest first; of those that still run, `logs` is the age.

    What has ended is mostly short where long runs were submitted beside it, so that those that run count as such (Kaplan and Meier 1958,
    J. Amer. Stat. Assoc. 53; each run weighing less than the one submitted after it); what outlasts all of them is spread as the `long_run` is.
    """
    values, known = np.asarray(logs, dtype=np.float64), np.asarray(ended, dtype=bool)
    weights = 0.5 ** (np.arange(len(values)) / RECENT_HALF_LIFE)
    order = np.lexsort((~known, values))
    weights, known, values = weights[order], known[order], values[order]
    at_risk = np.cumsum(weights[::-1])[::-1]
    ends = np.where(known, weights / at_risk, 0.0)
    left = np.cumprod(1.0 - ends)
    out = spread(values[known], (np.append(1.0, left[:-1]) * ends)[known])
    beyond = np.where(PLACES > values[-1], long_run, 0.0)
    if not beyond.sum():
        beyond[min(int(values[-1] / STEP) + 3, BINS - 1)] = 1.0
    told: Numbers = out + left[-1] * beyond / beyond.sum()
    return told


def middles(spreads: Sequence[Numbers], means: Numbers) -> Numbers:
    """Return the point for each job, in logarithms of seconds. `spreads`: several of a job, of shape (jobs, BINS), that count alike."""
    together = sum((one @ _BLUR / one.sum(axis=1, keepdims=True) for one in spreads), np.zeros((len(means), BINS)))
    together = (1.0 - FLOOR) * together / len(spreads) + FLOOR / BINS
    below = np.cumsum(np.pad(together, ((0, 0), (WITHIN + 1, WITHIN))), axis=1)
    within = below[:, 2 * WITHIN + 1 :] - below[:, : -2 * WITHIN - 1]
    worth = within - MEAN_PULL * (PLACES - means[:, None]) ** 2 + 1e-3 * together
    best = worth.argmax(axis=1)
    near = np.clip(best[:, None] + np.arange(-WITHIN, WITHIN + 1), 0, BINS - 1)
    shares = np.take_along_axis(together, near, axis=1)
    centre = (shares * PLACES[near]).sum(axis=1) / shares.sum(axis=1)
    told: Numbers = PLACES[best] + np.clip(centre - PLACES[best], -CENTRED, CENTRED)
    return told
