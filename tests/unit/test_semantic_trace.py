"""The constructed workload: fixed, deterministic, and made of programs that could run."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

import pytest

from benchmarks.semantic_trace import styles
from benchmarks.semantic_trace.applications import APPLICATIONS, Plan, Profiles
from benchmarks.semantic_trace.workload import Arrival, shares_of, submissions
from schedmate.services.code_analyzer.analysis import Subject, analyze
from schedmate.services.code_analyzer.source import bounded

FOLDER = Path(styles.__file__).parent


class EqualProfiles(Profiles):
    """Every step takes a second, every curve rises by a hundredth an iteration."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))

    def step_s(self, plan):
        return 0.5 + 0.1 * plan.replicas

    def targets(self, application, batch):
        del application, batch
        return (0.1, 0.9)

    def iterations(self, plan):
        return plan.epochs * plan.fraction * 100_000 / plan.batch


def made(jobs=400, seed=3):
    given = [Arrival(60.0 * n, f"vc{n % 3}", (1, 1, 1, 2, 4, 8, 16)[n % 7]) for n in range(jobs)]
    return submissions(given, tuple(styles.FAMILIES), EqualProfiles(), seed)


def test_the_generator_is_the_one_that_the_figures_rest_on():
    frozen = dict(reversed(line.split()) for line in (FOLDER / "FROZEN").read_text().splitlines())
    assert {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in frozen} == frozen
    assert len(frozen) == 4


def test_the_same_seed_gives_the_same_jobs_and_another_gives_others():
    assert made() == made()
    assert made(seed=4) != made()


def test_as_many_end_early_as_declared():
    shares = shares_of(made())
    assert shares["cancelled"][0] == pytest.approx(0.09, abs=0.002)
    assert shares["failed"][0] == pytest.approx(0.305, abs=0.002)


def test_no_family_is_for_development_and_for_test():
    assert not set(styles.DEVELOPMENT) & set(styles.TEST)
    assert len(styles.FAMILIES) == 12


@pytest.mark.parametrize("family", styles.FAMILIES)
@pytest.mark.parametrize("application", APPLICATIONS)
def test_what_is_submitted_is_a_program_and_says_what_was_asked(family, application):
    facts = APPLICATIONS[application]
    for seed, target in ((1, None), (2, 0.5)):
        plan = Plan(application, 2, facts.batches[2], max(1, facts.epochs_max // 2), 1.0, target, 0.01)
        bundle = styles.bundle(family, seed, plan)
        for name, text in bundle.files.items():
            if name.endswith(".py"):
                ast.parse(text, name)
            if name.endswith(".ipynb"):
                ast.parse("".join(line for cell in json.loads(text)["cells"] if cell["cell_type"] == "code" for line in cell["source"]))  # fmt: skip
        tree = bounded({name: text.encode() for name, text in bundle.files.items()})
        found = analyze(Subject(command=bundle.command, gpus=2, nodes=1), tree)
        assert found.fields["epochs"].value == plan.epochs
        assert "application" not in "".join(bundle.files)
