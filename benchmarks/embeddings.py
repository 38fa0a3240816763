"""Does the local embedding model find like jobs better than hashed features? With both, on programs nobody wrote for it.

    python -m benchmarks.embeddings TRACE --model DIR        # TRACE as benchmarks.semantic_trace.generate writes it, DIR as fetched

Each program is asked about among all others, never among its own edits and repeats:

- the semantic trace: how many of the five nearest are of the same application, and how far their median run time is from its own (mean of the
  absolute logarithm); once as the estimator describes a job, and once without the names of model and data set;
- the labelled jobs of tests/corpora/sources: how many of the five nearest are of the same task, with the task left out of the description.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.eval_sources import CORPUS
from benchmarks.semantic_trace.knowledge import Job, bundles, fields_of, load
from schedmate.infra.embeddings.hashed import HashedEmbedder
from schedmate.infra.embeddings.local import LocalEmbedder
from schedmate.infra.embeddings.mixed import MixedEmbedder
from schedmate.infra.embeddings.port import Embedder, Vector
from schedmate.services.code_analyzer.analysis import Subject
from schedmate.services.code_analyzer.reading import analyze_directory
from schedmate.services.history_estimator.describing import described

NEAREST = 5
TIMED = 50
NAMES = ("model_name", "model_family", "dataset")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--programs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    model = LocalEmbedder(asked.model)
    embedders: dict[str, Embedder] = {
        "hashed": HashedEmbedder(),
        "model alone": _Whole(model),
        "both": MixedEmbedder(model),
    }
    programs, fields = _of_trace(asked.trace, asked.programs, asked.seed)
    truth = [job.truth["application"] for job in programs]
    lengths = [log(max(job.duration_s, 1.0)) for job in programs]
    known = [fields[job.bundle] for job in programs]
    print(f"{'question':40} {'jobs':>5} {'chance':>7} {'hashed':>14} {'model alone':>14} {'both':>14}")
    _line("application, as described", known, truth, embedders, lengths)
    _line("application, without names", [_without(k, NAMES) for k in known], truth, embedders, lengths)
    labelled, tasks = _of_corpus()
    _line("task of a labelled job, without it", [_without(k, ("task",)) for k in labelled], tasks, embedders)
    nameless = [_without(k, ("task", *NAMES)) for k in labelled]
    _line("the same, without names too", nameless, tasks, embedders)
    for name, one in embedders.items():
        began = time.perf_counter()
        asyncio.run(one.embed([described(k) for k in known[:TIMED]]))
        print(f"{name}: {one.space}, {1e3 * (time.perf_counter() - began) / min(TIMED, len(known)):.1f} ms a text")
    return 0


class _Whole:
    """The model alone, over the whole text."""

    def __init__(self, model: LocalEmbedder) -> None:
        self.space, self._model, self.stop = model.space, model, model.stop

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return await self._model.embed(texts)


def _line(
    title: str,
    known: Sequence[Mapping[str, Any]],
    truth: Sequence[str],
    embedders: Mapping[str, Embedder],
    lengths: Sequence[float] = (),
) -> None:
    texts = [described(k) for k in known]
    shown = []
    for one in embedders.values():
        near = nearest(np.array(asyncio.run(one.embed(texts))))
        kinds = np.array(truth)
        found = f"{(kinds[near] == kinds[:, None]).mean():.3f}"
        if lengths:
            told = np.array(lengths)
            found += f" / {np.abs(np.median(told[near], axis=1) - told).mean():.2f}"
        shown.append(f"{found:>14}")
    print(f"{title:40} {len(texts):5} {_chance(truth):7.3f} {' '.join(shown)}", flush=True)


def nearest(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the places of each one's five nearest others."""
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike, axis=1, kind="stable")[:, :NEAREST]


def _chance(truth: Sequence[str]) -> float:
    counts = Counter(truth)
    return sum(c * (c - 1) for c in counts.values()) / (len(truth) * (len(truth) - 1))


def _of_trace(folder: Path, most: int, seed: int) -> tuple[list[Job], dict[str, dict[str, Any]]]:
    """Return the first job of each of so many programs, and what code-analyzer says of it."""
    first: dict[str, Job] = {}
    for job in load(folder):
        first.setdefault(job.truth["program"], job)
    chosen = random.Random(seed).sample(sorted(first.values(), key=lambda j: j.job_id), min(most, len(first)))  # noqa: S311 - a sample, no secret
    wanted = {job.bundle: job.gpus for job in chosen}
    source = {name: made for name, made in bundles(folder).items() if name in wanted}
    return chosen, fields_of(source, wanted)


def _of_corpus() -> tuple[list[dict[str, Any]], list[str]]:
    """Return what code-analyzer says of the labelled jobs whose task is labelled and not the only one of its kind; and the tasks."""
    told = []
    for label in sorted(CORPUS.glob("*/*/label.json")):
        case = json.loads(label.read_text("utf-8"))
        task = _task(case)
        if task is not None:
            _, analysis = analyze_directory(Subject(entry=case["entry"]), label.parent / "job")
            told.append(({name: f.value for name, f in analysis.fields.items()}, task))
    counts = Counter(task for _, task in told)
    kept = [(k, task) for k, task in told if counts[task] > 1]
    return [k for k, _ in kept], [task for _, task in kept]


def _task(case: Mapping[str, Any]) -> str | None:
    task = case["fields"].get("task")
    value = task.get("value") if isinstance(task, dict) else task
    return str(value) if value else None


def _without(known: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if name not in names}


if __name__ == "__main__":
    raise SystemExit(main())
