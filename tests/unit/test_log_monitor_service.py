"""log-monitor as a whole, on the bus in memory: events in, progress and diagnoses out."""

from __future__ import annotations

import asyncio

import pytest

from schedmate.infra.bus.memory import Faults, MemoryBus
from schedmate.infra.clock import SeededRandom, SystemClock
from schedmate.infra.settings import SettingsError
from schedmate.infra.telemetry.tracing import trace_id
from schedmate.schemas.topology import topology
from schedmate.services.log_monitor.settings import LogMonitorSettings
from schedmate.services.log_monitor.wiring import build
from tests.advice import TRACE, Job, all_of, envelope, events_on, fault, memory_bus, memory_store, publish, serving
from tests.waiting import eventually

PROGRESS, DIAGNOSES = "schedmate.progress", "schedmate.diagnoses"


def monitor(bus, store, **given):
    settings = LogMonitorSettings(stream="runner", **({"tail_wait_s": 0.5} | given))
    return build(settings, bus=bus, store=store, random=SeededRandom(1))


async def test_a_failed_jobs_log_becomes_progress_and_one_diagnosis_in_its_trace():
    bus, store, job = await memory_bus(), await memory_store(), Job()
    log = b"step 1/4 loss=0.5\nstep 2/4 loss=0.4\ntorch.OutOfMemoryError: CUDA out of memory\n"
    async with serving(monitor(bus, store)):
        await publish(bus, job.submitted(), job.chunk(log), job.exited(log_bytes=len(log)))
        (diagnosis,) = await events_on(bus, DIAGNOSES)
        (progress,) = await events_on(bus, PROGRESS)
    assert (progress.event.step, progress.event.fraction, progress.event.loss) == (2, 0.5, 0.4)
    assert diagnosis.event.category == "GPU_OOM"
    assert trace_id(diagnosis.traceparent) == trace_id(progress.traceparent) == trace_id(TRACE)


async def test_a_diagnosis_comes_at_once_when_the_tail_has_been_read():
    bus, store, job = await memory_bus(), await memory_store(), Job()
    log = b"KeyError: 'x'\n"
    async with serving(monitor(bus, store, tail_wait_s=30)):
        await publish(bus, job.submitted(), job.exited(log_bytes=len(log)))
        await publish(bus, job.chunk(log))
        (diagnosis,) = await events_on(bus, DIAGNOSES, within_s=5)
    assert diagnosis.event.category == "CODE_ERROR"


async def test_a_log_whose_end_never_comes_is_diagnosed_after_the_bound():
    bus, store, job = await memory_bus(), await memory_store(), Job()
    async with serving(monitor(bus, store, tail_wait_s=0.2)):
        await publish(bus, job.submitted(), job.chunk(b"KeyError: 'x'\n"), job.exited(log_bytes=10_000))
        (diagnosis,) = await events_on(bus, DIAGNOSES, within_s=5)
    assert diagnosis.event.category == "CODE_ERROR"


async def test_what_a_node_says_of_itself_reaches_the_diagnosis_in_whatever_order():
    bus, store, job = await memory_bus(), await memory_store(), Job()
    log = b"Watchdog caught collective operation timeout: WorkNCCL\n"
    async with serving(monitor(bus, store, tail_wait_s=10)):
        await publish(bus, job.submitted(), job.chunk(log), job.exited(log_bytes=len(log)))
        await publish(bus, fault("n1", xid=79))
        (diagnosis,) = await events_on(bus, DIAGNOSES, within_s=5)
    assert (diagnosis.event.category, diagnosis.event.culprit_node, diagnosis.event.node_evidence) == (
        "GPU_LOST",
        "n1",
        True,
    )


