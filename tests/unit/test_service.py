"""The host: start with patience, health, drain, exit codes; with signals in real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from schedmate.infra.bus.port import BusUnavailableError, MissingTopicError
from schedmate.infra.clock import SeededRandom, VirtualClock
from schedmate.infra.health import StartError, bind
from schedmate.infra.service import EXIT_FAILED, EXIT_OK, serve
from schedmate.infra.settings import ServiceSettings
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.recorded import RecordedSpans
from schedmate.infra.telemetry.tracing import current_service, span
from tests.waiting import eventually, eventually_sync

pytestmark = pytest.mark.localhost

SETTINGS = ServiceSettings(health_port=0, drain_timeout_s=2.0, start_timeout_s=5.0)


class Example:
    """A component whose every step a test can shape."""

    def __init__(
        self, name: str = "example", *, start_errors: tuple[Exception, ...] = (), work: Callable | None = None
    ) -> None:
        self.name = name
        self.metrics = Metrics()
        self.start_errors = list(start_errors)
        self.work = work
        self.checks: Mapping[str, bool] = {"joined": True}
        self.calls: list[str] = []
        self.measured = 0
        self.service = ""

    async def start(self) -> None:
        self.calls.append("start")
        if self.start_errors:
            raise self.start_errors.pop(0)

    async def run(self, stop: asyncio.Event) -> None:
        self.calls.append("run")
        self.service = current_service()
        if self.work is not None:
            await self.work(stop)
        else:
            await stop.wait()
        self.calls.append("drained")

    async def close(self) -> None:
        self.calls.append("close")

    def ready(self) -> Mapping[str, bool]:
        return self.checks

    async def measure(self) -> None:
        self.measured += 1
        self.metrics.set(names.QUEUE_DEPTH, self.measured, pool="default")


class Hosting:
    """A `serve` in a task of the test, with its health address."""

    def __init__(self, *components: Example, settings: ServiceSettings = SETTINGS, **further) -> None:
        self.stop = asyncio.Event()
        self.address: tuple[str, int] | None = None
        self.task = asyncio.create_task(
            serve(components, settings, stop=self.stop, handle_signals=False, on_listening=self.listening, **further)
        )

    def listening(self, host: str, port: int) -> None:
        self.address = (host, port)

    async def get(self, path: str, method: str = "GET") -> httpx.Response:
        host, port = await eventually(lambda: self.address)
        async with httpx.AsyncClient() as client:
            return await client.request(method, f"http://{host}:{port}{path}", timeout=5)

    async def ready(self) -> bool:
        return (await self.get("/readyz")).status_code == 200

    async def end(self) -> int:
        self.stop.set()
        return await asyncio.wait_for(self.task, 20)


async def test_a_component_starts_runs_drains_and_closes_in_this_order():
    example = Example()
    hosting = Hosting(example)
    await eventually(hosting.ready)
    assert await hosting.end() == EXIT_OK
    assert example.calls == ["start", "run", "drained", "close"]


async def test_health_readiness_and_metrics_are_served_on_one_port_for_all_components():
    one, two = Example("ingest"), Example("worker")
    one.metrics.count(names.DEAD_LETTERS, topic="schedmate.jobs")
    two.metrics.count(names.DEAD_LETTERS, topic="schedmate.jobs")
    hosting = Hosting(one, two)
    await eventually(hosting.ready)
    assert (await hosting.get("/healthz")).json() == {"alive": True}
    assert (await hosting.get("/readyz")).json() == {
        "ready": True,
        "components": {name: {"started": True, "alive": True, "joined": True} for name in ("ingest", "worker")},
    }
    metrics = await hosting.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=")
    lines = metrics.text.splitlines()
    assert 'schedmate_dead_letters_total{service="ingest",topic="schedmate.jobs"} 1.0' in lines
    assert 'schedmate_dead_letters_total{service="worker",topic="schedmate.jobs"} 1.0' in lines
    assert 'schedmate_queue_depth_jobs{pool="default",service="worker"} 1.0' in lines
    assert 'schedmate_ready{check="joined",service="worker"} 1.0' in lines
    assert lines.count("# TYPE schedmate_dead_letters_total counter") == 1
    samples = [
        (s.name, *sorted(s.labels.items()))
        for family in text_string_to_metric_families(metrics.text)
        for s in family.samples
    ]
    assert len(set(samples)) == len(samples), "Prometheus refuses a series that stands twice"
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
    await hosting.end()


async def test_several_components_of_one_name_are_told_apart_by_number():
    hosting = Hosting(Example("ingest"), Example("worker"), Example("worker"))
    await eventually(hosting.ready)
    assert set((await hosting.get("/readyz")).json()["components"]) == {"ingest", "worker-1", "worker-2"}
    lines = (await hosting.get("/metrics")).text.splitlines()
    for replica in ("1", "2"):
        assert f'schedmate_queue_depth_jobs{{pool="default",replica="{replica}",service="worker"}} 1.0' in lines
    assert 'schedmate_queue_depth_jobs{pool="default",service="ingest"} 1.0' in lines
    await hosting.end()


async def test_other_paths_and_methods_are_refused():
    hosting = Hosting(Example())
    assert (await hosting.get("/nothing")).status_code == 404
    assert (await hosting.get("/healthz", "POST")).status_code == 405
    head = await hosting.get("/healthz", "HEAD")
    assert (head.status_code, head.content) == (200, b"")
    await hosting.end()


async def test_readiness_follows_the_checks_and_a_broken_check_is_a_failed_one():
    example = Example()
    hosting = Hosting(example)
    await eventually(hosting.ready)
    example.checks = {"joined": True, "store": False}
    answer = await hosting.get("/readyz")
    assert (answer.status_code, answer.json()["components"]["example"]["store"]) == (503, False)
    example.checks = None  # type: ignore[assignment]
    assert (await hosting.get("/readyz")).status_code == 503
    assert (await hosting.get("/healthz")).status_code == 200, "not ready is no reason to be restarted"
    await hosting.end()


async def test_a_bus_that_is_not_there_yet_is_waited_for_and_readiness_says_so():
    clock = VirtualClock()
    example = Example(start_errors=tuple(BusUnavailableError("no bus at kafka:9092") for _ in range(3)))
    hosting = Hosting(example, clock=clock, random=SeededRandom(1))
    await eventually(lambda: example.calls == ["start"])
    answer = await hosting.get("/readyz")
    assert (answer.status_code, answer.json()["components"]["example"]["started"]) == (503, False)
    for times in (2, 3, 4):
        clock.advance(1.0)
        await eventually(lambda times=times: example.calls.count("start") == times)
    await eventually(hosting.ready)
    assert await hosting.end() == EXIT_OK


async def test_a_start_that_fails_beyond_its_budget_ends_the_process_with_one_clear_line(capsys):
    clock = VirtualClock()
    example = Example(start_errors=tuple(BusUnavailableError("no bus at kafka:9092") for _ in range(100)))
    hosting = Hosting(example, clock=clock, random=SeededRandom(1))

    def over() -> bool:
        clock.advance(1.0)
        return hosting.task.done()

    await eventually(over)
    assert await hosting.task == EXIT_FAILED
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == "schedmate: example cannot start: no bus at kafka:9092 (tried for 5 s)"
    )
    assert example.calls[-1] == "close"


async def test_a_start_error_that_time_does_not_heal_ends_at_once_and_stops_the_others(capsys):
    other = Example("other")
    hosting = Hosting(
        Example(start_errors=(MissingTopicError("schedmate.jobs does not exist; run schedmate setup"),)), other
    )
    assert await asyncio.wait_for(hosting.task, 10) == EXIT_FAILED
    assert (
        "schedmate: example cannot start: schedmate.jobs does not exist; run schedmate setup" in capsys.readouterr().err
    )
    assert other.calls[-1] == "close"


async def test_a_stop_breaks_off_a_start_that_takes_long():
    class Slow(Example):
        async def start(self) -> None:
            self.calls.append("start")
            await asyncio.Event().wait()

    slow = Slow()
    hosting = Hosting(slow, settings=ServiceSettings(health_port=0, drain_timeout_s=60.0))
    await eventually(lambda: slow.calls == ["start"])
    assert await hosting.end() == EXIT_OK
    assert slow.calls == ["start", "close"]


async def test_a_component_that_fails_stops_the_others_and_the_exit_code_says_so():
    async def fail(_stop: asyncio.Event) -> None:
        raise RuntimeError("broken")

    other = Example("other")
    hosting = Hosting(Example(work=fail), other)
    assert await asyncio.wait_for(hosting.task, 10) == EXIT_FAILED
    assert other.calls[-2:] == ["drained", "close"]


async def test_a_component_that_ends_by_a_cancellation_nobody_asked_for_has_failed():
    async def escape(_stop: asyncio.Event) -> None:
        raise asyncio.CancelledError

    assert await asyncio.wait_for(Hosting(Example(work=escape)).task, 10) == EXIT_FAILED


async def test_a_component_that_ends_unasked_has_failed_though_it_raised_nothing():
    async def leave(_stop: asyncio.Event) -> None:
        return

    assert await asyncio.wait_for(Hosting(Example(work=leave)).task, 10) == EXIT_FAILED


async def test_a_component_that_does_not_drain_in_time_is_cancelled_and_the_exit_code_says_so():
    async def stay(_stop: asyncio.Event) -> None:
        await asyncio.Event().wait()

    stuck = Example(work=stay)
    hosting = Hosting(stuck, settings=ServiceSettings(health_port=0, drain_timeout_s=0.05))
    await eventually(hosting.ready)
    assert await hosting.end() == EXIT_FAILED
    assert stuck.calls == ["start", "run", "close"]


async def test_while_draining_the_process_is_alive_and_not_ready():
    release = asyncio.Event()

    async def drain_slowly(stop: asyncio.Event) -> None:
        await stop.wait()
        await release.wait()

    hosting = Hosting(Example(work=drain_slowly))
    await eventually(hosting.ready)
    hosting.stop.set()
    await eventually(lambda: _status(hosting, "/readyz", 503))
    assert (await hosting.get("/healthz")).status_code == 200
    release.set()
    assert await asyncio.wait_for(hosting.task, 10) == EXIT_OK


async def _status(hosting: Hosting, path: str, wanted: int) -> bool:
    return (await hosting.get(path)).status_code == wanted


async def test_a_close_that_fails_keeps_no_other_component_open():
    class Broken(Example):
        async def close(self) -> None:
            raise OSError("cannot close")

    first, last = Example("first"), Broken("last")
    hosting = Hosting(first, last)
    await eventually(hosting.ready)
    assert await hosting.end() == EXIT_OK
    assert first.calls[-1] == "close"


async def test_each_component_runs_under_its_own_service_name_and_its_spans_carry_it():
    async def work(stop: asyncio.Event) -> None:
        with span(names.PROCESS):
            pass
        await stop.wait()

    one, two = Example("ingest", work=work), Example("worker", work=work)
    spans = RecordedSpans()
    hosting = Hosting(one, two, span_exporter=spans)
    await eventually(lambda: len(spans.spans()) == 2)
    await hosting.end()
    assert (one.service, two.service) == ("ingest", "worker")
    assert {found.service for found in spans.spans()} == {"ingest", "worker"}


def test_a_port_that_is_taken_is_one_clear_line():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} of 127.0.0.1 cannot be had .*SCHEDMATE_HEALTH_PORT"):
            bind("127.0.0.1", port)


# --- real processes ---------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from schedmate.infra.service import run_service
from schedmate.infra.settings import ServiceSettings, health_port_field
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.tracing import span
from pydantic import Field

class Settings(ServiceSettings):
    SERVICE = "worker"
    health_port: int = health_port_field(0)
    marks: Path = Field(default=Path("marks"), description="Where to note what happened.")
    mode: str = Field(default="plain", description="What to do.")

class Example:
    name = "worker"
    def __init__(self, settings): self.settings = settings
    def mark(self, word):
        with self.settings.marks.open("a") as file: file.write(word + "\\n")
    async def start(self):
        if self.settings.mode == "refuse": raise ValueError("there is no such\\nGPU")
    async def run(self, stop):
        self.mark("running")
        if self.settings.mode == "spans":
            for _ in range(9000):
                with span(names.START_MEMBER): pass
            self.mark("recorded")
        if self.settings.mode == "crash": raise RuntimeError("broken")
        await stop.wait()
        self.mark("stopping")
        if self.settings.mode == "slow": await asyncio.sleep(60)
        if self.settings.mode == "stuck":
            while True:
                try: await asyncio.sleep(60)
                except asyncio.CancelledError: pass
        self.mark("drained")
    async def close(self): self.mark("closed")
    def ready(self): return {"joined": True}

raise SystemExit(run_service(Settings, Example))
"""


