"""Scores of the failure diagnosis on the labelled corpora: `make eval`, or `benchmarks/eval_failures.py [--garbage] [--verbose]`.

Every case is judged by its input files alone. `--garbage` lets a model that answers nonsense into every judgement.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from schedmate.services.log_monitor.failures import opinion
from schedmate.services.log_monitor.failures.case import read_case
from schedmate.services.log_monitor.failures.judge import Judgement, judge
from schedmate.services.log_monitor.failures.rules import load_rules
from schedmate.services.log_monitor.failures.similar import load_library

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "corpora" / "failures"
SPLITS = ("dev", "own", "later")
GARBAGE: tuple[Mapping[str, Any], ...] = (
    {"category": "GPU_LOST", "n": 1, "quote": "a line that is not there"},
    {"category": "CORDON_EVERYTHING", "n": 1, "quote": ""},
    {"category": "NODE_FAILURE", "n": 10**9, "quote": "x" * 300},
    {"category": None, "n": "one", "quote": 7},
    {},
)


def scorer() -> ModuleType:
    """Return the corpus' own scorer."""
    spec = importlib.util.spec_from_file_location("failures_score", CORPUS / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def diagnosed(folder: Path, answers: tuple[Mapping[str, Any], ...] = ()) -> Judgement:
    """Judge a case; every answer of a model is weighed as the service would, whether it would have been asked or not."""
    case = read_case(folder, load_rules())
    found = judge(case.sources, case.facts, load_rules(), load_library().nearest)
    shown = opinion.lines_to_show(case.sources, str)
    for answer in answers:
        found = opinion.weighed(found, answer, shown)
    return found


def prediction(case: str, found: Judgement) -> dict[str, Any]:
    """Return a line of predictions as the scorer reads it."""
    return {
        "id": case,
        "category": found.category,
        "culpable": found.culpable.value if found.culpable is not None else None,
        "action": found.action.value,
        "evidence": {"file": found.file, "line": found.line} if found.file is not None else None,
        "culprit_node": found.node,
        "resume_from": found.resume_from,
    }


def scores(split: str, *, lenient: bool, answers: tuple[Mapping[str, Any], ...] = ()) -> tuple[dict[str, Any], Any]:
    """Return the scorer's summary of a split, and what was wrong case by case."""
    score = scorer()
    labels = score.load_labels(split)
    predictions = {case: prediction(case, diagnosed(CORPUS / split / case, answers)) for case in labels}
    summary, rows, _, _ = score.summarise(labels, predictions, lenient)
    return summary, rows


def main() -> int:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--garbage", action="store_true", help="with a model that answers nonsense")
    parser.add_argument("--verbose", action="store_true", help="name what is wrong")
    given = parser.parse_args()
    answers = GARBAGE if given.garbage else ()
    for split in SPLITS:
        for lenient in (True, False):
            summary, rows = scores(split, lenient=lenient, answers=answers)
            told = "  ".join(f"{field} {good}/{total}" for field, (good, total) in summary["counts"].items())
            print(
                f"failures {split:4s} {'lenient' if lenient else 'strict ':7s} {told}  "
                f"harmful {summary['harmful_actions']}  misled {summary['misled']}"
            )
            if given.verbose:
                for case, row in rows.items():
                    wrong = [field for field, right in row.items() if not right and not field.startswith("_")]
                    if wrong:
                        print(f"    {case}: {', '.join(wrong)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
