"""The order by quantiles: the index against what it is by definition, and what a pool does with it."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from math import exp, inf, log
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.advice import NO_ADVICE_S, ordered_s, remaining_s, turns_at, weighed_s
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.quantiles import edges_of, index_s, next_turn_s, turn_s
from schedmate.services.dispatcher.core.trust import Trust
from tests.dispatching import PoolUnderTest, arrived, report

LOGS = st.floats(0.0, 12.0)
TRIPLES = st.tuples(LOGS, LOGS, LOGS).map(lambda ls: tuple(exp(one) for one in sorted(ls)))


def sampled(p10: float, p50: float, p90: float, draws: int) -> list[float]:
    """Run times at equidistant chances, by the distribution as the module's docstring states it."""
    outer_low, outer_high = (p50 / p10) ** 0.25, (p90 / p50) ** 0.25
    knots = [(0.0, p10 / outer_low), (0.1, p10), (0.5, p50), (0.9, p90), (1.0, p90 * outer_high)]
    out = []
    for n in range(draws):
        chance = (n + 0.5) / draws
        (c0, t0), (c1, t1) = next(pair for pair in pairwise(knots) if chance <= pair[1][0])
        out.append(exp(log(t0) + (chance - c0) / (c1 - c0) * (log(t1) - log(t0))))
    return out


def by_definition(runs: list[float], run_s: float) -> float:
    """The least over ends of the quantum, a hundredth apart, with sums over runs in ascending order."""
    sums = [0.0, *accumulate(runs)]
    first, last = bisect_right(runs, run_s), len(runs)
    best, end = inf, max(run_s, runs[first])
    while end < runs[-1] * 1.01:
        end *= 1.01
        until = bisect_right(runs, end)
        spent = sums[until] - sums[first] + (last - until) * end - run_s * (last - first)
        best = min(best, spent / (until - first)) if until > first else best
    return best


@pytest.mark.parametrize("quantiles", [(10.0, 100.0, 1000.0), (50.0, 60.0, 9000.0), (1.0, 900.0, 1000.0)])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.95, 1.0, 1.1])
def test_the_index_is_what_gittins_defines(quantiles: tuple[float, float, float], part: float):
    runs, run_s = sampled(*quantiles, 100_000), part * quantiles[1]
    assert index_s(*quantiles, run_s) == pytest.approx(by_definition(runs, run_s), rel=0.06)


@given(TRIPLES)
def test_the_index_never_exceeds_the_mean_and_grows_in_step_with_the_quantiles(quantiles):
    p10, p50, p90 = quantiles
    edges = edges_of(*quantiles)
    before = index_s(*quantiles, 0.0)
    assert edges[0] * 0.999 <= before <= edges[-1] * 1.001
    runs = sampled(*quantiles, 200)
    assert before <= sum(runs) / len(runs) * 1.05
    assert index_s(3.0 * p10, 3.0 * p50, 3.0 * p90, 0.0) == pytest.approx(3.0 * before, rel=1e-6)
    assert index_s(p10, p50 * 1.0, p90 * 1.5, 0.0) >= before * 0.999


@given(st.floats(1.0, 1e6), st.floats(0.0, 0.999))
def test_where_the_quantiles_are_one_it_is_what_remains(run_time_s: float, part: float):
    run_s = part * run_time_s
    assert index_s(run_time_s, run_time_s, run_time_s, run_s) == pytest.approx(run_time_s - run_s, rel=1e-6)


@given(TRIPLES, st.floats(0.0, 1e7))
def test_the_index_is_positive_and_finite_however_long_the_run(quantiles, run_s: float):
    assert 0.0 < index_s(*quantiles, run_s) < inf or run_s == 0.0


@given(TRIPLES, st.floats(0.0, 1e7))
def test_turns_go_forward_and_leave_no_gap(quantiles, run_s: float):
    edges = edges_of(*quantiles)
    at, following = turn_s(edges, run_s), next_turn_s(edges, run_s)
    assert at <= run_s < following
    assert turn_s(edges, following) == following
    assert next_turn_s(edges, at) == following
    assert following <= max(2.0 * run_s, 1.0)


def test_quantiles_that_contradict_the_median_give_way_to_it():
    assert edges_of(500.0, 100.0, 20.0) == (100.0,) * 5
    assert index_s(500.0, 100.0, 20.0, 0.0) == pytest.approx(100.0)


# --- through the clamp and the trust ---


def job(p10_s: float | None, p50_s: float | None, p90_s: float | None, **given_):
    base = {"served_s": 0.0, "basis": "history", "state": JobState.QUEUED, "since": 0.0, "time_limit_s": None}
    return SimpleNamespace(p10_s=p10_s, p50_s=p50_s, p90_s=p90_s, **(base | given_))


def pool(weight: float, at: float = 0.0, **config):
    given_ = PoolConfig(**({"advice_rule": "quantiles"} | config))
    by_quantiles = given_.advice_rule == "quantiles"
    return SimpleNamespace(config=given_, trust_in=lambda _: weight, at=at, by_quantiles=by_quantiles)


@given(TRIPLES, st.sampled_from([0.05, 0.35, 1.0]))
def test_before_it_runs_what_remains_is_what_orders_the_job(quantiles, weight: float):
    one = job(*quantiles)
    assert remaining_s(one, pool(weight)) == pytest.approx(ordered_s(one, pool(weight)), rel=1e-6)


