"""Ollama, through its official client: structured answers, a fixed seed, temperature 0, and a limit on every wait."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final

import httpx
import ollama
from opentelemetry.trace import SpanKind

from schedmate.infra.llm.answers import checked_answer
from schedmate.infra.llm.port import Answer, ModelAnswerError, ModelUnavailableError, Question
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import count, observe
from schedmate.infra.telemetry.tracing import span

AVAILABLE_TIMEOUT_S: Final = 0.9
CONNECT_TIMEOUT_S: Final = 2.0
CONNECTIONS_MAX: Final = 8
CHARACTERS_PER_TOKEN_MAX: Final = 16
"""No tokenizer of today's models averages more characters per token on text: a longer prompt is cut for certain."""


class OllamaModel:
    """One model of one Ollama server. Without `model` it takes the first that the server lists (`auto`)."""

    def __init__(
        self,
        url: str,
        model: str | None,
        *,
        context_tokens: int = 8192,
        threads: int | None = None,
        keep_alive: str = "10m",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url
        self._wanted = model
        self._found: str | None = model
        self._context_tokens = context_tokens
        self._threads = threads
        self._keep_alive = keep_alive
        self._client = ollama.AsyncClient(
            host=url,
            follow_redirects=False,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),  # `ask` bounds each call by its own time
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
            **({} if transport is None else {"transport": transport}),
        )

    @property
    def name(self) -> str:
        """The model's name; `none` while `auto` has found no model."""
        return self._found or "none"

    async def available(self) -> bool:
        """Tell whether the server answers and has the model, within a second."""
        try:
            async with asyncio.timeout(AVAILABLE_TIMEOUT_S):
                listed = await self._client.list()
        except (TimeoutError, OSError, httpx.HTTPError, ollama.ResponseError, ValueError):
            return False
        there = [one.model for one in listed.models if one.model]
        if self._wanted is None:
            self._found = there[0] if there else None
            return bool(there)
        return any(name in (self._wanted, f"{self._wanted}:latest") for name in there)

    async def ask(self, question: Question) -> Answer:
        """Return an answer that fits the schema; cancelling the call makes the server stop generating.

        Raises:
            ModelUnavailableError: it did not answer in `timeout_s`, is not there, or refused.
            ModelAnswerError: the prompt is beyond the context, or the answer is no object of the schema.
        """
        self._check_length(question)
        if self._found is None and not await self.available():
            raise ModelUnavailableError(f"no model at {self._url}")
        with span(
            names.LLM_CALL,
            kind=SpanKind.CLIENT,
            gen_ai_provider_name="ollama",
            gen_ai_operation_name="chat",
            gen_ai_request_model=self.name,
        ) as current:
            current.update_name(f"{names.LLM_CALL} {self.name}")
            answer = await self._counted(question)
            current.set_attribute(names.GEN_AI_USAGE_INPUT_TOKENS, answer.prompt_tokens)
            current.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, answer.answer_tokens)
            return answer

    async def stop(self) -> None:
        """Close the connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def _counted(self, question: Question) -> Answer:
        started = perf_counter()
        outcome = "cancelled"
        try:
            answer = await self._chat(question)
            outcome = "answered"
        except ModelUnavailableError:
            outcome = "unavailable"
            raise
        except ModelAnswerError:
            outcome = "unusable"
            raise
        finally:
            count(names.LLM_CALLS, outcome=outcome)
            observe(names.LLM_CALL_S, perf_counter() - started)
        count(names.LLM_TOKENS, answer.prompt_tokens, direction="prompt")
        count(names.LLM_TOKENS, answer.answer_tokens, direction="answer")
        return answer

    async def _chat(self, question: Question) -> Answer:
        try:
            async with asyncio.timeout(question.timeout_s):
                response = await self._client.chat(
                    model=self.name,
                    messages=[
                        {"role": "system", "content": question.system},
                        {"role": "user", "content": question.prompt},
                    ],
                    format=dict(question.schema),
                    options=self._options(question),
                    keep_alive=self._keep_alive,
                )
        except TimeoutError as error:
            raise ModelUnavailableError(
                f"{self.name} at {self._url} gave no answer in {question.timeout_s:g} s"
            ) from error
        except ollama.ResponseError as error:
            raise ModelUnavailableError(f"{self.name} at {self._url} refused: HTTP {error.status_code}") from error
        except (OSError, httpx.HTTPError) as error:
            raise ModelUnavailableError(f"{self._url} cannot be reached: {type(error).__name__}") from error
        except ValueError as error:
            raise ModelAnswerError(f"{self._url} does not speak Ollama's protocol: {type(error).__name__}") from error
        if response.done_reason == "length":
            raise ModelAnswerError(f"the answer was cut at {question.tokens_max} tokens")
        value = checked_answer(response.message.content or "", question.schema)
        return Answer(value, response.prompt_eval_count or 0, response.eval_count or 0)

    def _options(self, question: Question) -> dict[str, Any]:
        options: dict[str, Any] = {
            "temperature": 0.0,
            "seed": question.seed,
            "num_ctx": self._context_tokens,
            "num_predict": question.tokens_max,
        }
        return options if self._threads is None else options | {"num_thread": self._threads}

    def _check_length(self, question: Question) -> None:
        """Refuse a prompt that the server would cut without a word to us."""
        characters = len(question.system) + len(question.prompt)
        if characters > (self._context_tokens - question.tokens_max) * CHARACTERS_PER_TOKEN_MAX:
            raise ModelAnswerError(
                f"the prompt has {characters} characters and cannot fit a context of {self._context_tokens} tokens; shorten it"
            )
