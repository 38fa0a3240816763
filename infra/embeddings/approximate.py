"""The nearest of very many vectors: the newest searched exactly, what is older by a graph (HNSW, Malkov and Yashunin 2018) of USearch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from schedmate.infra.embeddings.nearest import VECTORS_MAX, ExactIndex

OLDER_MAX: Final = 400_000
CONNECTIVITY: Final = 16
EXPANSION: Final = 128
"""How widely the graph looks while it is built and searched."""


def new_index() -> ExactIndex | LayeredIndex:
    """Return an index: without USearch the oldest vectors beyond `VECTORS_MAX` are found no more."""
    return LayeredIndex() if find_spec("usearch") is not None else ExactIndex()


class LayeredIndex:
    """Vectors of unit length by place. Exact for the newest `exact_max`, approximate for `older_max` before them; what is older is forgotten.

    Each vector moves into the graph as it grows old, so no search waits for a graph to be built. The graph keeps halves of floats, and works
    on the caller's thread alone.
    """

    def __init__(self, exact_max: int = VECTORS_MAX, older_max: int = OLDER_MAX) -> None:
        self._exact = ExactIndex(exact_max)
        self._exact_max, self._older_max = exact_max, older_max
        self._older: Any = None

    @property
    def places_max(self) -> int:
        """How many of the newest places can be found."""
        return self._exact_max + self._older_max

    def add(self, place: int, vector: Sequence[float]) -> None:
        """Take in a vector under a number; places come in order, without a gap."""
        leaves = place - self._exact_max
        row = self._exact.row(leaves) if leaves >= 0 else None
        self._exact.add(place, vector)
        if row is None:
            return
        if self._older is None:
            self._older = _graph(len(row))
        if leaves >= self._older_max:
            self._older.remove(leaves - self._older_max)
        self._older.add(leaves, row, threads=1)

    def nearest(self, vector: Sequence[float], count: int) -> list[tuple[int, float]]:
        """Return the places of the nearest with their similarity, nearest first; the newer of equals first."""
        found = self._exact.nearest(vector, count)
        if self._older is None:
            return found
        told = self._older.search(np.asarray(vector, dtype=np.float32), count, threads=1)
        found += [(int(k), 1.0 - float(d)) for k, d in zip(told.keys, told.distances, strict=True)]
        return sorted(found, key=lambda one: (-one[1], -one[0]))[:count]


def _graph(dimensions: int) -> Any:
    from usearch.index import Index  # noqa: PLC0415 - an optional extra

    return Index(
        ndim=dimensions, metric="ip", dtype="f16", connectivity=CONNECTIVITY, expansion_add=EXPANSION, expansion_search=EXPANSION
    )  # fmt: skip
