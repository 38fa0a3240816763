"""A whole SchedMate as an operator would run it: every service and every worker a process of its own, on a real broker and store.

    with Cluster(tmp_path, workers=4) as cluster:      # a broker and a database of its own, topics made, everything ready
        job = cluster.client.submit({"name": "train", "script": "exit 0", "gpus": 1})
        cluster["n1"].kill()                           # SIGKILL to the worker; its runs stay with their supervisors
        cluster["n1"].start()
        cluster["dispatcher-1"].pause(); ...; cluster["dispatcher-1"].resume()

All methods block: in a coroutine, call them through `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from schedmate.client import Client
from schedmate.infra.bus.kafka import KafkaBus
from schedmate.infra.bus.port import Partition
from schedmate.infra.clock import SystemClock
from schedmate.infra.servers.ports import HOST, free_port
from schedmate.infra.setup import setup
from schedmate.infra.store.mongo import MongoStore
from schedmate.schemas.wire import Delivery
from tests.servers import OWN_KAFKA, OWN_MONGO, KafkaServer, MongoServer
from tests.waiting import eventually_sync

__all__ = ["ADVISORS", "Cluster", "ServiceProcess"]

ADVISORS = ("code-analyzer", "history-estimator", "log-monitor")
START_S = 60.0
END_S = 30.0
_OURS = ("SCHEDMATE_", "OTEL_")


class ServiceProcess:
    """One service in an operating-system process of its own, with fixed ports, so that it comes back where it was."""

    def __init__(
        self, name: str, service: str, directory: Path, flags: Mapping[str, object], environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.service = service
        self.directory = directory
        self.log = directory / f"{name}.log"
        self.health_port = free_port()
        self.starts = 0
        self.kills = 0
        self.pauses = 0
        self._flags = {"state-dir": directory / name, "health-port": self.health_port, **flags}
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start; the process has a session of its own, and its output is appended to its log."""
        assert not self.living(), f"{self.name} runs already"
        argv = [sys.executable, "-m", f"schedmate.services.{self.service.replace('-', '_')}"]
        for flag, value in self._flags.items():
            argv += [f"--{flag}", str(value)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=kept | self._environment,
            )
        self.starts += 1

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def living(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """SIGKILL to the process alone: what it started lives on."""
        self._signal(signal.SIGKILL)
        self.kills += 1
        self._wait()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        self.pauses += 1

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> int:
        """SIGTERM, wait, and return the exit code."""
        self._signal(signal.SIGTERM)
        return self._wait()

    def ready(self) -> bool:
        return self.living() and _status(self.health_port, "/readyz") == 200

    def readiness(self) -> str:
        """What /readyz says, for messages."""
        try:
            return _get(self.health_port, "/readyz").decode()
        except OSError as error:
            return str(error)

    def figures(self) -> dict[str, float]:
        """What /metrics says, by sample with its labels."""
        lines = _get(self.health_port, "/metrics").decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    def actions(self) -> list[str]:
        """The `action` of every line of its log, in order."""
        return [line["action"] for line in self.lines() if "action" in line]

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every structured line of its log."""
        for line in self.log.read_text(errors="replace").splitlines() if self.log.exists() else ():
            with contextlib.suppress(ValueError):
                if isinstance(value := json.loads(line), dict):
                    yield value

    def tail(self, lines: int = 4) -> str:
        told = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(
            line[:400] + (" … " + line[-600:] if len(line) > 1000 else line[400:]) for line in told[-lines:]
        )

    def end(self) -> None:
        """Whatever it does, it is gone afterwards."""
        if self.living():
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)
            try:
                self._wait()
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _wait(self) -> int:
        assert self._process is not None
        return self._process.wait(END_S)


class Cluster:
    """All services and workers n1, n2, … with declared GPUs, on a broker and a database of their own."""

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 2,
        gpus: int = 4,
        dispatchers: int = 2,
        advisors: Iterable[str] = ADVISORS,
        lease_s: float = 20.0,
        leader_lease_s: float = 5.0,
        kafka: KafkaServer | None = None,
        mongo: MongoServer | None = None,
        flags: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        """`flags` adds settings by process name or by service name. Servers that are handed in are the caller's to stop."""
        self.directory = directory
        self.lease_s = lease_s
        self.leader_lease_s = leader_lease_s
        self.gpus = gpus
        self.kafka = kafka or KafkaServer(directory / "kafka", OWN_KAFKA)
        self.mongo = mongo or MongoServer(directory / "mongo", OWN_MONGO)
        self.database = f"t{os.getpid()}_{time.monotonic_ns()}"
        self.api_port = free_port()
        self.processes: dict[str, ServiceProcess] = {}
        self._own_servers = [server for server, given in ((self.kafka, kafka), (self.mongo, mongo)) if given is None]
        self._flags = flags or {}
        api = f"http://{HOST}:{self.api_port}"
        self._names: list[tuple[str, str, dict[str, object]]] = [("ingest", "ingest", {"api-port": self.api_port})]
        self._names += [(name, name, {}) for name in advisors]
        self._names += [
            (f"dispatcher-{n}", "dispatcher", {"instance": f"dispatcher-{n}", "lease-s": leader_lease_s})
            for n in range(1, dispatchers + 1)
        ]
        self._names += [
            (
                f"n{n}",
                "worker",
                {
                    "node": f"n{n}",
                    "gpus": gpus,
                    "gpu-type": "a100",
                    "gpu-memory-mib": 40960,
                    "lease-s": lease_s,
                    "api": api,
                },
            )
            for n in range(1, workers + 1)
        ]
        self._client: Client | None = None

    # --- its life -----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the servers, make topics and collections, start everything and wait until all are ready."""
        for server in self._own_servers:
            server.start()
        asyncio.run(self._setup())
        for name, service, flags in self._names:
            common = {
                "bus": self.kafka.address,
                "store": self.mongo.address,
                "mongo-database": self.database,
                "llm": "none",
            }
            common["blobs"] = f"files:{self.directory / 'blobs'}"
            own = {**flags, **self._flags.get(service, {}), **self._flags.get(name, {})}
            self.processes[name] = ServiceProcess(name, service, self.directory, {**common, **own}, {})
        for process in self.processes.values():
            process.start()
        self.wait_ready()
        return self

    def stop(self) -> None:
        """End every process of the cluster and what its jobs left, then its servers."""
        for process in self.processes.values():
            if process.living():
                process.resume()
                process._signal(signal.SIGTERM)
        for process in self.processes.values():
            process.end()
        for pid in self.left_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._client is not None:
            self._client.close()
        for server in reversed(self._own_servers):
            server.stop()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def __getitem__(self, name: str) -> ServiceProcess:
        return self.processes[name]

    @property
    def workers(self) -> list[ServiceProcess]:
        return [process for process in self.processes.values() if process.service == "worker"]

    @property
    def client(self) -> Client:
        """A client with patience: ingest may be away for a while."""
        if self._client is None:
            self._client = Client(f"http://{HOST}:{self.api_port}", retry_s=60.0)
        return self._client

    def wait_ready(self, names: Iterable[str] | None = None, timeout_s: float = START_S) -> None:
        """Wait until these processes (all, without names) say that they are ready."""
        waited = [self.processes[name] for name in names] if names is not None else list(self.processes.values())
        try:
            eventually_sync(lambda: all(p.ready() for p in waited) or not all(p.living() for p in waited), timeout_s)
            assert all(process.ready() for process in waited)
        except AssertionError:
            late = [process for process in waited if not process.ready()]
            told = "\n".join(f"--- {p.name} ({p.exit_code()}): {p.readiness()}\n{p.tail()}" for p in late)
            raise AssertionError(f"not ready, or ended, within {timeout_s} s: {told}") from None

    def leader(self) -> str:
        """The name of the dispatcher that the lease document names."""
        return str(asyncio.run(self._lease())["holder"])

    # --- what it left -------------------------------------------------------------------------------------------------

    def left_processes(self) -> dict[int, str]:
        """Processes of jobs and their supervisors: those that speak of this cluster's directory and are none of its services."""
        ours = {process.pid for process in self.processes.values() if process.living()} | {os.getpid()}
        servers = {one.living_pid() for server in (self.kafka, self.mongo) for one in server.processes()}
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in ours | servers:
                continue
            with contextlib.suppress(OSError):
                said = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if str(self.directory).encode() in said and parent not in ours | servers:
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
        return found

    def read(self, topic: str, timeout_s: float = 60.0) -> list[Delivery]:
        """Everything that a topic holds now, partition by partition in order."""
        return asyncio.run(asyncio.wait_for(self._read(topic), timeout_s))

    def publish(self, *records: Any) -> None:
        """Publish records as any client of the broker could."""
        asyncio.run(self._publish(records))

    @contextlib.asynccontextmanager
    async def bus(self):
        """A client of the broker for the test itself."""
        bus = KafkaBus(self.kafka.bootstrap, SystemClock(), client_id="acceptance")
        await bus.start()
        try:
            yield bus
        finally:
            await bus.stop()

    @contextlib.asynccontextmanager
    async def store(self):
        """A client of the database for the test itself."""
        store = MongoStore(self.mongo.address, self.database, client="pymongo")
        await store.start()
        try:
            yield store
        finally:
            await store.stop()

    async def _publish(self, records) -> None:
        async with self.bus() as bus:
            await bus.publish(records)

    async def _read(self, topic: str) -> list[Delivery]:
        async with self.bus() as bus:
            partitions = [Partition(topic, number) for number in range(await bus.partitions(topic))]
            bounds = await bus.bounds(partitions)
            reader = bus.reader({partition: bounds[partition].earliest for partition in partitions})
            await reader.start()
            found: list[Delivery] = []
            while not await reader.at_end():
                found.extend(await reader.poll(1000, 0.5))
            await reader.stop()
            return found

    async def _lease(self) -> Mapping[str, Any]:
        async with self.store() as store:
            found = await store.get("pool_leases", "default")
            assert found is not None
            return found.body

    async def _setup(self) -> None:
        async with self.bus() as bus, self.store() as store:
            await setup(bus, store)


def _get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=5) as answer:
        return answer.read()


def _status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=2) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0
