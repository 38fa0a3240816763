"""Asks a language model about failures that nothing explains, beside the stream: nothing waits for it.

What was found without it has been said by then. An opinion that holds is said as a second diagnosis of the run, with an id of its own:
the dispatcher has acted on the first, and its action is the same; `schedmate why` shows the surer of the two.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from schedmate.infra.bus.port import BusUnavailableError
from schedmate.infra.clock import Clock
from schedmate.infra.llm.port import LanguageModel, LanguageModelError
from schedmate.schemas import ids
from schedmate.schemas.events import Event, Evidence, RunDiagnosed
from schedmate.schemas.wire import Envelope
from schedmate.services.log_monitor.diagnosis import EVIDENCE_MAX, log_sources
from schedmate.services.log_monitor.failures import opinion
from schedmate.services.log_monitor.failures.judge import Judgement
from schedmate.services.log_monitor.failures.opinion import Shown
from schedmate.services.log_monitor.failures.rules import Rules
from schedmate.services.log_monitor.handlers import SOURCE
from schedmate.services.log_monitor.tracks import MemberTrack

WAITING_MAX: Final = 50
POLL_S: Final = 0.5
AGAIN_AFTER_S: Final = 60.0

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Publish = Callable[[Sequence[Envelope[Event]]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Guess:
    said: RunDiagnosed
    judged: Judgement
    shown: tuple[Shown, ...]
    traceparent: str


class Opinions:
    """The guesses that a model is asked about, the newest few; after a failed question it is left alone for a while."""

    def __init__(
        self,
        model: LanguageModel,
        publish: Publish,
        clock: Clock,
        rules: Rules,
        redact: Callable[[str], str],
        *,
        timeout_s: float,
    ) -> None:
        self._model = model
        self._publish = publish
        self._clock = clock
        self._rules = rules
        self._redact = redact
        self._timeout_s = timeout_s
        self._waiting: deque[_Guess] = deque(maxlen=WAITING_MAX)
        self._not_before = 0.0

    def guessed(self, said: RunDiagnosed, judged: Judgement, members: Sequence[MemberTrack], traceparent: str) -> None:
        """Take a diagnosis that was said; it is asked about when it is but a guess and there is something to show."""
        if not opinion.wanted(judged):
            return
        shown = opinion.lines_to_show(log_sources(members, self._rules), self._redact)
        if shown:
            self._waiting.append(_Guess(said, judged, tuple(shown), traceparent))

    async def run(self, stop: asyncio.Event) -> None:
        """Ask until `stop`, one question at a time."""
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                if self._waiting and self._clock.monotonic() >= self._not_before:
                    asking = asyncio.ensure_future(self._ask(self._waiting.popleft()))
                    await first_of(asking, stopped)
                else:
                    await first_of(asyncio.ensure_future(self._clock.sleep(POLL_S)), stopped)
        finally:
            stopped.cancel()

    async def _ask(self, guess: _Guess) -> None:
        try:
            if not await self._model.available():
                self._leave_alone()
                return
            answer = await self._model.ask(opinion.question(guess.shown, timeout_s=self._timeout_s))
        except LanguageModelError as error:
            log.info("no opinion", action="opinions.none", run_id=guess.said.run_id, error=str(error))
            self._leave_alone()
            return
        found = opinion.weighed(guess.judged, answer.value, guess.shown)
        if found is guess.judged:
            log.info("an opinion that does not hold", action="opinions.refused", run_id=guess.said.run_id)
            return
        await self._say(guess, found)

    async def _say(self, guess: _Guess, found: Judgement) -> None:
        evidence = Evidence(file=found.file or "", line=found.line, text=self._redact(found.text or "")[:EVIDENCE_MAX])
        event = guess.said.model_copy(
            update={
                "category": found.category,
                "culpable": found.culpable,
                "action": found.action,
                "confidence": found.confidence,
                "evidence": evidence,
                "proposed_change": found.proposed_change,
                "source": "model",
            }
        )
        envelope = Envelope(
            id=ids.derived("diagnosis", event.run_id, "model"),
            source=SOURCE,
            time=self._clock.now(),
            event=event,
            traceparent=guess.traceparent,
        )
        try:
            await self._publish([envelope])
        except BusUnavailableError as error:
            log.warning("an opinion was lost", action="opinions.lost", run_id=event.run_id, error=str(error))

    def _leave_alone(self) -> None:
        self._not_before = self._clock.monotonic() + AGAIN_AFTER_S


async def first_of(task: asyncio.Future[None], stopped: asyncio.Future[Literal[True]]) -> None:
    """Wait for a task, or give it up when the service stops."""
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if not task.cancelled():
        task.result()
