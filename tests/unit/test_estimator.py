"""The estimator: which past speaks for a job, in which order; what no other tenant can move; what is left when parts are absent."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, isnan, log, nan

import numpy as np
import pytest

from schedmate.infra.embeddings.nearest import ExactIndex
from schedmate.schemas.events import EstimateBasis
from schedmate.services.history_estimator import learned
from schedmate.services.history_estimator.calibration import Tracker
from schedmate.services.history_estimator.estimator import Estimator, Rules
from schedmate.services.history_estimator.features import COLUMNS, Past
from schedmate.services.history_estimator.groups import Group
from schedmate.services.history_estimator.hazard import Hazard
from schedmate.services.history_estimator.jobs import RUN_S_MAX, Ended, Job, count_class, plain_name
from schedmate.services.history_estimator.learned import Sample, beyond, fit
from schedmate.services.history_estimator.similar import PAIRS_MIN, SimilarJobs, Threshold
from schedmate.services.history_estimator.trees import Bins, FlatTrees
from tests.estimating import Exact, ran


def named(n: int, **more) -> Job:
    return Job(f"j{n}", n * 100.0, **({"user": "ann", "name": f"train-{n}", "command_hash": "c"} | more))


def history(estimator: Estimator, tenants: dict[str, float], jobs: int, seed: int, start: float = 0.0) -> float:
    """Jobs of several tenants, each with its own level and a spread, ended in order; return when the last was submitted."""
    draw = np.random.default_rng(seed)
    at = start
    for n in range(jobs):
        for tenant, level in tenants.items():
            at += draw.exponential(30)
            job = Job(
                f"{tenant}-{start:.0f}-{n}",
                at,
                tenant=tenant,
                gpus=int(draw.choice((1, 1, 4))),
                user=str(draw.choice(["a", "b"])),
                name="n",
            )
            ran(estimator, job, level * exp(draw.normal(0, 0.5)) * job.gpus)
        estimator.refit(at)
    return at


# --- names ---


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("bert-base_run-17", "bert-base"), ("gan 2024-05-01", "gan"), ("x-seed3", "x"), ("train_20240501_1203", "train"),
        ("abc (2)", "abc"), ("ResNet50-3", "resnet50"), ("resnet50", "resnet50"), ("yolov5", "yolov5"), ("llama-7b", "llama-7b"),
        ("42", "42"), ("a-1-2-3-4", "a"), ("--", "--"),
    ],
)  # fmt: skip
def test_a_trailing_run_number_or_date_is_no_part_of_a_name(name: str, plain: str):
    assert plain_name(name) == plain


def test_a_hostile_name_costs_no_time():
    assert plain_name("1-" * 100 + "x") == "1-" * 100 + "x"
    assert plain_name("2024-01-01 " * 18 + "!")


def test_counts_of_gpus_fall_into_powers_of_two():
    assert [count_class(n) for n in (1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 4, 8, 8, 16]


# --- the order of what speaks ---


def test_of_nothing_follows_unknown_without_numbers():
    said = Estimator().estimate(named(1), 0.0)
    assert (said.basis, said.p10_s, said.p50_s, said.p90_s, said.early_end_risk) == (
        EstimateBasis.UNKNOWN,
        None,
        None,
        None,
        None,
    )


def test_the_same_job_before_decides_whatever_its_run_number():
    estimator = Estimator()
    ran(estimator, named(1), 600)
    ran(estimator, named(2), 660)
    said = estimator.estimate(named(9), 2000.0)
    assert (said.basis, said.p50_s, said.similar) == (EstimateBasis.EXACT_PRIOR, 629.285, ("j2", "j1"))
    assert said.p10_s < 600 < said.p50_s < 660 < said.p90_s


@pytest.mark.parametrize(
    "other",
    [{"name": "other"}, {"user": "bob"}, {"tenant": "t2"}, {"command_hash": "d"}, {"gpus": 2}, {"directory": "/x"}],
)
def test_a_job_that_differs_in_any_part_is_no_repeat(other):
    estimator = Estimator()
    ran(estimator, named(1), 600)
    assert estimator.estimate(named(2, **other), 2000.0).basis is EstimateBasis.UNKNOWN


def test_a_job_whose_source_changed_is_like_its_earlier_forms():
    estimator = Estimator()
    ran(estimator, named(1, content_hash="a"), 600)
    assert estimator.estimate(named(2, content_hash="a"), 2e3).basis is EstimateBasis.EXACT_PRIOR
    assert estimator.estimate(named(2, content_hash="b"), 2e3).basis is EstimateBasis.SIMILAR_JOBS


def test_a_like_workload_serves_where_the_job_is_new():
    estimator = Estimator(new_index=Exact)
    for n in range(5):
        ran(estimator, named(n, name=f"n{n}x", vector=(1.0, 0.0), workload={"framework": "pytorch"}), 1000 + n)
    new = named(9, name="new", vector=(0.98, 0.199), workload={"framework": "pytorch"})
    said = estimator.estimate(new, 1e4)
    assert (said.basis, said.p50_s, len(said.similar)) == (EstimateBasis.SIMILAR_JOBS, 1002.0, 5)
    for differs in (
        {"vector": (0.0, 1.0)},
        {"gpu_type": "h100"},
        {"gpus": 4},
        {"workload": {"framework": "jax"}},
        {"vector": None},
    ):
        assert estimator.estimate(replace(new, **differs), 1e4).basis is EstimateBasis.USER_MEDIAN


def test_other_tenants_jobs_serve_as_a_number_and_only_where_the_pool_allows_it():
    def told(rules: Rules):
        estimator = Estimator(rules, Exact)
        for n in range(6):
            ran(estimator, named(n, tenant=f"t{n}", name=f"n{n}x", vector=(1.0, 0.0)), 1000)
        return estimator.estimate(named(9, tenant="new", name="new", vector=(1.0, 0.0)), 1e4)

    said = told(Rules())
    assert (said.basis, said.similar, said.similar_elsewhere) == (EstimateBasis.SIMILAR_JOBS, (), 6)
    assert told(Rules(across_tenants=False)).basis is EstimateBasis.UNKNOWN
    assert told(Rules(closed_pools=frozenset({"default"}))).basis is EstimateBasis.UNKNOWN


def test_stated_steps_times_the_step_time_of_kin_on_that_gpu_type():
    estimator = Estimator()
    for n, steps in enumerate((1000, 2000)):
        ran(
            estimator,
            named(n, name=f"n{n}x", workload={"model_name": "bert", "total_steps": steps}, gpu_type="a100"),
            steps * 0.5,
        )
    new = named(9, name="new", workload={"model_name": "bert", "total_steps": 10_000}, gpu_type="a100")
    said = estimator.estimate(new, 1e4)
    assert (said.basis, said.p50_s, said.similar) == (EstimateBasis.STEPS, 5000.0, ("j1", "j0"))
    assert estimator.estimate(replace(new, gpu_type="h100"), 1e4).basis is EstimateBasis.UNKNOWN
    assert estimator.estimate(replace(new, workload={"model_name": "bert"}), 1e4).basis is EstimateBasis.UNKNOWN
    family = [named(n, name="f", workload={"model_family": "vit", "max_steps": 100}, user=f"u{n}") for n in (20, 21)]
    ran(estimator, family[0], 100)
    assert estimator.estimate(family[1], 1e4).p50_s == 100.0


def test_estimates_degrade_in_order_and_each_step_stands_alone(monkeypatch: pytest.MonkeyPatch):
    """Everything there; without stated steps; without embedding; without the model; without kin; without the user; without anything."""
    job = named(5000, name="new", vector=(1.0, 0.0), workload={"model_name": "bert", "total_steps": 100})

    def told(rules: Rules = Rules(), index=Exact, **differs):  # noqa: B008 - frozen
        estimator = Estimator(rules, index)
        for n in range(400):
            ran(
                estimator,
                named(n, name=f"n{n}x", vector=(1.0, 0.0), workload={"model_name": "bert", "total_steps": 10}),
                50.0 + n % 7,
            )
            estimator.refit(n * 100.0)
        return estimator.estimate(replace(job, **differs), 1e6).basis.value

    assert told() == "steps"
    no_steps = {"model_name": "bert"}
    assert told(workload=no_steps) == "similar_jobs"
    assert told(index=None, workload=no_steps) == "learned"
    assert told(Rules(learn=False), None) == "steps"
    assert told(Rules(learn=False), None, workload={}) == "user_median"
    assert told(Rules(learn=False), None, workload={}, user="new") == "pool_prior"
    assert told(Rules(learn=False), None, workload={}, user="new", pool="new") == "unknown"
    monkeypatch.setattr(learned, "available", lambda: False)
    assert told(index=None) == "steps"


def test_a_pools_prior_gives_each_tenant_one_voice():
    estimator = Estimator(Rules(learn=False))
    for n in range(300):
        ran(estimator, Job(f"b{n}", n * 10.0, tenant="big"), 10.0)
    for n in range(30):
        ran(estimator, Job(f"s{n}", n * 10.0, tenant=f"s{n % 3}"), 1000.0)
    said = estimator.estimate(Job("x", 1e5, tenant="new"), 1e5)
    assert (said.basis, said.p50_s, said.similar, said.similar_elsewhere) == (EstimateBasis.POOL_PRIOR, 1000.0, (), 80)


def test_a_time_limit_bounds_an_estimate():
    estimator = Estimator()
    ran(estimator, named(1), 600)
    said = estimator.estimate(named(2, time_limit_s=500), 2000.0)
    assert (said.p50_s, said.p90_s) == (500, 500)


def test_utilisation_memory_and_sharing_class_come_with_the_past_that_knows_them():
    estimator = Estimator()
    for n, (used, memory) in enumerate(((0.5, 10), (0.7, 30), (0.6, 20))):
        ran(
            estimator,
            named(n),
            600,
            gpu_utilisation=used,
            gpu_memory_bytes=memory,
            sharing_class="tiny" if n else "medium",
        )
    said = estimator.estimate(named(9), 2000.0)
    assert (said.gpu_utilisation, said.gpu_memory_bytes, said.sharing_class) == (0.6, 30, "tiny")


def test_the_sharing_class_is_told_of_the_same_job_or_of_like_jobs_that_agree_and_of_no_others():
    estimator = Estimator(new_index=Exact)
    for n, seen in enumerate(("tiny", "tiny", "tiny")):
        ran(estimator, named(n, name=f"n{n}x", vector=(1.0, 0.0)), 600, gpu_utilisation=0.2, sharing_class=seen)
    like = estimator.estimate(named(9, name="new", user="new", vector=(1.0, 0.0)), 2000.0)
    assert (like.basis, like.sharing_class) == (EstimateBasis.SIMILAR_JOBS, "tiny")
    ran(estimator, named(3, name="n3x", vector=(1.0, 0.0)), 600, gpu_utilisation=0.9, sharing_class="jumbo")
    assert estimator.estimate(named(9, name="new", user="new", vector=(1.0, 0.0)), 2000.0).sharing_class is None
    by_user = estimator.estimate(named(10, name="another", user="ann"), 2000.0)
    assert (by_user.basis, by_user.sharing_class) == (EstimateBasis.USER_MEDIAN, None)


def test_an_analysis_that_comes_later_is_used():
    estimator = Estimator(new_index=Exact)
    for n in range(3):
        ran(estimator, named(n, name=f"n{n}x", vector=(1.0, 0.0)), 1000)
    job = named(9, name="new", user="new")
    estimator.submitted(job)
    assert estimator.estimate(job, 1e4).basis is EstimateBasis.UNKNOWN
    known = replace(job, vector=(1.0, 0.0), workload={"task": "lm"})
    estimator.analyzed(known)
    assert estimator.estimate(known, 1e4).basis is EstimateBasis.SIMILAR_JOBS
    estimator.analyzed(named(10))  # the analysis of a job that nobody has told of submits it


# --- what makes no sense ---


@pytest.mark.parametrize("run_s", [0.0, -5.0, inf, nan, RUN_S_MAX * 2])
def test_a_run_time_that_makes_no_sense_is_forgotten(run_s: float):
    estimator = Estimator()
    ran(estimator, named(1), 600)
    estimator.submitted(named(2))
    estimator.finished(Ended(named(2), run_s, 1e4))
    estimator.finished(Ended(named(2), 1.0, 1e4))  # told twice, or never submitted
    assert estimator.estimate(named(9), 2000.0).similar == ("j1",)


def test_failed_and_cancelled_jobs_say_how_risky_and_not_how_long():
    estimator = Estimator()
    for n in range(8):
        ran(estimator, named(n), 600, "failed" if n < 2 else "cancelled" if n < 4 else "succeeded")
    said = estimator.estimate(named(9), 2e3)
    assert len(said.similar) == 4
    assert 0.3 < said.early_end_risk < 0.7
    bare = Estimator()
    for n in range(4):
        ran(bare, named(n), 10, "failed")
    said = bare.estimate(named(9), 2e3)
    assert (said.basis, said.p50_s) == (EstimateBasis.UNKNOWN, None)
    assert said.early_end_risk > 0.9


TENANTS = {"a": 300.0, "b": 5_000.0, "c": 60.0, "d": 40_000.0}


def probes(estimator: Estimator, at: float) -> list:
    jobs = [
        Job(f"p{t}{g}{u}", at, tenant=t, gpus=g, user=u, name=n)
        for t in "abc"
        for g in (1, 4)
        for u in "ab"
        for n in ("n", "new")
    ]
    return estimator.estimate_many(jobs, at)


def poisoned(poison: str | None, seed: int) -> list:
    """What the probes are told after a history of four tenants, one of which then lies in this way."""
    estimator = Estimator(new_index=Exact)
    at = history(estimator, TENANTS, 330, seed)
    draw = np.random.default_rng(seed + 1)
    for n in range(400 if poison else 0):
        size = int(draw.choice((1, 4)))
        job = Job(f"d-bad-{n}", at + n * 0.01, tenant="d", gpus=size, user="a", name="n", vector=(1.0, 0.0))
        run_s = {"extreme": draw.choice((1.0, 3e7)), "zero": draw.choice((0.0, -1.0, nan)), "liars": 3e7}.get(
            poison, 100.0
        )
        if poison == "clock":
            job = replace(job, submitted_at=draw.choice((-1e12, 1e12, inf)))
        if poison == "duplicates":
            job = replace(job, id="d-bad-0")
        if poison == "liars":
            job = replace(job, workload={"framework": "pytorch", "total_steps": 1, "model_name": "bert"})
        ran(estimator, job, run_s)
        estimator.refit(at)
    return probes(estimator, at + 10.0)


@pytest.fixture(scope="module")
def clean() -> list:
    """What the probes are told of a clean history."""
    return poisoned(None, 7)


@pytest.mark.parametrize("poison", ["extreme", "zero", "clock", "duplicates", "liars"])
def test_a_poisoned_history_moves_no_other_tenant(poison: str, clean: list):
    """One tenant of four is the liar: nobody else's p50 moves by more than 10 %, nor p90 by more than 25 %."""
    for before, after in zip(clean, poisoned(poison, 7), strict=True):
        assert before.p50_s is not None
        assert abs(after.p50_s / before.p50_s - 1) <= 0.10, (before, after)
        assert abs(after.p90_s / before.p90_s - 1) <= 0.25, (before, after)


