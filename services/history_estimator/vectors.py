"""The vectors of texts, kept by text, from an embedder that may be slow or away: no estimate waits longer than its bound, nor again and again."""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import structlog

from schedmate.infra.clock import Clock
from schedmate.infra.embeddings.port import Embedder, EmbedderUnavailableError

KEPT_MAX: Final = 50_000
CHUNK: Final = 32
CALL_S: Final = 2.0
REST_S: Final = 30.0

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Vectors:
    """Vectors of one embedder, so all of one space. After a failure it is left alone for `rest_s`."""

    def __init__(
        self, embedder: Embedder | None, clock: Clock, *, call_s: float = CALL_S, rest_s: float = REST_S
    ) -> None:
        self._embedder, self._clock = embedder, clock
        self._call_s, self._rest_s = call_s, rest_s
        self._kept: OrderedDict[str, Sequence[float]] = OrderedDict()
        self._rests_until = float("-inf")

    async def of(self, texts: Sequence[str], *, within_s: float | None = None) -> list[Sequence[float] | None]:
        """Return a vector a text, None where there is nothing to embed, nobody who does it or not the time; the first texts come first."""
        missing = [t for t in dict.fromkeys(texts) if t and t not in self._kept]
        made = await self._made(missing, within_s if within_s is not None else self._call_s) if missing else {}
        told = [self._kept.get(text) or made.get(text) for text in texts]
        self._kept.update(made)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return told

    async def _made(self, missing: Sequence[str], within_s: float) -> dict[str, Sequence[float]]:
        made: dict[str, Sequence[float]] = {}
        if self._embedder is None or self._clock.monotonic() < self._rests_until:
            return made
        try:
            async with asyncio.timeout(within_s):
                for first in range(0, len(missing), CHUNK):
                    chunk = missing[first : first + CHUNK]
                    vectors = await self._embedder.embed(chunk)
                    made.update(zip(chunk, (array("f", v) for v in vectors), strict=False))
        except (EmbedderUnavailableError, TimeoutError) as error:
            why = str(error) or f"not done within {within_s:g} s"
            log.warning("no embeddings", action="history.no_embeddings", error=why, texts=len(missing) - len(made))
            self._rests_until = self._clock.monotonic() + self._rest_s
        return made
