"""The port `LanguageModel`: a prompt and a JSON schema in, an object out. Advice, never authority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class LanguageModelError(Exception):
    """The model gave no usable answer; the caller goes on without one."""


class ModelUnavailableError(LanguageModelError):
    """No model answers: none is configured, it is down, or it did not answer in time."""


class ModelAnswerError(LanguageModelError):
    """The answer is no object of the schema."""


@dataclass(frozen=True, slots=True)
class Question:
    """One call. `system` is ours; `prompt` may hold untrusted text and is marked as such by the caller."""

    system: str
    prompt: str
    schema: Mapping[str, Any]
    tokens_max: int = 256
    timeout_s: float = 30.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """An object that fits the schema, and what it cost."""

    value: Mapping[str, Any]
    prompt_tokens: int
    answer_tokens: int


class LanguageModel(Protocol):
    """Asks a model. Implementations are safe for concurrent use."""

    @property
    def name(self) -> str:
        """Name of the model, `none` where there is none."""
        ...

    async def available(self) -> bool:
        """Tell, within a second, whether a question makes sense now."""
        ...

    async def ask(self, question: Question) -> Answer:
        """Return an answer that fits the schema.

        Raises:
            ModelUnavailableError, ModelAnswerError
        """
        ...

    async def stop(self) -> None:
        """Let go of connections."""
        ...
