"""The one queue before a language model: by urgency and length, with ageing, so that a waiting job goes first and none starves.

Every caller of a process shares it: code-analyzer's questions and log-monitor's. It is bounded, and a call that waits too long is
told that no model answers, as when the model is down.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from schedmate.infra.clock import Clock
from schedmate.infra.llm.port import Answer, LanguageModel, ModelUnavailableError, Question
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import count

CHARACTERS_PER_TOKEN: Final = 4
LONG_TOKENS: Final = 4000
"""A question of this length counts as one class less urgent."""


class Urgency(IntEnum):
    """Who waits for the answer."""

    WAITING_JOB = 0
    FAILED_RUN = 1
    BACKGROUND = 2


@dataclass(slots=True, eq=False)
class _Waiting:
    urgency: Urgency
    tokens: int
    since: float
    turn: asyncio.Future[None]


class ModelQueue:
    """Asks one model, `at_once` questions at a time; the others wait their turn."""

    def __init__(
        self, model: LanguageModel, clock: Clock, *, at_once: int = 1, waiting_max: int = 256, ageing_s: float = 20.0
    ) -> None:
        self._model = model
        self._clock = clock
        self._free = at_once
        self._waiting_max = waiting_max
        self._ageing_s = ageing_s
        self._waiting: list[_Waiting] = []

    @property
    def waiting(self) -> int:
        """How many questions wait."""
        return len(self._waiting)

    def at(self, urgency: Urgency, *, waits_max_s: float = 60.0) -> LanguageModel:
        """Return the model as callers of one urgency see it."""
        return _Place(self, urgency, waits_max_s)

    async def available(self) -> bool:
        """Tell whether a question makes sense now: the model answers and the queue has room."""
        return len(self._waiting) < self._waiting_max and await self._model.available()

    async def ask(self, question: Question, urgency: Urgency, *, waits_max_s: float = 60.0) -> Answer:
        """Return the model's answer when it is this question's turn.

        Raises:
            ModelUnavailableError: the queue is full, the turn did not come in time, or the model does not answer.
            ModelAnswerError: as the model says.
        """
        await self._turn(question, urgency, waits_max_s)
        try:
            return await self._model.ask(question)
        finally:
            self._free += 1
            self._next()

    async def stop(self) -> None:
        """Let go of the model."""
        await self._model.stop()

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model.name

    async def _turn(self, question: Question, urgency: Urgency, waits_max_s: float) -> None:
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        if len(self._waiting) >= self._waiting_max:
            count(names.LLM_CALLS, outcome="refused")
            raise ModelUnavailableError(f"{len(self._waiting)} questions wait already")
        tokens = (len(question.system) + len(question.prompt)) // CHARACTERS_PER_TOKEN + question.tokens_max
        mine = _Waiting(urgency, tokens, self._clock.monotonic(), asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        try:
            async with asyncio.timeout(waits_max_s):
                await asyncio.shield(mine.turn)
        except TimeoutError as error:
            self._leave(mine)
            count(names.LLM_CALLS, outcome="waited")
            raise ModelUnavailableError(f"no turn came in {waits_max_s:g} s") from error
        except asyncio.CancelledError:
            self._leave(mine)
            raise

    def _leave(self, mine: _Waiting) -> None:
        """Take back a place; a turn that was given at the same moment goes to the next."""
        if mine.turn.done():
            self._free += 1
            self._next()
            return
        with contextlib.suppress(ValueError):
            self._waiting.remove(mine)
        mine.turn.cancel()

    def _next(self) -> None:
        while self._free > 0 and self._waiting:
            best = min(self._waiting, key=self._rank)
            self._waiting.remove(best)
            self._free -= 1
            best.turn.set_result(None)

    def _rank(self, one: _Waiting) -> float:
        """The lower goes first: its class, a little for its length, less with each `ageing_s` that it has waited."""
        waited = self._clock.monotonic() - one.since
        return one.urgency + one.tokens / LONG_TOKENS - waited / self._ageing_s


class _Place:
    """The queue under the port's name, for callers of one urgency."""

    def __init__(self, queue: ModelQueue, urgency: Urgency, waits_max_s: float) -> None:
        self._queue = queue
        self._urgency = urgency
        self._waits_max_s = waits_max_s

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._queue.name

    async def available(self) -> bool:
        """Tell whether a question makes sense now."""
        return await self._queue.available()

    async def ask(self, question: Question) -> Answer:
        """Return the answer when it is this question's turn; raises as ModelQueue.ask."""
        return await self._queue.ask(question, self._urgency, waits_max_s=self._waits_max_s)

    async def stop(self) -> None:
        """Do nothing: the queue is not this caller's."""
