"""The Gittins index of attained service: by hand, against the definition, and in a pool that learns it."""

from __future__ import annotations

import json
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedmate.services.dispatcher.core import attained
from schedmate.services.dispatcher.core.attained import BINS, EDGES_GPU_S, Attained, bin_of, next_edge
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.decisions import to_json as decision_to_json
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import recover, step
from schedmate.simulator.cluster import uniform
from schedmate.simulator.draws import drawn_from
from schedmate.simulator.engine import Outcome, Simulation, simulated
from schedmate.simulator.trace import Trace, TraceJob

SPLIT = 18_000.0


def learnt(services: list[float]) -> Attained:
    known = Attained()
    for gpu_s in services:
        known.learn(gpu_s, SPLIT)
    return known


def by_definition(services: list[float], low: float, split: float) -> float:
    """sup over the edges b > low of P(S <= b | S > low) / E[min(S, b) - low | S > low]."""
    alive = [s for s in services if bin_of(s) >= bin_of(low * (1 + 1e-9))]
    best = 0.0
    for edge in (*EDGES_GPU_S, inf):
        if edge <= low or (low < split < edge):
            continue
        ended = sum(bin_of(s) <= bin_of(edge) for s in alive)
        quantum = sum(s - low if bin_of(s) <= bin_of(edge) else edge - low for s in alive)
        best = max(best, ended / quantum if quantum > 0 else 0.0)
    return best


@given(st.lists(st.floats(1.0, 1e7), min_size=1, max_size=60))
def test_the_index_is_the_definition_s(services):
    indices = learnt(services).indices(SPLIT)
    for at in range(BINS):
        low = EDGES_GPU_S[at - 1] if at else 0.0
        assert indices[at] == pytest.approx(by_definition(services, low, SPLIT), rel=1e-9)


@pytest.mark.parametrize(("gpu_s", "at", "edge"), [(0.0, 0, 70.3125), (70.3125, 0, 70.3125), (71.0, 1, 140.625), (18_000.0, 8, 18_000.0), (1e12, BINS - 1, None)])  # fmt: skip
def test_a_bin_ends_on_its_edge(gpu_s: float, at: int, edge: float | None):
    assert bin_of(gpu_s) == at
    assert next_edge(gpu_s) == edge


def test_nobody_is_moved_before_enough_have_finished():
    known = learnt([10.0] * 99)
    assert known.places == []
    assert known.place(5.0) == known.place(1e6) == 0
    assert known.learn(10.0, SPLIT)
    assert known.places != []
    assert not any(known.learn(10.0, SPLIT) for _ in range(100)), "the order of the bins has stayed"


def test_where_many_end_soon_the_new_come_first_and_where_all_are_long_those_that_have_had_most():
    heavy = learnt([50.0] * 90 + [15_000.0] * 10)
    assert heavy.place(0.0) < heavy.place(200.0)
    equal = learnt([15_000.0] * 100)
    assert equal.place(9000.0) < equal.place(200.0) < equal.place(0.0)


def test_it_survives_a_snapshot():
    known = learnt([float(n * n) for n in range(1, 200)])
    assert Attained.from_json(json.loads(json.dumps(known.to_json()))) == known


# --- in a pool ---


def trace_of(lengths: list[tuple[float, int, float]]) -> Trace:
    return Trace("made", "csv", tuple(TraceJob(f"j{n}", *given_) for n, given_ in enumerate(lengths)), {})


def run(trace: Trace, policy: str, recorder=None) -> Outcome:
    return Simulation(trace.jobs, uniform(1, 8), policy, None, recorder=recorder).run()


DRAWS = drawn_from(5)
LEARNS = [
    (round(60.0 * n), DRAWS.choice((1, 4, 8)), min(round(DRAWS.lognormvariate(5, 2)) + 1, 3000)) for n in range(90)
]


def test_without_history_it_is_tiresias():
    trace = trace_of(LEARNS)
    assert run(trace, "tiresias-gittins").start_s == run(trace, "tiresias").start_s


def test_a_pool_learns_and_whoever_recovers_it_decides_the_same(monkeypatch):
    monkeypatch.setattr(attained, "FINISHED_MIN", 20)
    monkeypatch.setattr(attained, "REFRESHED_EVERY", 5)
    trace = trace_of(LEARNS)
    entries: list = []

    def note(state: PoolState, done) -> None:
        entries.append(
            (done.inputs, state.at, [decision_to_json(d) for d in done.decisions], list(state.attained.places))
        )

    learnt_, plain = run(trace, "tiresias-gittins", note), run(trace, "tiresias")
    assert len({tuple(places) for *_, places in entries}) > 2
    assert learnt_.start_s != plain.start_s
    settings_ = simulated(PoolConfig(), "tiresias-gittins")
    state, folded = (PoolState("default", settings_, policy_named(settings_.policy)) for _ in range(2))
    for n, (inputs, at, decisions, places) in enumerate(entries):
        if n % 8 == 0:
            state = PoolState.from_json(json.loads(json.dumps(state.to_json())), policy_named)
        done = step(state, inputs, at)
        assert [decision_to_json(d) for d in done.decisions] == decisions
        assert state.attained.places == places
        recover(folded, inputs, set(), done.decisions, at)
        if n % 8 == 0:
            assert folded.to_json() == state.to_json()
