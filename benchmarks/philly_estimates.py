"""What history-estimator's estimates are worth on Philly's October, beside the running median and the pool's own running quantiles.

    SCHEDMATE_TRACES=../shared/traces python benchmarks/philly_estimates.py [--development]

Every job of the trace is estimated at its submission, from the jobs with submission + duration <= now; a job starts when it is submitted.
The estimator was tuned on jobs that ended before October 16 (`--development` prints those of October 1-15 that did, and reads nothing
later); the figures are those of October 16-31. The running median is that of the last 200 ended jobs of the same virtual cluster and GPU
count, before the first of the cluster, before that one hour. Pinball loss and interval score (Gneiting and Raftery 2007, eq. 43, for the
80 % interval) are of the logarithms of seconds; lower is better. Order is the share of pairs of jobs put in the order of their run
times, ties counting a half, over 2,000,000 seeded pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from schedmate.services.history_estimator.estimator import Estimator, Rules
from schedmate.services.history_estimator.jobs import Ended, Job
from schedmate.simulator.readers import read_trace
from schedmate.simulator.trace import TraceJob

HELD_OUT = "2017-10-16"
PAIRS = 2_000_000
POOL_JOBS_MIN = 1_000


@dataclass
class Running:
    """The last 200 run times, by size; logarithms."""

    last: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def learn(self, value: float) -> None:
        """Take in a run time."""
        if len(self.last) == 200:
            del self.ordered[bisect_left(self.ordered, self.last.popleft())]
        self.last.append(value)
        insort(self.ordered, value)

    def at(self, share: float) -> float | None:
        """Return a quantile, None of nothing."""
        return float(np.quantile(self.ordered, share)) if self.ordered else None


def walk(jobs: list[TraceJob], until: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Estimate every job submitted before a local time; return what was said of those of October, and CPU seconds."""
    estimator = Estimator(Rules())
    classes: dict[tuple[str, int], Running] = {}
    pools: dict[str, Running] = {}
    ends: list[tuple[float, int]] = []
    out: dict[str, list[Any]] = {name: [] for name in ("job", "said", "median", "pool_low", "pool_high", "basis")}
    told = [Job(j.id, j.submit_s, j.pool, j.tenant, j.gpus) for j in jobs]
    cpu = {"history": 0.0, "refits": 0.0, "estimates": 0.0}
    for number, job in enumerate(jobs):
        if (job.local or "") >= until:
            break
        began = time.process_time()
        while ends and ends[0][0] <= job.submit_s:
            at, ended = heappop(ends)
            estimator.finished(Ended(told[ended], jobs[ended].duration_s, at))
            value = log(max(jobs[ended].duration_s, 1.0))
            classes.setdefault((jobs[ended].pool, jobs[ended].gpus), Running()).learn(value)
            pools.setdefault(jobs[ended].pool, Running()).learn(value)
        marks = [began, time.process_time()]
        estimator.refit(job.submit_s)
        marks.append(time.process_time())
        estimator.submitted(told[number])
        said = estimator.estimate(told[number], job.submit_s)
        estimator.started(job.id, job.submit_s)
        marks.append(time.process_time())
        for name, low, high in zip(cpu, marks, marks[1:], strict=False):
            cpu[name] += high - low
        heappush(ends, (job.submit_s + job.duration_s, number))
        if (job.local or "") < "2017-10-01":
            continue
        pool = pools.get(job.pool, Running())
        middle = classes.get((job.pool, job.gpus), Running()).at(0.5)
        middle = middle if middle is not None else pool.at(0.5)
        out["job"].append(number)
        out["said"].append(
            [log(max(v if v is not None else 3600.0, 1e-3)) for v in (said.p10_s, said.p50_s, said.p90_s)]
        )
        out["median"].append(middle if middle is not None else log(3600.0))
        out["pool_low"].append(pool.at(0.1) if pool.ordered else log(60.0))
        out["pool_high"].append(pool.at(0.9) if pool.ordered else log(86_400.0))
        out["basis"].append(said.basis.value)
    return {name: np.asarray(values) for name, values in out.items()}, cpu


def points(true: Any, said: Any) -> dict[str, float]:
    """Return the figures of a point estimate."""
    random = np.random.default_rng(0)
    one, other = random.integers(0, len(true), PAIRS), random.integers(0, len(true), PAIRS)
    differ = true[one] != true[other]
    agree = np.sign(true[one] - true[other])[differ] * np.sign(said[one] - said[other])[differ]
    off = np.abs(np.exp(said - true) - 1.0)
    return {
        "r2_log": 1.0 - float(((true - said) ** 2).sum() / ((true - true.mean()) ** 2).sum()),
        "pairwise_order": float((agree > 0).mean() + 0.5 * (agree == 0).mean()),
        "within_2x": float((np.abs(said - true) <= log(2.0)).mean()), "within_25_percent": float((off <= 0.25).mean()),
        "pinball_p50_log": pinball(true, said, 0.5),
    }  # fmt: skip


