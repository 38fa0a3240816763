"""BR-22: events come again, and to a second dispatcher too; each job is created and launched once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from schedmate.schemas import events as e
from schedmate.schemas.job import JobSpec
from schedmate.services.dispatcher.replay import replay
from tests.leading import World
from tests.waiting import eventually

pytestmark = pytest.mark.localhost


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.setup()
    yield made
    await made.close()


def submitted(job: str) -> e.JobSubmitted:
    spec = JobSpec(name=job, command=("x",), tenant="team-a", user="ann", pool="default")
    return e.JobSubmitted(job_id=job, pool="default", spec=spec, submitted_at=1_700_000_000.0)


async def test_duplicate_events(world: World) -> None:
    first = await world.leader("d1")
    await world.report("n1", gpus=4)
    events = [submitted(f"j{n}") for n in range(3)]
    for event in events:
        await world.say(event, event.job_id)
    await world.until("schedmate.assignments", e.MemberAssigned, 3)
    second = await world.dispatcher("d2")  # no group, no rebalance: it stands by
    for event in events:  # what was handled and not acknowledged comes once more
        await world.say(event, event.job_id)
        await world.started(event.job_id)
        await world.started(event.job_id)
    await world.until("schedmate.decisions", e.JobStarted, 3)
    await world.kill(first)
    await eventually(lambda: "default" in second.leaders)
    for event in events:
        await world.say(event, event.job_id)
        await world.exited(event.job_id)
        await world.exited(event.job_id)
    await world.until("schedmate.decisions", e.JobSucceeded, 3)
    for event in events:
        await world.say(event, event.job_id)
    await world.say(submitted("last"), "last")
    await world.until("schedmate.assignments", e.MemberAssigned, 1, lambda x: x.job_id == "last")
    queued = [x.job_id for x in await world.events("schedmate.decisions", e.JobQueued)]
    assert sorted(set(queued)) == ["j0", "j1", "j2", "last"]
    decided = {(x.seq, x.index) for x in await world.events("schedmate.decisions", e.JobQueued)}
    assert len(decided) == 4
    launched = {(x.job_id, x.attempt) for x in await world.events("schedmate.assignments", e.MemberAssigned)}
    assert launched == {("j0", 1), ("j1", 1), ("j2", 1), ("last", 1)}
    assert (await replay(world.store, "default")).difference is None
