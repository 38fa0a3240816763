"""Ollama's embedding endpoint, through its official client; every wait is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import isfinite
from typing import Final

import httpx
import ollama

from schedmate.infra.embeddings.hashed import unit
from schedmate.infra.embeddings.port import TEXT_CHARACTERS_MAX, EmbedderUnavailableError, Vector

CONNECT_TIMEOUT_S: Final = 2.0
BATCH: Final = 32


class OllamaEmbedder:
    """One embedding model of one Ollama server. An answer that takes longer than `timeout_s` is none."""

    def __init__(
        self, url: str, model: str, *, timeout_s: float = 10.0, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._url, self._model, self._timeout_s = url, model, timeout_s
        self._client = ollama.AsyncClient(
            host=url, follow_redirects=False, timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            **({} if transport is None else {"transport": transport}),
        )  # fmt: skip

    @property
    def space(self) -> str:
        """Name what made the vectors."""
        return f"ollama/{self._model}"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector a text.

        Raises:
            EmbedderUnavailableError: the server did not answer in time, refused, or answered no vectors.
        """
        out: list[Vector] = []
        for first in range(0, len(texts), BATCH):
            out += await self._some([text[:TEXT_CHARACTERS_MAX] or " " for text in texts[first : first + BATCH]])
        return out

    async def stop(self) -> None:
        """Close the connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def _some(self, texts: list[str]) -> list[Vector]:
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._client.embed(model=self._model, input=texts)
        except (TimeoutError, OSError, httpx.HTTPError, ollama.ResponseError, ValueError) as error:
            raise EmbedderUnavailableError(f"{self._model} at {self._url}: {type(error).__name__}") from error
        vectors = answer.embeddings
        if len(vectors) != len(texts) or not all(len(v) and all(isfinite(x) for x in v) for v in vectors):
            raise EmbedderUnavailableError(f"{self._model} at {self._url} gave no vector for each text")
        return [unit(vector) for vector in vectors]
