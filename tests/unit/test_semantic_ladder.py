"""The ladder looks at no run time before it is known, and its controls spoil what they say and nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.semantic_trace import knowledge, styles
from benchmarks.semantic_trace.applications import Plan
from benchmarks.semantic_trace.knowledge import Job
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
