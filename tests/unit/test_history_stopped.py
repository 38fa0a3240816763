"""What a job's run time is that was stopped for others and went on: all its attempts whose work counts, and none whose work is not known."""

from __future__ import annotations

import itertools

import pytest

from schedmate.schemas.events import EstimateBasis, JobAssigned, JobStopping
from tests.advice import START, Job, memory_store
from tests.estimating import Service, decided, progress

RESUMABLE = {"checkpoint_dir": "/ck"}


def stopping(job: Job, reason: str = "PREEMPTED"):
    return JobStopping(
        pool="default", seq=1, index=0, decided_at=START, job_id=job.id, attempt=job.attempt, state="STOPPING", reason=reason,
        run_id=job.run_id, intent="requeue",
    )  # fmt: skip


def resumed(job: Job):
    return JobAssigned(
        pool="default", seq=1, index=0, decided_at=START, job_id=job.id, attempt=job.attempt, state="ASSIGNED", reason="STARTING", run_id=job.run_id,
        placements=(), policy="fifo", passed_over=0, why_there="", resume_from="/ck/1",
    )  # fmt: skip


def attempts(
    fields: dict, *, reason: str = "PREEMPTED", first_s: float = 300.0, second_s: float = 100.0, began: bool = True
) -> list:
    """Two attempts of one job, the first stopped."""
    first, second = Job("first", fields=fields), Job("first", attempt=2, fields=fields)
    ran = [first.started(START), first.exited(143, at=START + first_s, started_at=START)] if began else []
    again = START + 5_000
    return [
        first.submitted(), *ran, stopping(first, reason), second.started(again), second.exited(0, at=again + second_s, started_at=again),
        decided(second, at=again + second_s + 1),
    ]  # fmt: skip


@pytest.fixture
async def service():
    return Service(await memory_store())


async def learned(service: Service, fields: dict) -> float | None:
    (said,) = await service.tell(Job("again", fields=fields).submitted())
    return said.p50_s


@pytest.mark.parametrize("reason", ["PREEMPTED", "RECLAIMED", "MAINTENANCE", "PROFILED", "UNPACKED"])
async def test_a_resumable_job_that_gave_way_took_all_its_attempts(service, reason):
    await service.tell(*attempts(RESUMABLE, reason=reason))
    assert await learned(service, RESUMABLE) == 400.0


async def test_a_job_that_cannot_resume_took_its_last_attempt(service):
    await service.tell(*attempts({}))
    assert await learned(service, {}) == 100.0


async def test_what_was_stopped_before_it_began_took_nothing(service):
    await service.tell(*attempts(RESUMABLE, began=False))
    assert await learned(service, RESUMABLE) == 100.0


async def test_a_resumed_attempt_after_one_that_gave_way_took_both(service):
    first, second = Job("first"), Job("first", attempt=2)
    await service.tell(*attempts({})[:-2], resumed(second))
    await service.tell(second.exited(0, at=START + 5_100, started_at=START + 5_000), decided(second))
    assert await learned(service, {}) == 400.0
    assert first.id == second.id


@pytest.mark.parametrize("reason", ["NODE_LOST", "MEMBER_LOST"])
async def test_a_resumed_attempt_after_a_fault_gives_no_run_time(service, reason):
    told = attempts(RESUMABLE, reason=reason)
    await service.tell(*told[:-3], resumed(Job("first", attempt=2)), *told[-3:])
    assert await learned(service, RESUMABLE) is None


async def test_an_attempt_that_gave_way_and_whose_end_is_not_known_gives_no_run_time(service):
    told = attempts(RESUMABLE)
    await service.tell(told[0], told[1], *told[3:])
    (said,) = await service.tell(Job("again", fields=RESUMABLE).submitted())
    assert said.basis is EstimateBasis.UNKNOWN


def interleaved(runs: list, decisions: list) -> list[list]:
    """Return every order of two topics of which each keeps its own."""
    places = itertools.combinations(range(len(runs) + len(decisions)), len(decisions))
    out = []
    for taken in places:
        mine, theirs = iter(decisions), iter(runs)
        out.append([next(mine if n in taken else theirs) for n in range(len(runs) + len(decisions))])
    return out


@pytest.mark.parametrize("number", range(15))
async def test_however_runs_and_decisions_interleave_the_whole_is_the_same(service, number):
    submitted, *told = attempts(RESUMABLE)
    order = interleaved([told[0], told[1], told[3], told[4]], [told[2], told[5]])[number]
    await service.tell(submitted, *order, *order)
    assert await learned(service, RESUMABLE) == 400.0


async def test_progress_counts_what_ran_before_the_stop(service):
    told = attempts(RESUMABLE)
    await service.tell(*told[:-2])
    (said,) = await service.tell(
        progress(Job("first", attempt=2, fields=RESUMABLE), eta_s=150, fraction=0.7), at=START + 5_050
    )
    assert (said.basis, said.p50_s) == (EstimateBasis.PROGRESS, 300.0 + 50.0 + 150.0)
