"""Jobs of a kind that never ran here: published work at the cluster's pace, and a learned model that knows what it does not know."""

from __future__ import annotations

from math import exp, log, nan

import numpy as np
import pytest

from schedmate.schemas.events import EstimateBasis
from schedmate.services.history_estimator.describing import described
from schedmate.services.history_estimator.estimator import Estimator, Rules
from schedmate.services.history_estimator.features import Past
from schedmate.services.history_estimator.jobs import Ended, Job
from schedmate.services.history_estimator.novelty import KINDS_MIN, guard, outer_quantiles
from schedmate.services.history_estimator.paces import CLUSTERS_MAX, Clusters, Paces, fitted
from schedmate.services.history_estimator.published import (
    DATA,
    FAMILIES,
    MODELS,
    TEXT_FAMILIES,
    known_data,
    model_of,
    plain,
)
from schedmate.services.history_estimator.similar import PAIRS_MIN, SimilarJobs
from schedmate.services.history_estimator.work import kind_of, steps_of, work_of
from tests.estimating import Exact

SPEED, LAUNCH_S = 5e12, 0.01


def workload(name: str, data: str, steps: int = 1000, batch: int = 64, **more):
    return {"model_name": name, "dataset": data, "total_steps": steps, "global_batch_size": batch} | more


def true_s(told, gpus: int = 1) -> float:
    work = work_of(told, gpus)
    assert work is not None
    return work.steps * (LAUNCH_S + work.flops / SPEED)


def test_every_published_constant_is_one():
    for name, model in MODELS.items():
        assert name == plain(name)
        assert model.source
        assert min(model.forward, model.params, model.reference) > 0, name
        assert model_of(name, None, None) is model
    assert all(name == plain(name) and data.samples > 0 for name, data in DATA.items())
    assert all(model in MODELS for model in FAMILIES.values())


@pytest.mark.parametrize(
    ("name", "family", "params", "known"),
    [
        ("torchvision/resnet50", None, None, "resnet50"),
        ("resnet50_v2", None, None, "resnet50"),
        ("resnet501", None, None, None),
        ("bert-base-uncased", "bert", 110e6, "bertbase"),
        ("NeuMF", "ncf", None, "neumf"),
        ("Own", "ncf", None, "neumf"),
        ("Own", "resnet", 1e6, None),
        (None, None, None, None),
    ],
)
def test_a_model_is_known_by_its_name_or_by_a_family_whose_members_are_alike(name, family, params, known):
    assert model_of(name, family, params) is (MODELS[known] if known else None)


def test_a_text_transformer_that_is_not_listed_is_known_by_its_parameters():
    found = model_of("meta-llama/Llama-2-7b-hf", "llama2", 7e9)
    assert found is not None
    assert (found.forward, found.reference) == (14e9, TEXT_FAMILIES["llama2"])
    assert model_of("meta-llama/Llama-2-7b-hf", "llama2", None) is None


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/data/ILSVRC2012/train", "ilsvrc"),
        ("data/imagenet21k", "imagenet21k"),
        ("squad_v2", "squadv2"),
        ("/mnt/x", None),
        (None, None),
    ],
)
def test_a_data_set_is_known_by_the_longest_name_that_stands_in_it(path, known):
    assert known_data(path) == known


def test_the_work_of_a_step_follows_from_the_samples_and_from_how_large_they_are():
    imagenet = work_of(workload("resnet50", "ImageNet", batch=256), 2)
    assert imagenet is not None
    assert imagenet.flops == pytest.approx(3 * 2 * 4.09e9 * 128)
    assert imagenet.synced_bytes == pytest.approx(4 * 25.6e6)
    assert not imagenet.across_nodes
    spread = work_of(workload("resnet50", "ImageNet", batch=256, nodes=2), 8)
    assert spread is not None
    assert spread.across_nodes
    small = work_of(workload("resnet18", "CIFAR10", batch=1), 1)
    assert small is not None
    assert small.flops == pytest.approx(
        3 * 2 * 1.81e9 * (32 / 224) ** 2 * 16
    )  # 0.59e9 multiply-adds; counted layer by layer 0.56e9
    read = work_of(workload("bert-base-uncased", "squad", batch=1), 1)
    assert read is not None
    assert read.flops == 3 * 2 * 85e6 * 384
    heard = work_of(workload("DeepSpeech2", "/data", batch=1), 1)
    assert heard is not None
    assert heard.flops == pytest.approx(3 * 2 * 38e6 * 50 * 12.3)
    split = {"model_name": "vgg16", "dataset": "imagenet", "epochs": 90, "batch_size_per_device": 32, "grad_accum": 2}
    counted = work_of(split, 4)
    assert counted is not None
    assert counted.steps == pytest.approx(90 * 1_281_167 / 256)
    assert counted.flops == pytest.approx(3 * 2 * 15.47e9 * 64)


