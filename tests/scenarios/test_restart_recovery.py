"""BR-15: the leader is killed; what runs goes on as it was, what waits keeps its order, what has ended stays ended."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from schedmate.schemas import events as e
from schedmate.services.dispatcher.replay import replay
from tests.leading import World

pytestmark = pytest.mark.localhost


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.setup()
    yield made
    await made.close()


async def test_restart_recovery(world: World) -> None:
    first = await world.leader("d1")
    await world.report("n1", gpus=10)
    finished, running, waiting = ([f"{kind}{n}" for n in range(10)] for kind in ("f", "r", "w"))
    for jobs in (finished, running):
        for job in jobs:
            await world.submit(job)
        await world.until("schedmate.assignments", e.MemberAssigned, len(jobs), lambda x, j=tuple(jobs): x.job_id in j)
        for job in jobs:
            await world.started(job)
            if job in finished:
                await world.exited(job)
        kind = e.JobSucceeded if jobs is finished else e.JobStarted
        await world.until("schedmate.decisions", kind, 10, lambda x, j=tuple(jobs): x.job_id in j)
    for job in waiting:
        await world.submit(job)
    await world.until("schedmate.decisions", e.JobQueued, 30)
    before = first.leaders["default"].state
    assert before is not None
    order = [job for job, _ in before.queue.in_order()]
    await world.kill(first)
    second = await world.leader("d2")
    after = second.leaders["default"].state
    assert after is not None
    assert {j.id: (j.state, j.attempt) for j in after.jobs.values() if j.members} == dict.fromkeys(
        running, ("RUNNING", 1)
    )
    assert [job for job, _ in after.queue.in_order()] == order == waiting
    assert after.ended == dict.fromkeys(finished, "SUCCEEDED")
    for job in running:
        await world.exited(job)
    again = await world.until("schedmate.assignments", e.MemberAssigned, 30)
    assert sorted(x.job_id for x in again) == sorted([*finished, *running, *waiting])  # each once, in all
    assert {x.attempt for x in again} == {1}
    assert [x.job_id for x in again if x.job_id in waiting and x.term == 2] != []
    assert await world.events("schedmate.decisions", e.JobFailed) == []
    assert (await replay(world.store, "default")).difference is None
