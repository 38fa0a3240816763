"""A whole pool in one thread on a seed: real leaders and a real bus and store in memory, simulated nodes, virtual time.

Time is the event loop's (tests/virtual_time.py), so the same seed gives the same run. Hosts can be killed, and paused at their next call to the bus or the store (SIGSTOP).
"""

from __future__ import annotations

import asyncio
import contextlib
import random  # noqa: TID251 - seeded
from dataclasses import dataclass, field
from typing import Any

from schedmate.infra.bus.memory import Faults as BusFaults
from schedmate.infra.bus.memory import MemoryBus
from schedmate.infra.bus.partitioner import partition_of
from schedmate.infra.bus.port import BusUnavailableError, Partition
from schedmate.infra.processes.port import MemberKey
from schedmate.infra.store.faults import Faults as StoreFaults
from schedmate.infra.store.memory import MemoryStore
from schedmate.infra.store.port import StoreUnavailableError
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.schemas import events as e
from schedmate.schemas.codec import decode, encode
from schedmate.schemas.ids import member_event_id
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Envelope
from schedmate.services.dispatcher.leader import LeadershipLostError, PoolLeader
from schedmate.services.dispatcher.leases import PoolLease
from schedmate.services.dispatcher.log import AppendCollisionError
from schedmate.services.dispatcher.settings import DispatcherSettings
from schedmate.services.worker.fence import NOWHERE, Accept, Delivered, Place, Refuse, Release, Standing, Stop, decide
from tests.virtual_time import EPOCH, LoopClock

POOL = "default"
LEASE_S = 20.0
MARGIN_S = 4.0


class Gate:
    """Open most of the time; a paused host waits at it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def pause(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    async def __call__(self) -> None:
        await self._open.wait()


class Gated:
    """A port whose async calls wait at a gate before and after: a paused host has sent, but sees no answer."""

    def __init__(self, inner: Any, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == "reader":
            return lambda *given: Gated(found(*given), self._gate)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*given: Any, **named: Any) -> Any:
            await self._gate()
            answer = await found(*given, **named)
            await self._gate()
            return answer

        return call


@dataclass
class Process:
    """A run member as it really is on a node: lives until its own end, a stop, or its lease's deadline."""

    assigned: e.MemberAssigned
    trace: str | None
    started_at: float
    ends_at: float
    exit_code: int
    deadline: float
    ended_at: float | None = None
    cause: e.ExitCause | None = None
    status: int | None = None
    announced: bool = False

    @property
    def is_living(self) -> bool:
        return self.ended_at is None

    @property
    def key(self) -> tuple[str, int]:
        return (self.assigned.run_id, self.assigned.member)

    def end(self, now: float, cause: e.ExitCause, status: int | None) -> None:
        if self.ended_at is None:
            self.ended_at, self.cause, self.status = now, cause, status


@dataclass
class Disk:
    """What survives a worker: session, fence, offset, and every process (its supervisor lives on)."""

    session: int = 0
    applied: Place = NOWHERE
    offset: int = 0
    processes: dict[tuple[str, int], Process] = field(default_factory=dict)
    ever: set[tuple[str, int]] = field(default_factory=set)
    history: list[Process] = field(default_factory=list)