@pytest.mark.parametrize("missing", ["model_name", "total_steps", "global_batch_size"])
def test_where_a_part_is_not_stated_there_is_no_work(missing):
    told = workload("resnet50", "/data/own")
    assert work_of(told, 1) is not None
    assert work_of({k: v for k, v in told.items() if k != missing}, 1) is None
    assert work_of(told | {missing: True}, 1) is None


def test_a_kind_is_a_model_on_a_data_set():
    assert (
        kind_of(workload("ResNet-50", "/mnt/imagenet"))
        == kind_of(workload("resnet50", "ImageNet"))
        == "resnet50/imagenet"
    )
    assert kind_of({"model_family": "vit"}) == "vit/"
    assert kind_of({"dataset": "imagenet"}) is None


def cluster(*names: str, noise: float = 0.05, seed: int = 0):
    draw = np.random.default_rng(seed)
    out = []
    for name in names:
        jobs = []
        for _ in range(20):
            told = workload(name, "ImageNet", batch=int(draw.integers(8, 512)))
            work = work_of(told, 1)
            assert work is not None
            jobs.append((work, log(true_s(told)) + draw.normal(0, noise)))
        out.append(jobs)
    return out


def test_a_model_that_nobody_ran_is_timed_by_its_published_work(seed: int):
    pace = fitted(cluster("resnet18", "resnet50", "vgg16", "mobilenet_v2", seed=seed))
    assert pace is not None
    assert pace.flops_per_s == pytest.approx(SPEED, rel=0.3)
    for name in ("convnext_base", "swin_t"):
        told = workload(name, "ImageNet")
        work = work_of(told, 1)
        assert work is not None
        assert abs(pace.log_run_s(work) - log(true_s(told))) < log(1.3)
    assert pace.low < 0 < pace.high


def test_of_one_kind_or_a_few_jobs_no_pace_is_told():
    assert fitted(cluster("resnet50")) is None
    assert fitted([jobs[:4] for jobs in cluster("resnet50", "vgg16")]) is None
    assert fitted([]) is None


def test_a_kind_has_one_voice_however_many_its_jobs():
    slow = [(work, log_s + log(10)) for work, log_s in cluster("vgg16")[0]]
    pace = fitted([*cluster("resnet50", "resnet18", "swin_t"), slow * 50])
    assert pace is not None
    assert pace.flops_per_s == pytest.approx(SPEED, rel=0.3)


def test_what_is_remembered_of_a_cluster_is_bounded():
    paces = Paces()
    work = work_of(workload("resnet50", "ImageNet"), 1)
    assert work is not None
    for n in range(200):
        other = work_of(workload(f"resnet50x{n}", "ImageNet"), 1)
        assert other is not None
        paces.learn(other, 5.0)
        paces.learn(work, 5.0)
    assert len(paces._kinds) <= 64
    assert max(map(len, paces._kinds.values())) <= 64


def job(n: int, told, tenant: str = "default", **more) -> Job:
    return Job(f"{tenant}{n}", 100.0 * n, tenant=tenant, workload=told, **more)


