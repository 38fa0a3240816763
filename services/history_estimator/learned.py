"""The learned model: gradient-boosted trees over rows of features, refit from scratch on the newest ended jobs.

Models of the logarithm of the run time: its 10 % and 90 % quantile (pinball loss) and its mean (squared error), the latter twice, with and
without the jobs that still run, and averaged: with them it is late to see that short jobs have come, without them that long ones have. Histogram boosting of scikit-learn: deterministic, one thread, its wheel needs no system
library. Newer jobs weigh more (a half-life counted in jobs). Jobs that still run are evidence, too: each is taken with its conditional
quantiles beyond its age, by the model before (redistribution of a censored observation to the right: Efron 1967; for quantile
regression, Portnoy 2003, J. Amer. Stat. Assoc. 98).

Nothing is imported from scikit-learn before the first fit. Where it is not installed, there is no learned model, and `available` says so.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from schedmate.services.history_estimator.features import COLUMNS
from schedmate.services.history_estimator.forest import Forest
from schedmate.services.history_estimator.novelty import Guard, Mask, guard
from schedmate.services.history_estimator.trees import BINS_MAX, Bins, FlatTrees, Numbers

Places = np.ndarray[Any, np.dtype[np.intp]]

ROWS_MAX: Final = 6_000
HALF_LIFE_JOBS: Final = 4_000.0
CHECKED_ROWS: Final = 64
CENSORED_MAX: Final = 1_000
CENSORED_SHARES: Final = (1 / 6, 1 / 2, 5 / 6)
LOW, HIGH = 0.1, 0.9
SIDE_MIN: Final = 0.05
GUARD_ROWS: Final = 1_500
_KIND: Final = COLUMNS.index("kind")
_LEVEL: Final = COLUMNS.index("class:median_200")
_OF_KIND: Final = [n for n, name in enumerate(COLUMNS) if name.startswith(("model:", "name:"))]
"""What is known of a job's kind, and of its name: nothing, the first time."""
_NORMAL: Final = NormalDist()
_TENTH: Final = 1.2815515655446004  # the 90 % quantile of the normal distribution


def available() -> bool:
    """Tell whether a model can be fitted at all."""
    return importlib.util.find_spec("sklearn") is not None


@dataclass(frozen=True, slots=True)
class Sample:
    """What a fit takes: rows and logarithms of run times of ended jobs, oldest first; rows and logarithms of the ages of jobs that still run.

    `shared`: of several tenants.
    """

    rows: Sequence[Sequence[float]]
    logs: Sequence[float]
    running_rows: Sequence[Sequence[float]] = ()
    running_logs: Sequence[float] = ()
    shared: bool = False


class Model:
    """A fitted model. Its boosted trees are fixed; the leaves of its forest, where it is one tenant's, take in the jobs that end."""

    def __init__(
        self, models: Sequence[Any], columns: Places, bins: Bins, flat: FlatTrees | None, guarded: Guard | None = None,
        forest: Forest | None = None, *, shared: bool = False,
    ) -> None:  # fmt: skip
        self._models, self._columns, self._bins, self._flat = models, columns, bins, flat
        self._guard = guarded
        self._forest, self._shared = forest, shared

    def first_time(self, row: Sequence[float], level: float, told: float) -> tuple[float, float, float] | None:
        """Return what is to be said of a row whose kind of job the model never saw (low, middle, high), None of any other."""
        return self._guard.first_time(row[_KIND], level, told) if self._guard is not None else None

    def predict(self, rows: Sequence[Sequence[float]]) -> Numbers:
        """Return, a row each, the logarithms (10 % quantile, mean, 90 % quantile), ordered. Shape (rows, 3)."""
        taken = np.asarray(rows, dtype=np.float64)[:, self._columns]
        if self._flat is not None:
            told = self._flat.predict(taken)
        else:
            numbers = self._bins.numbers(taken)
            told = np.column_stack([model.predict(numbers) for model in self._models])
        told = np.column_stack([told[:, 0], told[:, 2:].mean(axis=1), told[:, 1]])
        told.sort(axis=1)
        return told

    def spreads(self, rows: Sequence[Sequence[float]]) -> Numbers | None:
        """Return, a row each, the spread of the run times of the jobs most like it (shape (rows, BINS)); None where there is no forest."""
        if self._forest is None:
            return None
        return self._forest.spreads(np.asarray(rows, dtype=np.float64)[:, self._columns])

    def learn(self, row: Sequence[float], log_s: float) -> None:
        """A job with this row has ended since the fit; a model of several tenants does not change by it."""
        if self._forest is not None and not self._shared:
            self._forest.learn(np.asarray(row, dtype=np.float64)[self._columns], log_s)


