"""The port `Embedder`, and the search of the nearest: what every adapter holds."""

from __future__ import annotations

import json
from math import sqrt

import httpx
import pytest

from schedmate.infra.adapters import make_embedder
from schedmate.infra.embeddings.hashed import HashedEmbedder
from schedmate.infra.embeddings.nearest import ExactIndex
from schedmate.infra.embeddings.ollama import OllamaEmbedder
from schedmate.infra.embeddings.port import EmbedderUnavailableError

TEXTS = [
    "framework pytorch task lm model bert",
    "framework pytorch task lm model gpt",
    "framework jax task detection",
    "",
]


def served(request: httpx.Request) -> httpx.Response:
    """What Ollama's endpoint answers: a vector a text, not of unit length."""
    asked = json.loads(request.content)
    vectors = [[float(len(text)), float(text.count("e")), 1.0] for text in asked["input"]]
    return httpx.Response(200, json={"model": asked["model"], "embeddings": vectors})


def ollama(answer=served, **given) -> OllamaEmbedder:
    return OllamaEmbedder("http://127.0.0.1:1", "small", transport=httpx.MockTransport(answer), **given)


@pytest.fixture(params=["hashed", "ollama"])
async def embedder(request: pytest.FixtureRequest):
    made = HashedEmbedder() if request.param == "hashed" else ollama()
    yield made
    await made.stop()


async def test_every_text_has_a_vector_of_unit_length_the_same_each_time(embedder):
    vectors = await embedder.embed(TEXTS)
    assert await embedder.embed(TEXTS) == vectors
    assert len({len(v) for v in vectors}) == 1
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert not any(vector) or sqrt(sum(x * x for x in vector)) == pytest.approx(1.0, abs=1e-6), text
    assert embedder.space
    assert await embedder.embed([]) == []


async def test_a_batch_of_any_size_is_the_same_as_one_after_the_other(embedder):
    many = [f"word{n} text" for n in range(70)]
    assert await embedder.embed(many) == [(await embedder.embed([text]))[0] for text in many]


async def test_hashed_features_put_like_texts_near_each_other():
    a, b, c, _ = await HashedEmbedder().embed(TEXTS)
    near, far = (sum(x * y for x, y in zip(a, other, strict=True)) for other in (b, c))
    assert near > 0.6
    assert far < 0.5
    hostile = HashedEmbedder().vector("\x00\ud800 é " * 100_000)
    assert len(hostile) == len(a)


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: httpx.Response(500), lambda _: httpx.Response(200, json={"model": "small", "embeddings": []}),
        lambda _: httpx.Response(200, json={"model": "small", "embeddings": [[]]}), lambda _: httpx.Response(200, text="nonsense"),
        lambda _: (_ for _ in ()).throw(httpx.ConnectError("away")),
    ],
)  # fmt: skip
async def test_a_server_that_gives_no_vectors_is_unavailable(answer):
    embedder = ollama(answer)
    with pytest.raises(EmbedderUnavailableError):
        await embedder.embed(["text"])
    await embedder.stop()


async def test_the_setting_names_the_embedder():
    assert make_embedder("none") is None
    for written, space in (("hashed", "hashed-1/256"), ("ollama:nomic@http://127.0.0.1:9", "ollama/nomic")):
        made = make_embedder(written)
        assert made.space == space
        await made.stop()


def test_the_nearest_are_found_newest_first_among_equals_and_the_oldest_are_forgotten():
    index = ExactIndex(vectors_max=100)
    assert index.nearest((1.0, 0.0), 3) == []
    for n in range(250):
        index.add(n, (1.0, 0.0) if n % 2 else (0.0, 1.0))
    assert index.nearest((1.0, 0.0), 2) == [(249, 1.0), (247, 1.0)]
    assert min(place for place, _ in index.nearest((1.0, 0.0), 1000)) == 150
    with pytest.raises(ValueError, match="place 7 does not follow 249"):
        index.add(7, (1.0, 0.0))


def test_the_nearest_of_many_are_those_of_all(seed: int):
    import numpy as np  # noqa: PLC0415 - only here

    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(6_000, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = ExactIndex()
    for n, vector in enumerate(vectors):
        index.add(n, vector)
    asked = vectors[17]
    wanted = np.argsort(-(vectors @ asked))[:5].tolist()
    assert [place for place, _ in index.nearest(asked, 5)] == wanted