def test_a_tenant_without_a_past_is_timed_by_three_others_or_not_at_all():
    clusters = Clusters()
    for tenant in ("a", "b", "c"):
        for n in range(20):
            told = workload("resnet50" if n % 2 else "vgg16", "ImageNet", batch=8 + n)
            clusters.learn(job(n, told, tenant), log(true_s(told)))
        new = job(99, workload("swin_t", "ImageNet"), "new")
        assert (clusters.told(new, across_tenants=True) is not None) == (tenant == "c")
    said = clusters.told(new, across_tenants=True)
    assert said is not None
    assert said.elsewhere == 60
    assert abs(said.middle - log(true_s(new.workload))) < log(1.5)
    assert clusters.told(new, across_tenants=False) is None
    assert clusters.told(job(1, workload("swin_t", "ImageNet"), "new", gpu_type="h100"), across_tenants=True) is None
    own = clusters.told(job(99, workload("swin_t", "ImageNet"), "a"), across_tenants=True)
    assert own is not None
    assert own.elsewhere == 0


# --- the guard -------------------------------------------------------------------------------------------------------


def guarded(told_of, kinds: int = 5, each: int = 30):
    names = np.repeat(np.arange(float(kinds)), each)
    logs = names * 2.0
    levels = np.full(len(logs), logs.mean())
    return guard(names, levels, logs, lambda held: told_of(names[held], logs[held], levels[held]))


def test_a_model_that_is_wrong_about_first_times_is_not_heard_on_them():
    found = guarded(lambda _, logs, levels: 2 * levels - logs)
    assert found is not None
    assert found.first_time(9.0, 5.0, 100.0) == (5.0 + found.low, 5.0, 5.0 + found.high)
    assert found.low <= -4.0
    assert found.high >= 4.0


def test_a_model_that_is_right_about_first_times_is_heard():
    found = guarded(lambda _, logs, __: logs)
    assert found is not None
    assert found.first_time(9.0, 5.0, 7.0) == pytest.approx((7.0, 7.0, 7.0))


def test_two_kinds_are_too_few_to_trust_a_model_on_a_third():
    found = guarded(lambda _, logs, __: logs, kinds=KINDS_MIN - 1)
    assert found is not None
    assert found.trust == 0.0


def test_a_known_kind_and_one_of_which_nothing_is_known_pass_the_guard():
    found = guarded(lambda _, logs, __: logs)
    assert found is not None
    assert found.first_time(1.0, 5.0, 7.0) is None
    assert found.first_time(nan, 5.0, 7.0) is None
    nothing = np.full(20, nan)
    assert guard(nothing, nothing, nothing, lambda held: nothing[held]) is None


def test_errors_of_few_groups_reach_as_far_as_the_outermost_and_of_many_leave_one_in_ten_out():
    def shifted(count: int):
        return [np.linspace(-1.0, 1.0, 11) + n for n in range(count)]

    assert outer_quantiles(shifted(3)) == pytest.approx((-0.8, 2.8))
    assert outer_quantiles(shifted(19)) == pytest.approx((0.2, 17.8))  # rank 18 of 19


def alike(n: int, name: str) -> Job:
    return Job(f"s{n}", 0.0, workload={"model_name": name}, vector=(1.0, 0.0))


def test_a_likeness_to_another_kind_counts_once_such_likeness_was_worth_something():
    similar = SimilarJobs(Exact)
    for n in range(PAIRS_MIN):
        similar.learn(alike(n, "ours"), 5.0)
    assert len(similar.find(alike(900, "ours"), across_tenants=True)) == 10
    assert similar.find(alike(901, "theirs"), across_tenants=True) == []
    for n in range(100, 100 + 2 * PAIRS_MIN):
        similar.learn(alike(n, f"kind{n % 2}"), 5.0)
    assert len(similar.find(alike(902, "theirs"), across_tenants=True)) == 10


def test_a_likeness_to_another_kind_that_misled_never_counts():
    similar = SimilarJobs(Exact)
    for n in range(4 * PAIRS_MIN):
        similar.learn(alike(n, f"kind{n % 2}"), 5.0 + 4.0 * (n % 2))
    assert similar.find(alike(900, "theirs"), across_tenants=True) == []
    assert similar.find(alike(901, "kind0"), across_tenants=True) != []


