"""history-estimator: records merge whatever the order, estimates rest on the right jobs, repeats change nothing."""

from __future__ import annotations

import itertools

import pytest

from schedmate.infra.clock import SeededRandom
from schedmate.infra.embeddings.hashed import HashedEmbedder
from schedmate.infra.embeddings.port import EmbedderUnavailableError
from schedmate.schemas.events import (
    EstimateBasis,
    JobAssigned,
    JobCancelled,
    JobFailed,
    JobSubmitted,
    RunExited,
    RunExitedV2,
    RunUsage,
    WorkloadField,
)
from schedmate.services.history_estimator.estimate import from_progress, quantile
from schedmate.services.history_estimator.record import JobRecord, take_decision, take_exit, take_submission
from schedmate.services.history_estimator.settings import HistoryEstimatorSettings
from schedmate.services.history_estimator.wiring import build
from tests.advice import START, Job, envelope, events_on, memory_bus, memory_store, publish, serving
from tests.estimating import HASH, Service, analyzed, decided, life, progress

OTHER = "b" * 64


def used(job: Job, *, member: int = 0, measured_s: float = 60.0, **given):
    base = {
        "gpu_utilisation": 0.2,
        "gpu_memory_utilisation": 0.1,
        "gpu_memory_bytes": 4 << 30,
        "gpu_memory_total_bytes": 40 << 30,
    }
    usage = RunUsage(measured_s=measured_s, gpu_held_s=measured_s, gpu_busy_s=0.0, **{**base, **given})
    return RunExitedV2(**dict(job.exited(0, member=member, at=START + 100)), usage=usage)


def told(*events) -> JobRecord:
    record = JobRecord(job_id="j", pool="default")
    for event in events:
        if isinstance(event, JobSubmitted):
            take_submission(record, event.spec, event.submitted_at)
        elif isinstance(event, RunExited):
            take_exit(record, event)
        else:
            take_decision(record, event)
    return JobRecord.read(record.body())


def test_what_a_worker_measured_of_a_run_is_what_is_known_of_its_kind_whatever_the_order_and_however_often():
    job = Job()
    events = [
        job.submitted(), used(job), used(job, member=1, gpu_utilisation=0.6, gpu_memory_bytes=5 << 30), decided(job),
    ]  # fmt: skip
    for order in itertools.permutations([*events, events[1]]):
        record = told(*order)
        known = record.job()
        assert known is not None
        ended = record.ended(known)
        assert ended is not None
        assert ended.gpu_utilisation == pytest.approx(0.4)
        assert (ended.gpu_memory_bytes, ended.sharing_class) == (5 << 30, "medium")


@pytest.mark.parametrize(
    ("exit_", "known"),
    [
        (lambda job: job.exited(0, at=START + 100), (None, None, None)),
        (lambda job: used(job, measured_s=19.0), (None, None, None)),  # a fifth of its run, or a minute
        (lambda job: used(job, measured_s=20.0), (0.2, 4 << 30, "tiny")),
        (lambda job: used(job, gpu_utilisation=None), (None, None, None)),
        (lambda job: used(job, gpu_memory_utilisation=None), (0.2, 4 << 30, None)),
        (lambda job: used(job, gpu_memory_bytes=None, gpu_memory_total_bytes=None), (0.2, None, None)),
        (lambda job: used(job, gpu_utilisation=0.9), (0.9, 4 << 30, "jumbo")),
    ],
)
def test_what_was_not_measured_for_long_enough_is_not_known(exit_, known):
    job = Job()
    record = told(job.submitted(), exit_(job), decided(job))
    of = record.job()
    assert of is not None
    ended = record.ended(of)
    assert ended is not None
    assert (ended.gpu_utilisation, ended.gpu_memory_bytes, ended.sharing_class) == known
    assert ("used" in record.body()["attempts"]["1"]) == (known[0] is not None)


@pytest.fixture
async def service():
    return Service(await memory_store())


async def test_a_job_of_which_nothing_is_known_is_unknown_without_numbers(service):
    (said,) = await service.tell(Job().submitted())
    assert (said.basis, said.revision) == (EstimateBasis.UNKNOWN, 1)
    assert (said.p10_s, said.p50_s, said.p90_s, said.early_end_risk, said.similar) == (None, None, None, None, ())


async def test_a_job_like_one_that_was_measured_is_foretold_its_use_of_gpus(service):
    first = Job("first")
    await service.tell(first.submitted(), first.started(), used(first), decided(first))
    (said,) = await service.tell(Job("again").submitted())
    assert (said.similar, said.gpu_utilisation, said.gpu_memory_bytes) == (("first",), 0.2, 4 << 30)


