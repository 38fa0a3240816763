"""Likes or the learned model: who was nearer for the last jobs of the class speaks, and the likes where neither was."""

from __future__ import annotations

import pytest

from schedmate.schemas.events import EstimateBasis
from schedmate.services.history_estimator.estimator import Estimator, _Told
from schedmate.services.history_estimator.jobs import Ended, Job
from schedmate.services.history_estimator.rivals import Rivals


def test_whoever_was_nearer_is_known_and_the_tie_goes_to_the_likes():
    rivals = Rivals()
    assert not rivals.model_is_nearer
    rivals.learn((1.0, 5.0), 5.0)
    assert rivals.model_is_nearer
    for _ in range(60):
        rivals.learn((5.0, 1.0), 5.0)
    assert not rivals.model_is_nearer  # what was is forgotten
    rivals.learn((1e9, 5.0), 5.0)
    assert rivals.alike < 4.1  # one miss weighs no more than so much


def told(basis: EstimateBasis, middle: float, judged: str = "") -> _Told:
    return _Told(basis, middle - 1, middle, middle + 1, judged=judged)


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


def test_where_nothing_is_alike_the_model_speaks_as_before(estimator: Estimator):
    assert run(estimator, 1, 403.0, user="new") == "learned"


def test_a_guarded_word_of_the_model_is_no_rival(estimator: Estimator, monkeypatch: pytest.MonkeyPatch):
    guarded = [told(EstimateBasis.LEARNED, 6.0, judged="first time")]
    monkeypatch.setattr(estimator, "_predicted", lambda _jobs, _rows, _at: guarded)
    assert [run(estimator, n, 403.0) for n in range(3)] == ["similar_jobs"] * 3
