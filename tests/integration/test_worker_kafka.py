"""A worker as a process of its own on real Kafka: it is killed, the broker is killed, and every exit code arrives once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from schedmate.infra.bus.kafka import KafkaBus
from schedmate.infra.clock import SystemClock
from schedmate.schemas.topology import topology
from tests.journal_checker import check_directories
from tests.servers import OWN_KAFKA, KafkaServer
from tests.waiting import eventually
from tests.worker_bench import Talk, spec

pytestmark = pytest.mark.servers


@dataclass
class Scene:
    broker: KafkaServer
    talk: Talk
    directory: Path
    worker: subprocess.Popen[bytes] | None = None

    async def up(self) -> None:
        """Start the worker (again), and wait for a report of a new session."""
        before = max((r.session for r in await self.talk.reports()), default=0)
        self.start()
        await eventually(lambda: self.talk.reported(lambda r: r.session > before), 40)

    def start(self) -> None:
        settings = {
            "BUS": f"kafka://{self.broker.bootstrap}", "STATE_DIR": str(self.directory), "NODE": "n1", "GPUS": "2", "LEASE_S": "30",
            "HEALTH_PORT": "0", "REPORT_INTERVAL_S": "0.5",
        }  # fmt: skip
        with (self.directory / "worker.log").open("ab") as log:
            self.worker = subprocess.Popen(
                [sys.executable, "-m", "schedmate.services.worker"],
                env={"PATH": os.environ["PATH"], **{f"SCHEDMATE_{name}": value for name, value in settings.items()}},
                stdout=log,
                stderr=log,
            )

    def end(self, number: int) -> None:
        assert self.worker is not None
        self.worker.send_signal(number)
        self.worker.wait(30)


@contextlib.asynccontextmanager
async def scene_on(directory: Path) -> AsyncIterator[Scene]:
    with KafkaServer(directory / "kafka", OWN_KAFKA) as broker:
        bus = KafkaBus(broker.bootstrap, SystemClock(), client_id="dispatcher")
        await bus.start()
        await bus.create_topics(topology().topics.values())
        scene = Scene(broker, Talk(bus, "n1"), directory)
        try:
            yield scene
        finally:
            if scene.worker is not None and scene.worker.poll() is None:
                scene.worker.kill()
                scene.worker.wait()
            await scene.talk.close()
            await bus.stop()
            (directory / "n1" / "deadline").write_text("0 0")  # what is left ends now
            print((directory / "worker.log").read_text()[-8000:])


async def test_neither_the_workers_nor_the_brokers_death_loses_an_exit_code_or_ends_a_run(tmp_path: Path) -> None:
    async with scene_on(tmp_path) as scene:
        await scene.up()
        talk = scene.talk
        living = await talk.assign(spec("sleep", "600"), gpus=(1,))
        pid = (await talk.started(living)).pid
        quick = await talk.assign(spec("sh", "-c", "sleep 1; exit 7"), gpus=(0,))
        await talk.started(quick)
        scene.end(signal.SIGKILL)
        await scene.up()
        assert (await talk.exited(quick)).exit_code == 7
        session = (await talk.reports())[-1].session
        second = await talk.assign(spec("sh", "-c", "sleep 1; echo out; exit 8"), gpus=(0,))
        await talk.started(second)
        await asyncio.to_thread(scene.broker.kill)
        await asyncio.sleep(3.0)  # the run ends while there is no broker
        await asyncio.to_thread(scene.broker.restart)
        assert (await eventually(lambda: talk.end_of(second), 40)).exit_code == 8
        assert (await talk.reports())[-1].session == session, "an outage below the lease is none of the runs' business"
        await talk.order_stop(living, grace_s=2.0)
        assert (await talk.exited(living)).cause == "stopped"
        assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240, PTH110
        scene.end(signal.SIGTERM)
    verdict = check_directories([tmp_path])
    assert verdict.violations == []
    assert len(verdict.lives) == 3
