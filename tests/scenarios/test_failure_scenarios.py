"""Operators' scenarios that the failure handler decides, or its half of them."""

from __future__ import annotations

from schedmate.infra.clock import SeededRandom, SystemClock
from schedmate.infra.llm.queue import ModelQueue
from schedmate.infra.llm.scripted import Reply, ScriptedModel
from schedmate.schemas.events import Action, Culpable
from schedmate.services.log_monitor.settings import LogMonitorSettings
from schedmate.services.log_monitor.wiring import build
from tests.advice import Job, all_of, events_on, fault, memory_bus, memory_store, publish, serving
from tests.waiting import eventually

DIAGNOSES = "schedmate.diagnoses"
GROUP = "schedmate.log-monitor"


def monitor(bus, store, model=None, **given):
    settings = LogMonitorSettings(stream="runner", **({"tail_wait_s": 0.3} | given))
    return build(
        settings, bus=bus, store=store, random=SeededRandom(1), llm=ModelQueue(model or ScriptedModel(), SystemClock())
    )


# --- BR-27 -----------------------------------------------------------------------------------------------------------


async def test_slow_handler_a_model_that_takes_six_minutes_a_failure_holds_nothing_up():
    """What the model is asked is off the stream: offsets commit, the group is stable, each failure is said once at once."""
    bus, store = await memory_bus(), await memory_store()
    model = ScriptedModel([Reply('{"category": "UNKNOWN"}', delay_s=360.0)] * 20)
    jobs = [Job(id=f"failing-{n}") for n in range(20)]
    log = b"the flux capacitor is broken beyond repair\n"
    async with serving(monitor(bus, store, model, opinion_timeout_s=600)):
        for job in jobs:
            await publish(bus, job.submitted(), job.chunk(log), job.exited(log_bytes=len(log)))
        said = await events_on(bus, DIAGNOSES, len(jobs), within_s=20)
        await eventually(lambda: everything_committed(bus), 10)
        await eventually(lambda: being_asked(model), 10)
        assert len(bus.group_state(GROUP).members) == 1
    assert sorted(e.event.job_id for e in said) == sorted(job.id for job in jobs)
    assert len(await all_of(bus, DIAGNOSES)) == len(jobs)
    assert await all_of(bus, "schedmate.dead-letters") == []


async def everything_committed(bus):
    return sum(bus.group_state(GROUP).committed.values()) == 3 * 20


async def being_asked(model):
    return len(model.asked) == 1


# --- BR-33 -----------------------------------------------------------------------------------------------------------


async def test_external_use_an_oom_beside_somebody_elses_process_is_not_the_jobs_fault():
    bus, store, job = await memory_bus(), await memory_store(), Job()
    log = (
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of 79.15 GiB "
        b"of which 12.50 MiB is free. Process 771 has 78.42 GiB memory in use. Process 993 has 724.00 MiB memory in use. "
        b"Of the allocated memory 209.00 MiB is allocated by PyTorch\n"
    )
    async with serving(monitor(bus, store)):
        await publish(bus, job.submitted(), job.chunk(log), job.exited(log_bytes=len(log)))
        (said,) = await events_on(bus, DIAGNOSES)
    assert (said.event.category, said.event.culpable) == ("GPU_BUSY_EXTERNAL", Culpable.INFRA_HARDWARE)
    assert (said.event.action, said.event.culprit_node) == (Action.RETRY_ELSEWHERE_CORDON, "n1")
    assert said.event.node_evidence is False


# --- BR-34, BR-42: whose fault it is across members and jobs -----------------------------------------------------------


async def test_partial_failure_names_the_member_that_failed_first_not_those_that_lost_their_peer():
    bus, store, job = await memory_bus(), await memory_store(), Job(fields={"nodes": 2})
    peer = b"RuntimeError: NCCL error: remote process exited or there was a network error\n"
    cause = b"IndexError: list index out of range\n"
    async with serving(monitor(bus, store, tail_wait_s=2.0)):
        await publish(
            bus,
            job.submitted(),
            job.chunk(peer, member=0),
            job.chunk(cause, member=1, node="n2"),
            job.exited(log_bytes=len(cause), member=1, node="n2"),
            job.exited(log_bytes=len(peer), member=0),
        )
        (said,) = await events_on(bus, DIAGNOSES)
    assert (said.event.category, said.event.evidence.file) == ("CODE_ERROR", "member-1.log")


async def test_black_hole_node_a_node_is_cordoned_on_its_own_word_only():
    """One job's output names a dead GPU on n1; the node of another job says so itself."""
    bus, store = await memory_bus(), await memory_store()
    log = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    alone, backed = Job(id="alone"), Job(id="backed")
    async with serving(monitor(bus, store)):
        await publish(bus, alone.submitted(), alone.chunk(log), alone.exited(log_bytes=len(log)))
        await events_on(bus, DIAGNOSES, 1)
        await publish(bus, fault("n1", xid=95))
        await publish(bus, backed.submitted(), backed.chunk(log), backed.exited(log_bytes=len(log)))
        await events_on(bus, DIAGNOSES, 2)
    evidence = {e.event.job_id: e.event.node_evidence for e in await all_of(bus, DIAGNOSES)}
    assert evidence == {"alone": False, "backed": True}
