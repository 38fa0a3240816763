"""The port `Embedder`, and the search of the nearest: what every adapter holds."""

from __future__ import annotations

import json
import threading
from math import sqrt
from pathlib import Path

import httpx
import numpy as np
import pytest

from schedmate.infra.adapters import make_embedder
from schedmate.infra.embeddings import approximate, local
from schedmate.infra.embeddings.approximate import LayeredIndex
from schedmate.infra.embeddings.hashed import HashedEmbedder
from schedmate.infra.embeddings.mixed import MixedEmbedder
from schedmate.infra.embeddings.nearest import ExactIndex
from schedmate.infra.embeddings.ollama import OllamaEmbedder
from schedmate.infra.embeddings.port import EmbedderUnavailableError
from schedmate.infra.settings import SettingsError
from tests.embedding_model import DIMENSIONS, LETTERS, real_model, skip_without_the_libraries, tiny_model, write_sums

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


def tiny(tmp_path: Path, **given) -> local.LocalEmbedder:
    skip_without_the_libraries()
    return local.LocalEmbedder(tiny_model(tmp_path / "model"), **given)


@pytest.fixture(params=["hashed", "ollama", "local", "local-real", "mixed"])
async def embedder(request: pytest.FixtureRequest, tmp_path: Path):
    makers = {
        "hashed": HashedEmbedder, "ollama": ollama, "local": lambda: tiny(tmp_path),
        "local-real": lambda: local.LocalEmbedder(real_model()), "mixed": lambda: MixedEmbedder(ollama()),
    }  # fmt: skip
    made = makers[request.param]()
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


async def test_the_setting_names_the_embedder(tmp_path: Path):
    assert make_embedder("none", tmp_path) is None
    for written, space in (
        ("hashed", "hashed-1/256"),
        ("ollama:nomic@http://127.0.0.1:9", "ollama/nomic+hashed-1/256/0.35"),
        ("auto", "hashed-1/256"),
    ):
        made = make_embedder(written, tmp_path)
        assert made.space == space
        await made.stop()


async def test_auto_takes_the_local_model_where_it_is_whole_and_local_insists_on_it(tmp_path: Path):
    skip_without_the_libraries()
    with pytest.raises(SettingsError, match="schedmate embeddings fetch"):
        make_embedder("local", tmp_path)
    directory = tiny_model(tmp_path / local.DIRECTORY)
    for written in ("auto", "local", f"local:{directory}"):
        made = make_embedder(written, tmp_path)
        assert made.space.startswith("local/")
        await made.stop()
    (directory / local.MODEL).write_bytes(b"cut off")
    assert make_embedder("auto", tmp_path).space == "hashed-1/256"
    with pytest.raises(SettingsError, match="is broken"):
        make_embedder("local", tmp_path)


async def test_without_its_libraries_the_local_model_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tiny_model(tmp_path / local.DIRECTORY)
    monkeypatch.setattr(local, "find_spec", lambda name: None if name == "onnxruntime" else object())
    assert make_embedder("auto", tmp_path).space == "hashed-1/256"
    with pytest.raises(SettingsError, match="onnxruntime not installed: install the extra `embeddings`"):
        make_embedder("local", tmp_path)


async def test_another_model_is_another_space(tmp_path: Path):
    one = tiny(tmp_path)
    other = local.LocalEmbedder(
        tiny_model(tmp_path / "other", table=np.ones((len(LETTERS) + 1, DIMENSIONS))),
    )
    assert one.space != other.space
    assert tiny(tmp_path).space == one.space


async def test_a_model_that_cannot_be_loaded_or_takes_too_long_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = tiny(tmp_path)
    for name, content in ((local.MODEL, b"no model"), (local.TOKENIZER, b"{}")):
        kept = (tmp_path / "model" / name).read_bytes()
        (tmp_path / "model" / name).write_bytes(content)
        write_sums(tmp_path / "model")  # the files are what they were written as, and no model
        broken = local.LocalEmbedder(tmp_path / "model")
        with pytest.raises(EmbedderUnavailableError, match="the local model failed"):
            await broken.embed(["text"])
        await broken.stop()
        (tmp_path / "model" / name).write_bytes(kept)
    await made.embed(["text"])
    waits = threading.Event()
    slow = local.LocalEmbedder(tiny_model(tmp_path / "slow"), timeout_s=0.05)
    monkeypatch.setattr(slow, "_some", lambda _: waits.wait() and [])
    with pytest.raises(EmbedderUnavailableError, match=r"took more than 0\.05 s"):
        await slow.embed(["text"])
    waits.set()
    await slow.stop()
    await made.stop()
    with pytest.raises(EmbedderUnavailableError, match="was stopped"):
        await made.embed(["text"])


async def test_hostile_texts_get_a_vector_from_the_local_model(embedder):
    hostile = ["\x00\ud800 é " * 100_000, "a" * 1_000_000, "\n\t", "🜁" * 5_000]
    try:
        vectors = await embedder.embed(hostile)
    except EmbedderUnavailableError:
        assert isinstance(embedder, OllamaEmbedder | MixedEmbedder)  # JSON takes no lone surrogates
        return
    assert {len(v) for v in vectors} == {len(v) for v in await embedder.embed(["text"])}