async def test_a_job_alone_never_gives_evidence_against_a_node_and_two_tenants_do():
    bus, store = await memory_bus(), await memory_store()
    log = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    jobs = [Job(id=f"job-{t}-{n}", fields={"tenant": t}) for t, n in (("vision", 1), ("vision", 2), ("robotics", 1))]
    async with serving(monitor(bus, store, tail_wait_s=0.2)):
        for n, job in enumerate(jobs, start=1):
            await publish(bus, job.submitted(), job.chunk(log), job.exited(log_bytes=len(log)))
            await events_on(bus, DIAGNOSES, n)
    evidence = {e.event.job_id: e.event.node_evidence for e in await all_of(bus, DIAGNOSES)}
    assert evidence == {"job-vision-1": False, "job-vision-2": False, "job-robotics-1": True}


async def test_a_restart_takes_up_what_it_had_read_and_what_it_was_closing():
    bus, store, job = await memory_bus(), await memory_store(), Job()
    async with serving(monitor(bus, store, tail_wait_s=60)):
        await publish(bus, job.submitted(), job.chunk(b"step 3/9\nKeyErr"), job.exited(log_bytes=25))
        await eventually(lambda: done(bus, 3))
    async with serving(monitor(bus, store, tail_wait_s=60)):
        await publish(bus, job.chunk(b"or: 'x'\n\n\n", 15))
        (diagnosis,) = await events_on(bus, DIAGNOSES, within_s=5)
    assert (diagnosis.event.category, diagnosis.event.evidence.line) == ("CODE_ERROR", 2)


async def test_a_large_chunk_is_read_in_a_process_of_its_own():
    bus, store, job = await memory_bus(), await memory_store(), Job()
    log = b"".join(b"step %d/3000 loss=0.5\n" % n for n in range(1, 3001))
    async with serving(monitor(bus, store, work_inline_bytes=1000)):
        await publish(bus, job.submitted(), job.chunk(log), job.exited(0, log_bytes=len(log)))
        (progress,) = await events_on(bus, PROGRESS, within_s=30)
    assert progress.event.step == 3000


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_repeats_reordering_and_lost_acknowledgements_change_no_outcome(seed):
    bus = MemoryBus(SystemClock(), Faults(seed=seed, write_twice=0.3, redeliver=0.1, reorder=0.3, fail_after_write=0.2))
    await bus.create_topics(topology().topics.values())
    store = await memory_store()
    jobs = [Job(id=f"job-{n}") for n in range(6)]
    tail = b"ModuleNotFoundError: No module named 'apex'\n"
    async with serving(monitor(bus, store, tail_wait_s=10.0)):
        for job in jobs:
            offset = 0
            await tell(bus, job.submitted())
            for step in range(1, 11):
                content = b"step %d/10\n" % step + (tail if step == 10 else b"")
                await tell(bus, job.chunk(content, offset))
                offset += len(content)
            await tell(bus, job.exited(log_bytes=offset))
        await eventually(lambda: all_diagnosed(bus, jobs), 30)
        bus.faults.heal()
    said = await all_of(bus, DIAGNOSES)
    assert {e.event.category for e in said} == {"IMPORT_ERROR"}
    assert len({e.id for e in said}) == len(jobs)
    last = {}
    for e in await all_of(bus, PROGRESS):
        last[e.event.job_id] = max(last.get(e.event.job_id, 0), e.event.step)
    assert last == {job.id: 10 for job in jobs}


async def tell(bus, event):
    """Publish as a worker would: again, until it is acknowledged."""
    while True:
        try:
            await publish(bus, envelope(event))
            return
        except Exception:  # noqa: BLE001 - an injected fault
            await asyncio.sleep(0)


async def done(bus, count):
    return sum(bus.group_state("schedmate.log-monitor").committed.values()) >= count


async def all_diagnosed(bus, jobs):
    return {e.event.job_id for e in await all_of(bus, DIAGNOSES)} == {job.id for job in jobs}


def test_faust_without_kafka_is_refused_in_one_line():
    with pytest.raises(SettingsError, match="Kafka only"):
        build(LogMonitorSettings(stream="faust"))
