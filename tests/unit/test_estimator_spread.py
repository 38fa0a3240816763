"""Spreads of run times: where the one number lies that stands for them, and what a forest's leaves keep."""

from __future__ import annotations

from math import exp, log, nan

import numpy as np
import pytest

from schedmate.services.history_estimator.calibration import POINTS, Choice
from schedmate.services.history_estimator.estimate import Estimate
from schedmate.services.history_estimator.estimator import Estimator, Rules
from schedmate.services.history_estimator.forest import Forest
from schedmate.services.history_estimator.groups import Group
from schedmate.services.history_estimator.jobs import Ended, Job
from schedmate.services.history_estimator.learned import Sample, fit
from schedmate.services.history_estimator.spread import BINS, PLACES, middles, recent, spread
from tests.estimating import ran

FLAT = np.full(BINS, 1.0 / BINS)


def test_a_spread_keeps_the_mean_and_what_lies_beyond_its_ends_stays_there():
    assert spread([5.07]) @ PLACES == pytest.approx(5.07)
    assert spread([3.0, 9.0], np.array([3.0, 1.0])) @ PLACES == pytest.approx(18.0)
    assert spread([-4.0])[0] == pytest.approx(1.0)
    assert spread([99.0])[-2:].sum() == pytest.approx(1.0)


def test_runs_that_have_ended_are_spread_as_they_were_the_newest_weighing_most():
    told = recent([4.0, 8.0], [True, True], FLAT)
    assert told.sum() == pytest.approx(1.0)
    assert 0.5 < told[20] < 0.55
    assert told[20] + told[40] == pytest.approx(1.0)


def test_runs_that_outlast_the_others_count_as_long():
    logs, ended = [7.0] * 10 + [4.0] * 10, [False] * 10 + [True] * 10
    told = recent(logs, ended, FLAT)
    assert told.sum() == pytest.approx(1.0)
    assert told[PLACES > 7.0].sum() > 0.5
    nobody = recent(logs, ended, np.where(PLACES < 5.0, 1.0, 0.0))
    assert nobody[PLACES > 7.0].sum() == pytest.approx(told[PLACES > 7.0].sum())
    assert recent([4.0], [True], np.zeros(BINS)).sum() == pytest.approx(1.0)


def test_the_point_takes_a_mode_that_holds_many_jobs_and_stays_by_the_mean_where_none_does():
    tight = spread([4.0] * 8 + [10.0] * 2)
    wide = spread(np.linspace(2.0, 12.0, 51))
    told = middles([np.array([tight, wide])], np.array([5.2, 7.0]))
    assert told[0] == pytest.approx(4.0, abs=0.15)
    assert told[1] == pytest.approx(7.0, abs=0.35)


def test_the_point_does_not_leave_the_range():
    ends = np.array([spread([0.0]), spread([16.0])])
    told = middles([ends, ends], ends @ PLACES)
    assert np.all((told >= 0.0) & (told <= PLACES[-1]))


def grown(seed: int, *, shared: bool) -> tuple[Forest, np.ndarray]:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(600, 3))
    rows[draw.random(rows.shape) < 0.1] = nan
    logs = np.where(np.nan_to_num(rows[:, 0]) > 0, 9.0, 4.0)
    forest = Forest.grown(rows, logs, np.ones(len(rows)), shared=shared)
    assert forest is not None
    return forest, rows


@pytest.mark.parametrize("shared", [False, True])
def test_a_forest_spreads_jobs_like_those_of_its_leaves(shared: bool, seed: int):
    forest, rows = grown(seed, shared=shared)
    told = forest.spreads(rows)
    assert np.allclose(told.sum(axis=1), 1.0)
    sure = np.abs(np.nan_to_num(rows[:, 0])) > 1.0
    right = (told @ PLACES > 6.5)[sure] == (rows[:, 0] > 0)[sure]
    assert right.mean() > 0.75  # thresholds are drawn: of 300 forests the worst had 0.84; without a forest it is a half


