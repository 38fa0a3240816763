"""Writes the semantic trace: `python -m benchmarks.semantic_trace.generate OUT --traces DIR [--split test] [--jobs 6000] [--seed 0]`.

OUT/jobs.csv is what a scheduler may see at submission, OUT/truth.csv what it may not (application, plan, state); the trace reads as a
documented CSV of `schedmate simulate`. OUT/bundles/HASH.json holds files, command and entry of each distinct bundle, OUT/summary.json the
cluster sizes that give offered loads of 0.6, 0.8 and 1.0, and what the declared rates came to.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from pathlib import Path

from benchmarks.semantic_trace import styles
from benchmarks.semantic_trace.applications import Profiles
from benchmarks.semantic_trace.workload import Submission, arrivals, shares_of, submissions

GPUS_PER_NODE = 4
LOADS = (0.6, 0.8, 1.0)
SPLITS = {"development": tuple(styles.DEVELOPMENT), "test": tuple(styles.TEST)}
FIRST, LAST = "2017-10-01", "2017-10-15"


def main() -> int:
    """Generate, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--traces", type=Path, required=True, help="the folder with philly-2017 and pollux-osdi21")
    parser.add_argument("--split", choices=SPLITS, default="development")
    parser.add_argument("--jobs", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(json.dumps(generate(given.out, given.traces, given.split, given.jobs, given.seed), indent=2))
    return 0


def generate(out: Path, traces: Path, split: str, jobs: int, seed: int) -> dict[str, object]:
    """Write a trace; return its summary. The same arguments give the same bytes."""
    given = arrivals(traces / "philly-2017" / "philly_2017_aug-oct.csv", FIRST, LAST, jobs, seed)
    found = submissions(given, SPLITS[split], Profiles(traces / "pollux-osdi21" / "profiles"), seed)
    (out / "bundles").mkdir(parents=True, exist_ok=True)
    hashes = [_write_bundle(out / "bundles", job) for job in found]
    _write_jobs(out, found, hashes)
    window = found[-1].submit_s - found[0].submit_s
    gpu_s = sum(j.duration_s * j.plan.replicas for j in found)
    summary: dict[str, object] = {
        "split": split, "seed": seed, "jobs": len(found), "bundles": len(set(hashes)), "users": len({j.user for j in found}),
        "window_s": window, "gpu_hours": round(gpu_s / 3600, 1), "recurring": round(sum(_recurring(found)) / len(found), 3),
        "nodes_at_load": {str(load): max(2, round(gpu_s / (window * GPUS_PER_NODE * load))) for load in LOADS},
        "shares": {state: [round(v, 3) for v in pair] for state, pair in shares_of(found).items()},
    }  # fmt: skip
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _write_bundle(folder: Path, job: Submission) -> str:
    made = styles.bundle(job.family, job.seed, job.plan)
    text = json.dumps({"files": made.files, "command": made.command, "entry": made.entry}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = folder / f"{digest}.json"
    if not path.exists():
        path.write_text(text + "\n", encoding="utf-8")
    return digest


def _write_jobs(out: Path, jobs: list[Submission], hashes: list[str]) -> None:
    with (out / "jobs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("job_id", "submit_s", "num_gpus", "duration_s", "user", "name", "vc", "bundle"))
        for job, digest in zip(jobs, hashes, strict=True):
            writer.writerow((job.job_id, round(job.submit_s), job.plan.replicas, round(job.duration_s), job.user, job.name, job.vc, digest))  # fmt: skip
    with (out / "truth.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("job_id", "application", "batch", "replicas", "epochs", "fraction", "target", "state", "planned_s", "program", "family", "recurring"))  # fmt: skip
        for job, again in zip(jobs, _recurring(jobs), strict=True):
            p = job.plan
            writer.writerow((job.job_id, p.application, p.batch, p.replicas, p.epochs, p.fraction, "" if p.target is None else p.target, job.state, round(job.planned_s), job.program, job.family, int(again)))  # fmt: skip


def _recurring(jobs: list[Submission]) -> list[bool]:
    """Tell of each job whether its (application, batch, replicas) had ended before it was submitted, were nobody to wait."""
    ended: list[tuple[float, tuple[str, int, int]]] = sorted(
        (j.submit_s + j.duration_s, (j.plan.application, j.plan.batch, j.plan.replicas)) for j in jobs
    )
    known: set[tuple[str, int, int]] = set()
    at, out = 0, []
    for job in jobs:
        while at < len(ended) and ended[at][0] <= job.submit_s:
            known.add(ended[at][1])
            at += 1
        out.append((job.plan.application, job.plan.batch, job.plan.replicas) in known)
    return out


if __name__ == "__main__":
    sys.exit(main())
