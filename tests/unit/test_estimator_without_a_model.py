"""History-estimator with an embedding model that is absent, broken, slow, away or another one: likeness comes and goes, and nothing waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schedmate.cli.app import app
from schedmate.infra.clock import VirtualClock
from schedmate.infra.embeddings import local
from schedmate.infra.embeddings.hashed import HashedEmbedder
from schedmate.infra.embeddings.port import EmbedderUnavailableError, Vector
from schedmate.infra.settings import SettingsError
from schedmate.schemas.events import EstimateBasis, JobAnalyzed, WorkloadField
from schedmate.services.history_estimator import memory as memories
from schedmate.services.history_estimator.estimator import Rules
from schedmate.services.history_estimator.settings import HistoryEstimatorSettings
from schedmate.services.history_estimator.vectors import Vectors
from schedmate.services.history_estimator.wiring import build
from tests.advice import Job, memory_bus, memory_store
from tests.embedding_model import skip_without_the_libraries, tiny_model
from tests.estimating import Service, life


class Model(HashedEmbedder):
    """Hashed features of so many dimensions, which hangs or is away when told to."""

    hangs = away = False
    asked = 0

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.away:
            raise EmbedderUnavailableError("away")
        return await super().embed(texts)


class Modelled(Service):
    """A service that learns nothing and waits for its model for a moment."""

    def __init__(self, store, model: Model | None):
        self.clock = VirtualClock()
        super().__init__(store, model, self.clock, Rules(learn=False))
        self.memory._vectors = Vectors(model, self.clock, call_s=0.02)

    async def estimate(self, name: str) -> EstimateBasis:
        """Return what the estimate of a job rests on whose source is like that of the others and whose name and user are not."""
        job = Job(name, fields={"name": name, "user": name, "command": ("python", f"{name}.py")})
        return (await self.tell(job.submitted(), analyzed(job)))[-1].basis


def analyzed(job: Job) -> JobAnalyzed:
    told = {
        "framework": "pytorch",
        "model_name": "bert",
        "dataset": "wikitext",
        "task": "language_modeling",
        "epochs": 3,
    }
    fields = {name: WorkloadField(value=value, basis="explicit", confidence=1.0) for name, value in told.items()}
    return JobAnalyzed(job_id=job.id, pool="default", content_hash="a" * 64, fields=fields)


async def past(service: Modelled, jobs: int = 3) -> None:
    """Jobs that ended well, each of its own user."""
    for n in range(jobs):
        job = Job(f"past{n}", fields={"name": f"past{n}", "user": f"user{n}", "command": ("python", f"{n}.py")})
        told = life(job, 600 + n)
        await service.tell(told[0], analyzed(job), *told[1:])


async def test_a_model_that_hangs_costs_its_bound_once_and_likeness_is_back_when_it_is():
    model = Model()
    service = Modelled(await memory_store(), model)
    await past(service)
    assert await service.estimate("like") is EstimateBasis.SIMILAR_JOBS
    model.hangs = True
    service.memory._vectors._kept.clear()
    before = model.asked
    async with asyncio.timeout(60):  # without a bound: for ever
        assert [await service.estimate(f"during{n}") for n in range(5)] == [EstimateBasis.UNKNOWN] * 5
    assert model.asked == before + 1
    model.hangs = False
    service.clock.advance(31.0)
    assert await service.estimate("after") is EstimateBasis.SIMILAR_JOBS


async def test_a_start_with_a_model_that_hangs_or_is_away_goes_on_without_likeness(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memories, "REBUILT_WITHIN_S", 0.05)
    store = await memory_store()
    await past(Modelled(store, Model()))
    for trouble in ("hangs", "away"):
        model = Model()
        setattr(model, trouble, True)
        assert await Modelled(store, model).estimate(f"{trouble}-at-start") is EstimateBasis.UNKNOWN
    assert await Modelled(store, None).estimate("none") is EstimateBasis.UNKNOWN
    assert await Modelled(store, Model()).estimate("whole") is EstimateBasis.SIMILAR_JOBS


async def test_another_model_makes_all_vectors_anew_and_never_meets_those_of_the_one_before():
    store = await memory_store()
    await past(Modelled(store, Model(64)))
    again = Modelled(store, Model(100))
    assert await again.estimate("like") is EstimateBasis.SIMILAR_JOBS
    assert {len(v) for v in again.memory._vectors._kept.values()} == {100}


@pytest.mark.parametrize("trouble", ["absent", "broken", "no library"])
async def test_the_service_is_built_whatever_is_wrong_with_the_local_model(
    tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
):
    if trouble != "absent":
        tiny_model(tmp_path / local.DIRECTORY)
    if trouble == "broken":
        (tmp_path / local.DIRECTORY / local.MODEL).write_bytes(b"half a mod")
    if trouble == "no library":
        monkeypatch.setattr(local, "find_spec", lambda _: None)
    given = {"bus": await memory_bus(), "store": await memory_store()}
    assert build(HistoryEstimatorSettings(state_dir=tmp_path), **given) is not None
    with pytest.raises(SettingsError, match="SCHEDMATE_EMBEDDINGS"):
        build(HistoryEstimatorSettings(state_dir=tmp_path, embeddings="local"), **given)


def test_the_commands_bring_the_model_and_tell_what_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SCHEDMATE_STATE_DIR", str(tmp_path))
    shown = json.loads(CliRunner().invoke(app, ["embeddings", "show", "--json"]).stdout)
    assert (shown["setting"], shown["space"]) == ("auto", "hashed-1/256")
    assert "schedmate embeddings fetch" in shown["local_why_not"]
    (tmp_path / "not.jar").write_bytes(b"PK")
    for given in (["--from", str(tmp_path / "not.jar")], []):
        monkeypatch.setenv("SCHEDMATE_EMBEDDINGS_FROM", str(tmp_path / "not.jar"))
        refused = CliRunner().invoke(app, ["embeddings", "fetch", *given])
        assert isinstance(refused.exception, SettingsError)
        assert "its size differs" in str(refused.exception)
    skip_without_the_libraries()
    tiny_model(tmp_path / local.DIRECTORY)
    shown = json.loads(CliRunner().invoke(app, ["embeddings", "show", "--json"]).stdout)
    assert shown["space"].startswith("local/")
    assert shown["local_why_not"] is None
    assert "auto: local/" in CliRunner().invoke(app, ["embeddings", "show"]).stdout
