"""The trust that a source would have earned in a simulation that went as one without advice.

As long as no pool believes a source, every job stands where it stands without advice: the simulation goes event by event as the one
without. So what became of the jobs without advice is recorded once, and the source's word is judged along it, by the core's own `Trust`:
where it is never believed, the outcome is the one without advice, to the byte, and nothing has to be simulated. Where it comes to be
believed the simulation has to be run (`benchmarks/robustness.py` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from schedmate.schemas.states import JobEvent
from schedmate.services.dispatcher.core.decisions import Moved, Placed
from schedmate.services.dispatcher.core.inputs import JobArrived
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import Step
from schedmate.services.dispatcher.core.trust import Trust

ARRIVED, STARTED, STOPPED, ENDED = range(4)
Happened = tuple[int, float, str]
"""What, when, and to which job."""


class Course:
    """What became of the jobs of each pool, in the order in which the core saw it. Give it to a simulation as its recorder."""

    def __init__(self) -> None:
        self.pools: dict[str, list[Happened]] = {}

    def __call__(self, state: PoolState, done: Step) -> None:
        """Take a step."""
        course = self.pools.setdefault(state.pool, [])
        course += [(ARRIVED, state.at, value.job) for value in done.inputs if type(value) is JobArrived]
        for decision in done.decisions:
            if type(decision) is Placed:
                course.append((STARTED, state.at, decision.job))
            elif type(decision) is Moved and decision.event == JobEvent.STOP:
                course.append((STOPPED, state.at, decision.job))
            elif type(decision) is Moved and decision.event == JobEvent.COMPLETE:
                course.append((ENDED, state.at, decision.job))


@dataclass(slots=True)
class _Live:
    order: int
    since: float = 0.0
    served_s: float = 0.0
    runs: bool = False


@dataclass(slots=True)
class _Pool:
    """What `PoolState` does with one source, and nothing else."""

    trust: Trust = field(default_factory=Trust)
    live: dict[str, _Live] = field(default_factory=dict)
    due: list[tuple[float, int, str]] = field(default_factory=list)

    def arrived(self, job: str, estimate_s: float) -> None:
        self.live[job] = _Live(len(self.live))
        self.trust.said(job, estimate_s)

    def started(self, job: str, at: float) -> None:
        live = self.live[job]
        live.since, live.runs = at, True
        self.watch(job)

    def stopped(self, job: str, at: float) -> None:
        live = self.live[job]
        live.served_s += at - live.since
        live.runs = False

    def ended(self, job: str, at: float) -> None:
        self.settle(at)
        live = self.live[job]
        live.runs = False
        partner = self.trust.partner(job)
        self.trust.ended(job, live.served_s + at - live.since, whole=True)
        if partner in self.live and self.live[partner].runs:
            self.watch(partner)

    def watch(self, job: str) -> None:
        runs_s = self.trust.outlasts(job)
        if runs_s is not None:
            live = self.live[job]
            heappush(self.due, (live.since + runs_s - live.served_s, live.order, job))

    def settle(self, at: float) -> None:
        while self.due and self.due[0][0] <= at:
            due, order, job = heappop(self.due)
            live, runs_s = self.live[job], self.trust.outlasts(job)
            if runs_s is None or not live.runs:
                continue
            holds = live.since + runs_s - live.served_s
            if holds > due:
                heappush(self.due, (holds, order, job))
            else:
                self.trust.outlasted(job)


def replayed(course: Sequence[Happened], estimates: dict[str, float]) -> Trust | None:
    """Return what is known of the source in the end; None where it came to be believed on the way."""
    pool = _Pool()
    for what, at, job in course:
        if what == ARRIVED:
            pool.arrived(job, estimates[job])
        elif what == STARTED:
            pool.started(job, at)
        elif what == STOPPED:
            pool.stopped(job, at)
        else:
            pool.ended(job, at)
            if pool.trust.weight > 0.0:
                return None
    return pool.trust
