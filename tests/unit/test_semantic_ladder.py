"""The ladder looks at no run time before it is known, and its controls spoil what they say and nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.semantic_trace import knowledge, styles
from benchmarks.semantic_trace.applications import Plan
from benchmarks.semantic_trace.as_it_runs import answers
from benchmarks.semantic_trace.knowledge import Job
from benchmarks.semantic_trace.ladder import Ladder
from benchmarks.semantic_trace.model_step import open_of, summary
from benchmarks.semantic_trace.unseen import BASELINE, Unseen
from schedmate.services.code_analyzer.analysis import Subject, analyze
from schedmate.services.code_analyzer.source import bounded


def job(number, submit_s, duration_s, user="u1", name="fit-1", **truth):
    given = {"application": "ncf", "batch": "256", "epochs": "3", "fraction": "1", "target": ""} | truth
    return Job(f"j{number}", submit_s, 1, duration_s, user, name, "vc", "b", given)


JOBS = [job(n, 100.0 * n, 50.0 + 1000.0 * (n % 3), name=f"fit-{n}") for n in range(12)]


def test_the_number_of_a_run_is_no_part_of_its_tag():
    assert {j.tag for j in JOBS} == {"fit"}


@pytest.mark.parametrize("told", [knowledge.group_medians, lambda jobs: knowledge.history(jobs, {"b": {}})])
def test_what_ends_after_a_submission_changes_nothing_that_is_told_of_it(told):
    before = told(JOBS)
    for late in range(len(JOBS)):
        changed = [dataclasses.replace(j, duration_s=9e6) if n == late else j for n, j in enumerate(JOBS)]
        unknowing = [n for n, j in enumerate(JOBS) if j.submit_s < JOBS[late].submit_s + JOBS[late].duration_s]
        assert np.array_equal(told(changed)[unknowing], before[unknowing], equal_nan=True)


@pytest.mark.parametrize("family", styles.FAMILIES)
def test_stripping_and_renaming_leave_what_the_program_does(family):
    plan = Plan("cifar10", 2, 512, 17, 1.0, None, 0.05)
    made = styles.bundle(family, 11, plan)
    whole = {"files": made.files, "command": list(made.command), "entry": made.entry}
    for changed in (knowledge.stripped(whole), knowledge.moved(whole, 3)):
        tree = bounded({name: text.encode() for name, text in changed["files"].items()})
        found = analyze(Subject(command=tuple(changed["command"]), gpus=2, nodes=1), tree)
        assert found.fields["epochs"].value == 17
    bare = knowledge.stripped(whole)
    assert all("# " not in text for name, text in bare["files"].items() if name.endswith(".py"))


def test_a_number_for_a_word_keeps_no_order_and_stays_the_same():
    assert knowledge.number_of("resnet18") == knowledge.number_of("resnet18") != knowledge.number_of("resnet50")


APPLICATIONS = {
    "ncf": ("NeuMF", "ncf", "data"),
    "imagenet": ("resnet50", "resnet", "ImageNet"),
    "bert": ("bert-base", "bert", "squad"),
}


def climbed(tmp_path, spoilt: str = "") -> Ladder:
    """A small trace of three applications; the run times of one may be spoilt."""
    names = list(APPLICATIONS)
    jobs = [
        dataclasses.replace(
            job(n, 100.0 * n, 50.0 + 7.0 * (n % 9) * (1 + 99 * (names[n % 3] == spoilt)), user=f"u{n % 4}", name=f"{names[n % 3]}-{n}",
                application=names[n % 3], state="completed"), bundle=names[n % 3],
        )
        for n in range(400)
    ]  # fmt: skip
    made = Ladder.__new__(Ladder)
    made.jobs, made.truth = jobs, np.log([j.duration_s for j in jobs])
    made.moments = [5_000.0 * n for n in range(1, 8)]
    made.span = np.array(knowledge.position(jobs, made.moments))
    made.ends = np.array([j.submit_s + j.duration_s for j in jobs])
    made.source = {b: {"files": {"t.py": f"import {b}"}, "command": ["python", "t.py"], "entry": "t.py"} for b in names}
    made.fields = {
        b: {"model_name": m, "model_family": f, "dataset": d, "total_steps": 1000, "global_batch_size": 64, "batch_size_per_device": 64}
        for b, (m, f, d) in APPLICATIONS.items()
    }  # fmt: skip
    return made


def left_out(ladder: Ladder) -> dict[str, np.ndarray]:
    unseen = Unseen(ladder)
    told = {
        "pace": unseen._timed(unseen._work),
        "median": unseen._others_median(),
        "letter": unseen._timed(unseen._by_the_letter()),
    }
    kinds = np.array([float(list(APPLICATIONS).index(j.truth["application"])) for j in ladder.jobs])
    told["plain"], told["guarded"] = unseen._guarded(knowledge.static(ladder.jobs, ladder.fields), kinds, None)
    return told


@pytest.mark.parametrize("spoilt", ["ncf", "bert"])
def test_nothing_of_a_left_out_application_is_learned_from_be_it_by_the_guard_or_the_pace(spoilt, tmp_path):
    true, other = climbed(tmp_path), climbed(tmp_path, spoilt)
    told, changed = left_out(true), left_out(other)
    mine = np.array([j.truth["application"] == spoilt for j in true.jobs])
    scored = mine & (true.span > 2)
    for name, values in told.items():
        assert not np.isnan(values[scored]).any(), name
        assert np.array_equal(values[scored], changed[name][scored]), name
    asked, again = (answers(c.jobs, c.fields, c.source, spoilt, learn=False) for c in (true, other))
    assert [a.middle for a, m in zip(asked, mine, strict=True) if m] == [
        a.middle for a, m in zip(again, mine, strict=True) if m
    ]


def test_with_two_known_applications_a_guard_says_what_the_others_median_says(tmp_path):
    told = left_out(climbed(tmp_path))
    known = ~np.isnan(told["median"])
    assert np.allclose(told["guarded"][known], told["median"][known])
    assert BASELINE


def test_what_a_model_is_asked_for_is_what_static_analysis_left_open():
    assert open_of({"max_steps": 3}) != ()
    assert "max_steps" not in open_of({"max_steps": 3})
    told = {"bundles": {"b": {"calls": 2, "answers": 1, "claims": 3, "held": [["epochs", 3, "t.py", 1]], "filled": {"epochs": 3}}},
            "open": {"epochs": 1}, "of": 4, "model": "m", "votes": 1, "seconds": 2.0}  # fmt: skip
    assert "3 claims, 1 of which held against a quoted line (epochs 1), and 1 fields filled" in summary(told)
