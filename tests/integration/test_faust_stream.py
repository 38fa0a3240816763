"""log-monitor as a Faust application on a real Kafka: killed in mid-stream, joined by a second instance, left by one; its state stays right."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from schedmate.infra.bus.kafka import KafkaBus
from schedmate.infra.clock import SystemClock
from schedmate.infra.store.sqlite import SqliteStore
from schedmate.schemas import ids
from schedmate.schemas.events import ExitCause
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Record
from tests.advice import START, Job, all_of, envelope, fault, publish
from tests.servers import OWN_KAFKA, KafkaServer
from tests.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.enable_socket, pytest.mark.slow]

READY_WITHIN_S = 30.0
DONE_WITHIN_S = 60.0
STEPS = 40
CAUSES = {
    "GPU_OOM": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    "CODE_ERROR": "KeyError: 'input_ids'",
    "IMPORT_ERROR": "ModuleNotFoundError: No module named 'apex'",
    "FILE_NOT_FOUND": "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'",
    "PORT_IN_USE": "OSError: [Errno 98] Address already in use",
    "DISK_FULL": "OSError: [Errno 28] No space left on device",
}


@pytest.fixture
def kafka(tmp_path):
    server = KafkaServer(tmp_path / "kafka", OWN_KAFKA).start()
    yield server
    server.stop()


@pytest.fixture
async def bus(kafka):
    made = KafkaBus(kafka.bootstrap, SystemClock())
    await made.start()
    await made.create_topics(topology().topics.values())
    yield made
    await made.stop()


@pytest.fixture
async def store_url(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.start()
    await store.setup(topology().collections.values())
    await store.stop()
    return f"sqlite:{tmp_path / 'store.db'}"


class Instance:
    """One `python -m schedmate.services.log_monitor`."""

    def __init__(self, kafka: KafkaServer, store_url: str, directory: Path, port: int, **settings: str) -> None:
        self.port = port
        self.log = directory / f"monitor-{port}-{time.monotonic_ns()}.log"
        environment = os.environ | {
            "SCHEDMATE_BUS": kafka.address, "SCHEDMATE_STORE": store_url, "SCHEDMATE_STATE_DIR": str(directory / f"state-{port}"),
            "SCHEDMATE_HEALTH_PORT": str(port), "SCHEDMATE_TAIL_WAIT_S": "20", "PYTHONPATH": os.getcwd(), **settings,
        }  # fmt: skip
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "schedmate.services.log_monitor"], env=environment, stdout=output, stderr=output
            )

    def checks(self) -> dict[str, bool]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return {"ready": answer.status == 200}
        except (urllib.error.URLError, OSError, json.JSONDecodeError):
            return {"ready": False}

    async def ready(self) -> float:
        """Wait until it is ready; return how long that took."""
        start = time.monotonic()

        async def is_ready():
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            return (await asyncio.to_thread(self.checks))["ready"]

        await eventually(is_ready, READY_WITHIN_S, f"{self.log} is ready")
        return time.monotonic() - start

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture
def instances(kafka, store_url, tmp_path, unused_tcp_port_factory):
    started: list[Instance] = []

    def start(**settings):
        started.append(Instance(kafka, store_url, tmp_path, unused_tcp_port_factory(), **settings))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()


@dataclass
class Fleet:
    """Jobs whose logs are fed piece by piece, cut in odd places, some pieces twice."""

    jobs: list[Job]
    offsets: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def log_of(self, number: int) -> bytes:
        cause = list(CAUSES.values())[number % len(CAUSES)]
        steps = b"".join(b"step %d/%d loss=0.5 \xe2\x96\x8f\r" % (n, STEPS) for n in range(1, STEPS + 1))
        return steps + b"\nTraceback (most recent call last):\n" + cause.encode() + b"\n"

    def category_of(self, number: int) -> str:
        return list(CAUSES)[number % len(CAUSES)]

    async def feed(self, bus, share: float) -> None:
        """Publish each job's log up to a share of it; overlapping a little, with repeats."""
        told = []
        for number, job in enumerate(self.jobs):
            log = self.log_of(number)
            end = len(log) if share >= 1 else int(len(log) * share)
            start = self.offsets[job.id]
            while start < end:
                stop = min(end, start + 37)
                begin = max(0, start - 5)
                told += [job.chunk(log[begin:stop], begin)] * (2 if stop % 3 == 0 else 1)
                start = stop
            self.offsets[job.id] = end
        for at in range(0, len(told), 500):
            await publish(bus, *told[at : at + 500])

    async def check(self, bus) -> None:
        """Every job's last progress is the maximum; every failure was diagnosed rightly, always with the same id."""

        async def all_diagnosed():
            return {e.event.job_id for e in await all_of(bus, "schedmate.diagnoses")} == {j.id for j in self.jobs}

        await eventually(all_diagnosed, DONE_WITHIN_S)
        said = defaultdict(set)
        for e in await all_of(bus, "schedmate.diagnoses"):
            said[e.event.job_id].add((e.id, e.event.category, e.event.evidence.text))
        for number, job in enumerate(self.jobs):
            assert {(i, c) for i, c, _ in said[job.id]} == {
                (ids.derived("diagnosis", job.run_id, "rules"), self.category_of(number))
            }, f"{job.id}: {said[job.id]}"
        last: dict[str, object] = {}
        for e in await all_of(bus, "schedmate.progress"):
            last[e.event.job_id] = e.event
        assert {j: (e.step, e.total_steps, e.fraction) for j, e in last.items()} == {
            j.id: (STEPS, STEPS, 1.0) for j in self.jobs
        }
        assert await all_of(bus, "schedmate.dead-letters") == []


