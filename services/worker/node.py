"""The node as the running worker holds it: members, fence, session, GPUs; every change goes to disk before it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

from schedmate.infra.clock import Clock
from schedmate.infra.processes.port import ExitStatus, MemberKey
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.tracing import trace_id
from schedmate.schemas.events import ExitCause, MemberAssigned, RefusalCause
from schedmate.services.worker.announcements import Snapshot, run_exited, run_refused, run_reports, run_started
from schedmate.services.worker.fence import Place, Standing
from schedmate.services.worker.gpu_watch import GpuWatch
from schedmate.services.worker.member import Member, key_of
from schedmate.services.worker.outbox import Outbox
from schedmate.services.worker.records import Kept, NodeFile, Records
from schedmate.services.worker.settings import WorkerSettings
from schedmate.services.worker.usage import Usages

T = TypeVar("T")

_log = structlog.get_logger()


class Node:
    """All of it belongs to the worker's loop; `snapshot` is read by the renewing thread and replaced whole."""

    def __init__(
        self,
        settings: WorkerSettings,
        records: Records,
        outbox: Outbox,
        watch: GpuWatch,
        clock: Clock,
        metrics: Metrics,
        *,
        address: str,
        boot_id: str,
        on_edge: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.watch = watch
        self.clock = clock
        self.outbox = outbox
        self.members: dict[MemberKey, Member] = {}
        self.ever_started: set[MemberKey] = set()
        self.file = NodeFile(session=1, lease_epoch=0)
        self.is_stopping = False
        self.usages = Usages()
        self._records = records
        self._metrics = metrics
        self._address = address
        self._boot_id = boot_id
        self._on_edge = on_edge
        self._unacknowledged: dict[MemberKey, Place] = {}  # refusals on their way, with the fence before them
        self._disk = ThreadPoolExecutor(1, "schedmate-disk")  # one thread: effects reach the disk in their order
        self._changing = asyncio.Lock()  # a change reads, writes to disk and then takes effect: one at a time
        self.snapshot = self._snapshot()

    @property
    def session(self) -> int:
        """The node's session."""
        return self.file.session

    def adopt(self, kept: Kept, file: NodeFile) -> None:
        """Take over what was found on disk; blocks."""
        self.members = dict(kept.members)
        self.ever_started = set(kept.history.started)
        self.file = file
        self._records.save_node(file)
        self.refresh()

    def close(self) -> None:
        """Finish writing."""
        self._disk.shutdown(wait=True)

    def standing(self) -> Standing:
        """Return what decides about a batch."""
        return Standing(
            applied=self.file.applied,
            session=self.session,
            members=self.members,
            ever_started=self.ever_started,
            gpus_present=self.watch.present(),
            is_stopping=self.is_stopping,
        )

    def living(self) -> list[Member]:
        """Return the members that have not ended."""
        return [member for member in self.members.values() if member.is_living]

    def occupied(self) -> frozenset[int]:
        """Return the GPUs that members hold whose program was let run."""
        return frozenset(g for m in self.living() if m.start is not None for g in m.assigned.gpus)

    def running(self) -> dict[MemberKey, tuple[int, ...]]:
        """Return the GPUs of each member whose program was seen to run."""
        return {m.key: m.assigned.gpus for m in self.living() if m.start is not None and m.start.started_at is not None}

    def refresh(self) -> None:
        """Make a new snapshot for reports."""
        self.snapshot = self._snapshot()

    def edge(self) -> None:
        """Make a new snapshot and have it reported soon."""
        self.refresh()
        self._on_edge()

    # --- changes, each on disk before it is told ----------------------------------------------------------------------

    async def save_file(self, **changes: Any) -> None:
        """Write where the node stands."""
        async with self._changing:
            file = self.file.model_copy(update=changes)
            await self._on_disk(self._records.save_node, file)
            self.file = file

    async def accept(self, member: Member) -> None:
        """Take a member in."""
        async with self._changing:
            await self._save(member)

    async def order_stop(self, key: MemberKey, grace_s: float) -> Member:
        """Note that a member is to be stopped; a grace only ever shrinks."""
        async with self._changing:
            member = self.members[key]
            known_s = member.stop_grace_s
            stopped = member.stopped(grace_s if known_s is None else min(grace_s, known_s))
            if stopped != member:
                await self._save(stopped)
            return stopped

    async def started(self, key: MemberKey, pid: int) -> None:
        """Journal a member's start: only after this may its program run."""
        async with self._changing:
            member = self.members[key].started(pid=pid, session=self.session)
            await self._on_disk(self._records.journal_start, member, self.clock.now())
            self.ever_started.add(key)
            self.members[key] = member

    async def seen_running(self, key: MemberKey, started_at: float) -> None:
        """Announce a member's start once its program was seen to run."""
        async with self._changing:
            member = self.members[key].seen_running(started_at)
            await self._save(member)
        self.outbox.put(run_started(member))
        pid = member.start.pid if member.start is not None else None
        _log.info("run started", action="worker.run-started", pid=pid, **_about(member))
        self.edge()

    async def ended(self, key: MemberKey, status: ExitStatus, log_bytes: int) -> Member:
        """Journal and announce the end of a member of which nothing is left."""
        usage = self.usages.of(key)
        return await self._end(key, lambda m: m.ended(status, session=self.session, log_bytes=log_bytes, usage=usage))

    async def ended_before_start(self, key: MemberKey, cause: ExitCause, detail: str) -> Member:
        """Journal and announce the end of a member for which nothing was started."""
        at = self.clock.now()
        return await self._end(key, lambda m: m.ended_before_start(cause, session=self.session, at=at, detail=detail))

    async def refuse(self, assigned: MemberAssigned, traceparent: str | None, cause: RefusalCause, detail: str) -> None:
        """Journal and announce that nothing was started.

        Until the bus has the refusal, reports go on to show the member, or the fence before it: else its absence would be
        taken for a loss.
        """
        key, at = key_of(assigned), self.clock.now()
        await self._on_disk(self._records.journal_refusal, assigned, at, self.session)
        _log.warning(
            "run refused",
            action="worker.run-refused",
            job_id=assigned.job_id,
            run_id=assigned.run_id,
            cause=cause.value,
            detail=detail,
        )
        self._metrics.count(names.RUN_REFUSALS, cause=cause.value)
        if key not in self.members:
            self._unacknowledged.setdefault(key, self.file.applied)
        event = run_refused(assigned, traceparent, cause, detail, session=self.session, at=at)
        self.outbox.put(event).add_done_callback(lambda _: self._refusal_told(key))

    async def release(self, key: MemberKey) -> Member | None:
        """Report an ended member no more."""
        member = self.members.get(key)
        if member is None or member.is_living:
            return None
        del self.members[key]
        self.usages.forget(key)
        self.refresh()
        return member

    async def drop(self, key: MemberKey) -> None:
        """Remove a released member's file."""
        await self._on_disk(self._records.drop_member, key)

    def announce_again(self, member: Member) -> None:
        """Put a member's announcements out once more after a restart: their ids are those of before."""
        if member.start is not None and member.start.started_at is not None:
            self.outbox.put(run_started(member))
        if member.end is not None:
            self.outbox.put(run_exited(member))

    # --- parts --------------------------------------------------------------------------------------------------------

    def _refusal_told(self, key: MemberKey) -> None:
        self._unacknowledged.pop(key, None)
        member = self.members.get(key)
        if member is not None and member.start is None and member.is_living:
            del self.members[key]
            self._disk.submit(self._records.drop_member, key)
        self.edge()

    async def _end(self, key: MemberKey, step: Callable[[Member], Member]) -> Member:
        async with self._changing:
            member = step(self.members[key])
            assert member.end is not None
            await self._on_disk(self._records.journal_end, member, member.end.ended_at)
            self.members[key] = member
        self.outbox.put(run_exited(member))
        end = member.end
        self._metrics.count(names.RUN_ENDS, cause=end.cause.value)
        _log.info(
            "run ended",
            action="worker.run-ended",
            cause=end.cause.value,
            exit_code=end.exit_code,
            signal=end.signal,
            **_about(member),
        )
        self.edge()
        return member

    async def _save(self, member: Member) -> None:
        await self._on_disk(self._records.save_member, member)
        self.members[member.key] = member

    async def _on_disk(self, write: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, write, *arguments)

    def _snapshot(self) -> Snapshot:
        applied = min([self.file.applied, *self._unacknowledged.values()])
        return Snapshot(
            node=self.settings.node,
            pool=self.settings.pool,
            boot_id=self._boot_id,
            session=self.file.session,
            applied=applied,
            address=self._address,
            port_min=self.settings.port_min,
            port_max=self.settings.port_max,
            gpus=self.watch.reports(),
            runs=run_reports(self.members.values()),
            stopping=self.is_stopping,
            same_user=self.settings.run_user is None,
            lease_s=self.settings.reported_lease_s,
            rack=self.settings.rack,
            spine=self.settings.spine,
            measured=self.usages.of_all(sorted(member.key for member in self.living())),
        )


def _about(member: Member) -> dict[str, Any]:
    assigned = member.assigned
    return {
        "job_id": assigned.job_id,
        "run_id": assigned.run_id,
        "member": assigned.member,
        "gpus": list(assigned.gpus),
        "trace_id": trace_id(member.traceparent),  # a run goes on long after the span that began it
    }
