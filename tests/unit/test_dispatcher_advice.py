"""How far advice moves a job, and how a source earns its trust."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from schedmate.services.dispatcher.core.advice import NO_ADVICE_S, expected_s, remaining_s, weighed_s
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.trust import Trust
from schedmate.simulator.draws import drawn_from


def job(p50_s: float | None, *, served_s: float = 0.0, p90_s: float | None = None):
    return SimpleNamespace(p50_s=p50_s, p90_s=p90_s, served_s=served_s, basis="history")


def pool(weight: float, **config):
    return SimpleNamespace(config=PoolConfig(**config), trust_in=lambda _: weight)


@pytest.mark.parametrize(
    ("estimate", "weight", "config", "weighed"),
    [
        (None, 1.0, {}, NO_ADVICE_S),
        (60.0, 0.0, {}, NO_ADVICE_S),
        (60.0, 1.0, {}, 60.0),
        (36.0, 0.5, {}, 360.0),
        (1e12, 1.0, {}, NO_ADVICE_S * 10_000),
        (-5.0, 1.0, {}, NO_ADVICE_S / 10_000),
        (-5.0, 0.0, {"advice": "raw"}, -5.0),
        (7200.0 * 100, 1.0, {"advice_ratio_max": 2.0}, 7200.0),
    ],
)
def test_an_estimate_is_clamped_and_shrunk_toward_none(estimate, weight, config, weighed):
    assert weighed_s(job(estimate), pool(weight, **config)) == pytest.approx(weighed)


def test_nothing_remains_to_be_said_where_nothing_is_believed():
    assert remaining_s(job(None), pool(1.0)) is None
    assert remaining_s(job(60.0), pool(0.0)) is None
    assert remaining_s(job(60.0, served_s=20.0), pool(1.0)) == pytest.approx(40.0)
    assert remaining_s(job(60.0, served_s=90.0), pool(1.0)) == 0.0


def test_an_expected_end_takes_the_upper_quantile():
    assert expected_s(job(60.0, p90_s=120.0), pool(1.0)) == pytest.approx(120.0)
    assert expected_s(job(60.0), pool(1.0)) == pytest.approx(60.0)
    assert expected_s(job(60.0, p90_s=120.0), pool(0.0)) == pytest.approx(2 * NO_ADVICE_S)


def runs(count: int, seed: int) -> list[float]:
    rng = drawn_from(seed)
    return [rng.lognormvariate(7, 2) for _ in range(count)]


def test_who_tells_the_truth_is_soon_believed_and_no_more_when_it_guesses():
    trust = Trust()
    for run in runs(200, 1):
        trust.learn(run, run)
    assert trust.weight == 1.0
    for guess, run in zip(runs(20_000, 2), runs(20_000, 3), strict=True):
        trust.learn(guess, run)
    assert trust.weight == 0.0
    assert Trust.from_json(trust.to_json()) == trust


@pytest.mark.parametrize("seed", range(10))
def test_who_guesses_is_never_believed(seed: int):
    trust = Trust()
    for guess, run in zip(runs(3000, seed), runs(3000, seed + 100), strict=True):
        trust.learn(guess, run)
        assert trust.weight <= 0.1


def test_who_says_the_same_of_all_is_not_believed():
    trust = Trust()
    for run in runs(500, 4):
        trust.learn(3600.0, run)
    assert trust.weight == 0.0