async def test_a_job_that_repeats_another_gets_its_run_time(service):
    await service.tell(*life(Job("first"), 600))
    (said,) = await service.tell(Job("again").submitted())
    assert (said.basis, said.p50_s, said.similar) == (EstimateBasis.EXACT_PRIOR, 600.0, ("first",))
    assert said.p10_s < 600 < said.p90_s


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "other"},
        {"user": "bob"},
        {"tenant": "robotics"},
        {"command": ("python", "other.py")},
        {"gpus": 2},
        {"nodes": 2},
        {"bundle": HASH},
    ],
)
async def test_a_job_that_differs_in_any_part_is_no_repeat(service, fields):
    await service.tell(*life(Job("first"), 600))
    (said,) = await service.tell(Job("second", fields=fields).submitted())
    assert said.basis is EstimateBasis.UNKNOWN


async def test_the_median_of_the_users_jobs_serves_when_there_are_enough(service):
    for n, duration in enumerate((100, 200, 900)):
        await service.tell(*life(Job(f"job-{n}", fields={"name": f"n{n}"}), duration))
    (said,) = await service.tell(Job("new", fields={"name": "new"}).submitted())
    assert (said.basis, said.p50_s) == (EstimateBasis.USER_MEDIAN, 200.0)
    (elsewhere,) = await service.tell(Job("x", fields={"name": "new", "tenant": "robotics"}).submitted())
    assert elsewhere.basis is EstimateBasis.UNKNOWN


async def test_jobs_of_the_same_size_are_preferred(service):
    for n, (gpus, duration) in enumerate(itertools.product((1, 8), (100, 110, 120))):
        await service.tell(*life(Job(f"job-{n}", fields={"name": f"n{n}", "gpus": gpus}), duration * gpus))
    (said,) = await service.tell(Job("new", fields={"name": "new", "gpus": 8}).submitted())
    assert said.p50_s == 880.0


async def test_failed_and_cancelled_jobs_give_a_risk_and_no_run_time(service):
    await service.tell(*life(Job("a"), 5, JobFailed), *life(Job("b"), 7, JobCancelled), *life(Job("c"), 600))
    (said,) = await service.tell(Job("new").submitted())
    assert (said.p50_s, said.similar) == (600.0, ("c",))
    assert 0.5 < said.early_end_risk < 0.8  # as a hazard: two of three ended early, within seconds of 600


async def test_an_analysis_that_shows_other_source_makes_the_repeat_merely_similar(service):
    await service.tell(*life(Job("first"), 600, content_hash=HASH))
    new = Job("again")
    first, second = await service.tell(new.submitted(), analyzed(new, OTHER))
    assert (first.basis, first.revision) == (EstimateBasis.EXACT_PRIOR, 1)
    assert (second.basis, second.revision, second.p50_s) == (EstimateBasis.SIMILAR_JOBS, 2, 600.0)


async def test_an_analysis_that_changes_nothing_gives_no_new_revision(service):
    await service.tell(*life(Job("first"), 600, content_hash=HASH))
    new = Job("again")
    assert len(await service.tell(new.submitted(), analyzed(new, HASH))) == 1


async def test_an_analysis_that_comes_before_its_job_is_used(service):
    await service.tell(*life(Job("first"), 600, content_hash=HASH))
    new = Job("again")
    (said,) = await service.tell(analyzed(new, OTHER), new.submitted())
    assert said.basis is EstimateBasis.SIMILAR_JOBS


async def test_progress_refines_and_is_throttled(service):
    job = Job()
    await service.tell(job.submitted(), job.started())
    (said,) = await service.tell(progress(job, eta_s=900, fraction=0.1), at=START + 100)
    assert (said.basis, said.p50_s, said.revision) == (EstimateBasis.PROGRESS, 1000.0, 2)
    assert said.p10_s < 1000 < said.p90_s
    assert await service.tell(progress(job, eta_s=500, fraction=0.2, offset=20), at=START + 110) == []
    assert await service.tell(progress(job, eta_s=860, fraction=0.2, offset=30), at=START + 150) == []
    (moved,) = await service.tell(progress(job, eta_s=400, fraction=0.3, offset=40), at=START + 200)
    assert (moved.p50_s, moved.revision) == (600.0, 3)


@pytest.mark.parametrize("fraction", [0.001, 0.0])
async def test_a_run_that_has_hardly_begun_says_nothing(service, fraction):
    job = Job()
    await service.tell(job.submitted(), job.started())
    assert await service.tell(progress(job, eta_s=900, fraction=fraction), at=START + 10) == []


async def test_progress_of_a_run_whose_start_is_not_known_or_that_has_ended_says_nothing(service):
    job = Job()
    await service.tell(job.submitted())
    assert await service.tell(progress(job, eta_s=9, fraction=0.5), at=START + 10) == []
    await service.tell(job.started(), job.exited(0), decided(job))
    assert await service.tell(progress(job, eta_s=9, fraction=0.5), at=START + 10) == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
