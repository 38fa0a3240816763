"""What pacing is worth: the estimator over the semantic trace with so many probes an hour, spent by arrival, at random or by pacing.

    python -m benchmarks.probe_pacing TRACE [--probes 2]     # TRACE as benchmarks.semantic_trace.generate writes it

A probe is declared to tell the run time of its job within 10 % after 80 s: what a profiler's step time and the stated steps give. The
estimator takes that as an ended job. All estimates at submission count, those of jobs that are probed after it too, so what is compared is
what the probes taught about others. A tenant is a virtual cluster; an ended job is known when it has ended.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from collections import deque
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.semantic_trace.knowledge import Job as TraceJob
from benchmarks.semantic_trace.knowledge import bundles, fields_of, load
from schedmate.infra.embeddings.hashed import HashedEmbedder
from schedmate.infra.embeddings.nearest import ExactIndex
from schedmate.infra.pacing import Budget
from schedmate.services.history_estimator.describing import described
from schedmate.services.history_estimator.estimate import Estimate
from schedmate.services.history_estimator.estimator import Estimator
from schedmate.services.history_estimator.jobs import Ended, Job
from schedmate.services.history_estimator.probing import WIDTH_KNOWN, Probes, width

PROBE_S = 80.0
HOUR_S = 3_600.0
NOISE = 0.1
Choice = Callable[[Job, Estimate, float], bool]


def main() -> int:
    """Print a line a way of spending."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--probes", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=6_000)
    given = parser.parse_args()
    jobs = load(given.trace)[: given.jobs]
    cache = given.trace / "fields.json"
    if not cache.exists():
        gpus = {job.bundle: job.gpus for job in jobs}
        source = {name: made for name, made in bundles(given.trace).items() if name in gpus}
        cache.write_text(json.dumps(fields_of(source, gpus)), encoding="utf-8")
    fields = json.loads(cache.read_text("utf-8"))
    print(
        f"{len(jobs)} jobs, {given.probes} probes an hour; error: mean |log(p50 / run time)|; width: mean log(p90 / p10)"
    )
    for name, choose in (
        ("none", lambda *_: False),
        ("by arrival", _limited(given.probes, lambda *_: True)),
        ("at random", _limited(given.probes, _random(0.2))),
        ("paced", _paced(given.probes)),
    ):
        began = time.process_time()
        error, wide, probed = run(jobs, fields, choose)
        print(
            f"{name:12} error {error:.3f}  width {wide:.2f}  probed {probed:5}  ({time.process_time() - began:.0f} s CPU)",
            flush=True,
        )
    return 0


def run(jobs: list[TraceJob], fields: dict[str, dict[str, Any]], choose: Choice) -> tuple[float, float, int]:
    """Return the mean error and width of all estimates at submission, and how many jobs were probed."""
    estimator = Estimator(new_index=ExactIndex)
    embedder, noise = HashedEmbedder(), random.Random(0)  # noqa: S311 - a simulation
    ends: list[tuple[float, int, Job, float]] = []
    errors, widths, probed = [], [], 0
    for number, row in enumerate(jobs):
        while ends and ends[0][0] <= row.submit_s:
            at, _, job, took_s = heapq.heappop(ends)
            estimator.finished(Ended(job, took_s, at))
        told = fields[row.bundle]
        job = Job(
            row.job_id, row.submit_s, "default", row.vc, row.gpus, row.user, row.name, content_hash=row.bundle,
            workload=told, vector=embedder.vector(described(told)),
        )  # fmt: skip
        estimator.refit(row.submit_s)
        estimator.submitted(job)
        said = estimator.estimate(job, row.submit_s)
        widths.append(width(said))
        if said.p50_s is not None:
            errors.append(abs(log(max(said.p50_s, 1.0) / max(row.duration_s, 1.0))))
        estimator.started(job.id, row.submit_s)
        factor = exp(noise.gauss(0.0, NOISE))
        if choose(job, said, row.submit_s) and row.duration_s > PROBE_S:
            probed += 1
            heapq.heappush(ends, (row.submit_s + PROBE_S, number, job, row.duration_s * factor))
        else:
            heapq.heappush(ends, (row.submit_s + row.duration_s, number, job, row.duration_s))
    return float(np.mean(errors)), float(np.mean(widths)), probed


def _limited(probes: int, wants: Choice) -> Choice:
    spent: deque[float] = deque()

    def choose(job: Job, said: Estimate, at: float) -> bool:
        while spent and spent[0] <= at - HOUR_S:
            spent.popleft()
        if len(spent) >= probes or not wants(job, said, at):
            return False
        spent.append(at)
        return True

    return choose


def _random(share: float) -> Choice:
    draw = random.Random(1)  # noqa: S311 - a simulation
    return lambda *_: draw.random() < share


def _paced(probes: int) -> Choice:
    paced = Probes(Budget(probes, least=WIDTH_KNOWN), lambda: ExactIndex(512))
    under_way: deque[tuple[float, tuple[str, ...]]] = deque()

    def choose(job: Job, said: Estimate, at: float) -> bool:
        while under_way and under_way[0][0] <= at - PROBE_S:
            paced.ended(under_way.popleft()[1])
        cluster, worth = paced.ask(job, said, at)
        if worth:
            under_way.append((at, cluster))
        return worth

    return choose


if __name__ == "__main__":
    raise SystemExit(main())
