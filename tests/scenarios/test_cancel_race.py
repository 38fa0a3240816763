"""BR-16: a cancel meets a launch at every moment: one end, an idle node, no process left. (The worker's half stands beside.)"""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest

from schedmate.schemas import events as e
from schedmate.schemas.job import JobSpec
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.state import ENDED
from tests.dispatching import PoolUnderTest, arrived, cluster, ends_of, report
from tests.pool_invariants import check
from tests.simulation.simulated import POOL, World
from tests.virtual_time import run_simulated


def happens(p: PoolUnderTest, what: str) -> None:
    job = p.state.jobs.get("j")
    match what:
        case "cancel":
            p.step(i.CancelRequested("j", "ann"))
        case "started" if job is not None and job.members:
            p.start("j")
        case "timeout":
            p.step(i.Tick(), after=121)
        case "report" if job is not None and job.members:
            runs = (i.RunSeen("j", job.attempt, 0, ended=False, started=True),)
            p.step(report("n1", 1, applied_seq=job.place[0], applied_index=job.place[1], runs=runs))
        case _:
            p.step(i.Tick())
    check(p.state)


@pytest.mark.parametrize("order", list(permutations(("cancel", "started", "timeout", "report"))), ids="-".join)
@pytest.mark.parametrize("answer", ["stopped", "refused"])
def test_cancel_race_in_every_order_of_what_may_come_between(order: tuple[str, ...], answer: str) -> None:
    p = cluster(gpus=1)
    p.step(arrived("j"))
    for what in order:
        happens(p, what)
    job = p.state.jobs.get("j")
    if job is not None and any(m.state != ENDED for m in job.members):
        if answer == "refused" and all(m.started_at is None for m in job.members):
            p.step(i.MemberRefused("j", job.attempt, 0, "n1", 1, *job.place, "stopping", ""))
        else:
            p.exit("j", None, cause="stopped", signal=15)
    p.step(i.Tick(), after=120)
    assert ends_of(p, "j") == ["CANCEL"]
    assert p.state.nodes["n1"].owner == {}
    assert p.state.capacity.free_gpus == 1


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.4, 0.6, 1.0, 2.5, 5.0])
def test_cancel_race_with_real_leaders_and_workers_on_virtual_time(delay_s: float) -> None:
    async def scenario() -> World:
        world = World(1, nodes=1, gpus=1, dispatchers=1)
        world.program = lambda _: (600.0, 0)  # type: ignore[method-assign,assignment] # it would run for long
        await world.setup()
        await asyncio.sleep(5.0)
        spec = JobSpec(name="j", command=("run",), tenant="a", user="u", pool=POOL)
        await world.publish(e.JobSubmitted(job_id="j", pool=POOL, spec=spec, submitted_at=world.clock.now()), "s")
        await asyncio.sleep(delay_s)
        await world.publish(e.JobCancelRequested(job_id="j", pool=POOL, requested_by="u"), "c")
        await asyncio.sleep(60.0)
        await world.close()
        return world

    world = run_simulated(scenario)
    leader = world.dispatchers[0].leader
    assert leader is not None
    assert leader.state.ended == {"j": "CANCELLED"}
    assert leader.state.capacity.free_gpus == 1
    assert [p for _, p in world.histories() if p.is_living] == []
    assert world.nodes[0].disk.processes == {}  # released
