"""What the metric tracker must reach on the labelled logs: with the formats known, by induction alone, and with one format left out."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path

import pytest

from schedmate.services.log_monitor.metrics.library import Library, library

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "eval_progress.py"


@cache
def evaluation():
    spec = importlib.util.spec_from_file_location("eval_progress", BENCHMARK)
    module = sys.modules["eval_progress"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("split", "known", "macro"),
    [
        ("dev", True, 0.97),
        ("own", True, 0.97),
        ("later", True, 0.95),
        ("dev", False, 0.92),
        ("own", False, 0.90),
        ("later", False, 0.90),
    ],
)
def test_progress_is_read_from_the_labelled_logs(split, known, macro):
    told = evaluation().predictions(split, library() if known else Library(()))
    found = evaluation().summary(split, told)
    assert found["macro"] >= macro, "\n".join(map(str, evaluation().wrong(split, told)))
    assert found["invented"] < 0.03


@pytest.mark.parametrize("split", ["dev", "own", "later"])
def test_a_model_that_answers_nonsense_changes_nothing(split):
    told = evaluation().predictions(split, library(), garbage=True)
    assert told == evaluation().predictions(split, library())


@pytest.mark.slow
def test_every_known_format_is_read_without_its_entry():
    scores = evaluation().left_out()
    assert len(scores) > 40
    assert {name: share for name, share in scores.items() if share < 0.75} == {}


def test_a_perfect_answer_scores_all_and_an_empty_one_little():
    score = evaluation().scorer()
    gold = {
        (case, cut["name"]): cut["truth"] for case, label in score.load_labels("own").items() for cut in label["cuts"]
    }
    assert evaluation().summary("own", gold)["macro"] == 1.0
    assert evaluation().summary("own", {key: {} for key in gold})["macro"] < 0.05
