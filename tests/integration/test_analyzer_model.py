"""The agent with a real model: it runs end to end, its words are distrusted, and with the server gone nothing waits."""

from __future__ import annotations

import asyncio
import time

import pytest

from schedmate.infra.blobs.memory import MemoryBlobs
from schedmate.infra.clock import SeededRandom, SystemClock
from schedmate.infra.llm.ollama import OllamaModel
from schedmate.infra.llm.queue import ModelQueue, Urgency
from schedmate.services.code_analyzer.agent import Agent, Bounds
from schedmate.services.code_analyzer.settings import CodeAnalyzerSettings
from schedmate.services.code_analyzer.suggestions import ASKED, checked
from schedmate.services.code_analyzer.wiring import build
from tests.advice import Job, events_on, memory_bus, memory_store, publish, serving
from tests.servers import shared

TEXTS = {"run.sh": "./solve --rounds 40\n", "solve.py": "import zoo\nROUNDS = 40\nzoo.make('tinyformer').go(ROUNDS)\n"}


@pytest.fixture
async def model():
    made = OllamaModel(shared("SCHEDMATE_TEST_OLLAMA"), shared("SCHEDMATE_TEST_OLLAMA_MODEL"))
    yield made
    await made.stop()


@pytest.mark.servers
@pytest.mark.timeout(300)
async def test_a_small_real_model_is_asked_and_only_what_it_can_quote_counts(model):
    queue = ModelQueue(model, SystemClock())
    agent = Agent(
        queue.at(Urgency.WAITING_JOB, waits_max_s=120),
        SystemClock(),
        Bounds(votes=1, steps_max=2, seconds_max=240, call_seconds_max=120),
    )
    assert await agent.available()
    outcome = await agent.ask(TEXTS, ASKED)
    print(outcome)
    assert outcome.calls >= 1
    for one in outcome.suggested.values():
        line = TEXTS[one.file].splitlines()[one.line - 1]
        claim = {"field": one.field, "value": one.value, "file": one.file, "quote": line.strip()}
        assert checked(claim, TEXTS, ASKED) is not None


@pytest.mark.servers
@pytest.mark.timeout(120)
async def test_with_the_model_gone_an_analysis_is_there_as_soon_as_without_one(tmp_path):
    (tmp_path / "t.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int, default=3)\n"
    )
    bus, store = await memory_bus(), await memory_store()
    settings = CodeAnalyzerSettings(llm="ollama:gone@http://127.0.0.1:9", read_workdirs=True)
    component = build(settings, bus=bus, store=store, blobs=MemoryBlobs(SystemClock()), random=SeededRandom(1))
    async with serving(component):
        started = time.monotonic()
        await publish(bus, Job(fields={"command": ("python", "t.py"), "workdir": str(tmp_path)}).submitted())
        (said,) = await events_on(bus, "schedmate.analyses", within_s=60)
        took = time.monotonic() - started
    assert said.event.fields["epochs"].value == 3
    assert took < 30
    await asyncio.sleep(0)
