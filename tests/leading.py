"""Dispatchers on a memory bus and store; the test plays ingest and the workers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from schedmate.infra.bus.memory import MemoryBus
from schedmate.infra.bus.port import Partition
from schedmate.infra.clock import SystemClock
from schedmate.infra.store.memory import MemoryStore
from schedmate.schemas import events as e
from schedmate.schemas.codec import decode, encode
from schedmate.schemas.ids import run_id
from schedmate.schemas.job import JobSpec
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Delivery, Envelope
from schedmate.services.dispatcher.settings import DispatcherSettings
from schedmate.services.dispatcher.wiring import Dispatcher, build
from tests.waiting import eventually

CLOCK = SystemClock()


class World:
    """A bus, a store, and dispatchers on them; the test plays ingest and the workers."""

    def __init__(self) -> None:
        self.bus = MemoryBus(CLOCK)
        self.store = MemoryStore()
        self.stops: list[tuple[asyncio.Event, asyncio.Task[None], Dispatcher]] = []
        self.reports: dict[str, int] = {}
        self._said = itertools.count()

    async def setup(self) -> None:
        await self.bus.start()
        await self.bus.create_topics(topology().topics.values())
        await self.store.start()
        await self.store.setup(topology().collections.values())

    async def dispatcher(self, name: str = "d1", **settings: Any) -> Dispatcher:
        base = {"lease_s": 1.0, "instance": name, "reasons_every_s": 0.05, "lease_margin_s": 0.2, "snapshot_every": 10}
        made = build(DispatcherSettings(**{**base, **settings}), bus=self.bus, store=self.store)
        await made.start()
        stop = asyncio.Event()
        self.stops.append((stop, asyncio.create_task(made.run(stop)), made))
        return made

    async def leader(self, name: str = "d1", **settings: Any) -> Dispatcher:
        made = await self.dispatcher(name, **settings)
        await eventually(lambda: made.leaders and all(x.ready for x in made.leaders.values()))
        return made

    async def kill(self, which: Dispatcher) -> None:
        """Gone at once, with nothing drained."""
        for stop, task, made in self.stops:
            if made is which:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                stop.set()
                await made.close()
        self.stops = [entry for entry in self.stops if entry[2] is not which]

    async def close(self) -> None:
        for stop, _, _ in self.stops:
            stop.set()
        for _, task, made in self.stops:
            await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 10)
            await made.close()

    async def say(self, event: e.Event, ident: str = "", trace: str | None = None) -> None:
        await self.bus.publish(
            [encode(Envelope(ident or f"id-{next(self._said)}", "schedmate/test", CLOCK.now(), event, trace))]
        )

    async def submit(self, job: str, **spec: Any) -> None:
        base = {"name": job, "command": ("python", "x.py"), "tenant": "team-a", "user": "ann", "pool": "default"}
        await self.say(
            e.JobSubmitted(job_id=job, pool="default", spec=JobSpec(**{**base, **spec}), submitted_at=CLOCK.now()), job
        )

    async def report(self, node: str = "n1", gpus: int = 4, **given: Any) -> None:
        self.reports[node] = self.reports.get(node, 0) + 1
        base: dict[str, Any] = {
            "node": node, "pool": "default", "boot_id": "b", "session": 1, "report_no": self.reports[node], "applied_seq": -1,
            "applied_index": -1, "address": "127.0.0.1", "port_min": 20000, "port_max": 20999,
            "gpus": tuple(e.GpuReport(index=n, type="a100") for n in range(gpus)), "runs": (), "lease_s": 30.0, "at": CLOCK.now(),
        }  # fmt: skip
        await self.say(e.NodeReported(**{**base, **given}))

    async def started(self, job: str, attempt: int = 1, node: str = "n1", session: int = 1) -> None:
        await self.say(
            e.RunStarted(
                job_id=job, pool="default", run_id=run_id(job, attempt), attempt=attempt, member=0, node=node,
                session=session, pid=1, gpus=(0,), started_at=CLOCK.now(),
            )
        )  # fmt: skip

    async def exited(
        self, job: str, code: int | None = 0, attempt: int = 1, node: str = "n1", session: int = 1
    ) -> None:
        await self.say(
            e.RunExited(
                job_id=job, pool="default", run_id=run_id(job, attempt), attempt=attempt, member=0, node=node, session=session,
                cause=e.ExitCause.EXITED, exit_code=code, log_bytes=0, started_at=CLOCK.now(), ended_at=CLOCK.now(),
            )
        )  # fmt: skip

    async def read(self, topic: str) -> list[Delivery]:
        count = await self.bus.partitions(topic)
        reader = self.bus.reader({Partition(topic, n): 0 for n in range(count)})
        await reader.start()
        out: list[Delivery] = []
        while not await reader.at_end():
            out.extend(await reader.poll(1000, 0.01))
        await reader.stop()
        return out

    async def events(self, topic: str, kind: type[e.Event]) -> list[Any]:
        """What a reader takes in: a repeat, which has the id of before, is dropped. A leader that loses its lease leaves some to be repeated."""
        taken = {x.id: x.event for d in await self.read(topic) if isinstance((x := decode(d.record)).event, kind)}
        return list(taken.values())

    async def until(
        self, topic: str, kind: type[e.Event], count: int = 1, where: Callable[[Any], bool] = lambda _: True
    ) -> list[Any]:
        async def enough() -> list[Any]:
            found = [x for x in await self.events(topic, kind) if where(x)]
            return found if len(found) >= count else []

        return await eventually(enough, 10, f"{count} x {kind.__name__}")
