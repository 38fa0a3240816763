"""The worker: adopts what it finds, reports, reads its assignments, and carries them out (protocol §2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from schedmate.infra.bus.port import EventBus
from schedmate.infra.clock import Clock, Random
from schedmate.infra.gpus.port import Gpus, GpuState
from schedmate.infra.processes.port import EndCause, MemberKey, Phase, Processes
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.schemas.events import (
    LogChunked,
    MemberAssigned,
    NodeReported,
    RefusalCause,
    RunStarted,
)
from schedmate.services.worker.announcements import Snapshot
from schedmate.services.worker.assignments import Assignments
from schedmate.services.worker.fence import NOWHERE
from schedmate.services.worker.gpu_watch import GpuWatch
from schedmate.services.worker.handlers import Handlers
from schedmate.services.worker.hardware_watch import HardwareWatch
from schedmate.services.worker.launch import Base
from schedmate.services.worker.launcher import Launcher
from schedmate.services.worker.lease import Lease
from schedmate.services.worker.members_watch import MembersWatch
from schedmate.services.worker.node import Node
from schedmate.services.worker.outbox import Outbox
from schedmate.services.worker.records import Kept, NodeFile, Records
from schedmate.services.worker.renewals import Renewals, RenewalThread
from schedmate.services.worker.settings import WorkerSettings
from schedmate.services.worker.shipper import Shipper
from schedmate.services.worker.shipping import Limits
from schedmate.services.worker.sources import Sources

TOPICS: Final = (MemberAssigned.TOPIC, RunStarted.TOPIC, NodeReported.TOPIC, LogChunked.TOPIC)
CLOSE_TICK_S: Final = 0.01
CLOSELY_S: Final = 0.3
ORPHAN_TIMEOUT_S: Final = 30.0

_log = structlog.get_logger()


class WorkerError(Exception):
    """The worker cannot go on. The message says what to do."""


@dataclass(frozen=True)
class Parts:
    """What the wiring builds a worker from. `make_lease_bus` gives reports a bus of their own, on a thread of their own;
    without it they share `bus` and its loop.
    """

    bus: EventBus
    owns_bus: bool
    make_lease_bus: Callable[[], EventBus] | None
    processes: Processes
    make_gpus: Callable[[], Gpus]
    expected_gpus: Sequence[GpuState]
    sources: Sources
    close_sources: Callable[[], Awaitable[None]]
    base: Base
    address: str
    clock: Clock
    random: Random


class Worker:
    """One node's agent, as a component of the host."""

    name = "worker"

    def __init__(self, settings: WorkerSettings, parts: Parts) -> None:
        self.metrics = Metrics()
        self._settings = settings
        self._parts = parts
        self._clock = parts.clock
        self._processes = parts.processes
        self._records = Records(settings.node_dir)
        self._gpus: Gpus | None = None
        self._thread: RenewalThread | None = None
        self._has_records = False
        self._may_run = asyncio.Event()  # an acknowledged report stands behind the lease
        self._acting = (
            asyncio.Lock()
        )  # orders are not carried out while a lapse is being dealt with, nor the other way round
        self._lapsed = asyncio.Event()
        self._look_closely_until = 0.0
        self._told: Snapshot | None = None  # by the newest acknowledged report
        self._told_more = asyncio.Event()

    async def start(self) -> None:
        """Connect, take the node's lock, adopt what is there. Raises a clear error."""
        bus = self._parts.bus
        if self._parts.owns_bus:
            await bus.start()
        try:
            await bus.check_topics(TOPICS)
            bus_id = await bus.identity()
            self._gpus = await asyncio.to_thread(self._parts.make_gpus)
            kept = await asyncio.to_thread(self._records.open)
            self._has_records = True
            await self._remove_orphans(kept)
            await self._build(kept, bus_id)
        except BaseException:
            await self._let_go()
            raise

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`, then leave the runs to their supervisors, or end them."""
        jobs = [
            self._outbox.run(),
            self._shipper.run(),
            self._assignments.follow(self._first_offset),
            self._watch_members(),
            self._hardware.watch_gpus(),
            self._watch_lapses(),
        ]
        if self._settings.kernel_log is not None:
            jobs.append(self._hardware.watch_kernel(self._settings.kernel_log))
        if self._parts.make_lease_bus is None:
            jobs.append(self._renewals.run(self._parts.bus))
        else:
            self._thread = RenewalThread(self._renewals, self._parts.make_lease_bus)
            await asyncio.to_thread(self._thread.start)
        tasks = [asyncio.create_task(job) for job in jobs]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                await self._drain()
        finally:
            stopping.cancel()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            if self._thread is not None:
                await asyncio.to_thread(self._thread.stop)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def close(self) -> None:
        """Let go of everything; the runs live on under their supervisors, unless they are to end with the worker."""
        await self._let_go()
        await self._parts.close_sources()

    def ready(self) -> Mapping[str, bool]:
        """Return the checks of readiness."""
        return {"reported": self._told is not None, "caught_up": self._assignments.is_caught_up}

    async def measure(self) -> None:
        """Bring the gauges up to date."""
        counts = dict.fromkeys(("starting", "running", "stopping", "ended"), 0)
        for member in self._node.members.values():
            counts[member.state] += 1
        self.metrics.replace(names.RUNS, {(state,): count for state, count in counts.items()})
        deadline = self._renewals.lease.deadline
        if deadline is not None:
            self.metrics.set(names.LEASE_LEFT_S, deadline - self._clock.monotonic())
        gpus = self._node.watch.reports()
        self.metrics.replace(
            names.GPU_UTILISATION, {(str(g.index),): g.utilisation for g in gpus if g.utilisation is not None}
        )
        self.metrics.replace(
            names.GPU_MEMORY_BYTES,
            {(str(g.index),): float(g.memory_used_mib << 20) for g in gpus if g.memory_used_mib is not None},
        )

    # --- start --------------------------------------------------------------------------------------------------------

    async def _remove_orphans(self, kept: Kept) -> None:
        """End and forget supervised members that no file of ours knows: held ones of a start that was never journalled."""
        until = self._clock.monotonic() + ORPHAN_TIMEOUT_S
        known = {key for key, member in kept.members.items() if member.start is not None or key in kept.history.started}
        for key in await asyncio.to_thread(self._processes.kept):
            if key in known:
                continue
            await asyncio.to_thread(self._processes.kill, key)
            while not await asyncio.to_thread(self._is_gone, key):
                if self._clock.monotonic() > until:
                    raise WorkerError(f"{key} runs here, unknown to the journal, and cannot be ended: end it by hand")
                await self._clock.sleep(CLOSE_TICK_S)
            await asyncio.to_thread(self._processes.forget, key)

    def _is_gone(self, key: MemberKey) -> bool:
        return self._processes.status(key).phase is Phase.ENDED or self._processes.end_lost(key)

    async def _build(self, kept: Kept, bus_id: str) -> None:
        settings, clock = self._settings, self._clock
        lease = Lease.adopt(
            settings.lease_s,
            await asyncio.to_thread(self._processes.deadline),
            kept.node.lease_epoch if kept.node is not None else 0,
            clock.monotonic(),
        )
        before = kept.node
        # A node whose files were lost must not come back as an earlier session than it was.
        first_session = max(1, int(clock.now() * 1000))
        file = NodeFile(session=first_session, lease_epoch=lease.epoch, bus=bus_id)
        if before is not None:
            file = before.model_copy(update={"session": before.session + 1, "lease_epoch": lease.epoch, "bus": bus_id})
        watch = GpuWatch(
            idle_memory_mib=settings.gpu_idle_memory_mib,
            settle_s=settings.gpu_settle_s,
            expected=self._parts.expected_gpus,
        )
        self._outbox = Outbox(self._parts.bus, clock, self._parts.random)
        self._assignments = Assignments(
            self._parts.bus,
            clock,
            node=settings.node,
            pool=settings.pool,
            act=lambda batch, offset: self._handlers.act(batch, offset),  # noqa: PLW0108 - they are made a moment later
            dead_letters=self._outbox.put,
        )
        same_bus = before is not None and before.bus == bus_id
        if not same_bus:  # maybe another pool log too: the session alone, new as it is, keeps out what is old
            file = file.with_applied(NOWHERE)
        self._first_offset = await self._assignments.first_offset(file.offset, same_bus=same_bus)
        file = file.model_copy(update={"offset": self._first_offset})
        self._node = Node(
            settings,
            self._records,
            self._outbox,
            watch,
            clock,
            self.metrics,
            address=self._parts.address,
            boot_id=await asyncio.to_thread(_boot_id),
            on_edge=lambda: self._renewals.edge(),  # noqa: PLW0108 - it is made a moment later
        )
        self._build_rest(lease)
        await asyncio.to_thread(self._node.adopt, kept, file)
        await self._launcher.observe_gpus()
        await self._adopt_members(kept)
        if lease.deadline is None:
            await self._watch.end_all(EndCause.LEASE_EXPIRED, 0.0)  # of an epoch that is over: nothing may live on
        self._node.refresh()
        _log.info("node up", action="worker.started", node=settings.node, session=file.session, runs=len(kept.members))

    def _build_rest(self, lease: Lease) -> None:
        settings, clock = self._settings, self._clock
        loop = asyncio.get_running_loop()
        assert self._gpus is not None
        self._shipper = Shipper(
            self._parts.bus,
            clock,
            self._processes,
            limits=Limits(settings.log_chunk_bytes, settings.log_backlog_bytes),
            run_bytes_s=settings.log_run_bytes_s,
            node_bytes_s=settings.log_node_bytes_s,
            save=self._records.save_shipped,
            metrics=self.metrics,
        )
        self._watch = MembersWatch(self._node, self._processes, self._shipper)
        self._renewals = Renewals(
            clock,
            self._processes,
            interval_s=settings.interval_s,
            lease=lease,
            snapshot=lambda: self._node.snapshot,
            on_acknowledged=lambda snapshot: _from_thread(loop, partial(self._acknowledged, snapshot)),
            on_lapse=lambda: _from_thread(loop, self._lapsed.set),
        )
        self._launcher = Launcher(
            self._node,
            self._processes,
            self._gpus,
            self._parts.sources,
            base=self._parts.base,
            lease_epoch=lambda: self._renewals.lease.epoch,
            may_run=self._may_run,
            on_let_run=self._look_closely,
        )
        self._hardware = HardwareWatch(self._node, self._gpus, self._launcher)
        self._handlers = Handlers(
            self._node,
            self._processes,
            self._launcher,
            self._shipper,
            acting=self._acting,
            on_stop=self._look_closely,
        )

    async def _adopt_members(self, kept: Kept) -> None:
        """Go on with every member that the files know: living, ended, or accepted and never started."""
        for key, found in kept.members.items():
            member = found
            if member.start is None and member.end is None and key not in kept.history.started:
                detail = "the worker was restarted before it could start the member"
                await self._node.refuse(member.assigned, member.traceparent, RefusalCause.STALE_SESSION, detail)
                continue
            if member.start is None and key in kept.history.started:  # journalled, and then no time to write its file
                member = member.started(pid=kept.history.started[key], session=self._node.session - 1)
                self._node.members[key] = member
            self._node.announce_again(member)
            status = await asyncio.to_thread(self._processes.status, key)
            shipped = await asyncio.to_thread(self._records.shipped, key)
            self._shipper.follow(member, status.spool_bytes, status.spool_gap, shipped=shipped)

    # --- lease --------------------------------------------------------------------------------------------------------

    def _acknowledged(self, snapshot: Snapshot) -> None:
        self._told = snapshot
        self._told_more.set()
        if not self._lapsed.is_set():
            self._may_run.set()

    async def _watch_lapses(self) -> None:
        """At a lapse: end everything, then begin a new epoch and a new session."""
        while True:
            await self._lapsed.wait()
            self._may_run.clear()
            async with self._acting:
                for member in self._node.living():
                    await self._handlers.stop_member(member.key, 0.0, EndCause.LEASE_EXPIRED)
                await self._launcher.finished()
                await self._watch.end_all(EndCause.LEASE_EXPIRED, 0.0)
                lease = self._renewals.lease.next_epoch()
                await self._node.save_file(session=self._node.session + 1, lease_epoch=lease.epoch)
                self._node.refresh()
                self._lapsed.clear()
                self._renewals.resume(lease)
            _log.warning("a new session begins", action="worker.session-begun", session=self._node.session)

    def _look_closely(self) -> None:
        """Look often for a moment: a start or an end is about to be seen."""
        self._look_closely_until = self._clock.monotonic() + CLOSELY_S

    # --- watching -----------------------------------------------------------------------------------------------------

    async def _watch_members(self) -> None:
        while True:
            await self._watch.look()
            if self._thread is not None:
                self._thread.check()
            self._launcher.check()
            is_news_near = self._clock.monotonic() < self._look_closely_until
            await self._clock.sleep(min(CLOSE_TICK_S, self._settings.tick_s) if is_news_near else self._settings.tick_s)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Refuse what comes, end the runs if so set, and get out what there is to tell, within a bound."""
        settings = self._settings
        self._node.is_stopping = True
        self._node.edge()
        grace_s = settings.stop_grace_s if settings.stop_runs else 0.0
        try:
            async with asyncio.timeout(settings.drain_timeout_s + grace_s):
                if settings.stop_runs:
                    for member in self._node.living():
                        await self._handlers.stop_member(member.key, grace_s, EndCause.WORKER_STOPPED)
                await self._launcher.finished()
                if settings.stop_runs:
                    await self._watch.end_all(EndCause.WORKER_STOPPED, grace_s)
                    for member in list(self._node.members.values()):
                        await self._shipper.finished(member.key)
                await self._outbox.drained()
                while self._told != self._node.snapshot:
                    self._told_more.clear()
                    self._node.edge()
                    await self._told_more.wait()
        except TimeoutError:
            _log.warning("not all was told before the end", action="worker.drain-timeout")

    def _stop_what_is_left(self) -> None:
        """Order the end of runs that the drain did not see end: it was broken off, or too short."""
        for member in self._node.living():
            if member.start is not None:
                self._processes.stop(member.key, grace_s=0.0, cause=EndCause.WORKER_STOPPED)

    async def _let_go(self) -> None:
        if self._has_records:
            if hasattr(self, "_handlers"):
                if self._settings.stop_runs:
                    await asyncio.to_thread(self._stop_what_is_left)
                self._handlers.cancel()
                await self._launcher.cancel()
                await asyncio.to_thread(self._node.close)
            self._records.close()
            self._has_records = False
        if self._gpus is not None:
            self._gpus.close()
            self._gpus = None
        if self._parts.owns_bus:
            with contextlib.suppress(Exception):
                await self._parts.bus.stop()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def _from_thread(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the worker's loop has ended
        loop.call_soon_threadsafe(callback)
