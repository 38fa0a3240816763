"""A model for tests: recorded answers, garbage, delays, outages, in the order given."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from schedmate.infra.clock import Clock, SystemClock
from schedmate.infra.llm.answers import checked_answer
from schedmate.infra.llm.port import Answer, ModelUnavailableError, Question


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model does at one question. `text` is taken as the model's raw words: it may be garbage."""

    text: str = ""
    delay_s: float = 0.0
    unavailable: str | None = None

    @classmethod
    def of(cls, value: Mapping[str, Any], delay_s: float = 0.0) -> Reply:
        """Return a reply that is this object."""
        return cls(json.dumps(value), delay_s)


class ScriptedModel:
    """Replies in order, or by a question's prompt; when the script is over, it is unavailable. `asked` keeps the questions."""

    def __init__(
        self,
        replies: Iterable[Reply | Mapping[str, Any]] = (),
        *,
        by_prompt: Mapping[str, Reply] | None = None,
        name: str = "scripted",
        clock: Clock | None = None,
    ) -> None:
        self._replies = deque(reply if isinstance(reply, Reply) else Reply.of(reply) for reply in replies)
        self._by_prompt = dict(by_prompt or {})
        self._name = name
        self._clock = clock or SystemClock()
        self.asked: list[Question] = []

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._name

    async def available(self) -> bool:
        """Tell whether the script goes on, and not with an outage."""
        if self._by_prompt:
            return True
        return bool(self._replies) and self._replies[0].unavailable is None

    async def ask(self, question: Question) -> Answer:
        """Return what the script says, checked as a real model's words are."""
        self.asked.append(question)
        reply = self._by_prompt.get(question.prompt)
        if reply is None:
            if not self._replies:
                raise ModelUnavailableError("the script is over")
            reply = self._replies.popleft()
        if reply.delay_s:
            await self._delayed(reply.delay_s, question.timeout_s)
        if reply.unavailable is not None:
            raise ModelUnavailableError(reply.unavailable)
        value = checked_answer(reply.text, question.schema)
        return Answer(value, len(question.system + question.prompt) // 4, len(reply.text) // 4)

    async def stop(self) -> None:
        """Do nothing: there is no connection."""

    async def _delayed(self, delay_s: float, timeout_s: float) -> None:
        """Wait as long as the reply takes, or fail as a real call does when that is longer than the question allows."""
        await self._clock.sleep(min(delay_s, timeout_s))
        if delay_s > timeout_s:
            raise ModelUnavailableError(f"no answer in {timeout_s:g} s")
        await asyncio.sleep(0)
