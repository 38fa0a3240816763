"""Event in, events out: load the tracks, apply the pure tracker, save, and say what came of it.

A diagnosis is not said by the handler of the exit: it waits (bounded) for the log's tail, off the stream, in `closings`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from schedmate.infra.bus.keyed_state import KeyedState
from schedmate.infra.clock import Clock
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.tracing import span
from schedmate.infra.work_pool import WorkPool
from schedmate.schemas.events import Event, LogChunked, ProgressObserved
from schedmate.schemas.wire import Envelope
from schedmate.services.log_monitor import work
from schedmate.services.log_monitor.tracker import Outcome, Tuning
from schedmate.services.log_monitor.unread import Unread
from schedmate.services.log_monitor.work import Overlay

SOURCE = "schedmate/log-monitor"


class JobLocks:
    """One lock a job, as long as somebody wants it: a job's tracks are loaded, changed and saved by one at a time."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def of(self, job_id: str) -> AbstractAsyncContextManager[None]:
        """Return the context in which the job's tracks may be changed."""
        return self._held(job_id)

    @asynccontextmanager
    async def _held(self, job_id: str) -> AsyncIterator[None]:
        lock, wanted = self._locks.get(job_id, (asyncio.Lock(), 0))
        self._locks[job_id] = (lock, wanted + 1)
        try:
            async with lock:
                yield
        finally:
            lock, wanted = self._locks[job_id]
            if wanted == 1:
                del self._locks[job_id]
            else:
                self._locks[job_id] = (lock, wanted - 1)


class StreamHandler:
    """Handles the events of jobs, runs, logs and analyses."""

    def __init__(
        self,
        state: KeyedState,
        locks: JobLocks,
        tuning: Tuning,
        clock: Clock,
        pool: WorkPool,
        metrics: Metrics,
        *,
        inline_bytes_max: int,
        work_timeout_s: float,
        on_closing: Callable[[str], None],
        on_unread: Callable[[Unread], None],
    ) -> None:
        self._state = state
        self._locks = locks
        self._tuning = tuning
        self._clock = clock
        self._pool = pool
        self._metrics = metrics
        self._inline_bytes_max = inline_bytes_max
        self._work_timeout_s = work_timeout_s
        self._on_closing = on_closing
        self._on_unread = on_unread

    async def __call__(self, envelope: Envelope[Event]) -> Sequence[Envelope[Event]]:
        """Take in one event; return the progress that it showed."""
        event = envelope.event
        keys = work.tracker(self._tuning).keys(event)
        if not keys:
            return ()
        job_id = keys[0]
        async with self._locks.of(job_id):
            with span(names.TRACK, job_id=job_id):
                loaded = await self._state.load(keys)
                run: Callable[..., Awaitable[tuple[Outcome, Overlay]]] = (
                    self._in_pool
                    if isinstance(event, LogChunked) and len(event.content) > self._inline_bytes_max
                    else self._inline
                )
                outcome, overlay = await run(
                    self._tuning, event, envelope.time, self._clock.now(), loaded, envelope.traceparent
                )
                if overlay.puts or overlay.removes:
                    await self._state.save(overlay.puts, sorted(overlay.removes))
        if outcome.closing:
            self._on_closing(job_id)
        if outcome.unread is not None:
            self._on_unread(outcome.unread)
        said = [Envelope(id=i, source=SOURCE, time=envelope.time, event=e) for i, e in outcome.events]
        self._metrics.count(names.PROGRESS, sum(isinstance(e.event, ProgressObserved) for e in said))
        return said

    async def _inline(self, *args: object) -> tuple[Outcome, Overlay]:
        return work.apply(*args)  # type: ignore[arg-type]

    async def _in_pool(self, *args: object) -> tuple[Outcome, Overlay]:
        return await self._pool.run(self._work_timeout_s, work.apply, *args)  # type: ignore[arg-type]
