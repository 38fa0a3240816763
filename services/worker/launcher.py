"""From an accepted assignment to a program that runs: directory, source, GPUs, supervisor, journal, go (protocol §2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from schedmate.infra.gpus.port import Gpus
from schedmate.infra.processes.port import (
    AlreadyStartedError,
    EndCause,
    Launch,
    MemberKey,
    Phase,
    Processes,
    SetupError,
)
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.tracing import span_from
from schedmate.schemas.events import ExitCause, MemberAssigned, RefusalCause
from schedmate.services.worker.gpu_watch import Use, worst
from schedmate.services.worker.launch import Base, command, environment
from schedmate.services.worker.member import Member
from schedmate.services.worker.node import Node
from schedmate.services.worker.sources import SourceError, Sources, give_to

PROBE_EVERY_S: Final = 0.2
GONE_EVERY_S: Final = 0.02
CANNOT_START: Final = {
    Use.MISSING: (RefusalCause.GPU_MISSING, "GPU {} is not there or not healthy"),
    Use.EXTERNAL: (RefusalCause.GPU_BUSY_EXTERNAL, "a process from outside holds memory of GPU {}"),
    Use.HELD: (RefusalCause.GPU_IN_USE, "GPU {} is held: its memory has not come back after the last run"),
}

_log = structlog.get_logger()


class CannotStartError(Exception):
    """The member cannot be started on this node now."""

    def __init__(self, cause: RefusalCause, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class Launcher:
    """Starts members, each in a task of its own; `halt` ends one that has not come to its start yet."""

    def __init__(
        self,
        node: Node,
        processes: Processes,
        gpus: Gpus,
        sources: Sources,
        *,
        base: Base,
        lease_epoch: Callable[[], int],
        may_run: asyncio.Event,
        on_let_run: Callable[[], None],
    ) -> None:
        self._node = node
        self._processes = processes
        self._gpus = gpus
        self._sources = sources
        self._base = base
        self._lease_epoch = lease_epoch
        self._may_run = may_run
        self._on_let_run = on_let_run
        self._preparing: dict[MemberKey, asyncio.Task[Launch]] = {}
        self._tasks: dict[MemberKey, asyncio.Task[None]] = {}
        self._causes: dict[MemberKey, EndCause] = {}  # of halted members
        self._failure: BaseException | None = None

    def launch(self, member: Member) -> None:
        """Begin to start an accepted member."""
        task = asyncio.create_task(self._launch(member.key), name=f"launch {member.key}")
        self._tasks[member.key] = task
        task.add_done_callback(lambda done: self._launched(member.key, done))

    def halt(self, key: MemberKey, cause: EndCause) -> None:
        """End the preparation of a member that has an order to stop: it then ends by itself, with this cause."""
        self._causes[key] = cause
        preparing = self._preparing.get(key)
        if preparing is not None:
            preparing.cancel()

    def check(self) -> None:
        """Raise what an attempt to start failed with unforeseen: the worker ends with it."""
        if self._failure is not None:
            raise self._failure

    async def cancel(self) -> None:
        """End all attempts to start, at the latest when the worker goes."""
        for task in list(self._tasks.values()):
            task.cancel()
        await self.finished()

    async def finished(self) -> None:
        """Wait until no member is being started."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def observe_gpus(self) -> None:
        """Look at the GPUs now: who uses them, and what the runs do with them."""
        states = await asyncio.to_thread(self._gpus.states)
        has_pids = any(state.pids for state in states)
        ours = await asyncio.to_thread(self._processes.pids) if has_pids else frozenset()
        now = self._node.clock.monotonic()
        self._node.watch.observe(states, ours=ours, occupied=self._node.occupied(), now=now)
        self._node.usages.observe(states, self._node.running(), now)

    def _launched(self, key: MemberKey, task: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)
        self._causes.pop(key, None)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    async def _launch(self, key: MemberKey) -> None:
        member = self._node.members[key]
        with span_from(member.traceparent, names.START_MEMBER, **_attributes(member)):
            try:
                launch = await self._prepared(member)
                if launch is None:
                    return
                await self._start(key, launch)
            except CannotStartError as error:
                await self._node.refuse(member.assigned, member.traceparent, error.cause, error.detail)

    async def _prepared(self, member: Member) -> Launch | None:
        """Return what to start, or None when the member was stopped before it was ready (and has ended so)."""
        key = member.key
        task = asyncio.create_task(self._prepare(member.assigned))
        self._preparing[key] = task
        try:
            if self._node.members[key].stop_grace_s is not None:
                task.cancel()
            return await task
        except asyncio.CancelledError:
            if not task.cancelled() or self._node.members[key].stop_grace_s is None:
                task.cancel()
                raise
            await self._end_unstarted(key)
            return None
        finally:
            del self._preparing[key]

    async def _prepare(self, assigned: MemberAssigned) -> Launch:
        await self._may_run.wait()  # before the first acknowledged report there is no lease to run under
        settings = self._node.settings
        directory = settings.job_root.absolute() / assigned.job_id
        try:
            workdir, checkpoints = await self._directories(assigned, directory)
        except SourceError as error:
            raise CannotStartError(RefusalCause.BUNDLE_UNAVAILABLE, str(error)) from error
        except (OSError, KeyError) as error:
            raise CannotStartError(RefusalCause.SETUP_FAILED, f"directories cannot be made: {error}") from error
        await self._probe_gpus(assigned)
        return Launch(
            argv=command(assigned),
            env=environment(assigned, self._base, str(checkpoints)),
            workdir=str(workdir),
            lease_epoch=self._lease_epoch(),
            spool_bytes_max=settings.spool_bytes_max,
            user=settings.run_user,
        )

    async def _directories(self, assigned: MemberAssigned, directory: Path) -> tuple[Path, Path]:
        """Make the job's directories, kept across attempts; return where it starts and where it keeps checkpoints."""
        spec = assigned.spec
        checkpoints = directory / (spec.checkpoint_dir or "checkpoints")  # an absolute path stays what it is
        made = [directory] if spec.checkpoint_dir is not None else [directory, checkpoints]
        await asyncio.to_thread(_make_once, made, self._node.settings.run_user)
        if spec.bundle is not None:
            return await self._sources.unpacked(spec.bundle, directory), checkpoints
        return directory / (spec.workdir or ""), checkpoints

    async def _probe_gpus(self, assigned: MemberAssigned) -> None:
        """Look once more before the start; a GPU whose last run has just ended gets time to give its memory back."""
        while True:
            await self.observe_gpus()
            found = worst({gpu: self._node.watch.use(gpu) for gpu in assigned.gpus})
            if found is None:
                return
            gpu, use = found
            if use is not Use.SETTLING:
                cause, detail = CANNOT_START[use]
                self._node.edge()
                raise CannotStartError(cause, detail.format(gpu))
            await self._node.clock.sleep(PROBE_EVERY_S)

    async def _start(self, key: MemberKey, launch: Launch) -> None:
        try:
            pid = await asyncio.to_thread(self._processes.hold, key, launch)
        except AlreadyStartedError as error:
            raise CannotStartError(RefusalCause.SUPERSEDED, str(error)) from error
        except SetupError as error:
            raise CannotStartError(RefusalCause.SETUP_FAILED, str(error)) from error
        if self._node.members[key].stop_grace_s is not None:
            self._processes.abandon(key)
            await self._until_gone(key)
            await self._end_unstarted(key)
            return
        await self._node.started(key, pid)
        if self._node.members[key].stop_grace_s is not None:
            cause = self._causes.get(key, EndCause.STOPPED)
            await asyncio.to_thread(lambda: self._processes.stop(key, grace_s=0.0, cause=cause))
            self._processes.abandon(key)
            return
        await asyncio.to_thread(self._processes.let_run, key)  # a stop from here on is the supervisor's to see
        self._on_let_run()

    async def _until_gone(self, key: MemberKey) -> None:
        """Wait until nothing is left of a program that was held and never run."""
        while True:
            status = await asyncio.to_thread(self._processes.status, key)
            if status.phase is Phase.ENDED:
                return
            if status.phase is Phase.LOST:
                await asyncio.to_thread(self._processes.end_lost, key)
            await self._node.clock.sleep(GONE_EVERY_S)

    async def _end_unstarted(self, key: MemberKey) -> None:
        cause = ExitCause(self._causes.get(key, EndCause.STOPPED).value)
        await self._node.ended_before_start(key, cause, "ended before its program was let run")


def _attributes(member: Member) -> dict[str, Any]:
    assigned = member.assigned
    return {
        "job_id": assigned.job_id,
        "run_id": assigned.run_id,
        "attempt": assigned.attempt,
        "member": assigned.member,
        "node": assigned.node,
    }


def _make_once(directories: Sequence[Path], user: str | None) -> None:
    """Make a job's directories, the outermost first, and give them to the account that runs it; what exists stays as it is."""
    directories[0].parent.mkdir(parents=True, exist_ok=True)
    if directories[0].exists():
        return
    for directory in directories:
        directory.mkdir(exist_ok=True)
    if user is not None:
        give_to(directories[0], user)
