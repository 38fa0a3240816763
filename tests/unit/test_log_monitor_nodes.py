"""What the nodes' own side brings to the judge while jobs run: their reports, their faults, and records that are none."""

from __future__ import annotations

import pytest

from schedmate.infra.clock import SeededRandom
from schedmate.schemas.events import DeadLettered, GpuReport, NodeReported
from schedmate.schemas.wire import Record
from schedmate.services.log_monitor.failures.rules import load_rules
from schedmate.services.log_monitor.node_faults import rule_of_fault
from schedmate.services.log_monitor.node_reports import NodeReports
from schedmate.services.log_monitor.settings import LogMonitorSettings
from schedmate.services.log_monitor.wiring import build
from tests.advice import START, Job, events_on, fault, memory_bus, memory_store, publish, serving

DIAGNOSES, DEAD = "schedmate.diagnoses", "schedmate.dead-letters"


def report(number=1, *, node="n1", boot="b1", session=1, ill=(), taken=(), at=START + 10):
    gpus = tuple(GpuReport(index=n, type="h100", healthy=n not in ill, busy_external=n in taken) for n in range(2))
    return NodeReported(
        node=node, pool="default", boot_id=boot, session=session, report_no=number, applied_seq=-1, applied_index=-1,
        address="127.0.0.1", port_min=1, port_max=2, gpus=gpus, runs=(), lease_s=30.0, at=at,
    )  # fmt: skip


def monitor(bus, store, **given):
    settings = LogMonitorSettings(stream="runner", **({"tail_wait_s": 2.0} | given))
    return build(settings, bus=bus, store=store, random=SeededRandom(1))


@pytest.mark.parametrize(
    ("then", "category"),
    [
        (report(2, boot="b2", session=2), "NODE_FAILURE"),
        (report(2, ill={1}), "GPU_LOST"),
        (report(2, taken={0}), "GPU_BUSY_EXTERNAL"),
        (report(2), None),
    ],
)
def test_a_report_that_is_worse_than_the_one_before_is_a_fault_of_the_node(then, category):
    reports = NodeReports()
    assert reports.take(report()) == ()
    found = reports.take(then)
    assert reports.take(then) == ()
    rules = [rule_of_fault(f, load_rules()) for f in found]
    assert [r.category for r in rules if r is not None] == ([category] if category else [])
    assert len(found) == len(rules)


def test_what_was_already_ill_is_said_once_and_a_late_report_changes_nothing():
    reports = NodeReports()
    assert len(reports.take(report(3, ill={0}))) == 1
    assert reports.take(report(4, ill={0})) == ()
    assert reports.take(report(2)) == ()
    assert reports.take(report(5, ill={0})) == ()
    assert len(reports.take(report(6, ill={0, 1}))) == 1


async def test_a_node_that_came_up_anew_explains_a_run_that_just_ended():
    bus, store, job = await memory_bus(), await memory_store(), Job()
    log = b"step 1/9\nstep 2/9\n"
    async with serving(monitor(bus, store, tail_wait_s=20.0)):
        await publish(bus, report(1, at=START + 50), job.submitted(), job.chunk(log))
        await publish(bus, job.exited(None, signal=9, log_bytes=len(log), at=START + 60))
        await publish(bus, report(1, boot="b2", session=2, at=START + 70))
        (diagnosis,) = await events_on(bus, DIAGNOSES)
    event = diagnosis.event
    assert (event.category, event.culprit_node, event.node_evidence) == ("NODE_FAILURE", "n1", True)


async def test_the_jobs_own_limit_and_checkpoint_directory_reach_the_judge():
    bus, store = await memory_bus(), await memory_store()
    job = Job(fields={"time_limit_s": 60, "checkpoint_dir": "/ck/run7"})
    log = b"step 1/9\nsaved checkpoint epoch_3.pt\nstep 2/9\nTerminated\n"
    async with serving(monitor(bus, store)):
        await publish(bus, job.submitted(), job.chunk(log), job.exited(143, log_bytes=len(log), at=START + 60))
        (diagnosis,) = await events_on(bus, DIAGNOSES)
    assert (diagnosis.event.category, diagnosis.event.resume_from) == ("TIME_LIMIT", "/ck/run7/epoch_3.pt")


async def test_what_is_no_event_on_nodes_goes_to_the_dead_letters_once_and_stops_nothing():
    bus, store, job = await memory_bus(), await memory_store(), Job()
    log = b"Watchdog caught collective operation timeout: WorkNCCL\n"
    await bus.publish([Record("schedmate.nodes", b"n1", b"\xff{", (("ce_type", b"nonsense"),))])
    async with serving(monitor(bus, store, tail_wait_s=20.0)):
        (dead,) = await events_on(bus, DEAD)
        await publish(bus, job.submitted(), job.chunk(log), job.exited(log_bytes=len(log)), fault("n1", xid=79))
        (diagnosis,) = await events_on(bus, DIAGNOSES)
        assert len(await events_on(bus, DEAD)) == 1
    assert diagnosis.event.category == "GPU_LOST"
    assert isinstance(dead.event, DeadLettered)
    assert (dead.event.original_topic, dead.event.service) == ("schedmate.nodes", "log-monitor")
    async with serving(monitor(bus, store)):
        again = await events_on(bus, DEAD, 2)
    assert len({letter.id for letter in again}) == 1