# --- the parts ---


def test_the_same_history_gives_the_same_estimates(seed: int):
    def told():
        estimator = Estimator()
        return probes(estimator, history(estimator, {"a": 100.0, "b": 1e4, "c": 5.0}, 330, seed))

    first = told()
    assert first == told()
    assert {e.basis for e in first} == {EstimateBasis.LEARNED}
    assert all(len(e.similar) == 20 for e in first)
    assert all(job.startswith(("a-", "b-", "c-")) for e in first for job in e.similar)
    assert all(e.p10_s <= e.p50_s <= e.p90_s for e in first)


def test_a_tenant_with_little_history_is_served_by_the_common_model(seed: int):
    estimator = Estimator(Rules(learned_jobs_min=200))
    at = history(estimator, {"a": 100.0, "b": 1e3, "e": 300.0}, 100, seed)
    assert (
        estimator.estimate(Job("x", at, tenant="c", user="u"), at).basis is EstimateBasis.POOL_PRIOR
    )  # nobody had asked for one
    estimator.refit(at)
    said = estimator.estimate(Job("x", at, tenant="c", user="u"), at)
    assert (said.basis, said.similar, said.similar_elsewhere) == (EstimateBasis.LEARNED, (), 300)


def test_jobs_that_still_run_are_evidence_that_such_jobs_are_long(seed: int):
    draw = np.random.default_rng(seed)
    rows = [[draw.choice((0.0, 1.0))] for _ in range(400)]
    logs = [log(100) + draw.normal(0, 0.3) for _ in rows]
    before = fit(Sample(rows, logs))
    assert before is not None
    after = fit(Sample(rows, logs, [[1.0]] * 300, [log(10_000)] * 300), before)
    assert after is not None
    told = after.predict([[0.0], [1.0]])
    assert abs(told[0, 1] - log(100)) < 0.5
    assert told[1, 1] > log(300)
    assert told[1, 2] > log(9_000)


