"""A simulation that nobody records builds fewer values and asks for fewer rounds; what becomes of the jobs is the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import policies
from schedmate.simulator.advice import advisor
from schedmate.simulator.cluster import Cluster, uniform
from schedmate.simulator.engine import Simulation
from schedmate.simulator.faults import Faults
from schedmate.simulator.trace import Trace, TraceJob

POLICIES = sorted(policies())
SEED = 7

jobs_in_crowds = st.lists(
    st.tuples(st.integers(0, 300).map(lambda n: 30 * n), st.integers(1, 20), st.integers(0, 20_000)),
    min_size=1,
    max_size=25,
)


def outcome_of(trace: Trace, cluster: Cluster, policy: str, advice: str, faults: Faults, *, recorded: bool) -> Any:
    source = advisor(advice, trace, SEED, one_pool=True)
    entries: list[int] = []
    simulation = Simulation(
        trace.jobs, cluster, policy, source, config=PoolConfig(advice="raw" if advice == "oracle" else "weighed"),
        recorder=(lambda _, done: entries.append(len(done.decisions))) if recorded else None, keep_seats=True, faults=faults,
    )  # fmt: skip
    outcome = simulation.run()
    assert bool(entries) == recorded
    told = {name: getattr(outcome, name) for name in outcome.__dataclass_fields__}
    integrals = told.pop("integrals")
    del told["instants"]  # of idle rounds there are fewer
    return told | {"gar": integrals.gar, "gfr": integrals.gfr, "sor": pytest.approx(integrals.sor)}


@settings(max_examples=80, deadline=None)
@given(
    jobs=jobs_in_crowds,
    nodes=st.integers(1, 4),
    policy=st.sampled_from(POLICIES),
    advice=st.sampled_from(["none", "oracle", "noisy:1"]),
    fails=st.booleans(),
)
def test_a_simulation_with_a_recorder_and_one_without_come_to_the_same(jobs, nodes, policy, advice, fails):
    made = tuple(TraceJob(f"j{n}", submit, gpus, run) for n, (submit, gpus, run) in enumerate(jobs))
    trace, cluster = Trace("made", "csv", made), uniform(nodes, 8)
    faults = Faults(mtbf_s=20_000.0, mttr_s=900.0, seed=SEED) if fails else Faults()
    with_, without = (
        outcome_of(trace, cluster, policy, advice, faults, recorded=recorded) for recorded in (True, False)
    )
    assert with_ == without


@pytest.mark.parametrize("at_s", [6_000, 6_030])
def test_a_job_that_arrives_on_the_minute_of_an_idle_round_is_decided_where_it_always_was(at_s: int):
    """Between the rounds that decide something there may be any number that do not: the next one stands where it always stood."""
    first = TraceJob("first", 0, 8, 100_000)
    waits = TraceJob("waits", 60, 8, 100)
    arrives = TraceJob("arrives", at_s, 1, 100)
    trace = Trace("made", "csv", (first, waits, arrives))
    both = [
        outcome_of(trace, uniform(1, 8), "tiresias", "none", Faults(), recorded=recorded) for recorded in (True, False)
    ]
    assert both[0] == both[1]
