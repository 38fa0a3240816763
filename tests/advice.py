"""Jobs, runs and logs as the advisors see them, and a service under test on the bus in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from schedmate.infra.bus.memory import MemoryBus
from schedmate.infra.bus.port import Partition
from schedmate.infra.clock import SystemClock
from schedmate.infra.store.memory import MemoryStore
from schedmate.schemas import ids
from schedmate.schemas.codec import decode, encode
from schedmate.schemas.events import (
    Event,
    ExitCause,
    JobSubmitted,
    LogChunked,
    NodeFaultObserved,
    RunExited,
    RunStarted,
)
from schedmate.schemas.job import JobSpec
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Envelope
from tests.waiting import eventually

START = 1_700_000_000.0
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def spec(**given: Any) -> JobSpec:
    base: dict[str, Any] = {
        "name": "train",
        "command": ("python", "train.py"),
        "tenant": "vision",
        "user": "ada",
        "pool": "default",
    }
    if "script" in given:
        base.pop("command")
    return JobSpec(**(base | given))


@dataclass
class Job:
    """A job whose events a test writes one by one."""

    id: str = "job-1"
    attempt: int = 1
    node: str = "n1"
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        return ids.run_id(self.id, self.attempt)

    def submitted(self, at: float = START) -> JobSubmitted:
        return JobSubmitted(job_id=self.id, pool="default", spec=spec(**self.fields), submitted_at=at)

    def started(self, at: float = START, member: int = 0, node: str | None = None) -> RunStarted:
        return RunStarted(
            job_id=self.id, pool="default", run_id=self.run_id, attempt=self.attempt, member=member, node=node or self.node,
            session=1, pid=1, gpus=(0,), started_at=at,
        )  # fmt: skip

    def chunk(self, content: bytes, start: int = 0, *, member: int = 0, node: str | None = None) -> LogChunked:
        return LogChunked(
            job_id=self.id, pool="default", run_id=self.run_id, attempt=self.attempt, member=member,
            node=node or self.node, start=start, end=start + len(content), content=content,
        )  # fmt: skip

    def exited(
        self, code: int | None = 1, *, log_bytes: int = 0, member: int = 0, node: str | None = None, at: float = START + 60,
        started_at: float | None = START, cause: ExitCause = ExitCause.EXITED, signal: int | None = None, detail: str = "",
    ) -> RunExited:  # fmt: skip
        return RunExited(
            job_id=self.id, pool="default", run_id=self.run_id, attempt=self.attempt, member=member, node=node or self.node,
            session=1, cause=cause, exit_code=code, signal=signal, log_bytes=log_bytes, started_at=started_at, ended_at=at,
            detail=detail,
        )  # fmt: skip


def fault(node: str, *, xid: int | None = None, text: str = "", at: float = START + 30) -> NodeFaultObserved:
    return NodeFaultObserved(
        node=node,
        pool="default",
        session=1,
        origin="kernel",
        gpu=0,
        xid=xid,
        text=text or f"NVRM: Xid (PCI:0000:3b:00): {xid}",
        at=at,
    )


def envelope(event: Event, at: float = START) -> Envelope[Event]:
    """An event with an id that follows from its content, as every writer of ours gives it."""
    return Envelope(
        id=ids.derived(event.ce_type(), event.model_dump_json()),
        source="schedmate/test", time=at, event=event, traceparent=TRACE,
    )  # fmt: skip


@dataclass
class Table:
    """Tracks in a dictionary."""

    values: dict[str, bytes] = field(default_factory=dict)

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def remove(self, key: str) -> None:
        self.values.pop(key, None)


async def memory_bus() -> MemoryBus:
    bus = MemoryBus(SystemClock())
    await bus.start()
    await bus.create_topics(topology().topics.values())
    return bus


async def memory_store() -> MemoryStore:
    store = MemoryStore()
    await store.start()
    await store.setup(topology().collections.values())
    return store


async def publish(bus: Any, *events: Event | Envelope[Event]) -> None:
    await bus.publish([encode(e if isinstance(e, Envelope) else envelope(e)) for e in events])


async def all_of(bus: Any, topic: str) -> list[Envelope[Any]]:
    """Everything on a topic so far, partition after partition."""
    partitions = [Partition(topic, n) for n in range(await bus.partitions(topic))]
    bounds = await bus.bounds(partitions)
    reader = bus.reader({p: b.earliest for p, b in bounds.items()})
    await reader.start()
    found: list[Envelope[Any]] = []
    try:
        while not await reader.at_end():
            found += [decode(d.record) for d in await reader.poll(1000, 0.2)]
    finally:
        await reader.stop()
    return found


@contextlib.asynccontextmanager
async def serving(*components: Any) -> AsyncIterator[None]:
    """Run components as the host would."""
    stop = asyncio.Event()
    tasks = []
    for component in components:
        await component.start()
        tasks.append(asyncio.create_task(component.run(stop)))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)
        for component in components:
            await component.close()


async def events_on(bus: Any, topic: str, count: int = 1, within_s: float = 10.0) -> Sequence[Envelope[Event]]:
    """Wait for at least so many events on a topic."""

    async def enough() -> list[Envelope[Event]]:
        found = await all_of(bus, topic)
        return found if len(found) >= count else []

    return await eventually(enough, within_s)
