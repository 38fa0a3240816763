"""Operators' scenarios that the advisors decide, or their half of them."""

from __future__ import annotations

import asyncio

import pytest

from schedmate.infra.blobs.memory import MemoryBlobs
from schedmate.infra.bus.memory import Faults, MemoryBus
from schedmate.infra.clock import SeededRandom, SystemClock
from schedmate.infra.work_pool import WorkPool
from schedmate.schemas.topology import topology
from schedmate.services.code_analyzer.settings import CodeAnalyzerSettings
from schedmate.services.code_analyzer.wiring import build as code_analyzer
from schedmate.services.history_estimator.settings import HistoryEstimatorSettings
from schedmate.services.history_estimator.wiring import build as history_estimator
from schedmate.services.log_monitor.metrics.far import Hints, Snapshot, snapshot
from schedmate.services.log_monitor.metrics.follow import Follower
from schedmate.services.log_monitor.metrics.library import library
from schedmate.services.log_monitor.metrics.state import Metrics
from schedmate.services.log_monitor.settings import LogMonitorSettings
from schedmate.services.log_monitor.wiring import build as log_monitor
from tests.advice import START, Job, all_of, envelope, events_on, memory_bus, memory_store, publish, serving
from tests.monitor_fleet import READY_WITHIN_S, end, fleet_of, some_progress, world_in
from tests.waiting import eventually

PROGRESS, DIAGNOSES = "schedmate.progress", "schedmate.diagnoses"


def monitor(bus, store, **given):
    settings = LogMonitorSettings(stream="runner", **({"tail_wait_s": 0.5} | given))
    return log_monitor(settings, bus=bus, store=store, random=SeededRandom(1))


# --- BR-40 -----------------------------------------------------------------------------------------------------------


FOLLOWER = Follower(library())


def far_of(metrics: Metrics) -> Snapshot:
    return snapshot(FOLLOWER.view(metrics), Hints())


def bar(step: int, elapsed_s: int, left: str, rate: str) -> str:
    return f" 33%|###  | {step}/2400 [{elapsed_s // 60:02d}:{elapsed_s % 60:02d}<{left}, {rate}]"


def test_wrong_eta_after_a_resume_is_our_own_from_the_third_observation_on():
    progress = Metrics()
    FOLLOWER.follow(progress, "Resuming from checkpoint at step 800", START)
    for number in range(1, 30):
        step, elapsed_s = 800 + 5 * number, 10 * number  # the truth: 0.5 steps a second
        printed = step / elapsed_s  # what the framework makes of it: all steps by the time since the resume
        FOLLOWER.follow(progress, bar(step, elapsed_s, "00:10", f"{printed:.2f}it/s"), START)
        if number >= 3:
            far = far_of(progress)
            truth = (2400 - step) / 0.5
            assert far.eta_s == pytest.approx(truth, rel=0.2), f"after {number} observations"


@pytest.mark.parametrize("left", ["-1:59:50", "?", "-1 day, 23:59:59", "nan", "inf"])
def test_wrong_eta_strings_are_ignored(left):
    progress = Metrics()
    for number in range(1, 6):
        FOLLOWER.follow(progress, bar(800 + 5 * number, 10 * number, left, "?it/s"), START)
    far = far_of(progress)
    assert (far.step, far.total_steps) == (825, 2400)
    assert far.eta_s == pytest.approx((2400 - 825) / 0.5, rel=0.2)


def test_wrong_eta_a_bar_without_a_total_has_a_step_and_claims_no_end():
    progress = Metrics()
    for number in range(1, 6):
        FOLLOWER.follow(
            progress, f"Training: |          | {25 + number}/? [00:{number:02d}<?,  1.00it/s, loss=2.7]", START
        )
    far = far_of(progress)
    assert (far.step, far.total_steps, far.fraction, far.eta_s) == (30, None, None, None)


# --- BR-38 -----------------------------------------------------------------------------------------------------------


async def test_unicode_names_and_broken_utf8_pass_through_submission_progress_and_diagnosis():
    bus, store = await memory_bus(), await memory_store()
    job = Job(
        id="job-ü",
        fields={"name": "训练-résumé-🚀", "command": ("python", "/data/mit leer zeichen/trän.py", "--epochs", "3")},
    )
    whole = (
        "进度 ▏▎ step 7/9 loss=0.5 🚀\n".encode() + b"\x80\x00\xe2\x96 broken\nKeyError: '\xe8\xae\xad\xe7\xbb\x83'\n"
    )
    cut = whole.index(b"\xe2\x96\x8f") + 1  # in the middle of a block of the bar
    pool = WorkPool(1)
    analyzer = code_analyzer(
        CodeAnalyzerSettings(),
        bus=bus,
        store=store,
        blobs=MemoryBlobs(SystemClock()),
        random=SeededRandom(1),
        work_pool=pool,
    )
    estimator = history_estimator(HistoryEstimatorSettings(), bus=bus, store=store, random=SeededRandom(1))
    async with serving(monitor(bus, store), analyzer, estimator):
        await publish(
            bus, job.submitted(), job.chunk(whole[:cut]), job.chunk(whole[cut:], cut), job.exited(log_bytes=len(whole))
        )
        (diagnosis,) = await events_on(bus, DIAGNOSES)
        (progress, *_) = await events_on(bus, PROGRESS)
        (analysis,) = await events_on(bus, "schedmate.analyses", within_s=30)
        await events_on(bus, "schedmate.estimates")
    await pool.close()
    assert (progress.event.step, progress.event.total_steps, progress.event.loss) == (7, 9, 0.5)
    assert (diagnosis.event.category, diagnosis.event.evidence.text) == ("CODE_ERROR", "KeyError: '训练'")
    assert analysis.event.fields["epochs"].value == 3
    assert await all_of(bus, "schedmate.dead-letters") == []


