"""Hashed features of a text: words and pairs of neighbouring words, by feature hashing with signs (Weinberger et al. 2009, "Feature hashing
for large scale multitask learning"). No model, no download, the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from math import sqrt
from typing import Final

from schedmate.infra.embeddings.port import TEXT_CHARACTERS_MAX, Vector

DIMENSIONS: Final = 256
_WORDS: Final = re.compile(r"[a-z0-9]+")


class HashedEmbedder:
    """Feature hashing; `dimensions` is the length of a vector."""

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        self._dimensions = dimensions

    @property
    def space(self) -> str:
        """Name what made the vectors."""
        return f"hashed-1/{self._dimensions}"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector a text."""
        return [self.vector(text) for text in texts]

    async def stop(self) -> None:
        """There is nothing to let go of."""

    def vector(self, text: str) -> Vector:
        """Return the vector of a text, of its last line where it has several."""
        words = _WORDS.findall(text[:TEXT_CHARACTERS_MAX].rpartition("\n")[2].lower())
        counts: dict[str, int] = {}
        for feature in (*words, *(f"{a} {b}" for a, b in pairwise(words))):
            counts[feature] = counts.get(feature, 0) + 1
        out = [0.0] * self._dimensions
        for feature, times in counts.items():
            digest = int.from_bytes(blake2b(feature.encode(), digest_size=8).digest(), "big")
            out[(digest >> 1) % self._dimensions] += (1.0 if digest & 1 else -1.0) * sqrt(times)
        return unit(out)


def unit(values: Sequence[float]) -> Vector:
    """Return a vector at unit length; zeros stay zeros."""
    length = sqrt(sum(v * v for v in values))
    return tuple(v / length for v in values) if length > 0 else tuple(0.0 for _ in values)
