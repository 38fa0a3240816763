"""A worker's process on the embedded bus, over several lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import eventually
from tests.worker_bench import Talk

LEASE_S = 60.0  # a busy machine takes its time to start a worker again


class Node:
    """One worker's process, over several lives."""

    def __init__(self, directory: Path, talk: Talk) -> None:
        self.directory = directory
        self.talk = talk
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **env: str) -> None:
        settings = {
            "BUS": f"sqlite:{self.directory / 'bus.db'}", "STATE_DIR": str(self.directory), "NODE": "n1", "GPUS": "2", "LEASE_S": str(LEASE_S),
            "REPORT_INTERVAL_S": "0.3", "HEALTH_PORT": "0", "TICK_S": "0.05", **env,
        }  # fmt: skip
        with (self.directory / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "schedmate.services.worker"],
                env={"PATH": os.environ["PATH"], **{f"SCHEDMATE_{name}": value for name, value in settings.items()}},
                stdout=log,
                stderr=log,
            )

    async def up(self, **env: str) -> None:
        """Start, and wait for a report of a new session."""
        reports = await self.talk.reports()
        before = max((r.session for r in reports), default=0)
        self.start(**env)
        await eventually(lambda: self.talk.reported(lambda r: r.session > before), 30)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number in {signal.SIGKILL, signal.SIGTERM}:
            self.process.wait(30)
