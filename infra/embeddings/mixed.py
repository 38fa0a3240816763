"""A model's embedding of what a text means beside hashed features of its terms: a model knows that two words are alike, and not that two sizes are not.

Measured (docs/estimator.md): the model alone finds jobs of the same task better than hashed features and jobs of the same length worse; both
together are as good as the better one in either.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final

from schedmate.infra.embeddings.hashed import HashedEmbedder, unit
from schedmate.infra.embeddings.port import Embedder, Vector

SHARE: Final = 0.35
"""Of the similarity that is the model's; chosen on the development sets, where 0.2 to 0.5 were about equal."""


class MixedEmbedder:
    """A model for the first line of a text, hashed features for its last."""

    def __init__(self, model: Embedder) -> None:
        self._model, self._hashed = model, HashedEmbedder()

    @property
    def space(self) -> str:
        """Name what made the vectors."""
        return f"{self._model.space}+{self._hashed.space}/{SHARE}"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector a text; raises as the model does."""
        meanings = [text.partition("\n")[0] for text in texts]
        asked = list(dict.fromkeys(m for m in meanings if m.strip()))
        told = dict(zip(asked, await self._model.embed(asked) if asked else [], strict=True))
        if not told:  # how long its vectors are is not known before it has made one
            told = {"": (await self._model.embed(["."]))[0]} if texts else {}
        nothing = (0.0,) * len(next(iter(told.values()), ()))
        return [
            unit([*_scaled(told.get(m, nothing) if m.strip() else nothing, SHARE), *_scaled(terms, 1.0 - SHARE)])
            for m, terms in zip(meanings, await self._hashed.embed(texts), strict=True)
        ]

    async def stop(self) -> None:
        """Let go of the model."""
        await self._model.stop()


def _scaled(vector: Vector, share: float) -> list[float]:
    return [sqrt(share) * value for value in vector]
