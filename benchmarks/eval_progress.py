"""Scores of the metric tracker on the labelled corpora: `make eval`, or `benchmarks/eval_progress.py [--verbose] [--formats] [--garbage]`.

Every case is read up to its cuts, by its bytes and its job's command alone. `--formats` leaves each known format out in turn and scores
the cases that it reads by induction alone. `--garbage` lets a model that answers nonsense propose a pattern for every case.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from schedmate.services.log_monitor.lines import Feed, flush, push
from schedmate.services.log_monitor.metrics import proposal
from schedmate.services.log_monitor.metrics.command import hints_of
from schedmate.services.log_monitor.metrics.far import snapshot
from schedmate.services.log_monitor.metrics.follow import Follower
from schedmate.services.log_monitor.metrics.library import Library, library
from schedmate.services.log_monitor.metrics.whole import as_json, read_whole

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "corpora" / "progress"
SPLITS = ("dev", "own", "later")


@cache
def scorer() -> ModuleType:
    """Return the corpus' own scorer."""
    spec = importlib.util.spec_from_file_location("progress_score", CORPUS / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GARBAGE: tuple[Mapping[str, Any], ...] = (
    {"pattern": "("},
    {"pattern": r"(?P<step>\d+)"},
    {"pattern": r"(?P<step>[\d.]+)(?P<total>.*)"},
    {"pattern": "(?P<loss>x)" * 90},
    {"pattern": None},
    {},
)


def read(folder: Path, size: int, follower: Follower, *, garbage: bool = False) -> dict[str, Any]:
    """Return how far the job is by the first bytes of its log."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    content = (folder / "stdout.log").read_bytes()[:size]
    hints = hints_of(job["command"], gpus=job["gpus"], nodes=job["nodes"])
    far = snapshot(read_whole([content], follower), hints)
    if garbage and proposal.wanted(far):
        lines = proposal.samples([content])
        for answer in GARBAGE:
            found = proposal.adopted(answer, lines)
            far = proposal.told(far, found, lines) if found is not None else far
    told = as_json(far)
    return told | {"phase": told["phase"].value if told["phase"] is not None else None}


def predictions(
    split: str, known: Library, cases: frozenset[str] | None = None, *, garbage: bool = False
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what is read at every cut of a split's cases."""
    follower = Follower(known)
    return {
        (case, cut["name"]): read(CORPUS / split / case, cut["byte_offset"], follower, garbage=garbage)
        for case, label in scorer().load_labels(split).items()
        if cases is None or case in cases
        for cut in label["cuts"]
    }


def wrong(split: str, told: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[tuple[str, str, str, Any, Any]]:
    """Yield what is not right: case, cut, field, what was told, what is true."""
    for case, label in scorer().load_labels(split).items():
        for cut in label["cuts"]:
            prediction = told.get((case, cut["name"]))
            if prediction is not None:
                right = scorer().score_cut(cut, prediction, strict=False)
                yield from (
                    (case, cut["name"], f, prediction.get(f), cut["truth"].get(f)) for f, ok in right.items() if not ok
                )


def summary(split: str, told: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    """Return accuracy by field where the truth is a value, its macro average, and the share of invented values."""
    good: dict[str, int] = {}
    there: dict[str, int] = {}
    invented = cells = 0
    for case, label in scorer().load_labels(split).items():
        for cut in label["cuts"]:
            prediction = told.get((case, cut["name"]))
            if prediction is None:
                continue
            right = scorer().score_cut(cut, prediction, strict=False)
            for name, ok in right.items():
                cells += 1
                if cut["truth"].get(name) is None:
                    invented += not ok
                else:
                    there[name] = there.get(name, 0) + 1
                    good[name] = good.get(name, 0) + ok
    by_field = {name: good[name] / there[name] for name in there}
    return {"fields": by_field, "macro": sum(by_field.values()) / len(by_field), "invented": invented / cells,
            "values": sum(good.values()) / sum(there.values())}  # fmt: skip


def cases_of_formats() -> dict[str, set[tuple[str, str]]]:
    """Return, for every known format, the cases that have a line of it."""
    found: dict[str, set[tuple[str, str]]] = {known.name: set() for known in library().formats}
    for split in SPLITS:
        for case in scorer().load_labels(split):
            content = (CORPUS / split / case / "stdout.log").read_bytes()
            feed = Feed()
            texts = [line.text for line in (*push(feed, 0, len(content), content, gap=False), *flush(feed))]
            for known in library().formats:
                if any(known.pattern.search(text) for text in texts):
                    found[known.name].add((split, case))
    return found


def left_out() -> dict[str, float]:
    """Return, for every known format that a case has, the share of values that is right in its cases without any entry for them."""
    by_format = cases_of_formats()
    scores = {}
    for name, cases in by_format.items():
        if not cases:
            continue
        also = {other for other, others in by_format.items() if others & cases}
        shares = []
        for split in SPLITS:
            ids = frozenset(case for s, case in cases if s == split)
            if ids:
                shares.append((len(ids), summary(split, predictions(split, library().without(also), ids))["values"]))
        scores[name] = sum(n * share for n, share in shares) / sum(n for n, _ in shares)
    return scores


def main() -> int:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="name what is wrong")
    parser.add_argument("--formats", action="store_true", help="leave each known format out in turn")
    parser.add_argument("--garbage", action="store_true", help="with a model that answers nonsense")
    given = parser.parse_args()
    for split in SPLITS:
        for title, known in (("", library()), (" by induction alone", Library(()))):
            told = predictions(split, known, garbage=given.garbage)
            found = summary(split, told)
            fields = "  ".join(f"{name} {share:.0%}" for name, share in found["fields"].items())
            print(f"progress {split:4s} macro {found['macro']:.1%}  invented {found['invented']:.1%}  {fields}{title}")
            if given.verbose and not title:
                for case, cut, field, said, true in wrong(split, told):
                    print(f"    {case} {cut} {field}: {said}, not {true}")
    if given.formats:
        for name, share in sorted(left_out().items(), key=lambda item: item[1]):
            print(f"progress without {name:22s} {share:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
