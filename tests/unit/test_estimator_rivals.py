"""Stated steps, likes or the learned model: who was nearer for the last jobs of the sort speaks, and the first of them where none was."""

from __future__ import annotations

import pytest

from schedmate.schemas.events import EstimateBasis
from schedmate.services.history_estimator.estimator import Estimator, Rules
from schedmate.services.history_estimator.jobs import Ended, Job
from schedmate.services.history_estimator.rivals import Rivals
from schedmate.services.history_estimator.told import Told


def test_whoever_was_nearer_is_known_and_the_tie_goes_to_the_earlier():
    rivals, ways = Rivals(), ("alike", "learned")
    assert rivals.nearest(ways) == "alike"
    rivals.learn([("alike", 1.0), ("learned", 5.0)], 5.0)
    assert rivals.nearest(ways) == "learned"
    for _ in range(60):
        rivals.learn([("alike", 5.0), ("learned", 1.0)], 5.0)
    assert rivals.nearest(ways) == "alike"  # what was is forgotten
    rivals.learn([("alike", 1e9), ("learned", 5.0)], 5.0)
    assert rivals.off["alike", "learned"][0] < 4.1  # one miss weighs no more than so much


def test_each_pair_is_judged_where_both_spoke_and_one_alone_speaks():
    rivals, ways = Rivals(), ("kin", "alike", "learned")
    rivals.learn([("kin", 3.0), ("learned", 5.0)], 5.0)
    assert rivals.nearest(ways) == "learned"
    assert rivals.nearest(("kin", "alike")) == "kin"  # of these two nothing is known
    rivals.learn([("alike", 5.0), ("learned", 4.0)], 5.0)
    assert rivals.nearest(("alike", "learned")) == "alike"
    assert rivals.nearest(("learned",)) == "learned"


def told(basis: EstimateBasis, middle: float, judged: str = "") -> Told:
    return Told(basis, middle - 1, middle, middle + 1, judged=judged)


@pytest.fixture
def estimator(monkeypatch: pytest.MonkeyPatch) -> Estimator:
    made = Estimator()
    monkeypatch.setattr(
        made, "_alike", lambda job: told(EstimateBasis.SIMILAR_JOBS, 4.0) if job.user != "new" else None
    )
    monkeypatch.setattr(made, "_predicted", lambda jobs, _rows, _at: [told(EstimateBasis.LEARNED, 6.0) for _ in jobs])
    return made


def run(estimator: Estimator, n: int, run_s: float, **more) -> EstimateBasis:
    job = Job(f"j{n}", n * 100.0, **more)
    estimator.submitted(job)
    said = estimator.estimate(job, job.submitted_at)
    estimator.started(job.id, job.submitted_at)
    estimator.finished(Ended(job, run_s, job.submitted_at + run_s))
    return said.basis


def test_the_model_takes_over_in_a_class_where_it_is_nearer_and_in_no_other(estimator: Estimator):
    assert [run(estimator, n, 403.0) for n in range(3)] == ["similar_jobs", "learned", "learned"]
    assert run(estimator, 10, 403.0, gpus=4) == "similar_jobs"
    assert [run(estimator, n, 55.0) for n in range(20, 24)][-1] == "similar_jobs"  # the likes are nearer again


def test_jobs_of_a_known_kind_are_judged_by_their_kind_whatever_their_size(estimator: Estimator):
    bert, gpt = {"model_name": "bert"}, {"model_name": "gpt2"}
    assert [run(estimator, n, 403.0, workload=bert) for n in range(2)] == ["similar_jobs", "learned"]
    assert run(estimator, 10, 403.0, workload=bert, gpus=4) == "learned"
    assert run(estimator, 11, 403.0, workload=gpt) == "similar_jobs"
    assert run(estimator, 12, 403.0) == "similar_jobs"  # of no known kind: its class, of which nothing is known
    assert run(estimator, 13, 403.0, workload=bert, tenant="new") == "similar_jobs"


def test_stated_steps_speak_before_the_likes_until_these_are_nearer(estimator: Estimator):
    source = {"model_name": "bert", "total_steps": 1000}
    assert run(estimator, 0, 55.0, workload=source) == "similar_jobs"  # no kin has ended
    assert run(estimator, 1, 55.0, workload=source) == "steps"
    longer = source | {"total_steps": 40_000}  # but they stop as early as the shorter ones
    assert [run(estimator, n, 55.0, workload=longer) for n in (2, 3)] == ["steps", "similar_jobs"]


def test_earlier_forms_of_a_job_are_one_voice_where_its_source_tells_its_kind_and_the_only_one_else():
    estimator = Estimator(Rules(learn=False))

    def known(n: int, content: str, **more) -> Job:
        return Job(f"e{n}", n * 100.0, user="ann", name=f"train-{n}", command_hash="c", content_hash=content, **more)

    def ends(job: Job, run_s: float) -> None:
        estimator.submitted(job)
        estimator.finished(Ended(job, run_s, job.submitted_at + run_s))

    ends(known(1, "a", workload={"model_name": "bert", "total_steps": 100}), 50.0)
    longer = known(2, "b", workload={"model_name": "bert", "total_steps": 1000})
    said = estimator.estimate(longer, 1000.0)
    assert (said.basis, said.p50_s) == (EstimateBasis.STEPS, 500.0)
    said = estimator.estimate(known(3, "b"), 1000.0)
    assert (said.basis, said.p50_s) == (EstimateBasis.SIMILAR_JOBS, 50.0)
    again = known(4, "a", workload={"model_name": "bert", "total_steps": 100})
    assert estimator.estimate(again, 1000.0).basis is EstimateBasis.EXACT_PRIOR


def test_where_nothing_is_alike_the_model_speaks_as_before(estimator: Estimator):
    assert run(estimator, 1, 403.0, user="new") == "learned"


def test_a_guarded_word_of_the_model_is_no_rival(estimator: Estimator, monkeypatch: pytest.MonkeyPatch):
    guarded = [told(EstimateBasis.LEARNED, 6.0, judged="first time")]
    monkeypatch.setattr(estimator, "_predicted", lambda _jobs, _rows, _at: guarded)
    assert [run(estimator, n, 403.0) for n in range(3)] == ["similar_jobs"] * 3