async def test_whatever_the_order_and_however_often_the_same_is_remembered(order):
    store = await memory_store()
    service = Service(store)
    told = life(Job("first"), 600)
    for n in order:
        await service.tell(told[n], told[n])
    await service.tell(*told)
    (said,) = await service.tell(Job("again").submitted())
    assert (said.basis, said.p50_s, said.similar) == (EstimateBasis.EXACT_PRIOR, 600.0, ("first",))
    assert await store.count("history") == 2


async def test_a_submission_that_comes_again_gets_the_same_answer(service):
    job = Job()
    (first,) = await service.handler(envelope(job.submitted()))
    await service.tell(*life(Job("other"), 600))
    (again,) = await service.handler(envelope(job.submitted()))
    assert again == first
    await service.tell(job.started())
    await service.tell(progress(job, eta_s=900, fraction=0.1), at=START + 100)
    assert await service.tell(job.submitted()) == []


async def test_a_resumed_attempt_gives_no_run_time(service):
    job = Job("first", attempt=2)
    resumed = decided(job).model_dump() | {
        "run_id": job.run_id,
        "placements": (),
        "policy": "fifo",
        "passed_over": 0,
        "why_there": "",
        "resume_from": "/ck/1",
    }
    await service.tell(job.submitted(), JobAssigned(**resumed), job.started(), job.exited(0), decided(job))
    (said,) = await service.tell(Job("again").submitted())
    assert said.basis is EstimateBasis.UNKNOWN


async def test_a_gangs_run_time_is_from_the_first_start_to_the_last_end(service):
    job = Job("gang", fields={"nodes": 2})
    await service.tell(
        job.submitted(), job.started(START + 5, member=0), job.started(START, member=1),
        job.exited(0, member=0, at=START + 50, started_at=START + 5), job.exited(0, member=1, at=START + 70, started_at=START),
        decided(job),
    )  # fmt: skip
    (said,) = await service.tell(Job("again", fields={"nodes": 2}).submitted())
    assert said.p50_s == 70.0


async def test_the_service_estimates_on_the_bus_in_the_jobs_trace():
    bus, store = await memory_bus(), await memory_store()
    async with serving(build(HistoryEstimatorSettings(), bus=bus, store=store, random=SeededRandom(1))):
        job = Job()
        await publish(bus, *life(Job("first"), 600))
        await events_on(bus, "schedmate.estimates", 1)
        await publish(bus, job.submitted())
        said = await events_on(bus, "schedmate.estimates", 2)
    of_job = [e for e in said if e.event.job_id == job.id]
    assert of_job[0].source == "schedmate/history-estimator"
    assert of_job[0].traceparent.split("-")[1] == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 2.5), (1.0, 4), (0.1, 1.3)])
def test_quantiles_are_linear_between_the_values(share, expected):
    assert quantile([1, 2, 3, 4], share) == pytest.approx(expected)


def test_what_is_left_is_the_less_certain_the_less_is_done():
    early, late = (from_progress(None, elapsed_s=0, eta_s=100, fraction=f) for f in (0.1, 0.9))
    assert early.p90_s - early.p10_s > late.p90_s - late.p10_s


async def test_a_fit_that_fails_leaves_the_next_best_estimate(service, monkeypatch: pytest.MonkeyPatch):
    def fails(*_):
        raise ValueError("no")

    monkeypatch.setattr("schedmate.services.history_estimator.learned.fit", fails)
    for n in range(305):
        await service.tell(*life(Job(f"job-{n}", fields={"name": f"n{n}x"}), 100 + n % 7))
    await service.memory.fit_due()
    (said,) = await service.tell(Job("new", fields={"name": "new"}).submitted())
    assert said.basis is EstimateBasis.USER_MEDIAN


async def test_what_one_instance_has_seen_another_knows_and_a_new_one_too():
    store = await memory_store()
    first, second = Service(store), Service(store)
    await second.tell(Job("early").submitted())
    await first.tell(*life(Job("first"), 600))
    second.memory._caught_up_at = -1e9  # the interval has passed
    (said,) = await second.tell(Job("again").submitted())
    assert (said.basis, said.similar) == (EstimateBasis.EXACT_PRIOR, ("first",))
    (said,) = await Service(store).tell(Job("later").submitted())
    assert (said.basis, said.similar) == (EstimateBasis.EXACT_PRIOR, ("first",))


async def test_without_vectors_estimates_go_on(service, monkeypatch: pytest.MonkeyPatch):
    async def away(*_):
        raise EmbedderUnavailableError("away")

    monkeypatch.setattr(HashedEmbedder, "embed", away)
    job = Job("new")
    field = WorkloadField(value="pytorch", basis="explicit", confidence=1.0)
    told = analyzed(job).model_copy(update={"fields": {"framework": field}})
    assert [s.basis for s in await service.tell(job.submitted(), told)] == [EstimateBasis.UNKNOWN]
