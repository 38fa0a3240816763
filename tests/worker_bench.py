"""A worker on a bench: a bus in memory, real or scripted processes, orders as a dispatcher gives them, and what it says."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from schedmate.infra.bus.memory import MemoryBus
from schedmate.infra.bus.port import EventBus, Partition, Reader
from schedmate.infra.clock import Clock, SystemClock
from schedmate.infra.gpus.scripted import ScriptedGpus
from schedmate.infra.processes.port import MemberKey, Processes
from schedmate.infra.processes.real import RealProcesses
from schedmate.schemas import ids
from schedmate.schemas.codec import decode, encode
from schedmate.schemas.events import (
    Event,
    LogChunked,
    MemberAssigned,
    MemberReleased,
    MemberStopOrdered,
    NodeFaultObserved,
    NodeReported,
    RunExited,
    RunRefused,
    RunStarted,
)
from schedmate.schemas.job import JobSpec
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Envelope
from schedmate.services.worker.agent import Worker
from schedmate.services.worker.settings import WorkerSettings
from schedmate.services.worker.wiring import build
from tests.waiting import eventually

E = TypeVar("E", bound=Event)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SPEC = JobSpec(name="bench", command=("true",), tenant="t", user="u", pool="default")


def spec(*command: str, **fields: Any) -> JobSpec:
    return SPEC.model_copy(update={"command": command, **fields})


class Talk:
    """The dispatcher's side of a conversation with one node, on any bus: gives orders, and reads what the node says."""

    def __init__(self, bus: EventBus, node: str) -> None:
        self._bus = bus
        self._node = node
        self._life = (
            f"{os.getpid()} {time.monotonic_ns()}"  # lost runs are found by their id: not those of another test
        )
        self._place = itertools.count(1)
        self._assigned: dict[MemberKey, MemberAssigned] = {}
        self._events: list[Event] = []
        self._reader: Reader | None = None

    async def assign(
        self,
        job_spec: JobSpec,
        gpus: Sequence[int] = (0,),
        *,
        job_id: str | None = None,
        attempt: int = 1,
        **fields: Any,
    ) -> MemberKey:
        """Tell the node to start a member, and return its key."""
        seq = next(self._place)
        job_id = ids.derived("bench-job", self._life, job_id or f"number {seq}")
        event = MemberAssigned(
            **{
                "pool": "default",
                "seq": seq,
                "index": 0,
                "term": 1,
                "node": self._node,
                "session": fields.get("session") or (await self.reports())[-1].session,
                "job_id": job_id,
                "run_id": ids.run_id(job_id, attempt),
                "attempt": attempt,
                "member": 0,
                "members": 1,
                "gpus": tuple(gpus),
                "spec": job_spec,
                "master_addr": "127.0.0.1",
                "master_port": 20000,
                **fields,
            }
        )
        key = MemberKey(event.run_id, event.member)
        self._assigned[key] = event
        await self.say(event)
        return key

    async def order_stop(self, key: MemberKey, grace_s: float = 5.0) -> None:
        await self.say(MemberStopOrdered(**self._order(key), grace_s=grace_s))

    async def release(self, key: MemberKey) -> None:
        await self.say(MemberReleased(**self._order(key)))

    async def say(self, *events: Event) -> None:
        source = "schedmate/dispatcher"
        await self._bus.publish(
            [encode(Envelope(ids.derived("bench", repr(e)), source, 1.0, e, TRACEPARENT)) for e in events]
        )

    def place_of(self, key: MemberKey) -> int:
        """Return the seq of a member's assignment."""
        return self._assigned[key].seq

    async def heard(self, kind: type[E]) -> list[E]:
        """Return all events of a kind that anybody has published."""
        await self._listen()
        return [e for e in self._events if isinstance(e, kind)]

    async def reports(self) -> list[NodeReported]:
        return sorted(await self.heard(NodeReported), key=lambda r: (r.session, r.report_no))

    async def reported(self, condition: Any) -> NodeReported | None:
        """Return the latest report if the condition holds for it."""
        return next((r for r in (await self.reports())[-1:] if condition(r)), None)

    async def started(self, key: MemberKey) -> RunStarted:
        return await eventually(lambda: self._of(RunStarted, key), 20)

    async def exited(self, key: MemberKey) -> RunExited:
        return await eventually(lambda: self._of(RunExited, key), 20)

    async def end_of(self, key: MemberKey) -> RunExited | RunRefused | None:
        return await self._of(RunExited, key) or await self._of(RunRefused, key)

    async def _of(self, kind: type[Any], key: MemberKey) -> Any:
        return next((e for e in await self.heard(kind) if (e.run_id, e.member) == (key.run_id, key.member)), None)

    async def close(self) -> None:
        """Listen no more."""
        if self._reader is not None:
            await self._reader.stop()

    async def _listen(self) -> None:
        if self._reader is None:
            topics = (RunStarted.TOPIC, NodeReported.TOPIC, LogChunked.TOPIC)
            partitions = [Partition(t, n) for t in topics for n in range(await self._bus.partitions(t))]
            self._reader = self._bus.reader(dict.fromkeys(partitions, 0))
            await self._reader.start()
        while not await self._reader.at_end():
            self._events += [decode(d.record).event for d in await self._reader.poll(1000, 0.5)]

    def _order(self, key: MemberKey) -> dict[str, Any]:
        same = self._assigned[key].model_dump(include={"pool", "term", "node", "job_id", "run_id", "attempt", "member"})
        return {**same, "seq": next(self._place), "index": 0}


