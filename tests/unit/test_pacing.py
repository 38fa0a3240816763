"""Pacing of probes: the budget holds in every window, it goes to what is uncertain and can be learned, and nobody starves."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from schedmate.infra import pacing
from schedmate.infra.pacing import Budget, Pacing

HOUR = 3_600.0
A, B, C = ("t", "a"), ("t", "b"), ("t", "c")


def asked(p: Pacing, cluster: tuple[str, ...], width: float, at: float, *, narrowed: float | None = None) -> bool:
    """Ask; a probe that is spent tells at once how much it narrowed."""
    worth = p.ask(cluster, width, at)
    if worth and narrowed is not None:
        p.learned(cluster, narrowed, at)
    return worth


def test_each_cluster_gets_one_at_first_and_what_is_known_well_gets_none():
    p = Pacing(Budget(10, least=0.5))
    assert p.ask(A, 2.0, 0.0)
    assert p.ask(B, 0.6, 1.0)
    assert not p.ask(C, 0.4, 2.0)


def test_the_uncertain_that_can_be_learned_goes_before_the_uncertain_that_cannot():
    p = Pacing(Budget(10, HOUR, reset_s=1000 * HOUR))
    given_to = {A: 0, B: 0}
    for n in range(2_000):
        at = n * 60.0
        given_to[A] += asked(p, A, 3.0, at, narrowed=0.5)
        given_to[B] += asked(p, B, 3.0, at + 1, narrowed=0.0)
    assert 1 <= given_to[B] <= 20
    assert given_to[A] > 10 * given_to[B]


def test_the_wider_interval_and_the_cluster_of_more_jobs_go_first():
    p = Pacing(Budget(6, HOUR))
    got = {A: 0, B: 0, C: 0}
    for n in range(1_200):
        at = n * 60.0
        got[A] += asked(p, A, 4.0, at, narrowed=0.5)
        got[B] += asked(p, B, 1.0, at + 1, narrowed=0.5)
        got[C] += asked(p, C, 4.0, at + 2, narrowed=0.5) if n % 10 == 0 else 0
    assert got[A] > 2 * got[B]
    assert got[A] > 2 * got[C] >= 2


def test_a_hopeless_cluster_gets_nothing_more_until_the_reset():
    p = Pacing(Budget(100, HOUR, reset_s=100 * HOUR))
    given_to = [asked(p, A, 3.0, n * 600.0, narrowed=0.0) for n in range(590)]
    assert sum(given_to) == 9  # 1 / (2 + 9) is below the least
    assert not any(given_to[9:])
    assert asked(p, A, 3.0, 100 * HOUR)
    assert asked(p, A, 3.0, 100 * HOUR + 1)


def test_no_tenant_has_more_than_half_while_others_come_too():
    p = Pacing(Budget(10, HOUR))
    assert p.ask(("other", "x"), 1.0, 0.0)
    assert sum(p.ask(("t", str(n)), 9.0, 1.0 + n) for n in range(50)) == 5
    alone = Pacing(Budget(10, HOUR))
    assert sum(alone.ask(("t", str(n)), 9.0, 1.0 + n) for n in range(50)) == 10


def test_what_was_spent_before_a_start_counts():
    p = Pacing(Budget(2, HOUR))
    p.restore(A, 0.0)
    p.restore(A, 10.0)
    p.restore(A, 20.0)  # a smaller budget than before: the rest is over
    assert not p.ask(B, 1.0, HOUR - 1)
    assert p.ask(B, 1.0, HOUR + 1)


def test_the_rank_orders_those_that_wait_and_spends_nothing():
    p = Pacing(Budget(100, HOUR, least=0.5))
    assert p.rank(A, 2.0, 0.0) == (True, 1.0)
    assert p.rank(A, 0.1, 0.0) == (False, 0.05)
    for n in range(4):
        asked(p, A, 2.0, float(n), narrowed=1.0)
        asked(p, B, 2.0, float(n), narrowed=0.0)
    assert p.rank(C, 2.0, 5.0) > p.rank(A, 2.0, 5.0) > p.rank(B, 2.0, 5.0)
    assert p.rank(A, 2.0, 2 * 86_400.0) == (True, 1.0)


def test_word_of_a_cluster_that_was_forgotten_and_of_before_a_reset_is_nothing():
    p = Pacing(Budget(10, HOUR, reset_s=10 * HOUR, clusters_max=2))
    for cluster in (A, B, C):
        assert p.ask(cluster, 1.0, 0.0)
    p.learned(A, 1.0, 1.0)
    p.learned(B, 7.0, 11 * HOUR)
    assert p.ask(A, 1.0, 12 * HOUR)
    assert p.ask(B, 1.0, 12 * HOUR)


def test_a_tenant_with_very_many_clusters_makes_the_pacing_forget_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pacing, "OF_TENANT_MAX", 5)
    p = Pacing(Budget(1_000, HOUR, reset_s=1e6))
    assert p.ask(A, 1.0, 0.0)
    for n in range(100):
        p.ask(("flood", str(n)), 1.0, 1.0)
    p.learned(A, 1.0, 2.0)
    assert not p.rank(A, 1.0, 3.0)[0]
    assert p.rank(("flood", "1"), 1.0, 3.0)[0]


arrivals = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.floats(0, 8), st.floats(0, 2_000), st.floats(0, 1)), max_size=300
)


@given(budget=st.integers(1, 12), reset=st.floats(HOUR, 50 * HOUR), jobs=arrivals)
@settings(max_examples=150, deadline=None)
def test_in_no_window_of_a_period_are_more_probes_given_than_the_budget(budget: int, reset: float, jobs: list):
    p = Pacing(Budget(budget, HOUR, reset, least=0.3, clusters_max=8))
    at, latest, given_at = 0.0, float("-inf"), []
    for cluster, tenant, width, later, narrowed in jobs:
        at += later - 200.0  # clocks step back too
        latest = max(latest, at)
        if asked(p, (str(tenant), str(cluster)), width, at, narrowed=narrowed):
            assert width > 0.3
            given_at.append(latest)
    for n, end in enumerate(given_at):
        assert sum(t > end - HOUR for t in given_at[: n + 1]) <= budget


@given(budget=st.integers(1, 6), clusters=st.integers(1, 5), tenants=st.integers(1, 2))
@settings(max_examples=25, deadline=None)
def test_a_cluster_that_keeps_coming_gets_a_probe_after_every_reset(budget: int, clusters: int, tenants: int):
    reset = (2 * clusters * tenants + 4) * HOUR
    p = Pacing(Budget(budget, HOUR, reset_s=reset))
    names = [(f"t{t}", str(c)) for t in range(tenants) for c in range(clusters)]
    for epoch in range(2):
        got = dict.fromkeys(names, 0)
        steps = int(reset / 1_200.0)
        for step in range(steps):
            for n, name in enumerate(names):
                # the first is the most attractive by far, and comes first
                wide = 9.0 if n == 0 else 0.5
                got[name] += asked(p, name, wide, epoch * reset + step * 1_200.0, narrowed=1.0 if n == 0 else 0.0)
        assert min(got.values()) >= 1