def test_what_lies_beyond_an_age_is_beyond_it_and_grows_with_the_share():
    quantiles = np.array([[1.0, 2.0, 4.0]] * 4)
    ages = np.array([-5.0, 1.5, 3.0, 9.0])
    told = [beyond(quantiles, ages, share) for share in (1 / 6, 0.5, 5 / 6)]
    assert (told[0] >= ages).all()
    assert (np.diff(np.array(told), axis=0) >= 0).all()
    assert told[1][0] == pytest.approx(2.0, abs=0.01)


def test_rows_that_do_not_differ_give_no_model():
    assert fit(Sample([[1.0, nan]] * 50, [1.0] * 50)) is None


def test_flat_trees_answer_as_the_regressor_or_are_not_used(seed: int):
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(500, 4))
    rows[draw.random(rows.shape) < 0.1] = nan
    model = fit(Sample(rows.tolist(), np.nan_to_num(rows[:, 0]).tolist()))
    assert model is not None
    few = model.predict(rows[:10].tolist())
    many = model.predict(rows.tolist())
    assert np.allclose(few, many[:10], rtol=0, atol=1e-9)
    assert FlatTrees.of([object()], Bins(rows), rows) is None


def test_a_row_has_its_columns_and_a_first_job_is_unknown():
    past = Past()
    row = past.row(Job("x", 0.0), 0.0)
    assert len(row.values) == len(COLUMNS)
    assert row.level == log(3600)
    for n in range(250):
        past.submit(Job(f"w{n}", 0.0, workload={"dataset": f"d{n}", "epochs": True, "total_steps": -1}))
        past.row(Job("y", 0.0, workload={"dataset": f"d{n}"}), 0.0)
    assert past.row(Job("z", 0.0, workload={"dataset": "late"}), 0.0).values[COLUMNS.index("workload:dataset")] == 200


