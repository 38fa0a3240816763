"""The port `Embedder`: texts in, vectors of unit length out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Vector = tuple[float, ...]

TEXT_CHARACTERS_MAX = 4_000


class EmbedderUnavailableError(Exception):
    """The embedder did not answer, or answered no vectors. Nothing waits for it: what would have been found by likeness is not."""


class Embedder(Protocol):
    """Makes vectors of texts. Vectors of one `space` can be compared with each other, and with no others."""

    @property
    def space(self) -> str:
        """Name what made the vectors: the method, its version or the model, and the dimension where that is a choice."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector a text, of unit length (all zeros for a text that says nothing). Equal texts give equal vectors.

        A text of two lines says first what it means, as a person would, and then all that it says, in terms. Texts are taken up to
        `TEXT_CHARACTERS_MAX` characters.

        Raises:
            EmbedderUnavailableError: there are no vectors now.
        """
        ...

    async def stop(self) -> None:
        """Let go of connections."""
        ...
