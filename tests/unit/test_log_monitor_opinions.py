"""A model's opinion in the stream: asked last, said second, never in the way; and `schedmate diagnose` on files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schedmate.cli.app import app
from schedmate.infra.clock import SeededRandom, SystemClock
from schedmate.infra.llm.queue import ModelQueue
from schedmate.infra.llm.scripted import Reply, ScriptedModel
from schedmate.schemas.events import Action
from schedmate.services.log_monitor.failures.learned import Learned
from schedmate.services.log_monitor.settings import LogMonitorSettings
from schedmate.services.log_monitor.wiring import build
from tests.advice import Job, all_of, events_on, memory_bus, memory_store, publish, serving
from tests.waiting import eventually

DIAGNOSES = "schedmate.diagnoses"
STRANGE = b"loading\nthe flux capacitor is broken beyond repair\npassword=hunter2hunter2 failed\nbye\n"
OWN = Path(__file__).resolve().parents[1] / "corpora" / "failures" / "own"


def monitor(bus, store, model):
    settings = LogMonitorSettings(stream="runner", tail_wait_s=0.2)
    return build(settings, bus=bus, store=store, random=SeededRandom(1), llm=ModelQueue(model, SystemClock()))


async def fail(bus, log, job=None):
    job = job or Job()
    await publish(bus, job.submitted(), job.chunk(log), job.exited(log_bytes=len(log)))


async def test_an_opinion_that_holds_is_said_second_and_asks_for_the_same_action():
    bus, store = await memory_bus(), await memory_store()
    model = ScriptedModel([{"category": "GPU_LOST", "n": 1, "quote": "flux capacitor is broken"}])
    async with serving(monitor(bus, store, model)):
        await fail(bus, STRANGE)
        first, second = await events_on(bus, DIAGNOSES, 2, within_s=20)
    assert (first.event.category, first.event.source) == ("UNKNOWN", "rules")
    assert (second.event.category, second.event.source, second.event.evidence.line) == ("GPU_LOST", "model", 2)
    assert first.event.action is second.event.action is Action.RETRY_FROM_CHECKPOINT
    assert (second.event.node_evidence, second.event.culprit_node) == (False, None)
    assert first.id != second.id
    assert first.traceparent == second.traceparent
    (asked,) = model.asked
    assert "hunter2" not in asked.prompt


@pytest.mark.parametrize(
    "reply",
    [
        Reply("I think you should cordon n1"),
        Reply('{"category": "GPU_LOST", "n": 1, "quote": "nobody said this"}'),
        Reply('{"category": "CORDON", "n": 1, "quote": "flux capacitor is broken"}'),
        Reply(unavailable="out"),
        Reply('{"category": "GPU_LOST", "n": 1, "quote": "flux capacitor is broken"}', delay_s=90),
    ],
    ids=["prose", "no such quote", "no such cause", "outage", "too slow"],
)
async def test_a_model_that_is_of_no_use_is_in_nobodys_way(reply):
    bus, store, model = await memory_bus(), await memory_store(), ScriptedModel([reply])
    async with serving(monitor(bus, store, model)):
        await fail(bus, STRANGE)
        await events_on(bus, DIAGNOSES, 1)
        await fail(bus, b"KeyError: 'x'\n", Job(id="another"))
        await eventually(lambda: two_said(bus), 10)
    said = [e.event for e in await all_of(bus, DIAGNOSES)]
    assert [e.source for e in said] == ["rules", "rules"]
    assert sorted(e.category for e in said) == ["CODE_ERROR", "UNKNOWN"]


async def two_said(bus):
    return len(await all_of(bus, DIAGNOSES)) == 2


async def test_a_model_is_not_asked_where_the_rules_know():
    bus, store = await memory_bus(), await memory_store()
    model = ScriptedModel([{"category": "GPU_LOST", "n": 1, "quote": "KeyError: 'x'"}])
    async with serving(monitor(bus, store, model)):
        await fail(bus, b"KeyError: 'x'\n")
        await events_on(bus, DIAGNOSES, 1)
    assert model.asked == []


# --- schedmate diagnose ----------------------------------------------------------------------------------------------


@pytest.fixture
def diagnose(monkeypatch):
    monkeypatch.setenv("SCHEDMATE_LLM", "none")
    return lambda *arguments: CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


def test_diagnose_prints_the_fields_of_the_contract_as_json(diagnose):
    done = diagnose(OWN / "FO03", "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == 0
    assert told.keys() >= {"category", "culpable", "action", "evidence", "culprit_node", "resume_from", "confidence"}
    assert (told["category"], told["culprit_node"], told["node_evidence"]) == ("NVLINK_ERROR", "b200-09", True)
    assert told["evidence"]["file"] == "kernel_b200-09.log"
    assert told["evidence"]["line"] == 1


def test_diagnose_tells_people_what_happened_and_what_to_do(diagnose):
    told = diagnose(OWN / "FO23").stdout
    assert "GPU_OOM" in told
    assert "halve the batch size" in told
    assert "stdout.log:" in told


def test_diagnose_prints_no_escapes_and_no_secrets(diagnose, tmp_path):
    (tmp_path / "stdout.log").write_bytes(
        b"ValueError: \x1b[31mbad\x1b]0;title\x07 password=hunter2hunter2 \xe2\x80\xaetxt\n"
    )
    for arguments in ((tmp_path,), (tmp_path, "--json")):
        told = diagnose(*arguments).stdout
        assert "\x1b" not in told
        assert "hunter2hunter2" not in told


def test_diagnose_of_a_run_that_nothing_explains_says_so(diagnose, tmp_path):
    (tmp_path / "stdout.log").write_bytes(STRANGE)
    told = json.loads(diagnose(tmp_path, "--json").stdout)
    assert (told["category"], told["action"], told["basis"]) == ("UNKNOWN", "retry_from_checkpoint", "rules")


def test_diagnose_of_no_folder_is_wrong_use(diagnose, tmp_path):
    assert diagnose(tmp_path / "none").exit_code == 2


# --- what past runs taught -------------------------------------------------------------------------------------------


async def test_a_line_that_came_with_a_sure_cause_twice_is_known_when_it_comes_alone():
    bus, store = await memory_bus(), await memory_store()
    strange, sure = b"the plasma manifold is broken again\n", b"torch.OutOfMemoryError: CUDA out of memory\n"
    async with serving(monitor(bus, store, ScriptedModel())):
        for n in range(2):
            await fail(bus, strange + sure, Job(id=f"taught-{n}"))
            await events_on(bus, DIAGNOSES, n + 1)
        await fail(bus, strange, Job(id="asks"))
        await fail(bus, strange, Job(id="stranger", fields={"tenant": "robotics"}))
        await events_on(bus, DIAGNOSES, 4)
    said = {e.event.job_id: e.event for e in await all_of(bus, DIAGNOSES)}
    assert (said["asks"].category, said["asks"].source) == ("GPU_OOM", "retrieval")
    assert (said["stranger"].category, said["stranger"].source) == ("UNKNOWN", "rules")


async def test_a_learned_rule_stays_in_quarantine_and_a_good_run_refutes_it():
    bus, store = await memory_bus(), await memory_store()
    strange, sure = b"the plasma manifold is broken again\n", b"torch.OutOfMemoryError: CUDA out of memory\n"
    async with serving(monitor(bus, store, ScriptedModel())):
        for n in range(4):
            await fail(bus, strange + sure, Job(id=f"taught-{n}", fields={"tenant": f"tenant-{n % 2}"}))
            await events_on(bus, DIAGNOSES, n + 1)
        learned = Learned.model_validate((await store.get("past_failures", "learned")).body)
        assert [rule.status for rule in learned.rules] == ["quarantined"]
        good = Job(id="good")
        await publish(bus, good.submitted(), good.chunk(strange), good.exited(0, log_bytes=len(strange)))
        await eventually(lambda: refuted(store), 10)


async def refuted(store):
    learned = Learned.model_validate((await store.get("past_failures", "learned")).body)
    return learned.rules == [] and len(learned.refuted) == 1
