"""Watches the members that were started: sees them run, sees them end, cleans up after those that lost their supervisor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Final

import structlog

from schedmate.infra.checkpoint_listing import listing
from schedmate.infra.processes.port import EndCause, ExitStatus, MemberKey, MemberStatus, Phase, Processes
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.tracing import span_from
from schedmate.schemas.events import CheckpointEntry
from schedmate.services.worker.announcements import checkpoints_listed
from schedmate.services.worker.member import Member
from schedmate.services.worker.node import Node
from schedmate.services.worker.shipper import Shipper

LISTING_TIMEOUT_S: Final = 1.0
KILL_AFTER_S: Final = 10.0  # how long supervisors get to end their runs before the worker kills past them

_log = structlog.get_logger()


class MembersWatch:
    """One look at all started members; the worker looks often, and until nothing lives when it has to."""

    def __init__(self, node: Node, processes: Processes, shipper: Shipper) -> None:
        self._node = node
        self._processes = processes
        self._shipper = shipper
        self._looking = asyncio.Lock()
        self._listing = threading.Lock()

    async def look(self) -> None:
        """Look once, and act on what is seen."""
        async with self._looking:
            started = [member for member in self._node.living() if member.start is not None]
            statuses = await asyncio.to_thread(self._statuses, [member.key for member in started])
            for member, status in zip(started, statuses, strict=True):
                await self._act(member, status)

    async def end_all(self, cause: EndCause, grace_s: float) -> None:
        """End every started member and return when nothing of them lives, however long that takes."""
        kill_at = self._node.clock.monotonic() + grace_s + KILL_AFTER_S
        for member in self._started():
            await asyncio.to_thread(self._stop, member.key, grace_s, cause)
        while self._started():
            await self.look()
            if self._node.clock.monotonic() >= kill_at:
                kill_at += KILL_AFTER_S
                for member in self._started():
                    _log.error("killed past its supervisor", action="worker.run-killed", run_id=member.assigned.run_id)
                    await asyncio.to_thread(self._processes.kill, member.key)
            await self._node.clock.sleep(self._node.settings.tick_s)

    def _started(self) -> list[Member]:
        return [member for member in self._node.living() if member.start is not None]

    def _stop(self, key: MemberKey, grace_s: float, cause: EndCause) -> None:
        self._processes.stop(key, grace_s=grace_s, cause=cause)

    def _statuses(self, keys: Sequence[MemberKey]) -> list[MemberStatus]:
        statuses = []
        for key in keys:
            status = self._processes.status(key)
            if status.phase is Phase.LOST and self._processes.end_lost(key):
                status = self._processes.status(key)
            statuses.append(status)
        return statuses

    async def _act(self, member: Member, status: MemberStatus) -> None:
        started_at = status.exit.started_at if status.exit is not None else status.started_at
        assert member.start is not None
        if member.start.started_at is None and started_at is not None:
            await self._node.seen_running(member.key, started_at)
        if status.exit is not None:
            with span_from(
                member.traceparent,
                names.EXIT_MEMBER,
                job_id=member.assigned.job_id,
                run_id=member.assigned.run_id,
                member=member.assigned.member,
                exit_code=status.exit.exit_code,
            ):
                if _ended_badly(status.exit):
                    await self._tell_checkpoints(member)
                member = await self._node.ended(member.key, status.exit, status.spool_bytes)
        elif status.phase is Phase.ABSENT:
            await self._gone(member)
            return
        self._shipper.follow(member, status.spool_bytes, status.spool_gap)

    async def _tell_checkpoints(self, member: Member) -> None:
        """Say what the checkpoint directory holds, before the exit; a file system that hangs costs a bounded time, once at a time."""
        assigned = member.assigned
        if assigned.member != 0 or not self._listing.acquire(blocking=False):
            return
        settings = self._node.settings
        home = settings.job_root.absolute() / assigned.job_id
        directory = home / (assigned.spec.checkpoint_dir or "checkpoints")
        if settings.run_user is not None and not directory.resolve().is_relative_to(home):
            self._listing.release()
            return  # the job may not see there what the worker may

        def listed() -> tuple[CheckpointEntry, ...]:
            try:
                return listing(directory)
            finally:
                self._listing.release()

        try:
            async with asyncio.timeout(LISTING_TIMEOUT_S):
                entries = await asyncio.to_thread(listed)
        except TimeoutError:
            _log.warning("checkpoints could not be listed in time", action="worker.checkpoints", run_id=assigned.run_id)
            return
        if entries:
            at = self._node.clock.now()
            self._node.outbox.put(checkpoints_listed(member, str(directory), entries, at=at))

    async def _gone(self, member: Member) -> None:
        """Even the files are gone: somebody removed them. Nothing can be told but that it is lost."""
        lost = ExitStatus(EndCause.LOST, None, None, None, self._node.clock.now(), "its files are gone")
        await self._node.ended(member.key, lost, 0)


def _ended_badly(status: ExitStatus) -> bool:
    return status.cause is not EndCause.STOPPED and (status.exit_code != 0 or status.signal is not None)