def pinball(true: Any, said: Any, share: float) -> float:
    """Return the mean pinball loss of a quantile."""
    off = true - said
    return float(np.maximum(share * off, (share - 1.0) * off).mean())


def interval_score(true: Any, low: Any, high: Any) -> float:
    """Return the mean interval score of 80 % intervals."""
    return float((high - low + 10.0 * (np.maximum(low - true, 0.0) + np.maximum(true - high, 0.0))).mean())


def batched_us(jobs: list[TraceJob], until: str) -> float:
    """Return the CPU microseconds of an estimate, features included, of batches of 500 jobs against a history of the month before."""
    estimator = Estimator(Rules())
    taken = [j for j in jobs if "2017-10-01" <= (j.local or "") < until][:6_000]
    told = [Job(j.id, j.submit_s, j.pool, j.tenant, j.gpus) for j in taken]
    for number, job in enumerate(told[:5_000]):
        estimator.submitted(job)
        estimator.finished(Ended(job, taken[number].duration_s, job.submitted_at + taken[number].duration_s))
    estimator.refit(taken[5_000].submit_s)
    began = time.process_time()
    for first in (5_000, 5_500):
        estimator.estimate_many(told[first : first + 500], taken[first].submit_s)
    return (time.process_time() - began) / 1_000 * 1e6


def figures(jobs: list[TraceJob], said: dict[str, Any], start: str, ends_before: str | None) -> dict[str, Any]:
    """Return the figures of the jobs submitted from a day on (and ended before another, where one is given)."""
    locals_ = np.array([jobs[n].local for n in said["job"]])
    true_s = np.array([jobs[n].duration_s for n in said["job"]])
    kept = locals_ >= start
    if ends_before is not None:
        last = min(j.submit_s for j in jobs if (j.local or "") >= ends_before)
        kept &= np.array([jobs[n].submit_s for n in said["job"]]) + true_s < last
    true = np.log(np.maximum(true_s[kept], 1.0))
    low, middle, high = said["said"][kept].T
    pool_low, pool_high, median = said["pool_low"][kept], said["pool_high"][kept], said["median"][kept]
    pools = np.array([jobs[n].pool for n in said["job"]])[kept]
    covered = (low <= true) & (true <= high)
    each = {}
    for pool in sorted(set(pools)):
        here = pools == pool
        if here.sum() >= POOL_JOBS_MIN:
            each[pool] = {
                "jobs": int(here.sum()), "coverage": float(covered[here].mean()),
                "interval_score": interval_score(true[here], low[here], high[here]),
                "interval_score_running": interval_score(true[here], pool_low[here], pool_high[here]),
            }  # fmt: skip
    ours, running = points(true, middle), points(true, median)
    basis, count = np.unique(said["basis"][kept], return_counts=True)
    return {
        "jobs": len(true), "estimate": ours, "running_median": running, "r2_log_gain": ours["r2_log"] - running["r2_log"],
        "pinball_log": {"p10": pinball(true, low, 0.1), "p90": pinball(true, high, 0.9)},
        "coverage": float(covered.mean()), "pools": each,
        "interval_score": interval_score(true, low, high),
        "interval_score_running": interval_score(true, pool_low, pool_high),
        "coverage_running": float(((pool_low <= true) & (true <= pool_high)).mean()),
        "basis": dict(zip(basis.tolist(), count.tolist(), strict=True)),
    }  # fmt: skip


def main() -> int:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--development", action="store_true", help="only what ended before October 16")
    given = parser.parse_args()
    folder = os.environ.get("SCHEDMATE_TRACES")
    if folder is None:
        print("SCHEDMATE_TRACES names no folder: set it to where the traces are", file=sys.stderr)
        return 2
    jobs = list(read_trace(Path(folder, "philly-2017", "philly_2017_aug-oct.csv")).jobs)
    until = HELD_OUT if given.development else "2017-11-01"
    said, cpu = walk(jobs, until)
    out: dict[str, Any] = {}
    if given.development:
        out["october 1-15, ended before 16"] = figures(jobs, said, "2017-10-01", HELD_OUT)
    else:
        out["october 16-31"] = figures(jobs, said, HELD_OUT, None)
        out["october 1-31"] = figures(jobs, said, "2017-10-01", None)
    out["cpu_s"] = cpu
    out["batched_us_an_estimate"] = batched_us(jobs, until)
    print(json.dumps(out, indent=2, default=float))
    return 0


if __name__ == "__main__":
    sys.exit(main())
