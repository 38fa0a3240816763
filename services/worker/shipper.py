"""Ships output from the spools to the bus: bounded, in order, at the latest half a second after it was written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from schedmate.infra.bus.port import BusUnavailableError, EventBus
from schedmate.infra.clock import Clock
from schedmate.infra.processes.port import MemberKey, Processes
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.schemas.wire import Envelope
from schedmate.services.worker.announcements import log_chunk
from schedmate.services.worker.member import Member
from schedmate.services.worker.outbox import publish
from schedmate.services.worker.shipping import Budget, Limits, Piece, Progress, next_pieces

TICK_S: Final = 0.2
SAVE_EVERY_S: Final = 1.0
RETRY_S: Final = 1.0
BATCH_BYTES_MAX: Final = 1 << 20

_log = structlog.get_logger()


@dataclass
class _Stream:
    member: Member
    budget: Budget
    progress: Progress
    size: int = 0
    punched: tuple[int, int] | None = None
    saved: int = 0
    saved_at: float = 0.0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_ended(self) -> bool:
        return self.member.end is not None


class Shipper:
    """Follows the spools that `follow` tells it of. Ended members go first: their tail says why."""

    def __init__(
        self,
        bus: EventBus,
        clock: Clock,
        processes: Processes,
        *,
        limits: Limits,
        run_bytes_s: int,
        node_bytes_s: int,
        save: Callable[[MemberKey, int], None],
        metrics: Metrics,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._processes = processes
        self._limits = limits
        self._run_bytes_s = run_bytes_s
        self._node_bytes_s = node_bytes_s
        self._node_budget = Budget(node_bytes_s, clock.monotonic())
        self._save = save
        self._metrics = metrics
        self._streams: dict[MemberKey, _Stream] = {}

    def follow(self, member: Member, size: int, punched: tuple[int, int] | None, *, shipped: int = 0) -> None:
        """Say how long a member's output is by now. `shipped` counts at the first call only."""
        stream = self._streams.get(member.key)
        if stream is None:
            budget = Budget(self._run_bytes_s, self._clock.monotonic())
            stream = _Stream(member, budget, Progress(shipped), saved=shipped)
            self._streams[member.key] = stream
        stream.member = member
        stream.size = member.end.log_bytes if member.end is not None else max(stream.size, size)
        stream.punched = punched
        self._mark_done(stream)

    async def finished(self, key: MemberKey) -> None:
        """Wait until all output of an ended member is on the bus; returns at once for one that is not followed."""
        stream = self._streams.get(key)
        if stream is not None:
            await stream.done.wait()

    def forget(self, key: MemberKey) -> None:
        """Follow a member no more."""
        self._streams.pop(key, None)

    async def run(self) -> None:
        """Ship until cancelled. A bus that is away is waited for: the spools keep what is not shipped."""
        while True:
            try:
                more = await self.ship()
            except (BusUnavailableError, TimeoutError) as error:
                _log.warning("output waits for the bus", action="worker.log-waits", error=str(error))
                await self._clock.sleep(RETRY_S)
                continue
            if not more:
                await self._clock.sleep(TICK_S)

    async def ship(self) -> bool:
        """Ship what may go now, as one batch; True when more waits that may go at once."""
        now = self._clock.monotonic()
        left = room = min(self._node_budget.available(now), BATCH_BYTES_MAX)
        batch: list[tuple[_Stream, Piece, Envelope[Any]]] = []
        for stream in sorted(self._streams.values(), key=lambda s: not s.has_ended):
            allowed = left if stream.has_ended else min(left, stream.budget.available(now))
            pieces, planned = next_pieces(stream.progress, stream.size, stream.punched, self._limits, allowed)
            stream.progress = Progress(stream.progress.shipped, planned.skip or stream.progress.skip)
            contents = await asyncio.to_thread(self._read, stream.member.key, pieces, has_ended=stream.has_ended)
            for piece, content in contents:
                envelope = log_chunk(stream.member, piece.start, piece.end, content, at=self._clock.now())
                batch.append((stream, piece, envelope))
                left -= 0 if piece.is_gap else piece.end - piece.start
        if not batch:
            return False
        await publish(self._bus, [envelope for _, _, envelope in batch])
        await self._acknowledged(batch, now)
        self._streams = {
            key: self._streams[key] for key in sorted(self._streams, key=lambda k: k in self._served(batch))
        }
        return left <= 0 < room or room == BATCH_BYTES_MAX

    def _read(self, key: MemberKey, pieces: list[Piece], *, has_ended: bool) -> list[tuple[Piece, bytes | None]]:
        """Return the pieces with their content, up to the first that is not there (yet)."""
        contents: list[tuple[Piece, bytes | None]] = []
        for piece in pieces:
            content = None if piece.is_gap else self._processes.read_spool(key, piece.start, piece.end - piece.start)
            if content is None or len(content) == piece.end - piece.start:
                contents.append((piece, content))
            elif has_ended:  # somebody removed it: it will never come
                contents.append((Piece(piece.start, piece.end, is_gap=True), None))
            else:
                break
        gap = self._processes.status(key).spool_gap if pieces else None
        for number, (piece, _) in enumerate(contents):
            # what was read may have been punched out in between: zeros, not output; the next plan knows the gap
            if gap is not None and not piece.is_gap and piece.start < gap[1] and piece.end > gap[0]:
                return contents[:number]
        return contents

    async def _acknowledged(self, batch: list[tuple[_Stream, Piece, Envelope[Any]]], now: float) -> None:
        for stream, piece, _ in batch:
            length = piece.end - piece.start
            skip = stream.progress.skip
            stream.progress = Progress(piece.end, None if skip is not None and piece.end >= skip[1] else skip)
            if piece.is_gap:
                self._metrics.count(names.LOG_GAPS, length)
            else:
                stream.budget.spend(length)
                self._node_budget.spend(length)
                self._metrics.count(names.LOG_SHIPPED, length)
        for stream in {id(s): s for s, _, _ in batch}.values():
            self._mark_done(stream)
            if stream.done.is_set() or now - stream.saved_at >= SAVE_EVERY_S:
                stream.saved, stream.saved_at = stream.progress.shipped, now
                await asyncio.to_thread(self._save, stream.member.key, stream.saved)

    @staticmethod
    def _served(batch: list[tuple[_Stream, Piece, Envelope[Any]]]) -> set[MemberKey]:
        return {stream.member.key for stream, _, _ in batch}

    @staticmethod
    def _mark_done(stream: _Stream) -> None:
        if stream.has_ended and stream.progress.shipped >= stream.size:
            stream.done.set()
