"""Columns as bins, and boosted trees as flat arrays over the values themselves.

Bins are made once for the several models of a fit: scikit-learn bins weighted rows for seconds, a model each. The arrays are read out of
fitted HistGradientBoostingRegressors, whose own answer to a single row takes milliseconds of checks. How those keep their trees is
not part of their public face, so what comes out is compared with their own answer on the rows at hand, and not used where they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.float64]]
BINS_MAX: Final = 63
CHUNK_ROWS: Final = 256
_CLOSE: Final = 1e-9


class Bins:
    """The bins of columns: a value's number is that of the first edge that it does not pass; NaN stays NaN."""

    def __init__(self, rows: Numbers) -> None:
        self.edges: list[Numbers] = []
        for column in rows.T:
            values = np.unique(column[~np.isnan(column)])
            if len(values) > BINS_MAX:
                known = np.sort(column[~np.isnan(column)])
                places = (np.linspace(0.0, 1.0, BINS_MAX + 1)[1:] * (len(known) - 1)).astype(np.intp)
                values = np.unique(known[places])
            self.edges.append(values)

    def numbers(self, rows: Numbers) -> Numbers:
        """Return the bins' numbers of rows, as floats."""
        out = np.full(rows.shape, np.nan)
        for place, edges in enumerate(self.edges):
            column = rows[:, place]
            known = ~np.isnan(column)
            out[known, place] = np.searchsorted(edges, column[known], side="left")
        return out


class FlatTrees:
    """The trees of several regressors that were fitted on bins. `predict` takes values and gives a column a regressor."""

    def __init__(self, models: Sequence[Any], bins: Bins) -> None:
        nodes = [[tree[0].nodes for tree in model._predictors] for model in models]  # noqa: SLF001 - compared in `of`
        trees = [tree for of_model in nodes for tree in of_model]
        firsts = np.cumsum([0, *(len(tree) for tree in trees)])[:-1]
        every = np.concatenate(trees)
        if every["is_categorical"].any():
            raise ValueError("a tree splits by category")
        itself = np.arange(len(every))
        start = np.repeat(firsts, [len(tree) for tree in trees])
        leaf = every["is_leaf"].astype(bool)
        self._feature = np.where(leaf, 0, every["feature_idx"]).astype(np.intp)
        self._threshold = np.array(
            [
                _edge(bins, feature, number)
                for feature, number in zip(self._feature, every["num_threshold"], strict=True)
            ]
        )
        self._missing_left = every["missing_go_to_left"].astype(bool)
        self._left = np.where(leaf, itself, every["left"] + start)
        self._right = np.where(leaf, itself, every["right"] + start)
        self._value = every["value"].astype(np.float64)
        self._roots = firsts
        self._depth = int(every["depth"].max())
        self._sums_at = np.cumsum([0, *(len(of_model) for of_model in nodes)])[:-1]
        self._base = np.array([float(np.ravel(model._baseline_prediction)[0]) for model in models])  # noqa: SLF001

    @classmethod
    def of(cls, models: Sequence[Any], bins: Bins, rows: Numbers) -> Self | None:
        """Return the trees of fitted regressors, None where they do not answer as the regressors do on these rows of values."""
        try:
            made = cls(models, bins)
            told = made.predict(rows)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            return None
        numbers = bins.numbers(rows)
        own = np.column_stack([model.predict(numbers) for model in models])
        return made if np.allclose(told, own, rtol=0.0, atol=_CLOSE) else None

    def predict(self, rows: Numbers) -> Numbers:
        """Return the predictions, shape (rows, regressors)."""
        chunks = [self._some(rows[first : first + CHUNK_ROWS]) for first in range(0, len(rows), CHUNK_ROWS)]
        return np.concatenate(chunks) if chunks else np.empty((0, len(self._base)))

    def _some(self, rows: Numbers) -> Numbers:
        at = np.broadcast_to(self._roots, (len(rows), len(self._roots)))
        each = np.arange(len(rows))[:, None]
        for _ in range(self._depth):
            value = rows[each, self._feature[at]]
            to_left = np.where(np.isnan(value), self._missing_left[at], value <= self._threshold[at])
            at = np.where(to_left, self._left[at], self._right[at])
        told: Numbers = np.add.reduceat(self._value[at], self._sums_at, axis=1) + self._base
        return told


def _edge(bins: Bins, feature: int, number: float) -> float:
    """Return the value up to which rows go left, where bins go left up to a number."""
    edges = bins.edges[feature]
    return float(edges[int(number)]) if number < len(edges) else np.inf