def test_a_weight_of_none_leaves_the_job_where_it_stands_and_the_clamp_holds():
    assert ordered_s(job(1.0, 9.0, 80.0), pool(0.0)) == NO_ADVICE_S
    assert remaining_s(job(1.0, 9.0, 80.0), pool(0.0)) is None
    assert ordered_s(job(1e-9, 1e-8, 1e-7), pool(1.0)) == pytest.approx(NO_ADVICE_S / 10_000)
    assert ordered_s(job(1e12, 1e13, 1e14), pool(1.0)) == pytest.approx(NO_ADVICE_S * 10_000)


@given(st.floats(1.0, 1e6), st.sampled_from([None, 10.0]), st.floats(0.0, 1e6))
def test_an_estimate_that_lacks_a_quantile_counts_as_it_does_by_its_median(p50_s: float, p10_s, served_s: float):
    one = job(p10_s, p50_s, None, served_s=served_s)
    for weight in (0.2, 1.0):
        by_quantiles, by_median = pool(weight), pool(weight, advice_rule="p50")
        assert ordered_s(one, by_quantiles) == ordered_s(one, by_median) == weighed_s(one, by_median)
        assert remaining_s(one, by_quantiles) == remaining_s(one, by_median)
        assert turns_at(one, by_quantiles) is None


def test_whoever_outlasts_its_quantiles_is_ranked_by_what_is_left_of_them():
    left = []
    for ran_s in (0.0, 15.0, 150.0, 1500.0, 10_000.0):
        runs = job(10.0, 100.0, 1000.0, state=JobState.RUNNING)
        said = remaining_s(runs, pool(1.0, at=ran_s))
        assert said is not None
        left.append(said - turn_s(edges_of(10.0, 100.0, 1000.0), ran_s))
    assert left[1:] == sorted(left[1:])
    assert left[-1] == pytest.approx(8192.0)  # beyond all that was said: for as long again, from the last doubling on
    assert remaining_s(job(10.0, 100.0, 1000.0, served_s=150.0), pool(1.0)) == pytest.approx(
        index_s(10.0, 100.0, 1000.0, 150.0)
    )


def test_a_time_limit_bounds_what_orders_a_job_and_what_remains_of_it():
    limited = job(10.0, 100.0, 1000.0, time_limit_s=5)
    for rule in ("p50", "quantiles"):
        assert ordered_s(limited, pool(1.0, advice_rule=rule)) == 5.0
        assert remaining_s(limited, pool(1.0, advice_rule=rule)) == 5.0
        assert ordered_s(limited, pool(0.0, advice_rule=rule)) == NO_ADVICE_S
    assert ordered_s(job(10.0, 20.0, 30.0, time_limit_s=3600), pool(0.1)) < NO_ADVICE_S


# --- in a pool ---


def taught(**config) -> PoolUnderTest:
    """A pool that believes `history` whole."""
    p = PoolUnderTest(**config)
    p.state.trust["history"] = Trust(weight=1.0, skill=1.0, believed=True)
    p.step(report("n1", 8))
    return p


def test_a_chance_to_end_soon_goes_first_by_quantiles_and_last_by_the_median():
    for rule, order in (("quantiles", ["wide", "sure"]), ("p50", ["sure", "wide"])):
        p = taught(policy="sjf", advice_rule=rule)
        p.step(arrived("fills", gpus=8, priority=3))
        p.step(arrived("sure", gpus=8), i.EstimateArrived("sure", 1, 90.0, 100.0, 110.0, "history"))
        p.step(arrived("wide", gpus=8), i.EstimateArrived("wide", 1, 1.0, 120.0, 130.0, "history"))
        assert [name for name, _ in p.state.queue.in_order()] == order, rule


def test_the_trust_judges_what_is_acted_on():
    for policy, rule, said in (("sjf", "quantiles", index_s(1.0, 120.0, 130.0, 0.0)), ("easy", "quantiles", 120.0), ("sjf", "p50", 120.0)):  # fmt: skip
        p = PoolUnderTest(policy=policy, advice_rule=rule)
        p.step(arrived("a"), i.EstimateArrived("a", 1, 1.0, 120.0, 130.0, "history"))
        assert p.state.trust["history"].pairs["a"].first_s == pytest.approx(said)


def test_another_rule_makes_what_was_said_of_live_jobs_count_anew():
    p = PoolUnderTest(policy="sjf")
    for name in ("a", "b"):
        p.step(arrived(name), i.EstimateArrived(name, 1, 1.0, 120.0, 130.0, "history"))
    p.step(i.ConfigChanged(PoolConfig(policy="sjf", advice_rule="quantiles").to_json()))
    pair = p.state.trust["history"].pairs["a"]
    assert {pair.first, pair.second} == {"a", "b"}
    assert pair.first_s == pair.second_s == pytest.approx(index_s(1.0, 120.0, 130.0, 0.0))


def test_a_running_job_that_outlasts_its_quantiles_gives_way():
    """By its median it would be near its end; by its quantiles, once past the first of them, it is not."""
    stopped = {}
    for rule in ("p50", "quantiles"):
        p = taught(policy="srtf", advice_rule=rule, preemption_min_run_s=0.0)
        p.step(arrived("runs", gpus=8, resumable=True), i.EstimateArrived("runs", 1, 10.0, 1000.0, 90_000.0, "history"))
        p.start("runs")
        p.step(i.Tick(), after=940.0)
        told = i.EstimateArrived("short", 1, 300.0, 310.0, 320.0, "history")
        p.step(arrived("short", gpus=8, submitted_at=p.now), told)
        stopped[rule] = p.state_of("runs")
    assert stopped == {"p50": "RUNNING", "quantiles": "STOPPING"}


def test_a_rule_that_nobody_knows_is_refused():
    with pytest.raises(TypeError, match="advice_rule is one of p50, quantiles"):
        PoolConfig.from_json({"advice_rule": "mean"})