class Bench:
    """One node, over several lives of its worker."""

    def __init__(
        self, directory: Path, *, node: str = "n1", gpus: int = 4, clock: Clock | None = None, **settings: Any
    ) -> None:
        self.clock = clock or SystemClock()
        self.bus = MemoryBus(self.clock)
        self.gpus = ScriptedGpus(gpus)
        self.settings = WorkerSettings(
            node=node,
            gpus=gpus,
            state_dir=directory,
            same_user=True,
            **{"lease_s": 30.0, "report_interval_s": 0.2, "tick_s": 0.02, "gpu_poll_s": 0.05, **settings},
        )
        self.processes: Processes = RealProcesses(self.settings.node_dir)
        self.talk = Talk(self.bus, node)
        self.assign, self.order_stop, self.release = self.talk.assign, self.talk.order_stop, self.talk.release
        self.worker: Worker | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def setup(self) -> None:
        await self.bus.create_topics(topology().topics.values())

    async def start(self, **changes: Any) -> Worker:
        """Start (again), and wait until the node has reported and stands at the end of its assignments."""
        self._stop = asyncio.Event()
        settings = self.settings.model_copy(update=changes)
        worker = build(settings, bus=self.bus, gpus=self.gpus, processes=self.processes, clock=self.clock)
        await worker.start()
        self.worker = worker
        task = self._task = asyncio.create_task(worker.run(self._stop))

        def up() -> bool:
            return task.done() or all(worker.ready().values())

        await eventually(up)
        if task.done():
            await task
        return worker

    async def stop(self) -> None:
        """End as on SIGTERM."""
        self._stop.set()
        if self._task is not None and self.worker is not None:
            await asyncio.wait_for(self._task, 30)
            await self.worker.close()
        self._task = None

    async def kill(self) -> None:
        """End without a word, as kill -9 would; what is on disk stays as it is."""
        if self._task is not None and self.worker is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            await self.worker.close()
        self._task = None

    def session(self) -> int:
        return self.reports()[-1].session

    # --- what it says -------------------------------------------------------------------------------------------------

    def all(self, kind: type[E]) -> list[E]:
        events = [decode(r).event for r in self.bus.records(kind.TOPIC)]
        return [e for e in events if isinstance(e, kind)]

    def reports(self) -> list[NodeReported]:
        return sorted(self.all(NodeReported), key=lambda r: (r.session, r.report_no))

    def faults(self) -> list[NodeFaultObserved]:
        return self.all(NodeFaultObserved)

    async def started(self, key: MemberKey) -> RunStarted:
        return await eventually(lambda: self._of(RunStarted, key))

    async def exited(self, key: MemberKey, timeout_s: float = 15.0) -> RunExited:
        return await eventually(lambda: self._of(RunExited, key), timeout_s)

    async def refused(self, key: MemberKey) -> RunRefused:
        return await eventually(lambda: self._of(RunRefused, key))

    async def reported(self, condition: Any) -> NodeReported:
        """Return the first of the latest reports for which the condition holds."""
        return await eventually(lambda: next((r for r in self.reports()[-1:] if condition(r)), None))

    def log(self, key: MemberKey) -> bytes:
        """Return the output as a reader puts it together: highest offset kept, repeats trimmed, gaps marked."""
        output, offset = b"", 0
        for chunk in self.all(LogChunked):
            if (chunk.run_id, chunk.member) != (key.run_id, key.member) or chunk.end <= offset:
                continue
            assert chunk.start <= offset, "output came out of order"
            output += b"[gap]" if chunk.gap else chunk.content[offset - chunk.start :]
            offset = chunk.end
        return output

    def _of(self, kind: type[Any], key: MemberKey) -> Any:
        return next((e for e in self.all(kind) if (e.run_id, e.member) == (key.run_id, key.member)), None)


@contextlib.asynccontextmanager
async def bench_on(directory: Path, **settings: Any) -> AsyncIterator[Bench]:
    """Yield a bench with a running worker; at the end everything that it runs is killed."""
    bench = Bench(directory, **settings)
    await bench.setup()
    await bench.start()
    try:
        yield bench
    finally:
        await bench.kill()
        for key in bench.processes.kept():
            bench.processes.kill(key)
