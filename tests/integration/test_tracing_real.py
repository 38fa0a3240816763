"""Traces through the real OpenTelemetry Collector into the real Zipkin: one tree over services, found by query."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.recorded import Edge, edges, roots
from schedmate.infra.telemetry.tracing import (
    Tracing,
    consumer_span,
    current_traceparent,
    new_traceparent,
    producer_span,
    span,
    span_from,
    trace_id,
    tracing_from_environment,
)
from schedmate.schemas.codec import decode, encode
from schedmate.schemas.events import JobCancelRequested
from schedmate.schemas.wire import Delivery, Envelope
from tests.servers import shared
from tests.waiting import eventually_sync
from tests.zipkin import Zipkin

pytestmark = pytest.mark.servers


@pytest.fixture
async def services(monkeypatch: pytest.MonkeyPatch):
    """Tracing of services by name, exporting as OTEL_* says."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", shared("SCHEDMATE_TEST_OTLP"))
    for variable in ("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(variable, raising=False)
    made: dict[str, Tracing] = {}

    def of(service: str) -> Tracing:
        return made.setdefault(service, tracing_from_environment(service))

    yield of
    for tracing in made.values():
        await asyncio.to_thread(tracing.shutdown)


async def test_spans_of_two_services_arrive_as_one_tree(services):
    event = JobCancelRequested(job_id="j1", pool="default", requested_by="me")
    with services("ingest").active(), span(names.HTTP_SERVER), producer_span(event.TOPIC):
        traceparent = current_traceparent()
        record = encode(Envelope("id-1", "schedmate/ingest", 1.0, event, traceparent))
    with services("dispatcher").active(), consumer_span(Delivery(record, 0, 41)), span(names.STORE_CALL):
        assert decode(record).traceparent == traceparent
    wanted = {
        Edge("ingest", "http", "ingest", "publish schedmate.commands"),
        Edge("ingest", "publish schedmate.commands", "dispatcher", "process schedmate.commands"),
        Edge("dispatcher", "process schedmate.commands", "dispatcher", "store"),
    }
    zipkin = Zipkin()
    spans = await zipkin.trace(trace_id(traceparent), until=lambda spans: wanted <= edges(spans))
    assert edges(spans) == wanted
    assert [(root.service, root.name) for root in roots(spans)] == [("ingest", "http")]
    assert zipkin.services(spans) == {("ingest", "dispatcher")}
    assert zipkin.picture(spans) == (
        "ingest: http\n"
        "  ingest: publish schedmate.commands\n"
        "    dispatcher: process schedmate.commands\n"
        "      dispatcher: store"
    )
    attributes = dict(next(s for s in spans if s.name.startswith("process ")).attributes)
    assert attributes["messaging.destination.name"] == "schedmate.commands"
    assert attributes["messaging.kafka.offset"] == "41"


async def test_a_batch_span_links_to_the_traces_of_its_jobs_and_stands_in_its_own(services):
    job = new_traceparent()
    with services("dispatcher").active():
        with span_from(None, names.DECIDE_BATCH, links=[job], pool="default", decisions=3):
            batch = current_traceparent()
        with span_from(job, names.PUBLISH):
            pass
    zipkin = Zipkin()
    (batched,) = await zipkin.trace(trace_id(batch), until=lambda spans: len(spans) == 1)
    assert trace_id(batch) != trace_id(job)
    assert dict(batched.attributes)["schedmate.decisions"] == "3"
    assert any(trace_id(job) in str(value) for _, value in batched.attributes), "the link is there"


async def test_a_span_that_failed_says_so(services):
    with services("worker").active(), pytest.raises(ValueError, match="bad"), span(names.START_MEMBER):  # noqa: PT012
        traceparent = current_traceparent()
        raise ValueError("bad")
    (found,) = await Zipkin().trace(trace_id(traceparent), until=lambda spans: len(spans) == 1)
    assert found.failed
    assert dict(found.attributes)["error.type"] == "ValueError"


async def test_a_trace_that_never_comes_is_told_with_what_was_there():
    with pytest.raises(AssertionError, match="has in Zipkin only:\nnothing"):
        await Zipkin().trace(trace_id(new_traceparent()), until=bool, timeout_s=0.3)


# --- a whole life -----------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from schedmate.cli import main; main()"]
JOB = "import time\nfor i in range(5): print(f'step {i + 1}/5', flush=True); time.sleep(0.2)"

HANDED_ON = {
    ("ingest", "dispatcher"),  # the job
    ("ingest", "code-analyzer"),
    ("ingest", "history-estimator"),
    ("ingest", "log-monitor"),
    ("dispatcher", "worker"),  # the assignment
    ("dispatcher", "ingest"),  # decisions, into the read model
    ("worker", "log-monitor"),  # its output
    ("worker", "ingest"),
    ("log-monitor", "ingest"),  # its progress
}


class Up:
    """`schedmate up` in a process of its own, exporting to the real Collector."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "up.log"
        self.clean = {k: v for k, v in os.environ.items() if not k.startswith(("SCHEDMATE_", "OTEL_"))}
        self.clean |= {"PYTHONPATH": str(ROOT), "SCHEDMATE_STATE_DIR": str(folder / "state")}
        exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": shared("SCHEDMATE_TEST_OTLP"), "SCHEDMATE_LLM": "none"}
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [*COMMAND, "up", "--nodes", "1", "--gpus", "2", "--api-port", "0", "--health-port", "0"],
                cwd=folder,
                env=self.clean | exporting,
                stdout=output,
                stderr=output,
            )

    def logged(self, action: str) -> dict | None:
        """Return the first line of this action."""
        assert self.process.poll() is None, self.log.read_text()
        entries = (
            json.loads(line)
            for line in self.log.read_text().splitlines()
            if line.startswith("{") and line.endswith("}")
        )
        return next((entry for entry in entries if entry.get("action") == action), None)

    def ready(self) -> bool:
        started = self.logged("host.started")
        return started is not None and httpx.get(f"http://127.0.0.1:{started['port']}/readyz").is_success

    def client(self, command: str, *arguments: str) -> dict:
        """Run a command of the client and return its JSON."""
        api = self.logged("ingest.listening")
        assert api is not None
        address = f"http://127.0.0.1:{api['port']}"
        done = subprocess.run(
            [*COMMAND, command, "--json", *arguments],
            env=self.clean | {"SCHEDMATE_API": address},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            cwd=self.log.parent,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture
def up(tmp_path):
    process = Up(tmp_path)
    try:
        eventually_sync(process.ready, 30)
        yield process
    finally:
        process.end()


@pytest.mark.slow
async def test_a_jobs_whole_life_is_one_tree_over_all_services(up):
    submitted = await asyncio.to_thread(up.client, "submit", "--gpus", "1", "--", sys.executable, "-c", JOB)
    job = submitted["job_id"]

    def ended() -> bool:
        return up.client("show", job)["state"] == "SUCCEEDED"

    await asyncio.to_thread(eventually_sync, ended, 60)
    zipkin = Zipkin()
    spans = await zipkin.trace(
        submitted["trace_id"], until=lambda spans: zipkin.services(spans) >= HANDED_ON and len(roots(spans)) == 1
    )
    assert [(root.service, root.name) for root in roots(spans)] == [("ingest", "post /v1/jobs")], (
        "all hangs on the submission"
    )
    found = {(e.parent_service, e.service, e.name) for e in edges(spans)}
    assert ("dispatcher", "worker", "process schedmate.assignments") in found
    assert ("worker", "worker", "start member") in found
    assert ("worker", "log-monitor", "process schedmate.logs") in found
    assert ("log-monitor", "ingest", "process schedmate.progress") in found
    assert not [span.name for span in spans if span.failed], zipkin.picture(spans)
    ended_line = up.logged("worker.run-ended")
    assert ended_line is not None
    assert ended_line["trace_id"] == submitted["trace_id"], "logs carry the trace's id"