def test_a_group_answers_from_what_it_was_told_and_no_more():
    group = Group()
    group.submit("a", 0.0)
    group.start("a", 0.0)
    group.submit("b", 600.0)
    group.end("a", 100.0, log(100))
    names = dict(zip(("p600", "p3600", "p86400", "burst"), group.series(600.0)[0], strict=True))
    assert names["p600"] == log(100)
    assert isnan(names["p3600"])
    assert group.median == log(100)
    group.submit("late", 10.0)  # a clock that went back
    group.stop("b")
    group.stop("nobody")
    for n in range(5000):
        group.submit(f"x{n}", 700.0 + n)
        group.start(f"x{n}", 700.0 + n)
    for n in range(4500):
        group.end(f"x{n}", 6000.0, 1.0)
    assert group.ended == 4501
    assert group.median == 1.0
    assert len(group.newest(20)) == 20


def test_intervals_come_to_cover_what_they_say_though_the_feedback_is_late(seed: int):
    draw = np.random.default_rng(seed)
    tracker = Tracker()
    waiting, covered = [], []
    for n in range(8000):
        level, spread = 5.0, 0.2 if n < 3000 else 1.5
        raw = (level - 0.5, level + 0.5)
        given = tracker.widened(raw[0], level, raw[1])
        value = draw.normal(level, spread)
        waiting.append((raw, given, value))
        if len(waiting) > 50:
            tracker.learn(*waiting.pop(int(draw.integers(len(waiting)))))
        covered.append(given[0] <= value <= given[1])
    for part in (
        covered[1000:3000],
        covered[6000:],
    ):  # the offset has to grow by 1.4 after the change, some 2,000 jobs' worth
        assert 0.75 <= sum(part) / len(part) <= 0.85


