"""The spread of run times of the jobs most like a job: a forest of extremely randomised trees whose leaves keep what fell into them.

Trees: Geurts, Ernst and Wehenkel 2006, "Extremely randomized trees", Machine Learning 63; what a leaf keeps is a distribution (Meinshausen
2006, "Quantile regression forests", J. Mach. Learn. Res. 7), and goes on learning from every job that ends between two fits. Within a
leaf a run fades with those that came after it, so that a sweep is seen once a few of its jobs have ended. A forest for many tenants
keeps what it was fitted on, unfaded: nobody can flood a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np

from schedmate.services.history_estimator.spread import BINS, Numbers, placed

TREES: Final = 20
LEAF_MIN: Final = 40
COLUMNS_SHARE: Final = 0.5
DEPTH_MAX: Final = 24
LEAF_HALF_LIFE: Final = 50.0
"""In runs of one leaf."""
_FADE: Final = 0.5 ** (1.0 / LEAF_HALF_LIFE)

Places = np.ndarray[Any, np.dtype[np.intp]]


class Forest:
    """A fitted forest over rows of the columns that it was fitted on. `learn` changes what its leaves keep, never its trees."""

    def __init__(self, trees: Sequence[Any]) -> None:
        counts = [tree.node_count for tree in trees]
        self._roots = np.cumsum([0, *counts])[:-1]
        start = np.repeat(self._roots, counts)
        left = np.concatenate([tree.children_left for tree in trees])
        leaf = left < 0
        itself = np.arange(len(left))
        self._feature = np.where(leaf, 0, np.concatenate([tree.feature for tree in trees]))
        self._threshold = np.concatenate([tree.threshold for tree in trees])
        self._missing_left = np.concatenate([tree.missing_go_to_left for tree in trees]).astype(bool)
        self._left = np.where(leaf, itself, left + start)
        self._right = np.where(leaf, itself, np.concatenate([tree.children_right for tree in trees]) + start)
        self._leaf_at = np.cumsum(leaf) - 1
        self._depth = max(tree.max_depth for tree in trees)
        self._kept: Numbers = np.zeros((int(leaf.sum()), BINS))

    @classmethod
    def grown(cls, rows: Numbers, logs: Numbers, weights: Numbers, *, shared: bool) -> Self | None:
        """Grow a forest on rows, oldest first; None where its flat form does not answer as scikit-learn's own. `shared`: for many tenants."""
        from sklearn.ensemble import ExtraTreesRegressor  # noqa: PLC0415 - seconds of import, and only who fits needs it

        grown = ExtraTreesRegressor(
            TREES, min_samples_leaf=LEAF_MIN, max_features=COLUMNS_SHARE, max_depth=DEPTH_MAX, random_state=0
        ).fit(rows, logs, sample_weight=weights)
        try:
            made = cls([tree.tree_ for tree in grown.estimators_])
        except AttributeError:
            return None
        nodes = made._nodes(rows)
        if not np.array_equal(nodes - made._roots, grown.apply(rows)):
            return None
        lower, upper = placed(logs)
        for leaves in made._leaf_at[nodes].T:
            heavy = weights if shared else _FADE ** _later(leaves)
            np.add.at(made._kept, (leaves, lower), heavy * (1.0 - upper))
            np.add.at(made._kept, (leaves, lower + 1), heavy * upper)
        return made

    def spreads(self, rows: Numbers) -> Numbers:
        """Return the spread of run times for each row: that of its leaves, which count alike. Shape (rows, BINS)."""
        kept = self._kept[self._leaf_at[self._nodes(rows)]]
        told: Numbers = (kept / kept.sum(axis=2, keepdims=True)).mean(axis=1)
        return told

    def learn(self, row: Numbers, log_s: float) -> None:
        """A job with this row has ended."""
        leaves = self._leaf_at[self._nodes(row[None, :])[0]]
        lower, upper = placed(np.array([log_s]))
        self._kept[leaves] *= _FADE
        self._kept[leaves, lower[0]] += 1.0 - upper[0]
        self._kept[leaves, lower[0] + 1] += upper[0]

    def _nodes(self, rows: Numbers) -> Places:
        """Return the leaves of rows as nodes, shape (rows, trees). The trees compare single precision, as they were grown."""
        taken = rows.astype(np.float32)
        at = np.broadcast_to(self._roots, (len(rows), len(self._roots)))
        each = np.arange(len(rows))[:, None]
        for _ in range(self._depth):
            value = taken[each, self._feature[at]]
            to_left = np.where(np.isnan(value), self._missing_left[at], value <= self._threshold[at])
            at = np.where(to_left, self._left[at], self._right[at])
        return at


def _later(leaves: Places) -> Numbers:
    """Return, for each row, how many later rows fell into the same leaf."""
    order = np.argsort(leaves[::-1], kind="stable")
    sorted_ = leaves[::-1][order]
    first = np.append(0, np.flatnonzero(np.diff(sorted_)) + 1)
    out = np.empty(len(leaves))
    out[order] = np.arange(len(leaves)) - np.repeat(first, np.diff(np.append(first, len(leaves))))
    return out[::-1]
