"""Asks a language model for a pattern where nothing reads a log, beside the stream: no chunk waits for it.

An answer counts only when the log bears it out on lines that the model was not shown; that is checked on RE2 in a process of its own, with
a time limit. Each member is asked about once; when the model fails, it is left alone for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from schedmate.infra.bus.keyed_state import KeyedState, NotHeldError
from schedmate.infra.bus.port import BusUnavailableError
from schedmate.infra.clock import Clock
from schedmate.infra.llm.port import LanguageModel, LanguageModelError
from schedmate.infra.store.port import StoreUnavailableError
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.work_pool import WorkError, WorkPool
from schedmate.services.log_monitor import unread, work
from schedmate.services.log_monitor.handlers import JobLocks
from schedmate.services.log_monitor.metrics import proposal
from schedmate.services.log_monitor.opinions import AGAIN_AFTER_S, POLL_S, first_of
from schedmate.services.log_monitor.tracks import load_member, member_key, save_member
from schedmate.services.log_monitor.unread import Unread

WAITING_MAX: Final = 50

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Proposals:
    """The unread logs that a model is asked about, the newest few."""

    def __init__(
        self,
        model: LanguageModel,
        state: KeyedState,
        locks: JobLocks,
        pool: WorkPool,
        clock: Clock,
        redact: Callable[[str], str],
        metrics: Metrics,
        *,
        timeout_s: float,
        check_timeout_s: float,
    ) -> None:
        self._model = model
        self._state = state
        self._locks = locks
        self._pool = pool
        self._clock = clock
        self._redact = redact
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._check_timeout_s = check_timeout_s
        self._waiting: deque[Unread] = deque(maxlen=WAITING_MAX)
        self._not_before = 0.0

    def offer(self, lines: Unread) -> None:
        """Take lines that nothing reads."""
        self._waiting.append(lines)

    async def run(self, stop: asyncio.Event) -> None:
        """Ask until `stop`, one question at a time."""
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                if self._waiting and self._clock.monotonic() >= self._not_before:
                    await first_of(asyncio.ensure_future(self._one(self._waiting.popleft())), stopped)
                else:
                    await first_of(asyncio.ensure_future(self._clock.sleep(POLL_S)), stopped)
        finally:
            stopped.cancel()

    async def _one(self, lines: Unread) -> None:
        outcome = await self._ask(lines)
        self._metrics.count(names.PROPOSALS, outcome=outcome)
        log.info("a pattern was asked for", action="proposals.asked", job_id=lines.job_id, outcome=outcome)

    async def _ask(self, lines: Unread) -> str:
        """Ask about one log; return what came of it: adopted, refused, or unavailable."""
        asked = proposal.question(lines.lines, self._redact, timeout_s=self._timeout_s)
        if asked is None:
            return "refused"
        try:
            if not await self._model.available():
                self._leave_alone()
                return "unavailable"
            answer = await self._model.ask(asked)
        except LanguageModelError:
            self._leave_alone()
            return "unavailable"
        try:
            found = await self._pool.run(self._check_timeout_s, proposal.adopted, answer.value, lines.lines)
        except WorkError:
            return "refused"
        if found is None:
            return "refused"
        return "adopted" if await self._adopt(lines, found.pattern) else "late"

    async def _adopt(self, lines: Unread, pattern: str) -> bool:
        """Let the member be read by the pattern; False when it is not followed here any more."""
        key = member_key(lines.job_id, lines.attempt, lines.member)
        try:
            async with self._locks.of(lines.job_id):
                overlay = work.Overlay.over(await self._state.load([key]))
                track = load_member(overlay, lines.job_id, lines.attempt, lines.member)
                if track is None or track.exit is not None or track.progress.sightings:
                    return False
                unread.adopt(track, pattern, lines.lines, self._clock.now())
                save_member(overlay, lines.job_id, track)
                await self._state.save(overlay.puts, [])
        except (NotHeldError, BusUnavailableError, StoreUnavailableError) as error:
            log.warning("a pattern was lost", action="proposals.lost", job_id=lines.job_id, error=str(error))
            return False
        return True

    def _leave_alone(self) -> None:
        self._not_before = self._clock.monotonic() + AGAIN_AFTER_S
