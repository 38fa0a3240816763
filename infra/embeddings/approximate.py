"""The nearest of very many vectors: the newest searched exactly, what is older by a graph (HNSW, Malkov and Yashunin 2018) of USearch."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from typing import Any, Final

import numpy as np

from schedmate.infra.embeddings.nearest import VECTORS_MAX, ExactIndex

OLDER_MAX: Final = 400_000
CONNECTIVITY: Final = 16
EQUAL_DIGITS: Final = 5  # the graph and the exact search add up in another order
EXPANSION: Final = 128
"""How widely the graph looks while it is built and searched."""


def new_index() -> ExactIndex | LayeredIndex:
    """Return an index: without USearch the oldest vectors beyond `VECTORS_MAX` are found no more."""
    return LayeredIndex() if find_spec("usearch") is not None else ExactIndex()


class LayeredIndex:
    """Vectors of unit length by place. Exact for the newest `exact_max`, approximate for `older_max` before them; what is older is forgotten.

    Each vector moves into the graph as it grows old, so no search waits for a graph to be built. The graph works on the caller's thread
    alone. Equal vectors are one point of it: among thousands of equals the ways to the rare ones get lost.
    """

    def __init__(self, exact_max: int = VECTORS_MAX, older_max: int = OLDER_MAX) -> None:
        self._exact = ExactIndex(exact_max)
        self._exact_max, self._older_max = exact_max, older_max
        self._graph: Any = None
        self._points: dict[bytes, _Point] = {}
        self._by_number: dict[int, _Point] = {}
        self._older: deque[bytes] = deque()  # the points of the places in the graph, the oldest first

    @property
    def places_max(self) -> int:
        """How many of the newest places can be found."""
        return self._exact_max + self._older_max

    def add(self, place: int, vector: Sequence[float]) -> None:
        """Take in a vector under a number; places come in order, without a gap."""
        leaves = place - self._exact_max
        row = self._exact.row(leaves) if leaves >= 0 else None
        self._exact.add(place, vector)
        if row is not None:
            self._grow_old(leaves, row)

    def nearest(self, vector: Sequence[float], count: int) -> list[tuple[int, float]]:
        """Return the places of the nearest with their similarity, nearest first; the newer of equals first."""
        found = self._exact.nearest(vector, count)
        if self._graph is None:
            return found
        told = self._graph.search(np.asarray(vector, dtype=np.float32), count, threads=1)
        for number, distance in zip(told.keys, told.distances, strict=True):
            places = self._by_number[int(number)].places
            found += [(place, 1.0 - float(distance)) for place in islice(reversed(places), count)]
        alike = ((place, round(similarity, EQUAL_DIGITS)) for place, similarity in found)
        return sorted(alike, key=lambda one: (-one[1], -one[0]))[:count]

    def _grow_old(self, place: int, row: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        if self._graph is None:
            self._graph = _graph(len(row))
        if len(self._older) == self._older_max:
            self._forget()
        digest = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
        point = self._points.get(digest)
        if point is None:
            point = self._points[digest] = self._by_number[place] = _Point(place)
            self._graph.add(place, row, threads=1)
        point.places.append(place)
        self._older.append(digest)

    def _forget(self) -> None:
        digest = self._older.popleft()
        point = self._points[digest]
        point.places.popleft()
        if not point.places:
            del self._points[digest], self._by_number[point.number]
            self._graph.remove(point.number)


@dataclass(slots=True)
class _Point:
    """A point of the graph, by the place that made it, and the places of its vector."""

    number: int
    places: deque[int] = field(default_factory=deque)


def _graph(dimensions: int) -> Any:
    from usearch.index import Index  # noqa: PLC0415 - an optional extra

    return Index(
        ndim=dimensions, metric="ip", dtype="f32", connectivity=CONNECTIVITY, expansion_add=EXPANSION, expansion_search=EXPANSION
    )  # fmt: skip
