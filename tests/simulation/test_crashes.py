"""Simulated crashes: leaders and workers die and sleep, messages repeat, acknowledgements are lost; the outcome stays right."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from schedmate.infra.bus.port import Partition
from schedmate.schemas import events as e
from schedmate.schemas.codec import decode
from schedmate.schemas.job import JobSpec
from schedmate.services.dispatcher.log import PoolLog
from schedmate.services.dispatcher.replay import replay
from tests.journal_checker import Life, more_than_a_whole
from tests.simulation.simulated import POOL, Process, World
from tests.virtual_time import run_simulated

JOBS = 60
SEEDS = int(os.environ.get("SCHEDMATE_SIMULATIONS", "6"))


SHARING: dict[str, Any] = {"policy": "lucid", "gpu_sharing": True, "profiler_nodes": 1, "profiler_s": 4.0}


def spec(world: World, number: int) -> JobSpec:
    gpus, nodes = world.rng.choice([(1, 1), (1, 1), (2, 1), (4, 1), (2, 2), (4, 2)])
    held: dict[str, Any] = {}
    if world.config.get("gpu_sharing"):  # small jobs, and many at once: else nobody has to share
        gpus, nodes = (gpus, nodes) if number % 4 == 0 else (1, 1)
        milli = world.rng.choice([300, 500, 700, 1000, 1000, 1000]) if (gpus, nodes) == (1, 1) else 1000
        held = {"gpu_milli": milli, "resume_flag": "--resume"}
    return JobSpec(
        name=f"job-{number}", command=("run",), tenant=world.rng.choice(["a", "b"]), user="u", pool=POOL, gpus=gpus, nodes=nodes,
        retries=3, **held,
    )  # fmt: skip


async def chaos(world: World, until: float) -> None:
    """Things go wrong, one after the other."""
    rng = world.rng
    while world.clock.monotonic() < until:
        await asyncio.sleep(rng.uniform(1.0, 15.0))
        host = rng.choice([*world.dispatchers, *world.nodes])
        match rng.choice(["kill", "pause", "pause-long", "bus", "store"]):
            case "kill":
                await host.kill()
                await asyncio.sleep(rng.choice([0.0, 1.0, 12.0, 45.0]))
                host.start()
            case "pause":
                host.gate.pause()
                await asyncio.sleep(rng.uniform(0.5, 8.0))
                host.gate.resume()
            case "pause-long":
                host.gate.pause()
                await asyncio.sleep(rng.uniform(25.0, 60.0))
                host.gate.resume()
            case "bus":
                world.bus_faults.unavailable = True
                await asyncio.sleep(rng.choice([1.0, 10.0, 40.0]))
                world.bus_faults.unavailable = False
            case "store":
                world.store_faults.outage(rng.choice([1.0, 8.0, 30.0]))


async def scenario(seed: int, **config: Any) -> World:
    world = World(seed, nodes=3 if config else 4, gpus=4, **config)
    await world.setup()
    world.bus_faults.write_twice = 0.1
    world.bus_faults.reorder = 0.3
    world.bus_faults.fail_before_write = 0.02
    world.bus_faults.fail_after_write = 0.02
    world.store_faults.lost_acknowledgement = 0.03
    trouble = asyncio.create_task(chaos(world, 400.0))
    for number in range(JOBS):
        made = spec(world, number)
        event = e.JobSubmitted(job_id=f"job-{number}", pool=POOL, spec=made, submitted_at=world.clock.now())
        if number % 13 == 0:
            await world.publish(e.JobCancelRequested(job_id=f"job-{number}", pool=POOL, requested_by="u"), f"c{number}")
        await world.publish(event, f"s{number}")
        await asyncio.sleep(world.rng.uniform(0.0, 1.0 if world.config.get("gpu_sharing") else 6.0))
        if number % 7 == 0:
            await world.publish(
                e.JobCancelRequested(job_id=f"job-{number - 1}", pool=POOL, requested_by="u"), f"c{number}"
            )
    await trouble
    world.bus_faults.heal()
    for name in ("lost_acknowledgement", "refused", "delay"):
        setattr(world.store_faults, name, 0.0)
    for host in (*world.dispatchers, *world.nodes):
        host.gate.resume()
    while await unfinished(world):  # noqa: ASYNC110 - virtual time: it costs nothing
        await asyncio.sleep(5.0)
    await asyncio.sleep(30.0)
    await world.close()
    return world


async def decisions(world: World) -> list[e.Event]:
    """Every decision on the topic, each once."""
    count = await world.bus.partitions("schedmate.decisions")
    reader = world.bus.reader({Partition("schedmate.decisions", n): 0 for n in range(count)})
    await reader.start()
    found: dict[str, e.Event] = {}
    while not await reader.at_end():
        for delivery in await reader.poll(1000, 0.1):
            envelope = decode(delivery.record)
            known = found.setdefault(envelope.id, envelope.event)
            assert known == envelope.event, "the same decision was published with another content"
    return list(found.values())


ENDS = (e.JobSucceeded, e.JobFailed, e.JobCancelled, e.JobRejected)


async def unfinished(world: World) -> bool:
    ended = {x.job_id for x in await decisions(world) if isinstance(x, ENDS)}
    return len(ended) < JOBS


def check_reality(world: World) -> None:
    """No GPU was ever held for more than one whole, no job had two living attempts, and no run was started twice."""
    by_gpu: dict[tuple[str, int], list[Life]] = {}
    by_job: dict[str, list[tuple[float, float, int]]] = {}
    seen: set[tuple[str, tuple[str, int]]] = set()
    for node, process in world.histories():
        assert process.ended_at is not None
        assert (process.assigned.run_id, process.assigned.member) not in {k for _, k in seen}
        seen.add((node, process.key))
        for gpu in process.assigned.gpus:
            by_gpu.setdefault((node, gpu), []).append(life_of(node, process))
        by_job.setdefault(process.assigned.job_id, []).append(
            (process.started_at, process.ended_at, process.assigned.attempt)
        )
    for gpu, lives_on_it in by_gpu.items():
        lives_on_it.sort(key=lambda life: life.started_at)  # stable: those of one instant as they were started
        for number, life in enumerate(lives_on_it):
            there = [one for one in lives_on_it[:number] if one.ended_at > life.started_at]
            wrong = more_than_a_whole(there, life)
            assert wrong is None, f"GPU {gpu} {wrong}: {there} and {life}"
    for job, lives in by_job.items():
        lives.sort()
        for number, (start, end, attempt) in enumerate(lives):
            for other_start, _, other in lives[number + 1 :]:
                assert other == attempt or other_start >= end, (
                    f"{job} had two living attempts: {attempt} and {other} from {start}"
                )


def life_of(node: str, process: Process) -> Life:
    held = e.MemberAssignedV2.of(process.assigned)
    assert process.ended_at is not None
    return Life(
        node, held.job_id, held.run_id, held.attempt, held.member, held.gpus, process.started_at, process.ended_at, held.gpu_milli,
        held.packable, held.packed_with,
    )  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(SEEDS))
def test_whatever_dies_repeats_or_comes_late_each_job_ends_exactly_once(number: int, seed: int) -> None:
    this = seed * 1000 + number
    print(f"simulation seed {this}")
    _check(run_simulated(lambda: scenario(this)))


@pytest.mark.timeout(300)
def test_in_a_pool_that_shares_its_gpus_too(seed: int) -> None:
    shares = packed = 0
    least = max(2, SEEDS // 2)
    for number in range(least + 5):  # in one of ten runs nobody is packed
        if number >= least and packed > 0:
            break
        this = seed * 1000 + 500 + number
        print(f"simulation seed {this}")
        world = run_simulated(lambda this=this: scenario(this, **SHARING))
        _check(world)
        orders = [e.MemberAssignedV2.of(process.assigned) for _, process in world.histories()]
        shares += sum(order.gpu_milli < 1000 for order in orders)
        packed += sum(order.packed_with is not None for order in orders)
    assert (shares > 0, packed > 0) == (True, True), "nobody shared"


def _check(world: World) -> None:
    check_reality(world)

    async def checks() -> None:
        found = await decisions(world)
        ends = [x for x in found if isinstance(x, ENDS)]
        assert len(ends) == len({x.job_id for x in ends}) == JOBS
        places = [(x.seq, x.index) for x in found]
        assert len(places) == len(set(places))
        outcome = await replay(world.store, POOL)
        assert outcome.difference is None, str(outcome.difference)
        seqs = [entry.seq async for entry in PoolLog(world.store, POOL).entries(-1)]
        assert seqs == list(range(len(seqs)))

    run_simulated(checks)