async def test_the_real_model_puts_meanings_near_each_other():
    made = local.LocalEmbedder(real_model())
    cat, kitten, tax = await made.embed(["a cat sits on the mat", "a kitten rests on a rug", "quarterly tax report"])
    await made.stop()
    assert len(cat) == 384
    near, far = (sum(x * y for x, y in zip(cat, other, strict=True)) for other in (kitten, tax))
    assert near > 0.5
    assert far < 0.2


def cosine(a, b) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


async def test_a_model_tells_meanings_and_hashed_features_tell_sizes():
    mixed = MixedEmbedder(HashedEmbedder(64))
    texts = ["a cat\nepochs size9", "a cat\nepochs size20", "a dog\nepochs size9", "\nepochs size9", "a cat\n"]
    same, other_size, other_word, wordless, termless = await mixed.embed(texts)
    assert cosine(same, other_word) > 0.6  # the terms' share
    assert 0.3 < cosine(same, other_size) < cosine(same, other_word)
    assert cosine(same, wordless) == pytest.approx(sqrt(0.65))
    assert cosine(same, termless) == pytest.approx(sqrt(0.35))
    assert len(wordless) == len(same)
    assert [len(v) for v in await mixed.embed(["\nepochs size9", ""])] == [len(same)] * 2
    assert await mixed.embed(["\nepochs size9"]) == [wordless]


async def test_a_model_that_is_away_is_away_for_both():
    mixed = MixedEmbedder(ollama(lambda _: httpx.Response(500)))
    with pytest.raises(EmbedderUnavailableError):
        await mixed.embed(["a cat\nepochs size9"])
    await mixed.stop()


# --- the nearest ---


def drawn(seed: int, count: int, dimensions: int = 32, kinds: int = 60) -> np.ndarray:
    """Vectors of unit length around so many centres, as those of workloads lie."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(kinds, dimensions))
    vectors = centres[draw.integers(0, kinds, count)] + 0.5 * draw.normal(size=(count, dimensions))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def layered(exact_max: int, older_max: int) -> LayeredIndex:
    pytest.importorskip("usearch", reason="the extra `vectors` is not installed")
    return LayeredIndex(exact_max, older_max)


def test_beyond_the_exact_ones_at_least_95_of_100_are_found_and_what_is_too_old_is_not(seed: int):
    vectors = drawn(seed, 4_000)
    index = layered(500, 2_000)
    for place, vector in enumerate(vectors):
        index.add(place, vector.tolist())
    assert index.places_max == 2_500
    oldest = len(vectors) - 2_500
    found = wanted = 0
    for asked in drawn(seed + 1, 100):
        near = index.nearest(asked.tolist(), 10)
        similar = vectors @ asked
        assert [s for _, s in near] == sorted((s for _, s in near), reverse=True)
        assert all(s == pytest.approx(similar[place], abs=0.01) for place, s in near)
        assert min(place for place, _ in near) >= oldest
        truth = np.argsort(-similar[oldest:])[:10] + oldest
        found, wanted = found + len(set(truth.tolist()) & {place for place, _ in near}), wanted + 10
    assert found / wanted >= 0.95
    assert len(index._graph) == len(index._older) == 2_000


def test_of_many_equal_vectors_the_newest_are_found_and_the_rare_among_them_too(seed: int):
    points = drawn(seed, 100, kinds=100)
    kinds = np.random.default_rng(seed).zipf(1.3, 3_000) % 100
    index = layered(100, 2_000)
    for place, kind in enumerate(kinds):
        index.add(place, points[kind].tolist())
    assert len(index._graph) == len(set(kinds[900:2_900].tolist()))
    oldest = 900
    for kind in range(100):
        near = index.nearest(points[kind].tolist(), 10)
        places = [place for place in range(2_999, oldest - 1, -1) if kinds[place] == kind][:10]
        assert {place for place, _ in near} >= set(places)
        assert len(near) == 10


def test_two_layered_indexes_find_the_same(seed: int):
    vectors = drawn(seed, 1_500)
    one, other = layered(100, 1_000), layered(100, 1_000)
    for place, vector in enumerate(vectors):
        one.add(place, vector.tolist())
        other.add(place, vector.tolist())
    asked = vectors[3].tolist()
    assert one.nearest(asked, 10) == other.nearest(asked, 10)


def test_up_to_its_exact_ones_a_layered_index_is_exact_and_needs_no_library(seed: int):
    index, exact = LayeredIndex(1_000, 10), ExactIndex()
    for place, vector in enumerate(drawn(seed, 1_000)):
        index.add(place, vector.tolist())
        exact.add(place, vector.tolist())
    assert index.nearest((1.0,) * 32, 10) == exact.nearest((1.0,) * 32, 10)
    with pytest.raises(ValueError, match="place 5 does not follow"):
        index.add(5, (1.0,) * 32)


def test_without_the_library_the_newest_stay_exact(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(approximate, "find_spec", lambda _: None)
    index = approximate.new_index()
    assert isinstance(index, ExactIndex)
    assert index.places_max == 100_000
    with pytest.raises(ValueError, match="place 0 is not held"):
        index.row(0)
    monkeypatch.setattr(approximate, "find_spec", lambda _: object())
    assert isinstance(approximate.new_index(), LayeredIndex)


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
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(6_000, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = ExactIndex()
    for n, vector in enumerate(vectors):
        index.add(n, vector)
    asked = vectors[17]
    wanted = np.argsort(-(vectors @ asked))[:5].tolist()
    assert [place for place, _ in index.nearest(asked, 5)] == wanted