def test_the_threshold_of_likeness_is_what_the_aimed_error_allows():
    threshold = Threshold()
    before = threshold.value
    for n in range(PAIRS_MIN - 1):
        threshold.learn(0.99, 0.1)
        assert threshold.value == before, n
    for n in range(600):
        likeness = 0.5 + n % 50 / 100
        threshold.learn(likeness, 0.1 if likeness >= 0.8 else 3.0)
    assert 0.7 <= threshold.value <= 0.82
    for _ in range(600):
        threshold.learn(0.9, 3.0)
    assert threshold.value == 1.0


def test_a_hazard_is_early_ends_by_time_at_risk():
    hazard = Hazard()
    assert hazard.risk(100.0) is None
    for n in range(40):
        hazard.learn(30.0 if n % 2 else 5_000.0, early=bool(n % 2))
    assert 0.3 < hazard.risk(60.0) < 0.6  # half of them end early in the first minute
    assert hazard.risk(4_000.0) == pytest.approx(hazard.risk(60.0), abs=0.01)  # and none after it
    assert hazard.risk(4_000.0, since_s=100.0) < 0.01
    assert hazard.risk(0.0) == 0.0


def test_a_cell_forgets_the_jobs_whose_places_can_be_found_no_more():
    similar = SimilarJobs(lambda: ExactIndex(10))
    for n in range(25):
        similar.learn(Job(f"j{n}", 0.0, vector=(1.0, 0.0)), 1.0)
    found = similar.find(Job("asked", 0.0, vector=(1.0, 0.0)), across_tenants=False)
    assert [n.job for n in found] == [f"j{n}" for n in range(24, 14, -1)]
    (cell,) = similar._all.values()
    assert len(cell.jobs) == 10
