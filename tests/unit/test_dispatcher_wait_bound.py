"""However wrong advice is and however much it is believed: nobody waits for longer than the bound says."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import policies
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.simulator.advice import Told
from schedmate.simulator.cluster import Cluster, NodeSpec, uniform
from schedmate.simulator.engine import Costs, Outcome, Simulation
from schedmate.simulator.trace import TraceJob

ADVISED = sorted(name for name, policy in policies().items() if policy().uses_estimates)
BOUND_S = 300.0


def simulate(jobs: list[TraceJob], cluster: Cluster, policy: str, told: list[float], trust: float | None) -> Outcome:
    """Run with this advice, believed by so much whatever it has shown; None: as far as it has earned."""
    with pytest.MonkeyPatch.context() as patch:
        if trust is not None:
            patch.setattr(PoolState, "trust_in", lambda *_: trust)
        config = PoolConfig(advice_wait_max_s=BOUND_S)
        return Simulation(jobs, cluster, policy, Told("made", told), config=config, costs=Costs(0.0, 0.0)).run()


@st.composite
def workloads(draw) -> tuple[list[TraceJob], Cluster, list[float]]:
    sizes = draw(st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=3))
    cluster = Cluster({"default": tuple(NodeSpec(f"n{n}", gpus) for n, gpus in enumerate(sizes))}, one_pool=True)
    job = st.tuples(st.integers(0, 600), st.integers(1, max(sizes)), st.integers(1, 400))
    jobs = [TraceJob(f"j{n}", *one) for n, one in enumerate(draw(st.lists(job, min_size=2, max_size=25)))]
    kind = draw(st.sampled_from(["contrary", "nonsense", "any"]))
    if kind == "contrary":
        return jobs, cluster, [1e6 / job.duration_s for job in jobs]
    one = st.sampled_from([nan, inf, -inf, 0.0, -7.0]) if kind == "nonsense" else st.floats(allow_nan=True)
    return jobs, cluster, draw(st.lists(one, min_size=len(jobs), max_size=len(jobs)))


@pytest.mark.parametrize("policy", ADVISED)
@settings(max_examples=60, deadline=None)
@given(workload=workloads(), trust=st.sampled_from([0.05, 0.5, 1.0, None]))
def test_the_longest_wait_is_bounded_under_any_advice(policy, workload, trust):
    """W, and then what came before the job and what runs by then, one after the other at the worst (core/advice.py)."""
    jobs, cluster, told = workload
    outcome = simulate(jobs, cluster, policy, told, trust)
    longest = max(job.duration_s for job in jobs)
    for n, job in enumerate(jobs):
        before = sum(other.duration_s for other in jobs if other.submit_s <= job.submit_s and other is not job)
        assert outcome.end_s[n] is not None
        assert outcome.wait_s[n] <= BOUND_S + before + longest + 1e-6


@pytest.mark.parametrize("policy", ADVISED)
def test_a_job_that_is_said_to_be_endless_is_not_passed_for_ever(policy: str):
    """A stream of jobs that are said to be short fills the node; without the bound the first one would wait for its end."""
    jobs = [TraceJob("fills", 0, 2, 10), TraceJob("endless", 1, 2, 50)]
    jobs += [TraceJob(f"short{n}", 2 + 8 * n, 2, 10) for n in range(400)]
    told = [10.0, 1e9, *([1.0] * 400)]
    outcome = simulate(jobs, uniform(1, 2), policy, told, 1.0)
    assert outcome.wait_s[1] <= BOUND_S + 20.0


UNADVISED = sorted(name for name, policy in policies().items() if not policy().uses_estimates)


@pytest.mark.parametrize("policy", UNADVISED)
def test_a_pool_may_bound_the_wait_of_whoever_is_passed_over_under_any_policy(policy: str):
    """Small jobs keep every node in part used: a job of two whole nodes waits for the end of their stream, or for the bound."""
    jobs = [TraceJob(f"fills{n}", 0, 4, 30 + 20 * n) for n in range(2)] + [TraceJob("wide", 1, 8, 50)]
    jobs += [TraceJob(f"small{n}", 2 + 15 * n, 2, 40) for n in range(200)]

    def wait(**bound: float) -> float:
        config = PoolConfig(**bound)
        return Simulation(jobs, uniform(2, 4), policy, config=config, costs=Costs(0.0, 0.0)).run().wait_s[2]

    assert wait(wait_max_s=BOUND_S) <= BOUND_S + 180.0  # what runs by then, and rounds
    if not policies()[policy]().head_blocks and policies()[policy]().rounds_s is None:
        assert wait() > 2000.0, "nobody bounds it"


def test_estimates_as_far_apart_as_numbers_are_break_nothing():
    """Their ratio is no number any more: what is told of a job is never what the core breaks on."""
    jobs = [TraceJob(f"j{n}", n, 2, (10, 1000)[n % 2]) for n in range(6)]
    told = [5e-324, 1.7e308, 1.7e308, 5e-324, 2e-308, 1e308]
    assert None not in simulate(jobs, uniform(1, 2), "sjf", told, None).end_s
