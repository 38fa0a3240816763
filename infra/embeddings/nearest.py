"""The nearest of many vectors: exact, all inner products, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

ROWS_AT_FIRST: Final = 64
VECTORS_MAX: Final = 100_000
ORDERED_MAX: Final = 4_096  # more are not put in order to find the first few


class ExactIndex:
    """Vectors of unit length by place; the oldest beyond `vectors_max` are found no more."""

    def __init__(self, vectors_max: int = VECTORS_MAX) -> None:
        self._max = vectors_max
        self._count = 0
        self._rows: np.ndarray[Any, np.dtype[np.float32]] = np.zeros((0, 0), dtype=np.float32)

    @property
    def places_max(self) -> int:
        """How many of the newest places can be found."""
        return self._max

    def row(self, place: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return a copy of the vector at a place that is not forgotten."""
        if not self._count - self._max <= place < self._count:
            raise ValueError(f"place {place} is not held")
        row: np.ndarray[Any, np.dtype[np.float32]] = self._rows[place % self._max].copy()
        return row

    def add(self, place: int, vector: Sequence[float]) -> None:
        """Take in a vector under a number; places come in order, without a gap."""
        if place != self._count:
            raise ValueError(f"place {place} does not follow {self._count - 1}")
        row = place % self._max
        if row >= len(self._rows):
            grown = np.zeros((min(max(2 * len(self._rows), ROWS_AT_FIRST), self._max), len(vector)), dtype=np.float32)
            if len(self._rows):
                grown[: len(self._rows)] = self._rows
            self._rows = grown
        self._rows[row] = vector
        self._count += 1

    def nearest(self, vector: Sequence[float], count: int) -> list[tuple[int, float]]:
        """Return the places of the nearest with their similarity, nearest first; the newer of equals first."""
        held = min(self._count, self._max)
        if held == 0:
            return []
        similar = self._rows[:held] @ np.asarray(vector, dtype=np.float32)
        rows = np.arange(held)
        if held > max(ORDERED_MAX, count):
            rows = np.argpartition(similar, held - count)[held - count :]
        similar = similar[rows]
        places = rows if self._count <= self._max else rows + (self._count - 1 - rows) // self._max * self._max
        order = np.lexsort((-places, -similar))[:count]
        return [(int(places[n]), float(similar[n])) for n in order]