def test_leaves_take_in_what_ends_after_the_fit(seed: int):
    forest, _ = grown(seed, shared=False)
    row = np.array([1.5, 0.0, 0.0])
    before = forest.spreads(row[None, :])[0]
    for _ in range(60):
        forest.learn(row, 6.0)
    after = forest.spreads(row[None, :])[0]
    assert before[30] < 0.05
    assert after[30] > 0.5


def test_a_forest_that_cannot_be_read_is_not_used(seed: int, monkeypatch: pytest.MonkeyPatch):
    real = Forest._nodes
    monkeypatch.setattr(Forest, "_nodes", lambda self, rows: real(self, -rows))
    with pytest.raises(AssertionError):
        grown(seed, shared=False)


def test_a_model_of_several_tenants_does_not_change_between_its_fits(seed: int):
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(300, 2)).tolist()
    logs = [4.0 + row[0] for row in rows]
    for shared in (True, False):
        model = fit(Sample(rows, logs, shared=shared))
        assert model is not None
        before = model.spreads(rows[:5])
        for _ in range(30):
            model.learn(rows[0], 12.0)
        after = model.spreads(rows[:5])
        assert before is not None
        assert after is not None
        assert np.array_equal(before, after) is shared


def test_a_group_tells_the_runs_submitted_last_and_the_age_of_those_that_run():
    group = Group()
    for n, job in enumerate("abcd"):
        group.submit(job, float(n))
    for job in "abc":
        group.start(job, 10.0)
    group.end("a", 20.0, 2.0)
    group.end("c", 30.0, 3.0)
    assert group.runs(10.0 + exp(4.0), 9) == ([3.0, pytest.approx(4.0), 2.0], [True, False, True])
    assert group.runs(100.0, 1) == ([3.0], [True])
    group.stop("b")
    assert group.runs(100.0, 9) == ([3.0, 2.0], [True, True])
    assert Group().runs(5.0, 9) == ([], [])


def test_a_class_takes_the_point_that_was_worth_most_and_the_first_of_equals():
    choice = Choice()
    assert choice.pick([1.0] + [2.0] * (POINTS - 1)) == 1.0
    for _ in range(10):
        choice.learn([1.0] + [5.0] * (POINTS - 1), 5.1)
    assert choice.pick([1.0] + [2.0] * (POINTS - 1)) == 2.0


def swept(draw: np.random.Generator) -> tuple[Estimate, Estimate]:
    """A tenant's jobs took minutes to a day; a sweep of ten-minute jobs comes. What is said of one before and after the first have ended."""
    estimator = Estimator(Rules(learned_jobs_min=200))
    at = 0.0
    for n in range(240):
        at += 4_000.0
        job = Job(f"a{n}", at)
        run_s = exp(log(3_600) + draw.normal(1.0, 1.5))
        ran(estimator, job, run_s)
    estimator.refit(at)
    sweep = [Job(f"b{n}", at + 4_000.0 + n) for n in range(60)]
    for job in sweep[:40]:
        estimator.submitted(job)
        estimator.started(job.id, job.submitted_at)
    before = estimator.estimate(sweep[40], at + 4_050.0)
    for n, job in enumerate(sweep[:40]):
        estimator.finished(Ended(job, 600.0 + n, at + 4_700.0 + n))
    return before, estimator.estimate(sweep[41], at + 4_800.0)


def test_an_estimate_follows_a_sweep_once_a_few_of_its_jobs_have_ended(seed: int):
    """In the middle of nine histories: in one of twenty the mean was worth more than the point of the spreads before, and stands still."""
    draw = np.random.default_rng(seed)
    told = [swept(draw) for _ in range(9)]
    assert all(None not in (said.p10_s, said.p50_s, said.p90_s) for both in told for said in both)
    assert all(after.p10_s <= after.p50_s <= after.p90_s for _, after in told)
    assert min(before.p50_s for before, _ in told) > 1_500
    assert 450 < np.median([after.p50_s for _, after in told]) < 1_000
