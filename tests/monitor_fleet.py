"""Real log-monitor processes on a Kafka of their own, and a fleet of jobs whose logs are fed to them piece by piece."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schedmate.infra.bus.kafka import KafkaBus
from schedmate.infra.clock import SystemClock
from schedmate.infra.servers.ports import free_port
from schedmate.infra.store.sqlite import SqliteStore
from schedmate.schemas import ids
from schedmate.schemas.topology import topology
from tests.advice import Job, all_of, publish
from tests.servers import OWN_KAFKA, KafkaServer
from tests.waiting import eventually

READY_WITHIN_S = 60.0  # two to three seconds on an idle machine; the bound is for a busy one
DONE_WITHIN_S = 90.0
STEPS = 40
CAUSES = {
    "GPU_OOM": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    "CODE_ERROR": "KeyError: 'input_ids'",
    "IMPORT_ERROR": "ModuleNotFoundError: No module named 'apex'",
    "FILE_NOT_FOUND": "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'",
    "PORT_IN_USE": "OSError: [Errno 98] Address already in use",
    "DISK_FULL": "OSError: [Errno 28] No space left on device",
}


@dataclass
class World:
    """A broker with all topics, a store with all collections, and the processes started on them."""

    kafka: KafkaServer
    bus: KafkaBus
    store_url: str
    directory: Path
    instances: list[Instance] = field(default_factory=list)

    def start(self, **settings: str) -> Instance:
        self.instances.append(Instance(self.kafka, self.store_url, self.directory, free_port(), **settings))
        return self.instances[-1]


@asynccontextmanager
async def world_in(directory: Path) -> AsyncIterator[World]:
    store = SqliteStore(directory / "store.db")
    await store.start()
    await store.setup(topology().collections.values())
    await store.stop()
    kafka = await asyncio.to_thread(KafkaServer(directory / "kafka", OWN_KAFKA).start)
    bus = KafkaBus(kafka.bootstrap, SystemClock())
    world = World(kafka, bus, f"sqlite:{directory / 'store.db'}", directory)
    try:
        await bus.start()
        await bus.create_topics(topology().topics.values())
        yield world
    finally:
        for one in world.instances:
            if one.process.poll() is None:
                one.kill()
        await bus.stop()
        await asyncio.to_thread(kafka.stop)


class Instance:
    """One `python -m schedmate.services.log_monitor`."""

    def __init__(self, kafka: KafkaServer, store_url: str, directory: Path, port: int, **settings: str) -> None:
        self.port = port
        self.log = directory / f"monitor-{port}-{time.monotonic_ns()}.log"
        environment = os.environ | {
            "SCHEDMATE_BUS": kafka.address, "SCHEDMATE_STORE": store_url, "SCHEDMATE_STATE_DIR": str(directory / f"state-{port}"),
            "SCHEDMATE_HEALTH_PORT": str(port), "SCHEDMATE_TAIL_WAIT_S": "60", "PYTHONPATH": str(Path.cwd()), **settings,
        }  # fmt: skip
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "schedmate.services.log_monitor"], env=environment, stdout=output, stderr=output
            )

    def checks(self) -> dict[str, bool]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return {"ready": answer.status == 200}
        except (urllib.error.URLError, OSError):
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
            said[e.event.job_id].add((e.id, e.event.category, str(e.event.evidence)))
        for number, job in enumerate(self.jobs):
            assert {(i, c) for i, c, _ in said[job.id]} == {
                (ids.derived("diagnosis", job.run_id, "rules"), self.category_of(number))
            }, f"{job.id}: {said[job.id]}"
        last: dict[str, Any] = {}
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


async def some_progress(bus) -> bool:
    return len(await all_of(bus, "schedmate.progress")) > 5
