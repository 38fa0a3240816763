"""The one queue before a language model: who goes first, that none starves, that every wait ends."""

from __future__ import annotations

import asyncio

import pytest

from schedmate.infra.clock import SystemClock
from schedmate.infra.llm.port import Answer, ModelUnavailableError, Question
from schedmate.infra.llm.queue import ModelQueue, Urgency


class Held:
    """A model that answers when it is told to, and remembers what it was asked."""

    name = "held"

    def __init__(self):
        self.asked = []
        self.gate = asyncio.Event()

    async def available(self):
        return True

    async def ask(self, question):
        self.asked.append(question.prompt)
        await self.gate.wait()
        return Answer({}, 1, 1)

    async def stop(self):
        pass


class Ticking(SystemClock):
    """A clock that a test moves."""

    now_s = 0.0

    def monotonic(self):
        return self.now_s


def question(prompt, length=0):
    return Question("", prompt + " " * length, {}, tokens_max=1)


async def waiting(queue, number):
    async with asyncio.timeout(5):
        while queue.waiting != number:  # noqa: ASYNC110 - each round lets the others run
            await asyncio.sleep(0)


async def asked_in_order(queue, model, calls):
    """Ask while the model is busy, in the order given; return the order in which it was asked."""
    first = asyncio.create_task(queue.ask(question("first"), Urgency.BACKGROUND))
    await asyncio.sleep(0)
    tasks = [first]
    for number, (prompt, urgency, length, at) in enumerate(calls, start=1):
        queue._clock.now_s = at
        tasks.append(asyncio.create_task(queue.ask(question(prompt, length), urgency)))
        await waiting(queue, number)
    queue._clock.now_s = calls[-1][3]
    model.gate.set()
    await asyncio.gather(*tasks)
    return [prompt.strip() for prompt in model.asked[1:]]


@pytest.mark.parametrize(
    ("calls", "order"),
    [
        ([("b", Urgency.BACKGROUND, 0, 0), ("a", Urgency.WAITING_JOB, 0, 0)], ["a", "b"]),
        ([("long", Urgency.WAITING_JOB, 9000, 0), ("short", Urgency.WAITING_JOB, 0, 0)], ["short", "long"]),
        ([("old", Urgency.BACKGROUND, 0, 0), ("new", Urgency.WAITING_JOB, 0, 100)], ["old", "new"]),
        ([("one", Urgency.FAILED_RUN, 0, 0), ("two", Urgency.FAILED_RUN, 0, 1)], ["one", "two"]),
    ],
)
async def test_urgent_and_short_questions_go_first_until_others_have_waited_long(calls, order):
    model = Held()
    queue = ModelQueue(model, Ticking(), ageing_s=20.0)
    assert await asked_in_order(queue, model, calls) == order


async def test_a_background_question_is_asked_among_urgent_ones_that_never_end():
    model = Held()
    model.gate.set()
    clock = Ticking()
    queue = ModelQueue(model, clock, ageing_s=1.0)
    tasks = [asyncio.create_task(queue.ask(question("background"), Urgency.BACKGROUND))]
    for number in range(200):
        clock.now_s = float(number)
        tasks.append(asyncio.create_task(queue.ask(question(f"urgent {number}"), Urgency.WAITING_JOB)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert model.asked.index("background") < 10


async def test_a_full_queue_refuses_and_says_that_nothing_is_available():
    model = Held()
    queue = ModelQueue(model, SystemClock(), waiting_max=1)
    tasks = [asyncio.create_task(queue.ask(question(str(n)), Urgency.BACKGROUND)) for n in range(2)]
    await waiting(queue, 1)
    assert not await queue.available()
    with pytest.raises(ModelUnavailableError, match="wait already"):
        await queue.ask(question("3"), Urgency.WAITING_JOB)
    model.gate.set()
    await asyncio.gather(*tasks)
    assert await queue.available()


async def test_a_turn_that_does_not_come_in_time_is_given_up_and_the_others_go_on():
    model = Held()
    queue = ModelQueue(model, SystemClock())
    busy = asyncio.create_task(queue.ask(question("busy"), Urgency.BACKGROUND))
    await asyncio.sleep(0)
    with pytest.raises(ModelUnavailableError, match="no turn"):
        await queue.at(Urgency.WAITING_JOB, waits_max_s=0.01).ask(question("late"))
    assert queue.waiting == 0
    model.gate.set()
    await busy
    await queue.ask(question("next"), Urgency.BACKGROUND)
    assert model.asked == ["busy", "next"]


async def test_a_caller_that_leaves_takes_its_place_along():
    model = Held()
    queue = ModelQueue(model, SystemClock())
    busy = asyncio.create_task(queue.ask(question("busy"), Urgency.BACKGROUND))
    await asyncio.sleep(0)
    leaving = asyncio.create_task(queue.ask(question("leaving"), Urgency.BACKGROUND))
    staying = asyncio.create_task(queue.ask(question("staying"), Urgency.BACKGROUND))
    await waiting(queue, 2)
    leaving.cancel()
    await waiting(queue, 1)
    model.gate.set()
    await asyncio.gather(busy, staying)
    assert model.asked == ["busy", "staying"]