async def fleet_of(bus, count: int) -> Fleet:
    fleet = Fleet([Job(id=f"job-{n}") for n in range(count)])
    await publish(bus, *(job.submitted() for job in fleet.jobs), *(job.started() for job in fleet.jobs))
    return fleet


async def end(bus, fleet: Fleet) -> None:
    await publish(bus, *(job.exited(log_bytes=len(fleet.log_of(n))) for n, job in enumerate(fleet.jobs)))


@pytest.mark.timeout(240)
async def test_state_is_right_after_a_kill_a_join_and_a_leave(bus, instances):
    fleet = await fleet_of(bus, 60)
    first = instances()
    await first.ready()
    feeding = asyncio.create_task(fleet.feed(bus, 0.4))
    await eventually(lambda: some_progress(bus), 30)
    first.kill()
    await feeding
    again = instances()
    took_s = await again.ready()
    assert took_s < READY_WITHIN_S
    await fleet.feed(bus, 0.6)
    second = instances()
    await second.ready()
    await fleet.feed(bus, 0.8)
    assert again.terminate() == 0
    await fleet.feed(bus, 1.0)
    await end(bus, fleet)
    await fleet.check(bus)
    assert second.process.poll() is None


@pytest.mark.timeout(120)
async def test_an_instance_that_is_killed_while_it_waits_for_tails_diagnoses_after_its_restart(bus, instances):
    fleet = await fleet_of(bus, 12)
    first = instances()
    await first.ready()
    await fleet.feed(bus, 0.5)
    await end(bus, fleet)
    await eventually(lambda: some_progress(bus), 30)
    first.kill()
    again = instances()
    await fleet.feed(bus, 1.0)
    await again.ready()
    await fleet.check(bus)


async def some_progress(bus):
    return len(await all_of(bus, "schedmate.progress")) > 5


@pytest.mark.timeout(120)
async def test_poison_goes_to_dead_letters_and_the_nodes_own_side_reaches_every_instance(bus, instances):
    one, two = instances(), instances()
    await one.ready()
    await two.ready()
    await bus.publish([Record("schedmate.logs", b"job-0", b"{", ())])
    jobs = [Job(id=f"job-{n}") for n in range(16)]
    log = b"Watchdog caught collective operation timeout: WorkNCCL\n"
    await publish(bus, fault("n1", xid=79, at=START + 30), *(j.submitted() for j in jobs), *(j.chunk(log) for j in jobs))
    await publish(bus, *(j.exited(log_bytes=len(log)) for j in jobs))

    async def all_said():
        return {e.event.job_id for e in await all_of(bus, "schedmate.diagnoses")} == {j.id for j in jobs}

    await eventually(all_said, DONE_WITHIN_S)
    assert {(e.event.category, e.event.culprit_node, e.event.node_evidence) for e in await all_of(bus, "schedmate.diagnoses")} == {
        ("GPU_LOST", "n1", True)
    }
    (letter,) = await all_of(bus, "schedmate.dead-letters")
    assert (letter.event.original_topic, letter.event.service) == ("schedmate.logs", "log-monitor")
    assert one.terminate() == two.terminate() == 0


@pytest.mark.timeout(120)
async def test_the_aiokafka_runner_is_the_other_choice_and_does_the_same(bus, instances):
    fleet = await fleet_of(bus, 12)
    one = instances(SCHEDMATE_STREAM="runner")
    await one.ready()
    await fleet.feed(bus, 0.5)
    await eventually(lambda: some_progress(bus), 30)
    one.kill()
    instances(SCHEDMATE_STREAM="runner")
    await fleet.feed(bus, 1.0)
    await end(bus, fleet)
    await fleet.check(bus)


def test_the_fleet_is_a_fair_trial():
    """The logs differ, and an end that is no failure is not among them."""
    fleet = Fleet([Job(id=f"job-{n}") for n in range(6)])
    assert len({fleet.log_of(n) for n in range(6)}) == len(CAUSES)
    assert Job().exited().cause is ExitCause.EXITED
