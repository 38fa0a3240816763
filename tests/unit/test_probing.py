"""Which jobs are worth measuring: clusters by likeness, what a probe told, and what the service says of it."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from schedmate.infra.embeddings.nearest import ExactIndex
from schedmate.infra.pacing import Budget
from schedmate.schemas.events import EstimateBasis, JobAnalyzed, WorkloadField
from schedmate.services.history_estimator import probing
from schedmate.services.history_estimator.estimate import UNKNOWN, Estimate
from schedmate.services.history_estimator.jobs import Job
from schedmate.services.history_estimator.probing import WIDTH_KNOWN, WIDTH_UNKNOWN, Clusters, Probes, width
from schedmate.services.history_estimator.record import JobRecord
from tests.advice import START, memory_store
from tests.advice import Job as Told
from tests.estimating import HASH, Service, life


def job(name: str = "x", *, vector: tuple[float, ...] | None = None, **given) -> Job:
    return Job(name, 0.0, user="ann", name=name, vector=vector, **given)


def at_angle(cosine: float) -> tuple[float, float]:
    return (cosine, sqrt(1 - cosine * cosine))


def wide(p10_s: float, p90_s: float) -> Estimate:
    return Estimate(EstimateBasis.LEARNED, p10_s, sqrt(p10_s * p90_s), p90_s)


def test_the_width_is_that_of_the_interval_and_bounded():
    assert width(wide(10.0, 100.0)) == pytest.approx(2.302, abs=0.001)
    assert width(wide(0.0, 1e12)) == width(UNKNOWN) == WIDTH_UNKNOWN
    assert width(wide(100.0, 100.0)) == 0.0


def test_jobs_are_together_by_likeness_where_they_match_else_by_name():
    clusters = Clusters(ExactIndex)
    first = clusters.of(job(vector=(1.0, 0.0)))
    assert clusters.of(job("y", vector=at_angle(0.95))) == first
    assert clusters.of(job(vector=at_angle(0.5))) != first
    assert clusters.of(job(vector=(1.0, 0.0), gpus=8)) != first
    assert clusters.of(job(vector=(1.0, 0.0), tenant="other")) != first
    assert clusters.of(job(vector=(1.0, 0.0), workload={"framework": "jax"})) != first
    for no_likeness in (clusters, Clusters(None)):
        named = no_likeness.of(job("bert-1", vector=(0.0, 0.0)))
        assert named == ("default", "named", "ann", "bert", "1")
        assert no_likeness.of(job("bert-22")) == named
    assert Clusters(ExactIndex).of(Job("j", 0.0)) == ("default", "named", "", "", "1")


def test_the_oldest_cells_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probing, "CELLS_MAX", 2)
    clusters = Clusters(ExactIndex)
    for tenant in ("a", "b", "c"):
        clusters.of(job(vector=(1.0, 0.0), tenant=tenant))
        clusters.of(job(vector=(0.0, 1.0), tenant=tenant))
    assert clusters.of(job(vector=(0.0, 1.0), tenant="c"))[-1] == "1"
    assert clusters.of(job(vector=(0.0, 1.0), tenant="a"))[-1] == "0"


def lives(probes: Probes, name: str, widths: list[float], from_s: float = 0.0) -> list[bool]:
    """Jobs of one name, an hour apart, each with an interval so wide; what was worth it ends before the next comes."""
    said = []
    for n, factor in enumerate(widths):
        cluster, worth = probes.ask(job(f"{name}-{n}"), wide(1.0, factor), from_s + n * 3_600.0)
        if worth:
            probes.ended(cluster)
        said.append(worth)
    return said


def test_a_cluster_whose_probes_narrow_it_goes_on_being_probed_and_one_whose_do_not_is_left():
    probes = Probes(Budget(10, reset_s=1e9, least=WIDTH_KNOWN))
    assert lives(probes, "learns", [900, 600, 400, 250, 160, 100, 60, 40, 25, 15, 10, 7, 5, 4, 3]) == [True] * 15
    assert lives(probes, "never", [900] * 15, 1e6) == [True] * 9 + [False] * 6  # the tenth hears that nine told nothing
    assert lives(probes, "known", [1.5] * 3, 2e6) == [False] * 3


def test_what_is_remembered_of_probes_that_never_end_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probing, "OF_TENANT_MAX", 1)
    probes = Probes(Budget(1_000))
    asked = [probes.ask(job(f"name{chr(97 + n)}"), wide(1.0, 900.0), float(n))[0] for n in range(20)]
    assert len(probes._before) == 8
    for cluster in asked:
        probes.ended(cluster)
    assert len(probes._ended) == 8
    assert not probes._before


# --- in the service ---


def analyzed(told: Told, model: str = "bert") -> JobAnalyzed:
    fields = {
        name: WorkloadField(value=value, basis="explicit", confidence=1.0)
        for name, value in (("framework", "pytorch"), ("model_name", model))
    }
    return JobAnalyzed(job_id=told.id, pool="default", content_hash=HASH, fields=fields)


async def words(service: Service, name: str, *, at: float = START, model: str = "bert") -> list[bool | None]:
    told = Told(name, fields={"name": name})
    return [s.worth_probing for s in await service.tell(told.submitted(), analyzed(told, model), at=at)]


async def test_without_a_budget_nothing_is_said_and_the_event_is_as_it_was():
    service = Service(await memory_store())
    assert await words(service, "a") == [None]
    (said,) = await service.tell(Told("b").submitted())
    assert "worth_probing" not in said.model_dump(mode="json")


async def test_the_word_comes_with_the_analysis_and_within_the_budget():
    service = Service(await memory_store(), probes_per_hour=2)
    models = ["bert", "llama", "resnet", "gan"]
    told = [await words(service, f"job{m}", model=m) for m in models]
    assert told == [[None, True], [None, True], [None, False], [None, False]]
    assert await words(service, "later", at=START + 3_601, model="gan") == [None, True]


async def test_it_is_said_once_and_redelivery_says_it_again_and_spends_nothing():
    store = await memory_store()
    service = Service(store, probes_per_hour=1)
    one = Told("one")
    first = await service.tell(one.submitted(), analyzed(one))
    again = await service.tell(one.submitted(), analyzed(one))
    assert [s.worth_probing for s in first] == [None, True]
    assert again == first[1:]
    assert await words(service, "two", model="gan") == [None, False]


async def test_what_was_spent_is_still_spent_after_a_restart():
    store = await memory_store()
    assert await words(Service(store, probes_per_hour=1), "one") == [None, True]
    assert await words(Service(store, probes_per_hour=1), "two", model="gan", at=START + 60) == [None, False]


async def test_a_job_that_is_known_well_is_told_so_at_once_and_one_that_runs_is_not_asked_about():
    service = Service(await memory_store(), probes_per_hour=5)
    for n in range(4):
        await service.tell(*life(Told(f"first{n}"), 600 + n))
    (said,) = await service.tell(Told("again").submitted())
    assert (said.basis, said.worth_probing) == (EstimateBasis.EXACT_PRIOR, None)  # its use of a GPU is not known
    again = JobRecord(job_id="again", pool="default")
    known = replace(wide(600.0, 601.0), sharing_class="tiny")
    assert await service.memory.worth_probing(again, known, START) is False
    running = Told("running", fields={"name": "other", "user": "bob"})
    told = await service.tell(running.submitted(), running.started(), analyzed(running))
    assert [s.worth_probing for s in told] == [None]


async def test_the_end_of_a_probed_job_is_what_its_cluster_learns_from():
    service = Service(await memory_store(), probes_per_hour=5)
    probed = Told("one", fields={"name": "first"})
    await service.tell(probed.submitted(), analyzed(probed))
    probes = service.memory._probes
    assert len(probes._before) == 1
    await service.tell(*life(probed, 600)[1:])
    assert (len(probes._before), len(probes._ended)) == (0, 1)
    await words(service, "next")
    assert not probes._ended