@pytest.fixture(scope="module")
def taught() -> Estimator:
    """Four kinds that ran often: two with published work, two without. Their run times have nothing to do with what is not published."""
    estimator, draw = Estimator(Rules(learned_jobs_min=200)), np.random.default_rng(5)
    for n in range(600):
        name = ("resnet50", "vgg16", "ours", "theirs")[n % 4]
        told = workload(name, "ImageNet", batch=int(draw.integers(8, 128)), steps=int(draw.integers(100, 5000)))
        run_s = true_s(told) if n % 4 < 2 else exp(draw.normal(5.0 + 2 * (n % 4), 0.3))
        one = job(n, told)
        estimator.refit(one.submitted_at)
        estimator.submitted(one)
        estimator.started(one.id, one.submitted_at)
        estimator.finished(Ended(one, run_s, one.submitted_at + 50.0))
    estimator.refit(1e5)
    return estimator


def test_what_was_seen_is_learned_what_is_published_is_reckoned_and_the_rest_is_the_pools(taught: Estimator):
    seen = taught.estimate(job(9000, workload("ours", "ImageNet", batch=33)), 1e5)
    assert seen.basis is EstimateBasis.LEARNED
    told = workload("convnext_base", "ImageNet")
    new = taught.estimate(job(9001, told), 1e5)
    assert new.basis is EstimateBasis.STEPS
    assert new.p50_s == pytest.approx(true_s(told), rel=0.5)
    strange = taught.estimate(job(9002, workload("nobody-knows", "ImageNet")), 1e5)
    assert strange.basis is EstimateBasis.LEARNED
    assert None not in (seen.p10_s, seen.p90_s, strange.p10_s, strange.p50_s, strange.p90_s)
    level = taught._past.row(job(9003, {}), 1e5).level
    assert abs(log(strange.p50_s) - level) < 1.5
    assert strange.p90_s / strange.p10_s > 3 * seen.p90_s / seen.p10_s
    assert strange.similar == ()


@pytest.mark.parametrize("size", [1e300, 10**400], ids=["float", "integer"])
@pytest.mark.parametrize(
    "field", ["batch_size_per_device", "global_batch_size", "total_steps", "epochs", "model_params"]
)
def test_a_source_whose_sizes_make_no_sense_takes_no_other_tenants_estimate_away(field: str, size: float):
    estimator, at = Estimator(Rules(learn=False)), 0.0
    for tenant in "abc":
        for n in range(12):
            told = workload("resnet50" if n % 2 else "vgg16", "ImageNet", batch=8 + n)
            ran_s = true_s(told)
            if tenant == "c" and n % 2:
                told |= {field: size} | (
                    {"model_name": "own", "model_family": "gpt"} if field == "model_params" else {}
                )
            one = job(n, told, tenant, user="ann", name="own")
            estimator.submitted(one)
            estimator.estimate(one, at)
            estimator.finished(Ended(one, ran_s, at + ran_s))
            at += ran_s
    for tenant in ("a", "b", "c"):
        assert estimator.estimate(job(99, workload("swin_t", "ImageNet"), tenant), at).p50_s is not None
    estimator.estimate(job(99, workload("swin_t", "ImageNet"), "new"), at)


def test_a_size_that_no_float_holds_is_not_said_and_moves_no_feature():
    told = {"framework": "torch", "task": "vision", "total_steps": 10**400, "model_params": 10**400}
    assert steps_of(told) is None
    assert work_of(told | {"model_name": "resnet50"}, 1) is None
    without = {name: told[name] for name in ("framework", "task")}
    assert described(told) == described(without)
    assert repr(Past().row(job(1, told), 0.0)) == repr(Past().row(job(1, without), 0.0))


def test_the_pace_of_a_tenant_that_goes_on_outlasts_that_of_those_that_do_not():
    clusters = Clusters()
    for n in range(CLUSTERS_MAX + 1):
        told = workload("resnet50" if n % 200 else "vgg16", "ImageNet", batch=8 + n % 20)
        clusters.learn(job(n, told, f"new-{n}"), log(true_s(told)))
        if n % 100 == 0:
            clusters.learn(job(n, told, "old"), log(true_s(told)))
    assert clusters.told(job(9999, workload("swin_t", "ImageNet"), "old"), across_tenants=False) is not None