class Process:
    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        program = folder / "program.py"
        program.write_text(PROGRAM)
        self.marks_file = folder / "marks"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SCHEDMATE_", "OTEL_"))} | {
            "PYTHONPATH": str(ROOT),
            **variables,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(program), "--marks", str(self.marks_file), *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def marks(self) -> list[str]:
        return self.marks_file.read_text().split() if self.marks_file.exists() else []

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> tuple[int, list[str]]:
        """Return the exit code and the lines on standard error."""
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors.splitlines()


@pytest.fixture
def processes(tmp_path):
    started: list[Process] = []

    def start(*arguments: str, **variables: str) -> Process:
        started.append(Process(tmp_path, *arguments, **variables))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate(timeout=10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_process_and_it_ends_with_zero(processes, number):
    process = processes()
    eventually_sync(lambda: "running" in process.marks(), 20)
    process.signal(number)
    code, lines = process.wait()
    assert code == 0, lines
    assert process.marks() == ["running", "stopping", "drained", "closed"]
    logged = [json.loads(line) for line in lines]
    assert [entry["action"] for entry in logged if "action" in entry][:2] == ["host.settings", "host.started"]
    assert all(entry["at"].endswith("Z") for entry in logged)
    assert {entry["service"] for entry in logged} == {"worker"}


def test_a_signal_that_comes_twice_at_the_same_time_is_one(processes):
    process = processes()
    eventually_sync(lambda: "running" in process.marks(), 20)
    for _ in range(3):
        process.signal(signal.SIGTERM)
    code, lines = process.wait()
    assert code == 0, lines
    assert "drained" in process.marks()


@pytest.mark.parametrize("mode", ["slow", "stuck"])
def test_a_second_signal_ends_the_process_at_once(processes, mode):
    process = processes("--mode", mode)
    eventually_sync(lambda: "running" in process.marks(), 20)
    process.signal(signal.SIGTERM)
    eventually_sync(lambda: "stopping" in process.marks(), 20)
    started = time.monotonic()
    eventually_sync(lambda: process.signal(signal.SIGTERM) or process.process.poll() is not None, 20)
    code, lines = process.wait()
    assert code in (128 + signal.SIGTERM, -signal.SIGTERM), lines  # what comes after the second ends it by itself
    assert time.monotonic() - started < 10, "the drain's limit is 15 s, the work's 60 s"
    assert "drained" not in process.marks()


def test_a_collector_that_never_answers_holds_up_neither_work_nor_the_end(processes):
    with socket.socket() as collector:
        collector.bind(("127.0.0.1", 0))
        collector.listen()
        address = f"http://127.0.0.1:{collector.getsockname()[1]}"
        process = processes("--mode", "spans", OTEL_EXPORTER_OTLP_ENDPOINT=address)
        eventually_sync(lambda: "recorded" in process.marks(), 40)
        started = time.monotonic()
        process.signal(signal.SIGTERM)
        code, lines = process.wait()
        assert code == 0, lines
        assert time.monotonic() - started < 15, "spans are given up after 4 s, an exporter's own end takes 30 s"
        assert len(lines) < 30, f"{len(lines)} lines for 9,000 spans"


def test_a_component_that_crashes_ends_the_process_with_one(processes):
    process = processes("--mode", "crash")
    code, lines = process.wait()
    assert code == 1
    failed = next(entry for entry in map(json.loads, lines) if entry.get("action") == "host.component-failed")
    assert "RuntimeError: broken" in failed["exception"]
    assert process.marks() == ["running", "closed"]


def test_a_start_that_is_refused_is_one_line_on_standard_error(processes):
    code, lines = processes("--mode", "refuse").wait()
    assert code == 1
    assert [line for line in lines if not line.startswith("{")] == [
        "schedmate: worker cannot start: there is no such GPU"
    ]


def test_wrong_settings_are_one_line_and_exit_code_two(processes):
    assert processes("--bus", "nats://x").wait() == (2, ["schedmate: --bus: must be sqlite:FILE or kafka://HOST:PORT"])
