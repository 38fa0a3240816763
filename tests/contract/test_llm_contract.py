"""What every adapter of the port `LanguageModel` does, said once and run on each: scripted, Ollama's protocol, the real Ollama."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from schedmate.infra.llm.answers import ANSWER_CHARACTERS_MAX, checked_answer
from schedmate.infra.llm.none import NoModel
from schedmate.infra.llm.ollama import OllamaModel
from schedmate.infra.llm.port import (
    Answer,
    LanguageModel,
    LanguageModelError,
    ModelAnswerError,
    ModelUnavailableError,
    Question,
)
from schedmate.infra.llm.scripted import Reply, ScriptedModel
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.recorded import RecordedSpans
from schedmate.infra.telemetry.tracing import Tracing
from tests.servers import shared
from tests.virtual_time import run_simulated

SCHEMA = {
    "type": "object",
    "properties": {
        "framework": {"enum": ["pytorch", "jax", "unknown"]},
        "epochs": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["framework", "epochs"],
    "additionalProperties": False,
}
LONG_SCHEMA = {
    "type": "object",
    "properties": {
        "numbers": {"type": "array", "items": {"type": "integer", "maximum": 9, "minimum": 0}, "minItems": 2000}
    },
    "required": ["numbers"],
}
VALUE = {"framework": "jax", "epochs": 3}
QUESTION = Question(system="You read source code.", prompt="import jax", schema=SCHEMA, tokens_max=64, timeout_s=60.0)


class Scripted:
    """The adapter for tests, in each situation."""

    def answers(self) -> LanguageModel:
        return ScriptedModel([VALUE] * 50)

    def garbage(self) -> tuple[LanguageModel, Question]:
        return ScriptedModel([Reply("no JSON at all")] * 5), QUESTION

    def slow(self) -> tuple[LanguageModel, Question]:
        return ScriptedModel([Reply.of(VALUE, delay_s=30), *([VALUE] * 5)]), replace(QUESTION, timeout_s=0.05)

    def down(self) -> LanguageModel:
        return ScriptedModel([Reply(unavailable="down")] * 5)

    def hanging(self) -> LanguageModel:
        return ScriptedModel([Reply(unavailable="hangs")] * 5)


def chat_reply(text: str, done_reason: str = "stop") -> dict[str, Any]:
    return {
        "model": "m",
        "created_at": "2026-01-01T00:00:00Z",
        "message": {"role": "assistant", "content": text},
        "done": True,
        "done_reason": done_reason,
        "prompt_eval_count": 11,
        "eval_count": 7,
    }


LISTED = {"models": [{"model": "m:latest", "name": "m:latest"}, {"model": "other", "name": "other"}]}


class Protocol:
    """The Ollama adapter against Ollama's protocol played by a transport: what a real server will not do on request."""

    def model(self, chat: Callable[[httpx.Request], Any], listed: Any = LISTED, name: str | None = "m") -> OllamaModel:
        async def handle(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/api/tags":
                return httpx.Response(200, json=listed)
            answered = chat(request)
            if asyncio.iscoroutine(answered):
                answered = await answered
            return answered if isinstance(answered, httpx.Response) else httpx.Response(200, json=answered)

        return OllamaModel("http://ollama:11434", name, transport=httpx.MockTransport(handle))

    def answers(self) -> LanguageModel:
        return self.model(lambda _request: chat_reply(json.dumps(VALUE)))

    def garbage(self) -> tuple[LanguageModel, Question]:
        return self.model(lambda _request: chat_reply("no JSON at all")), QUESTION

    def slow(self) -> tuple[LanguageModel, Question]:
        async def once(_request: httpx.Request) -> dict[str, Any]:
            await gate.wait()
            return chat_reply(json.dumps(VALUE))

        gate = asyncio.Event()
        return self.model(once), replace(QUESTION, timeout_s=0.05)

    def down(self) -> LanguageModel:
        def refuse(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused", request=request)

        return OllamaModel("http://ollama:11434", "m", transport=httpx.MockTransport(refuse))

    def hanging(self) -> LanguageModel:
        async def hang(_request: httpx.Request) -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError("never")

        return OllamaModel("http://ollama:11434", "m", transport=httpx.MockTransport(hang))


class Real:
    """The real Ollama with a small model: its words are nonsense, its behaviour is the real one."""

    def __init__(self) -> None:
        self.url, self.name = shared("SCHEDMATE_TEST_OLLAMA"), shared("SCHEDMATE_TEST_OLLAMA_MODEL")

    def model(self, **further: Any) -> OllamaModel:
        return OllamaModel(self.url, self.name, context_tokens=2048, threads=1, **further)

    def answers(self) -> LanguageModel:
        return self.model()

    def garbage(self) -> tuple[LanguageModel, Question]:
        return self.model(), replace(QUESTION, schema=LONG_SCHEMA, tokens_max=16)  # cut in the middle

    def slow(self) -> tuple[LanguageModel, Question]:
        return self.model(), replace(QUESTION, schema=LONG_SCHEMA, tokens_max=1500, timeout_s=0.3)

    def down(self) -> LanguageModel:
        return OllamaModel("http://127.0.0.1:9", self.name)

    def hanging(self) -> LanguageModel:
        return OllamaModel("http://127.0.0.1:9", self.name)


@pytest.fixture(
    params=["scripted", "protocol", pytest.param("real", marks=[pytest.mark.servers, pytest.mark.timeout(240)])]
)
def adapter(request):
    return {"scripted": Scripted, "protocol": Protocol, "real": Real}[request.param]()


async def test_an_answer_is_an_object_of_the_schema_with_its_cost(adapter):
    model = adapter.answers()
    assert await model.available()
    answer = await model.ask(QUESTION)
    assert checked_answer(json.dumps(answer.value), SCHEMA) == answer.value
    assert answer.prompt_tokens > 0
    assert answer.answer_tokens > 0
    assert model.name not in ("", "none")
    await model.stop()


async def test_the_same_question_with_the_same_seed_has_the_same_answer(adapter):
    model = adapter.answers()
    assert (await model.ask(QUESTION)).value == (await model.ask(QUESTION)).value
    await model.stop()


async def test_several_questions_at_once_are_all_answered(adapter):
    model = adapter.answers()
    answers = await asyncio.gather(*(model.ask(QUESTION) for _ in range(4)))
    assert all(isinstance(answer, Answer) for answer in answers)
    await model.stop()


async def test_an_answer_that_is_no_object_of_the_schema_is_an_error_that_does_not_repeat_it(adapter):
    model, question = adapter.garbage()
    with pytest.raises(ModelAnswerError) as caught:
        await model.ask(question)
    assert "no JSON at all" not in str(caught.value)
    await model.stop()


async def test_a_model_that_is_not_there_is_unavailable(adapter):
    model = adapter.down()
    assert not await model.available()
    with pytest.raises(ModelUnavailableError):
        await model.ask(replace(QUESTION, timeout_s=5))
    await model.stop()


def test_availability_is_known_within_a_second(adapter):
    async def longest_s() -> float:
        loop, longest = asyncio.get_running_loop(), 0.0
        for model in (adapter.answers(), adapter.down(), adapter.hanging()):
            started = loop.time()
            await model.available()
            longest = max(longest, loop.time() - started)
            await model.stop()
        return longest

    took_s = asyncio.run(longest_s()) if isinstance(adapter, Real) else run_simulated(longest_s)
    assert took_s < 1.0


async def test_an_answer_that_comes_too_late_is_unavailable_and_bounded(adapter):
    model, question = adapter.slow()
    started = time.monotonic()
    with pytest.raises(ModelUnavailableError, match="no answer in"):
        await model.ask(question)
    assert time.monotonic() - started < question.timeout_s + 5
    await model.stop()


async def test_a_question_can_be_cancelled_and_the_next_one_is_answered(adapter):
    model, question = adapter.slow()
    asking = asyncio.create_task(model.ask(replace(question, timeout_s=60)))
    done, _ = await asyncio.wait({asking}, timeout=0.2)
    assert not done
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await model.stop()
    model = adapter.answers()
    started = time.monotonic()
    assert (await model.ask(QUESTION)).value
    assert time.monotonic() - started < 25, "the server still works on what nobody waits for"
    await model.stop()


async def test_stopping_twice_is_harmless(adapter):
    model = adapter.answers()
    await model.stop()
    await model.stop()


async def test_no_model_says_so_at_once():
    model = NoModel()
    assert model.name == "none"
    assert not await model.available()
    with pytest.raises(ModelUnavailableError, match="SCHEDMATE_LLM=none"):
        await model.ask(QUESTION)
    await model.stop()


# --- answers ----------------------------------------------------------------------------------------------------------

ACCEPTED = ['{"framework": "jax", "epochs": 0}', ' {"epochs": 1, "framework": "unknown"}\n']
REFUSED = [
    ("", "no JSON"),
    ("{", "no JSON"),
    ("```json\n{}\n```", "no JSON"),
    ('{"framework": "jax", "epochs": NaN}', "no JSON"),
    ("[1]", "is a list, not an object"),
    ("null", "is a NoneType, not an object"),
    ('{"framework": "jax"}', "the object fails required"),
    ('{"framework": "jax", "epochs": -1}', "epochs fails minimum"),
    ('{"framework": "jax", "epochs": "3"}', "epochs fails type"),
    ('{"framework": "rm -rf", "epochs": 3}', "framework fails enum"),
    ('{"framework": "jax", "epochs": 3, "more": 1}', "the object fails additionalProperties"),
    ("[" * 100_000, "no JSON"),
    ("x" * (ANSWER_CHARACTERS_MAX + 1), "characters, more than"),
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_an_object_of_the_schema_is_taken(text):
    assert checked_answer(text, SCHEMA) == json.loads(text)


@pytest.mark.parametrize(("text", "wanted"), REFUSED, ids=[case[0][:30] or "nothing" for case in REFUSED])
def test_anything_else_is_refused_with_where_but_not_what(text, wanted):
    with pytest.raises(ModelAnswerError, match=wanted):
        checked_answer(text, SCHEMA)


# --- what only Ollama has ---------------------------------------------------------------------------------------------


async def test_ollama_is_asked_for_a_structured_answer_with_fixed_seed_and_bounded_context():
    sent: list[dict[str, Any]] = []

    def chat(request: httpx.Request) -> dict[str, Any]:
        sent.append(json.loads(request.content))
        return chat_reply(json.dumps(VALUE))

    model = OllamaModel(
        "http://ollama:11434",
        "m",
        context_tokens=4096,
        threads=2,
        transport=httpx.MockTransport(lambda r: httpx.Response(200, json=chat(r))),
    )
    answer = await model.ask(replace(QUESTION, seed=7))
    assert (answer.value, answer.prompt_tokens, answer.answer_tokens) == (VALUE, 11, 7)
    assert sent[0]["format"] == SCHEMA
    assert sent[0]["stream"] is False
    assert sent[0]["options"] == {"temperature": 0.0, "seed": 7, "num_ctx": 4096, "num_predict": 64, "num_thread": 2}
    assert [message["role"] for message in sent[0]["messages"]] == ["system", "user"]
    await model.stop()


BROKEN: list[tuple[str, Any, type[LanguageModelError], str]] = [
    (
        "the model is unknown",
        httpx.Response(404, json={"error": "model 'm' not found"}),
        ModelUnavailableError,
        "HTTP 404",
    ),
    ("the server fails", httpx.Response(500, text="secret=abcdef"), ModelUnavailableError, "HTTP 500"),
    (
        "the server sends elsewhere",
        httpx.Response(302, headers={"location": "http://evil"}),
        LanguageModelError,
        "HTTP 302",
    ),
    ("the server speaks no JSON", httpx.Response(200, text="<html>"), ModelAnswerError, "protocol"),
    ("the server speaks other JSON", {"hello": 1}, ModelAnswerError, "protocol"),
    ("the answer was cut", chat_reply('{"framework"', "length"), ModelAnswerError, "cut at 64 tokens"),
    ("the answer is empty", chat_reply(""), ModelAnswerError, "no JSON"),
]


@pytest.mark.parametrize(("reply", "error", "words"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
async def test_whatever_a_server_does_it_is_one_of_two_errors(reply, error, words):
    model = Protocol().model(lambda _request: reply)
    with pytest.raises(error, match=words) as caught:
        await model.ask(QUESTION)
    assert "abcdef" not in str(caught.value)
    await model.stop()


async def test_auto_takes_the_first_model_that_is_listed_and_none_when_there_is_none():
    model = Protocol().model(lambda _request: chat_reply(json.dumps(VALUE)), name=None)
    assert model.name == "none"
    assert (await model.ask(QUESTION)).value == VALUE
    assert model.name == "m:latest"
    await model.stop()
    empty = Protocol().model(lambda _request: chat_reply("{}"), listed={"models": []}, name=None)
    assert not await empty.available()
    with pytest.raises(ModelUnavailableError, match="no model at"):
        await empty.ask(QUESTION)
    await empty.stop()


async def test_a_model_that_the_server_lacks_is_unavailable():
    model = Protocol().model(lambda _request: chat_reply("{}"), name="absent")
    assert not await model.available()
    await model.stop()


async def test_a_prompt_that_the_server_would_cut_is_refused_before_it_is_sent():
    model = Protocol().model(lambda _request: pytest.fail("it was sent"))
    with pytest.raises(ModelAnswerError, match="cannot fit a context of 8192 tokens"):
        await model.ask(replace(QUESTION, prompt="x" * 200_000))
    await model.stop()


async def test_a_question_is_a_span_with_model_and_tokens_and_without_the_prompt():
    spans = RecordedSpans()
    model = Protocol().answers()
    with Tracing("code-analyzer", exporter=spans, batched=False).active():
        await model.ask(QUESTION)
    (found,) = spans.spans()
    assert dict(found.attributes) == {
        "gen_ai.provider.name": "ollama",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 7,
    }
    await model.stop()


async def test_questions_are_counted_by_outcome_with_their_tokens():
    metrics, protocol = Metrics(), Protocol()
    answering, (garbage, question) = protocol.answers(), protocol.garbage()
    with metrics.active():
        await answering.ask(QUESTION)
        with pytest.raises(ModelAnswerError):
            await garbage.ask(question)
    lines = metrics.text().decode().splitlines()
    assert 'schedmate_llm_calls_total{outcome="answered"} 1.0' in lines
    assert 'schedmate_llm_calls_total{outcome="unusable"} 1.0' in lines
    assert 'schedmate_llm_tokens_total{direction="prompt"} 11.0' in lines
    for model in (answering, garbage):
        await model.stop()


# --- what only the script has -----------------------------------------------------------------------------------------


async def test_a_script_replies_in_order_then_is_over_and_keeps_the_questions():
    model = ScriptedModel([VALUE, Reply("garbage")])
    assert (await model.ask(QUESTION)).value == VALUE
    with pytest.raises(ModelAnswerError):
        await model.ask(QUESTION)
    assert not await model.available()
    with pytest.raises(ModelUnavailableError, match="over"):
        await model.ask(QUESTION)
    assert model.asked == [QUESTION] * 3


async def test_a_script_may_reply_by_prompt():
    model = ScriptedModel(by_prompt={"a": Reply.of(VALUE), "b": Reply(unavailable="down")})
    assert (await model.ask(replace(QUESTION, prompt="a"))).value == VALUE
    with pytest.raises(ModelUnavailableError, match="down"):
        await model.ask(replace(QUESTION, prompt="b"))