def fit(sample: Sample, before: Model | None = None) -> Model | None:
    """Fit a model; None where the rows do not differ in anything.

    The columns that say nothing here (unknown throughout, or one value) are left out.
    """
    rows = np.asarray(sample.rows, dtype=np.float64)
    logs = np.asarray(sample.logs, dtype=np.float64)
    weights = 0.5 ** (np.arange(len(rows), dtype=np.float64)[::-1] / HALF_LIFE_JOBS)
    known = ~np.isnan(rows)
    least, most = np.where(known, rows, np.inf).min(axis=0), np.where(known, rows, -np.inf).max(axis=0)
    columns = np.flatnonzero((least < most) | (known.any(axis=0) & ~known.all(axis=0)))
    if not len(columns):
        return None
    ended = len(rows)
    if before is not None and len(sample.running_rows):
        more, more_logs = _redistributed(sample, before)
        rows, logs = np.vstack([rows, more]), np.append(logs, more_logs)
        weights = np.append(weights, np.full(len(more), 1.0 / len(CENSORED_SHARES)))
    taken = rows[:, columns]
    bins = Bins(taken)
    numbers = bins.numbers(taken)
    with _threads().limit(limits=1):
        models = [
            _trees("quantile", LOW).fit(numbers, logs, sample_weight=weights),
            _trees("quantile", HIGH).fit(numbers, logs, sample_weight=weights),
            _trees("squared_error", None).fit(numbers, logs, sample_weight=weights),
        ]
        if ended < len(logs):
            plain = _trees("squared_error", None)
            models.append(plain.fit(numbers[:ended], logs[:ended], sample_weight=weights[:ended]))
        flat = FlatTrees.of(models, bins, taken[-CHECKED_ROWS:])
        guarded = (
            _guarded(rows[:ended][-GUARD_ROWS:], logs[:ended][-GUARD_ROWS:]) if rows.shape[1] == len(COLUMNS) else None
        )
        forest = Forest.grown(taken[:ended], logs[:ended], weights[:ended], shared=sample.shared)
    return Model(models, columns, bins, flat, guarded, forest, shared=sample.shared)


def _guarded(rows: Numbers, logs: Numbers) -> Guard | None:
    """Leave each kind of job out in turn, and tell it from the others as if it came for the first time."""
    levels = rows[:, _LEVEL]
    levels = np.where(np.isnan(levels), np.median(logs), levels)
    first = rows.copy()
    first[:, _OF_KIND] = np.nan

    def told_without(held: Mask) -> Numbers:
        taught = rows[~held]
        columns = np.flatnonzero(np.nanmin(taught, axis=0, initial=np.inf) < np.nanmax(taught, axis=0, initial=-np.inf))
        if not len(columns):
            return np.asarray(levels[held])
        fitted = _trees("squared_error", None).fit(taught[:, columns], logs[~held])
        return np.asarray(fitted.predict(first[held][:, columns]), dtype=np.float64)

    return guard(rows[:, _KIND], levels, logs, told_without)


def _threads() -> Any:
    """Return what holds the OpenMP of scikit-learn, once it is loaded, to one thread: more only wait for each other on rows so few."""
    import sklearn.ensemble  # noqa: F401, PLC0415 - seconds of import, and only who fits needs it
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415

    return ThreadpoolController().select(user_api="openmp")


def _trees(loss: str, quantile: float | None) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 - seconds of import, and only who fits needs it

    return HistGradientBoostingRegressor(
        loss=loss, quantile=quantile, max_iter=30, learning_rate=0.1, max_leaf_nodes=10, min_samples_leaf=60, l2_regularization=1.0, max_bins=BINS_MAX + 1, early_stopping=False, random_state=0,
    )  # fmt: skip


def _redistributed(sample: Sample, before: Model) -> tuple[Numbers, Numbers]:
    """Return rows and logarithms of run times that stand for the jobs that still run, three each."""
    rows = np.asarray(sample.running_rows[-CENSORED_MAX:], dtype=np.float64)
    ages = np.asarray(sample.running_logs[-CENSORED_MAX:], dtype=np.float64)
    told = before.predict(list(rows))
    out = [beyond(told, ages, share) for share in CENSORED_SHARES]
    return np.tile(rows, (len(CENSORED_SHARES), 1)), np.concatenate(out)


def beyond(quantiles: Numbers, ages: Numbers, share: float) -> Numbers:
    """Return the quantile `share` of what lies beyond the ages, of distributions that are normal in the logarithm on either side of the
    middle. `quantiles` as `Model.predict` returns them; never less than the age.
    """
    out = np.empty(len(ages))
    for place, (low, middle, high) in enumerate(quantiles.tolist()):
        below, above = max(middle - low, SIDE_MIN) / _TENTH, max(high - middle, SIDE_MIN) / _TENTH
        age = float(ages[place])
        passed = _NORMAL.cdf((age - middle) / (below if age < middle else above))
        wanted = _NORMAL.inv_cdf(min(max(passed + share * (1.0 - passed), 1e-9), 1.0 - 1e-6))
        out[place] = max(middle + wanted * (below if wanted < 0 else above), age)
    return out