class SimulatedNode:
    """A node: GPUs, processes under supervisors, and a worker that can be killed and paused."""

    def __init__(self, world: World, name: str, gpus: int) -> None:
        self.world = world
        self.name = name
        self.gpus = gpus
        self.disk = Disk()
        self.gate = Gate()
        self.task: asyncio.Task[None] | None = None
        self.supervising = asyncio.create_task(self._supervise())

    async def _supervise(self) -> None:
        """The supervisors: end what is over, and what outlived its lease."""
        while True:
            now = self.world.clock.monotonic()
            for process in self.disk.processes.values():
                if process.is_living and now >= process.deadline:
                    process.end(now, e.ExitCause.LEASE_EXPIRED, None)
                elif process.is_living and now >= process.ends_at:
                    process.end(now, e.ExitCause.EXITED, process.exit_code)
            await asyncio.sleep(0.25)

    def start(self) -> None:
        self.task = asyncio.create_task(self._work())

    async def kill(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
            self.task = None

    async def _work(self) -> None:
        disk, clock = self.disk, self.world.clock
        disk.session += 1
        bus = Gated(self.world.bus, self.gate)
        number = partition_of(self.name.encode(), await bus.partitions("schedmate.assignments"))
        reader = bus.reader({Partition("schedmate.assignments", number): disk.offset})
        await reader.start()
        for process in disk.processes.values():
            process.announced = False
        deadline = max((p.deadline for p in disk.processes.values() if p.is_living), default=float("-inf"))
        report_no, next_report = 0, 0.0
        while True:
            try:
                batch = await reader.poll(200, 0.5)
                if deadline != float("-inf") and clock.monotonic() >= deadline:
                    disk.session += 1  # the lease lapsed: whatever ran is dead, and what was meant for it is stale
                    deadline = float("-inf")
                await self._apply(bus, batch, deadline)
                await self._announce(bus)
                if clock.monotonic() >= next_report:
                    report_no += 1
                    sent = clock.monotonic()
                    await bus.publish([encode(self._report(report_no))])
                    deadline = sent + LEASE_S
                    for process in disk.processes.values():
                        if process.is_living and process.deadline > clock.monotonic():
                            process.deadline = max(process.deadline, deadline)
                    next_report = clock.monotonic() + 2.0
                self.lease_until = deadline
            except BusUnavailableError:
                await asyncio.sleep(0.5)

    async def _apply(self, bus: Any, batch: Any, deadline: float) -> None:  # noqa: C901, PLR0912 - one arm a step
        disk, clock = self.disk, self.world.clock
        if not batch:
            return
        orders = []
        for delivery in batch:
            envelope = decode(delivery.record)
            if getattr(envelope.event, "node", None) == self.name:
                orders.append(Delivered(envelope.event, envelope.traceparent))  # type: ignore[arg-type] # only orders are on the topic
        members = dict(disk.processes)
        standing = Standing(
            applied=disk.applied,
            session=disk.session,
            members={MemberKey(*k): p for k, p in members.items()},  # type: ignore[misc] # quacks like a member
            ever_started={MemberKey(*k) for k in disk.ever},
            gpus_present=set(range(self.gpus)),
        )
        steps, applied = decide(orders, standing)
        for step in steps:
            match step:
                case Accept(assigned, trace, grace):
                    now = clock.monotonic()
                    key = (assigned.run_id, assigned.member)
                    length, code = self.world.program(assigned)
                    process = Process(assigned, trace, now, now + length, code, deadline)
                    disk.ever.add(key)
                    disk.processes[key] = process
                    if grace is not None:  # stopped in the batch that told of it: never started
                        process.end(now, e.ExitCause.STOPPED, None)
                    elif now >= deadline:  # its supervisor looks at the deadline before it starts anything
                        process.end(now, e.ExitCause.LEASE_EXPIRED, None)
                    else:
                        disk.history.append(process)
                case Refuse(assigned, trace, cause, detail):
                    event = e.RunRefused(
                        job_id=assigned.job_id, pool=POOL, run_id=assigned.run_id, attempt=assigned.attempt, member=assigned.member,
                        node=self.name, session=disk.session, seq=assigned.seq, index=assigned.index, cause=cause, detail=detail,
                        at=clock.now(),
                    )  # fmt: skip
                    await self._say(bus, event, member_event_id(assigned.run_id, assigned.member, "refused"))
                case Stop(key, _):
                    found = disk.processes.get((key.run_id, key.member))
                    if found is not None and found.is_living:
                        now = clock.monotonic()
                        done = now >= found.ends_at
                        found.end(
                            now, e.ExitCause.EXITED if done else e.ExitCause.STOPPED, found.exit_code if done else None
                        )
                case Release(key):
                    found = disk.processes.get((key.run_id, key.member))
                    if found is not None and not found.is_living:
                        del disk.processes[key.run_id, key.member]
        last = batch[-1]
        disk.applied, disk.offset = applied, last.offset + 1

    async def _announce(self, bus: Any) -> None:
        clock = self.world.clock
        for process in list(self.disk.processes.values()):
            a = process.assigned
            base = {
                "job_id": a.job_id, "pool": POOL, "run_id": a.run_id, "attempt": a.attempt, "member": a.member, "node": self.name,
                "session": self.disk.session,
            }  # fmt: skip
            if not process.announced:
                process.announced = True
                await self._say(
                    bus,
                    e.RunStarted(**base, pid=1, gpus=a.gpus, started_at=EPOCH + process.started_at),
                    member_event_id(a.run_id, a.member, "started"),
                )
            if not process.is_living and not getattr(process, "told_end", False):
                process.told_end = True  # type: ignore[attr-defined] # lost with the worker, not kept
                await self._say(
                    bus,
                    e.RunExited(
                        **base, cause=process.cause, exit_code=process.status, log_bytes=0,
                        started_at=EPOCH + process.started_at, ended_at=clock.now(),
                    ),
                    member_event_id(a.run_id, a.member, "exited"),
                )  # fmt: skip

    async def _say(self, bus: Any, event: e.Event, ident: str) -> None:
        while True:
            try:
                await bus.publish(
                    [encode(Envelope(ident, f"schedmate/worker/{self.name}", self.world.clock.now(), event))]
                )
                return
            except BusUnavailableError:
                await asyncio.sleep(0.5)

    def _report(self, number: int) -> Envelope[e.NodeReported]:
        disk = self.disk
        runs = tuple(
            e.RunReport(
                job_id=p.assigned.job_id, run_id=p.assigned.run_id, attempt=p.assigned.attempt, member=p.assigned.member, pool=POOL,
                seq=p.assigned.seq, index=p.assigned.index, gpus=p.assigned.gpus, state="running" if p.is_living else "ended",
                cause=p.cause, exit_code=p.status, started_at=EPOCH + p.started_at,
                ended_at=EPOCH + p.ended_at if p.ended_at is not None else None,
            )
            for p in disk.processes.values()
        )  # fmt: skip
        event: e.NodeReported = e.NodeReported(
            node=self.name, pool=POOL, boot_id="boot", session=disk.session, report_no=number, applied_seq=disk.applied.seq,
            applied_index=disk.applied.index, address="127.0.0.1", port_min=20000, port_max=20999,
            gpus=tuple(e.GpuReport(index=n, type="a100") for n in range(self.gpus)), runs=runs, lease_s=LEASE_S,
            at=self.world.clock.now(),
        )  # fmt: skip
        if self.world.config.get("gpu_sharing"):
            measured = tuple(
                e.MeasuredRun(run_id=p.assigned.run_id, member=p.assigned.member, usage=self.world.usage(p))
                for p in disk.processes.values()
                if p.is_living
            )
            event = e.NodeReportedV3(**dict(event), measured=measured)
        return Envelope(
            f"{self.name}/{disk.session}/{number}", f"schedmate/worker/{self.name}", self.world.clock.now(), event
        )


class SimulatedDispatcher:
    """A dispatcher that leads or stands by; it can be killed and paused."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.gate = Gate()
        self.task: asyncio.Task[None] | None = None
        self.leader: PoolLeader | None = None
        self.lives = 0

    def start(self) -> None:
        self.lives += 1
        self.task = asyncio.create_task(self._work(f"{self.name}.{self.lives}"))

    async def kill(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
            self.task = None

    async def _work(self, instance: str) -> None:
        bus, store = Gated(self.world.bus, self.gate), Gated(self.world.store, self.gate)
        settings = DispatcherSettings(
            lease_s=6.0,
            lease_margin_s=MARGIN_S,
            snapshot_every=40,
            checkpoint_every_s=60.0,
            reasons_every_s=5.0,
            profile_after_s=1.0,
        )
        lease = PoolLease(store, POOL, instance, "", settings.lease_s, self.world.clock)
        while True:
            try:
                held = await lease.try_take()
                if held is None:
                    await asyncio.sleep(1.0)
                    continue
                self.leader = PoolLeader(
                    POOL, held, lease, bus=bus, store=store, clock=self.world.clock, settings=settings, instance=instance,
                    metrics=Metrics(),
                )  # fmt: skip
                await self.leader.run(asyncio.Event())
            except (LeadershipLostError, AppendCollisionError, BusUnavailableError, StoreUnavailableError):
                await asyncio.sleep(1.0)


class World:
    """Bus, store, dispatchers and nodes; programs whose length and exit code come from the seed and the run."""

    def __init__(self, seed: int, *, nodes: int, gpus: int, dispatchers: int = 2, **config: Any) -> None:
        """`config` are settings of the pool; in one that shares its GPUs the nodes measure what their runs do with them."""
        self.config = {
            "policy": "fifo-skip", "start_timeout_s": 30.0, "stop_timeout_s": 20.0, "diagnosis_wait_s": 2.0, **config,
        }  # fmt: skip
        self.rng = random.Random(seed)
        self.seed = seed
        self.clock = LoopClock()
        self.bus_faults = BusFaults(seed=seed)
        self.store_faults = StoreFaults(seed=seed, clock=self.clock)
        self.bus = MemoryBus(self.clock, self.bus_faults)
        self.store = MemoryStore(self.store_faults)
        self._sizes = (nodes, gpus, dispatchers)
        self.nodes: list[SimulatedNode] = []
        self.dispatchers: list[SimulatedDispatcher] = []

    async def setup(self) -> None:
        nodes, gpus, dispatchers = self._sizes
        await self.bus.start()
        await self.bus.create_topics(topology().topics.values())
        await self.store.start()
        await self.store.setup(topology().collections.values())
        await self.store.insert("pool_config", POOL, self.config)
        self.nodes = [SimulatedNode(self, f"n{n}", gpus) for n in range(nodes)]
        self.dispatchers = [SimulatedDispatcher(self, f"d{n}") for n in range(dispatchers)]
        for host in (*self.dispatchers, *self.nodes):
            host.start()

    async def close(self) -> None:
        for host in (*self.dispatchers, *self.nodes):
            await host.kill()
        for node in self.nodes:
            node.supervising.cancel()

    def program(self, assigned: e.MemberAssigned) -> tuple[float, int]:
        """Length and exit code of a run: the same for all members, other ones for each attempt."""
        rng = random.Random(f"{self.seed}/{assigned.run_id}")
        return rng.choice((0.3, 2.0, 8.0, 30.0)), (1 if rng.random() < 0.1 else 0)

    def usage(self, process: Process) -> e.RunUsage:
        """What is measured of a run: light or heavy, as the seed and the job say."""
        rng = random.Random(f"{self.seed}/{process.assigned.job_id}")
        lived_s = (process.ended_at if process.ended_at is not None else self.clock.monotonic()) - process.started_at
        used = rng.choice((0.1, 0.2, 0.5, 0.9))
        return e.RunUsage(
            measured_s=lived_s, gpu_utilisation=used, gpu_memory_utilisation=used / 4, gpu_memory_bytes=rng.choice((2, 8, 15)) << 30,
            gpu_memory_total_bytes=40 << 30, gpu_held_s=lived_s, gpu_busy_s=used * lived_s,
        )  # fmt: skip

    async def publish(self, event: e.Event, ident: str) -> None:
        while True:
            try:
                await self.bus.publish([encode(Envelope(ident, "schedmate/test", self.clock.now(), event))])
                return
            except BusUnavailableError:
                await asyncio.sleep(0.2)

    def histories(self) -> list[tuple[str, Process]]:
        return [(node.name, p) for node in self.nodes for p in node.disk.history]
