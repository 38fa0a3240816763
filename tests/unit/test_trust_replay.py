"""What random advice would have earned, judged along the course of the jobs without advice, is what a simulation with it comes to."""

from __future__ import annotations

import pytest

from benchmarks.trust_replay import Course, replayed
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import Step
from schedmate.simulator.advice import advisor
from schedmate.simulator.cluster import uniform
from schedmate.simulator.engine import Simulation
from schedmate.simulator.generate import philly_like
from schedmate.simulator.trace import Trace


@pytest.mark.parametrize("policy", ["qssf", "srtf"])
def test_a_source_that_is_judged_along_the_course_earns_what_it_earns_in_the_simulation(policy: str):
    trace = Trace("made", "csv", tuple(philly_like(400, 7)), {})
    course = Course()
    Simulation(trace.jobs, uniform(3, 32), policy, None, recorder=course).run()
    source = advisor("random", trace, 3, one_pool=True)
    assert source is not None
    estimates = {job.id: source.estimate_s(n, job.pool) or 0.0 for n, job in enumerate(trace.jobs)}
    known = replayed(next(iter(course.pools.values())), estimates)
    assert known is not None
    last: list[PoolState] = []

    def note(state: PoolState, _: Step) -> None:
        last[:] = [state]

    Simulation(trace.jobs, uniform(3, 32), policy, source, recorder=note).run()
    assert known.to_json() == last[0].trust["random"].to_json()
    assert known.decided > 50


def test_a_source_that_comes_to_be_believed_has_to_be_simulated():
    trace = Trace("made", "csv", tuple(philly_like(400, 7)), {})
    course = Course()
    Simulation(trace.jobs, uniform(3, 32), "sjf", None, recorder=course).run()
    assert replayed(next(iter(course.pools.values())), {job.id: job.duration_s for job in trace.jobs}) is None
