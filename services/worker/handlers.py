"""Carries out what the node's partition of `assignments` says: a batch of orders in, effects and events out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from schedmate.infra.processes.port import EndCause, MemberKey, Processes
from schedmate.schemas.events import ExitCause
from schedmate.services.worker.fence import Accept, Delivered, Refuse, Release, Step, Stop, decide
from schedmate.services.worker.launcher import Launcher
from schedmate.services.worker.member import Member
from schedmate.services.worker.node import Node
from schedmate.services.worker.shipper import Shipper

_log = structlog.get_logger()


class Handlers:
    """One batch at a time, and none while `acting` is held by somebody else (a lapse that is being dealt with)."""

    def __init__(
        self,
        node: Node,
        processes: Processes,
        launcher: Launcher,
        shipper: Shipper,
        *,
        acting: asyncio.Lock,
        on_stop: Callable[[], None],
    ) -> None:
        self._node = node
        self._processes = processes
        self._launcher = launcher
        self._shipper = shipper
        self._acting = acting
        self._on_stop = on_stop
        self._leaving: set[asyncio.Task[None]] = set()

    async def act(self, batch: Sequence[Delivered], offset: int) -> None:
        """Carry out a batch. Its effects are on disk before the fence and the offset are."""
        async with self._acting:
            steps, applied = decide(batch, self._node.standing())
            for step in steps:
                await self._carry_out(step)
            await self._node.save_file(applied_seq=applied.seq, applied_index=applied.index, offset=offset)
        if batch:
            self._node.edge()

    async def stop_member(self, key: MemberKey, grace_s: float, cause: EndCause) -> None:
        """End a member, wherever it stands."""
        if key not in self._node.members or not self._node.members[key].is_living:
            return
        member = await self._node.order_stop(key, grace_s)
        if member.start is None:
            self._launcher.halt(key, cause)
        else:
            await asyncio.to_thread(lambda: self._processes.stop(key, grace_s=grace_s, cause=cause))
            self._on_stop()
        self._node.edge()

    def cancel(self) -> None:
        """Leave released members whose output is not all on the bus to the next life of the worker."""
        for task in list(self._leaving):
            task.cancel()

    async def _carry_out(self, step: Step) -> None:
        match step:
            case Refuse(assigned, traceparent, cause, detail):
                await self._node.refuse(assigned, traceparent, cause, detail)
            case Accept(assigned, traceparent, stop_grace_s):
                member = Member(assigned=assigned, traceparent=traceparent, stop_grace_s=stop_grace_s)
                await self._node.accept(member)
                if stop_grace_s is None:
                    self._launcher.launch(member)
                else:
                    await self._node.ended_before_start(member.key, ExitCause.STOPPED, "stopped before it was started")
            case Stop(key, grace_s):
                await self.stop_member(key, grace_s, EndCause.STOPPED)
            case Release(key):
                await self._release(key)

    async def _release(self, key: MemberKey) -> None:
        member = await self._node.release(key)
        if member is None:
            _log.error("a living run was released", action="worker.release-refused", run_id=key.run_id)
            return
        task = asyncio.create_task(self._forget(key), name=f"forget {key}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _forget(self, key: MemberKey) -> None:
        """Remove a released member once all of its output is on the bus."""
        await self._shipper.finished(key)
        self._shipper.forget(key)
        await self._node.drop(key)
        await asyncio.to_thread(self._processes.forget, key)
