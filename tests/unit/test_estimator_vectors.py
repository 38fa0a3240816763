"""Vectors of workloads: an embedder that is slow, away or broken costs likeness, never more time than its bound."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from schedmate.infra.clock import VirtualClock
from schedmate.infra.embeddings.port import EmbedderUnavailableError, Vector
from schedmate.services.history_estimator.vectors import CHUNK, Vectors


class Embedder:
    """Answers with the length of a text; raises or hangs when told to."""

    space = "lengths"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.wrong: BaseException | None = None
        self.hangs_at = -1

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        self.asked.append(list(texts))
        if len(self.asked) == self.hangs_at:
            await asyncio.Event().wait()
        if self.wrong is not None:
            raise self.wrong
        return [(float(len(text)),) for text in texts]

    async def stop(self) -> None:
        """Nothing to let go of."""


@pytest.fixture
def embedder() -> Embedder:
    return Embedder()


def plain(vectors: Sequence[Sequence[float] | None]) -> list[list[float] | None]:
    return [list(v) if v is not None else None for v in vectors]


async def test_a_text_is_embedded_once_and_an_empty_one_never(embedder: Embedder):
    vectors = Vectors(embedder, VirtualClock())
    assert plain(await vectors.of(["aa", "", "b", "aa"])) == [[2.0], None, [1.0], [2.0]]
    assert plain(await vectors.of(["b"])) == [[1.0]]
    assert embedder.asked == [["aa", "b"]]
    assert await Vectors(None, VirtualClock()).of(["aa"]) == [None]


@pytest.mark.parametrize("how", ["away", "slow"])
async def test_an_embedder_that_fails_is_left_alone_for_a_while(embedder: Embedder, how: str):
    clock = VirtualClock()
    vectors = Vectors(embedder, clock, call_s=0.02, rest_s=30)
    if how == "away":
        embedder.wrong = EmbedderUnavailableError("away")
    else:
        embedder.hangs_at = 1
    assert await vectors.of(["a"]) == [None]
    embedder.wrong = None
    clock.advance(29.0)
    assert await vectors.of(["a"]) == [None]
    assert len(embedder.asked) == 1
    clock.advance(2.0)
    assert plain(await vectors.of(["a"])) == [[1.0]]


async def test_of_many_texts_those_before_the_deadline_have_vectors_the_first_first(embedder: Embedder):
    vectors = Vectors(embedder, VirtualClock())
    embedder.hangs_at = 3
    told = await vectors.of([f"{n}" for n in range(10 * CHUNK)], within_s=0.05)
    assert [v is not None for v in told] == [n < 2 * CHUNK for n in range(10 * CHUNK)]


async def test_what_is_kept_is_bounded_and_an_answer_is_whole_all_the_same(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("schedmate.services.history_estimator.vectors.KEPT_MAX", 3)
    vectors = Vectors(embedder, VirtualClock())
    assert plain(await vectors.of(["a", "bb", "ccc", "dddd"])) == [[1.0], [2.0], [3.0], [4.0]]
    assert plain(await vectors.of(["a", "dddd"])) == [[1.0], [4.0]]
    assert embedder.asked == [["a", "bb", "ccc", "dddd"], ["a"]]
