"""Run times from stated steps: kin's step times, a kind's own past carried by its published work, and programs that keep ending early."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from schedmate.schemas.events import EstimateBasis
from schedmate.services.history_estimator.estimator import Estimator, Rules
from schedmate.services.history_estimator.features import OF_KIND_MIN, Past
from schedmate.services.history_estimator.jobs import Ended, Job
from schedmate.services.history_estimator.paces import Clusters
from schedmate.services.history_estimator.spread import PLACES
from schedmate.services.history_estimator.stated import KIN, KIND, RUNS_MAX, Stated
from schedmate.services.history_estimator.work import work_of

SPEED = 5e12


def source(name: str, steps: int = 1000, batch: int = 64, data: str = "ImageNet"):
    return {"model_name": name, "dataset": data, "total_steps": steps, "global_batch_size": batch}


def job(n: int, told, **more) -> Job:
    return Job(f"j{n}", 100.0 * n, workload=told, **({"user": "ann", "name": f"train-{n}"} | more))


def true_s(told, gpus: int = 1) -> float:
    work = work_of(told, gpus)
    assert work is not None
    return work.steps * (0.01 + work.flops / SPEED)


class Told:
    """`Stated` with its clusters, taught together as the estimator teaches them."""

    def __init__(self):
        self.clusters = Clusters()
        self.stated = Stated(self.clusters)

    def ran(self, one: Job, run_s: float, steps: float | None = None) -> None:
        self.stated.learn(one, log(run_s), steps)
        self.clusters.learn(one, log(run_s))

    def middle_s(self, one: Job) -> dict[str, float]:
        return {way: exp(told.middle) for way, told in self.stated.told(one).items()}


def test_a_program_that_stops_early_is_told_to_do_so_again_and_no_other_is():
    told = Told()
    for n in range(20):
        told.ran(job(n, source("own"), user="bob", name=f"whole-{n}"), 1000.0)
    for n in range(20, 24):
        told.ran(job(n, source("own")), 250.0)
    again = told.middle_s(job(50, source("own", steps=4000)))[KIN]
    assert 1000.0 <= again < 1400.0  # a quarter of 4,000 s, and a part of the way where few have shown it
    for other in ({"name": "other"}, {"user": "eve"}, {"tenant": "new"}, {"name": None}, {"user": None}):
        said = told.middle_s(job(51, source("own", steps=4000), **other))
        assert said.get(KIN) in (None, pytest.approx(4000.0)), other
    assert told.middle_s(job(52, source("own2", steps=4000))) == {}  # another kind under that name


def test_one_run_moves_half_of_the_way_and_what_was_long_ago_is_forgotten():
    told = Told()
    for n in range(9):
        told.ran(job(n, source("own"), name=f"whole-{n}"), 1000.0)
    told.ran(job(10, source("own")), 250.0)
    assert told.middle_s(job(11, source("own")))[KIN] == pytest.approx(500.0)
    for n in range(20, 20 + RUNS_MAX):
        told.ran(job(n, source("own")), 1000.0)
    assert told.middle_s(job(60, source("own")))[KIN] == pytest.approx(1000.0)


def test_without_steps_or_kin_nothing_is_told():
    told = Told()
    told.ran(job(0, source("own")), 1000.0)
    assert told.middle_s(job(1, {"model_name": "own"})) == {}
    assert told.middle_s(job(2, source("own", batch=128))) == {}
    assert told.middle_s(job(3, {})) == {}
    assert KIN in told.middle_s(job(4, source("own")))


def test_published_work_carries_a_kinds_own_step_times_to_another_batch():
    """One model is three times as slow as its published work says, at every batch."""
    told = Told()
    for n in range(10):
        for m, name in enumerate(("resnet18", "swin_t", "vit_b_16")):
            one = source(name, batch=32 * (1 + n % 3))
            told.ran(job(10 * n + m, one, name=f"{name}-{n}"), true_s(one))
        slow = source("vgg16", batch=32 * (1 + n % 3))
        if n < 2:
            told.ran(job(10 * n + 5, slow, name="slow"), 3 * true_s(slow))
    new = source("vgg16", batch=256)
    asked = job(900, new, name="never")
    assert told.middle_s(asked) == {}  # two of its kind are too few
    plain = told.clusters.told(asked, across_tenants=False)
    assert plain is not None
    assert exp(plain.middle) < 2 * true_s(new)
    told.ran(job(800, source("vgg16"), name="slow"), 3 * true_s(source("vgg16")))
    assert told.middle_s(asked)[KIND] == pytest.approx(3 * true_s(new), rel=0.15)
    assert told.middle_s(job(901, new, name="never", tenant="new")) == {}


def test_of_several_who_know_the_kind_an_estimate_rests_on_steps():
    estimator = Estimator(Rules(learn=False))
    for n in range(4):
        one = job(n, source("own", steps=100 + n))
        estimator.submitted(one)
        estimator.finished(Ended(one, 50.0 + n / 2, one.submitted_at + 60.0))
    said = estimator.estimate(job(9, source("own", steps=100_000)), 1000.0)
    assert said.basis is EstimateBasis.STEPS
    assert said.p50_s == pytest.approx(50_000.0, rel=0.01)


def test_the_last_runs_of_a_known_kind_are_those_of_the_kind_and_of_an_unknown_one_those_of_the_class():
    past = Past()

    def ends(n: int, told, run_s: float) -> None:
        one = Job(f"j{n}", float(n), workload=told)
        past.submit(one)
        past.end(Ended(one, run_s, float(n)))

    def middle(told) -> float | None:
        spread = past.recent(Job("new", 1e6, workload=told), 1e6)
        return None if spread is None else float(spread @ PLACES)

    short, long = {"model_name": "short"}, {"model_name": "long"}
    for n in range(OF_KIND_MIN - 1):
        ends(n, short, exp(4.0))
    assert middle(short) is None  # too few of its kind: other kinds' runs say nothing of it
    assert middle({}) == pytest.approx(4.0, abs=0.01)
    ends(50, short, exp(4.0))
    for n in range(100, 140):
        ends(n, long, exp(9.0))
    assert middle(short) == pytest.approx(4.0, abs=0.01)
    assert middle(long) == pytest.approx(9.0, abs=0.01)
    assert middle({"framework": "pytorch"}) == pytest.approx(9.0, abs=0.5)  # its kind is not told: the class's


def test_the_mean_of_a_known_kind_is_the_trees_alone(monkeypatch: pytest.MonkeyPatch):
    estimator = Estimator()
    grown = np.zeros((2, len(PLACES)))
    grown[:, 20] = 1.0  # a leaf of runs of exp(4)
    monkeypatch.setattr(estimator._past, "recent", lambda _job, _at: grown[0])
    asked = [Job("a", 0.0, workload={"model_name": "bert"}), Job("b", 0.0)]
    means = estimator._points(asked, np.array([7.0, 7.0]), grown, 1.0)[:, 1]
    assert means.tolist() == pytest.approx([7.0, 5.0])
