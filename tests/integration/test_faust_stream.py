"""log-monitor as a Faust application on a real Kafka: killed in mid-stream, joined by a second instance, left by one; its state stays right."""

from __future__ import annotations

import asyncio

import pytest

from schedmate.schemas.wire import Record
from tests.advice import START, Job, all_of, fault, publish
from tests.monitor_fleet import CAUSES, DONE_WITHIN_S, READY_WITHIN_S, Fleet, end, fleet_of, some_progress, world_in
from tests.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.enable_socket, pytest.mark.slow]


@pytest.fixture
async def world(tmp_path):
    async with world_in(tmp_path) as made:
        yield made


@pytest.mark.timeout(400)
async def test_state_is_right_after_a_kill_a_join_and_a_leave(world):
    fleet = await fleet_of(world.bus, 60)
    first = world.start()
    await first.ready()
    feeding = asyncio.create_task(fleet.feed(world.bus, 0.4))
    await eventually(lambda: some_progress(world.bus), 30)
    first.kill()
    await feeding
    again = world.start()
    took_s = await again.ready()
    assert took_s < READY_WITHIN_S
    await fleet.feed(world.bus, 0.6)
    second = world.start()
    await second.ready()
    await fleet.feed(world.bus, 0.8)
    assert again.terminate() == 0
    await fleet.feed(world.bus, 1.0)
    await end(world.bus, fleet)
    await fleet.check(world.bus)
    assert second.process.poll() is None


@pytest.mark.timeout(300)
async def test_an_instance_that_is_killed_while_it_waits_for_tails_diagnoses_after_its_restart(world):
    fleet = await fleet_of(world.bus, 12)
    first = world.start()
    await first.ready()
    await fleet.feed(world.bus, 0.5)
    await end(world.bus, fleet)
    await eventually(lambda: some_progress(world.bus), 30)
    first.kill()
    again = world.start()
    await fleet.feed(world.bus, 1.0)
    await again.ready()
    await fleet.check(world.bus)


@pytest.mark.timeout(300)
async def test_poison_goes_to_dead_letters_and_the_nodes_own_side_reaches_every_instance(world):
    one, two = world.start(), world.start()
    await one.ready()
    await two.ready()
    await world.bus.publish([Record("schedmate.logs", b"job-0", b"{", ())])
    jobs = [Job(id=f"job-{n}") for n in range(16)]
    log = b"Watchdog caught collective operation timeout: WorkNCCL\n"
    await publish(
        world.bus, fault("n1", xid=79, at=START + 30), *(j.submitted() for j in jobs), *(j.chunk(log) for j in jobs)
    )
    await publish(world.bus, *(j.exited(log_bytes=len(log)) for j in jobs))

    async def all_said():
        return {e.event.job_id for e in await all_of(world.bus, "schedmate.diagnoses")} == {j.id for j in jobs}

    await eventually(all_said, DONE_WITHIN_S)
    assert {
        (e.event.category, e.event.culprit_node, e.event.node_evidence)
        for e in await all_of(world.bus, "schedmate.diagnoses")
    } == {("GPU_LOST", "n1", True)}
    (letter,) = await all_of(world.bus, "schedmate.dead-letters")
    assert (letter.event.original_topic, letter.event.service) == ("schedmate.logs", "log-monitor")
    assert one.terminate() == two.terminate() == 0


@pytest.mark.timeout(300)
async def test_the_aiokafka_runner_is_the_other_choice_and_does_the_same(world):
    fleet = await fleet_of(world.bus, 12)
    one = world.start(SCHEDMATE_STREAM="runner")
    await one.ready()
    await fleet.feed(world.bus, 0.5)
    await eventually(lambda: some_progress(world.bus), 30)
    one.kill()
    world.start(SCHEDMATE_STREAM="runner")
    await fleet.feed(world.bus, 1.0)
    await end(world.bus, fleet)
    await fleet.check(world.bus)


def test_the_fleet_is_a_fair_trial():
    fleet = Fleet([Job(id=f"job-{n}") for n in range(6)])
    assert len({fleet.log_of(n) for n in range(6)}) == len(CAUSES)
