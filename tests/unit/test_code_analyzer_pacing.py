"""Whom a model is asked about when it has not the time for all: by cluster, the most worthwhile first, within a budget."""

from __future__ import annotations

import asyncio

import pytest

from schedmate.infra.clock import SystemClock, VirtualClock
from schedmate.infra.llm.none import NoModel
from schedmate.infra.pacing import Budget, Pacing
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.schemas.events import Basis, JobAnalyzed, WorkloadField
from schedmate.services.code_analyzer.agent import Agent, Outcome
from schedmate.services.code_analyzer.suggesting import PENDING_MAX, Pending, Suggester, cluster_of
from schedmate.services.code_analyzer.suggestions import ASKED, Suggestion
from tests.advice import envelope, spec
from tests.waiting import eventually


class Answers:
    """An agent that fills `filled` fields of each analysis; None: the model does not answer."""

    def __init__(self, filled: int | None = 0) -> None:
        self.filled, self.asked = filled, []

    async def available(self) -> bool:
        return True

    async def ask(self, texts, wanted) -> Outcome:
        self.asked.append(texts["job"])
        if self.filled is None:
            return Outcome({}, 0, 0, answered=False)
        return Outcome({n: Suggestion(n, 1, "f", 1) for n in wanted[: self.filled]}, 1, 10)


def pending(name: str, *, told: int = 0, user: str = "ada") -> Pending:
    """An analysis with so many fields told."""
    field = WorkloadField(value=1, basis=Basis.EXPLICIT, confidence=1.0)
    event = JobAnalyzed(job_id=name, pool="default", content_hash="a" * 64, fields=dict.fromkeys(ASKED[:told], field))
    return Pending(envelope(event), {"job": name}, cluster=cluster_of(spec(name=name, user=user)))


def made(agent, budget: int = 100, clock: VirtualClock | None = None) -> tuple[Suggester, list]:
    said: list = []

    async def keep(*_) -> None:
        """Nothing is kept."""

    async def publish(one) -> None:
        said.append(one)

    suggester = Suggester(agent, keep, publish, Metrics(), Pacing(Budget(budget)), clock or VirtualClock())
    return suggester, said


async def run(suggester: Suggester, agent: Answers, *jobs: Pending) -> list[str]:
    """Return whom the model was asked about, of jobs that all wait already."""
    before = len(agent.asked)
    for one in jobs:
        suggester.offer(one)
    stop = asyncio.Event()
    running = asyncio.create_task(suggester.run(stop))
    await eventually(lambda: not suggester._pending)
    stop.set()
    await running
    return agent.asked[before:]


def test_a_cluster_is_a_users_jobs_of_one_name_without_its_number():
    assert (
        cluster_of(spec(name="Bert-base_run-17"))
        == cluster_of(spec(name="bert-base_run-3"))
        == ("vision", "ada", "bert-base_run")
    )
    assert cluster_of(spec(name="42")) == ("vision", "ada", "42")
    assert cluster_of(spec(name="bert", user="bob")) != cluster_of(spec(name="bert"))


async def test_each_cluster_goes_once_before_any_goes_twice_and_the_more_open_first():
    agent = Answers(filled=2)
    suggester, _ = made(agent)
    jobs = [pending("a1"), pending("a2"), pending("a3"), pending("b1", told=3), pending("c1")]
    assert (await run(suggester, agent, *jobs))[:3] == ["a1", "c1", "b1"]


async def test_when_the_budget_is_short_it_goes_where_the_model_has_filled_something():
    agent, clock = Answers(), VirtualClock()
    suggester, said = made(agent, budget=6, clock=clock)
    for _ in range(12):
        clock.advance(3_600.0)
        for n in range(6):
            agent.filled = 4
            await run(suggester, agent, pending(f"useful{n}"))
            agent.filled = 0
            await run(suggester, agent, pending(f"useless{n}"))
    useful = sum(name.startswith("useful") for name in agent.asked)
    assert len(agent.asked) <= 72
    assert useful == len(said)
    assert useful > 3 * (len(agent.asked) - useful) > 0


async def test_a_model_that_does_not_answer_says_nothing_against_a_cluster():
    agent = Answers(filled=None)
    suggester, _ = made(agent)
    assert len(await run(suggester, agent, *(pending(f"a{n}") for n in range(30)))) == 30
    agent.filled = 0
    assert len(await run(suggester, agent, *(pending(f"a{n}") for n in range(30)))) == 9  # then it is hopeless


async def test_what_waits_is_bounded_and_the_least_worthwhile_gives_way():
    suggester, _ = made(Answers())
    suggester.offer(pending("known", told=len(ASKED) - 1))
    for n in range(PENDING_MAX):
        suggester.offer(pending(f"job{chr(97 + n % 26)}{chr(97 + n // 26)}"))
    assert len(suggester._pending) == PENDING_MAX
    assert "known" not in {one.texts["job"] for one in suggester._pending}


@pytest.mark.parametrize("jobs", [1, 3])
async def test_without_a_model_nothing_waits_and_nothing_is_said(jobs: int):
    agent = Agent(NoModel(), SystemClock())
    suggester, said = made(agent)
    assert not await suggester.wanted({})
    for n in range(jobs):
        suggester.offer(pending(f"a{n}"))
    stop = asyncio.Event()
    running = asyncio.create_task(suggester.run(stop))
    await eventually(lambda: not suggester._pending)
    stop.set()
    await running
    assert said == []