# --- BR-27 -----------------------------------------------------------------------------------------------------------


async def test_slow_handler_work_is_off_the_poll_loop_offsets_commit_and_each_failure_is_handled_once():
    bus, store = await memory_bus(), await memory_store()
    failing = [Job(id=f"failing-{n}") for n in range(20)]
    healthy = Job(id="healthy")
    async with serving(monitor(bus, store, tail_wait_s=3.0)):
        for job in failing:  # their tails never come: each diagnosis takes as long as it may
            await publish(bus, job.submitted(), job.chunk(b"KeyError: 1\n"), job.exited(log_bytes=999))
        await publish(bus, healthy.submitted(), healthy.chunk(b"step 1/2\n"))
        await events_on(bus, PROGRESS, within_s=2.5)
        await eventually(lambda: everything_committed(bus), 2.5)
        assert await all_of(bus, DIAGNOSES) == []
        members = len(bus.group_state("schedmate.log-monitor").members)
        await events_on(bus, DIAGNOSES, len(failing))
        assert members == len(bus.group_state("schedmate.log-monitor").members) == 1
    said = await all_of(bus, DIAGNOSES)
    assert sorted(e.event.job_id for e in said) == sorted(job.id for job in failing)


async def everything_committed(bus):
    return sum(bus.group_state("schedmate.log-monitor").committed.values()) == 3 * 20 + 2


# --- BR-22 -----------------------------------------------------------------------------------------------------------


async def test_duplicate_events_after_a_rebalance_change_nothing():
    bus = MemoryBus(SystemClock(), Faults(seed=22))
    await bus.create_topics(topology().topics.values())
    store = await memory_store()
    pool = WorkPool(1)

    def replica():
        return [
            monitor(bus, store),
            history_estimator(HistoryEstimatorSettings(), bus=bus, store=store, random=SeededRandom(1)),
            code_analyzer(
                CodeAnalyzerSettings(),
                bus=bus,
                store=store,
                blobs=MemoryBlobs(SystemClock()),
                random=SeededRandom(1),
                work_pool=pool,
            ),
        ]

    jobs = [Job(id=f"job-{n}", fields={"command": ("python", "t.py", "--epochs", "3")}) for n in range(12)]
    log = b"step 1/2\nModuleNotFoundError: No module named 'x'\n"
    async with serving(*replica()):
        bus.faults.redeliver = 0.3  # what was handled and not committed comes again
        for job in jobs:
            await publish(bus, job.submitted(), job.chunk(log))
        async with serving(*replica()):  # a second replica joins, and leaves
            await publish(bus, *(job.submitted() for job in jobs))
            await publish(bus, *(job.exited(log_bytes=len(log)) for job in jobs), *(job.chunk(log) for job in jobs))
            await eventually(lambda: ids_of(bus, DIAGNOSES, len(jobs)), 30)
            await eventually(lambda: ids_of(bus, "schedmate.analyses", len(jobs)), 30)
            await eventually(lambda: ids_of(bus, "schedmate.estimates", len(jobs)), 30)
        bus.faults.heal()
    await pool.close()
    for topic in (DIAGNOSES, "schedmate.analyses", "schedmate.estimates", PROGRESS):
        said = {e.id: e.event for e in await all_of(bus, topic)}
        assert len(said) == len(jobs), topic
        assert {e.job_id for e in said.values()} == {job.id for job in jobs}
    assert await all_of(bus, "schedmate.dead-letters") == []


async def ids_of(bus, topic, count):
    return len({e.id for e in await all_of(bus, topic)}) >= count


async def test_duplicate_events_with_the_same_id_say_the_same():
    bus, store, job = await memory_bus(), await memory_store(), Job()
    log = b"step 1/2\nKeyError: 1\n"
    async with serving(monitor(bus, store)):
        for _ in range(3):
            await publish(bus, envelope(job.submitted()), job.chunk(log), job.exited(log_bytes=len(log)))
        await events_on(bus, DIAGNOSES)
        await asyncio.gather(*(publish(bus, job.chunk(log)) for _ in range(5)))
    said = [(e.id, e.event) for e in await all_of(bus, DIAGNOSES)]
    assert len(said) == 1
    assert len({(e.id, e.event.model_dump_json()) for e in await all_of(bus, PROGRESS)}) == 1


# --- BR-25 -----------------------------------------------------------------------------------------------------------


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.enable_socket
@pytest.mark.timeout(300)
async def test_recovery_hang_the_faust_table_is_recovered_within_a_bound_after_a_kill(tmp_path):
    async with world_in(tmp_path) as world:
        fleet = await fleet_of(world.bus, 30)
        await world.start().ready()
        for share in (0.3, 0.6):  # killed twice while it writes its table
            feeding = asyncio.create_task(fleet.feed(world.bus, share))
            await eventually(lambda: some_progress(world.bus), 30)
            world.instances[-1].kill()
            await feeding
            assert await world.start().ready() < READY_WITHIN_S
        await fleet.feed(world.bus, 1.0)
        await end(world.bus, fleet)
        await fleet.check(world.bus)
