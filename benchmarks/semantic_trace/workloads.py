"""What SchedMate would be told of the semantic trace's jobs: `python -m benchmarks.semantic_trace.workloads OUT --traces DIR`.

Writes OUT/workloads.jsonl, the side file of `schedmate simulate OUT/jobs.csv --workloads` (`simulator/workloads.py`): what code-analyzer
says of each bundle without a model (kept in OUT/fields.json, which takes minutes), its hashes, how the job ends, the whole run time that
its own printed progress tells, and a declared kind for GPU sharing; and OUT/learned.csv, the ladder's predictions from static analysis and
history, as a raw order key, and OUT/planned.csv, how long each job would run if it were not cancelled and did not fail.

A job's progress counts the steps of its plan, at the speed of its run: one that stops at a target ends before what it shows, one that
fails or is cancelled is cut. The kind follows the application, and its batch where the table knows the larger batch.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.semantic_trace import knowledge
from benchmarks.semantic_trace.applications import APPLICATIONS, Plan, Profiles
from benchmarks.semantic_trace.generate import generate
from benchmarks.semantic_trace.knowledge import Job
from schedmate.services import code_analyzer

KINDS: Final = {
    "cifar10": ("small-vision", "small-vision-large-batch"), "ncf": ("recommendation", "recommendation"),
    "deepspeech2": ("recurrent-language", "recurrent-language"), "bert": ("large-language", "large-language"),
    "yolov3": ("large-vision", "large-vision"), "imagenet": ("residual-vision", "residual-vision"),
}  # fmt: skip
"""Of each application the kind with a batch in the lower half of its batches, and in the upper half."""
JOBS, SEED = 6000, 1
OUTCOMES: Final = {"completed": "succeeded", "failed": "failed", "cancelled": "cancelled"}


def main() -> int:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--traces", type=Path, required=True, help="the folder with pollux-osdi21")
    given = parser.parse_args()
    write(given.trace, Profiles(given.traces / "pollux-osdi21" / "profiles"))
    return 0


def make(folder: Path, traces: Path) -> None:
    """See that the folder holds the trace of the test families with what is known of its jobs, as this code reads the bundles.

    Takes some minutes of CPU where it does not.
    """
    if not (folder / "summary.json").is_file():
        generate(folder, traces, "test", JOBS, SEED)
    stamp, read_by = folder / "read_by", _reader_sum()
    files = [folder / name for name in ("workloads.jsonl", "learned.csv", "planned.csv")]
    if all(file.is_file() for file in files) and stamp.is_file() and stamp.read_text("utf-8") == read_by:
        return
    (folder / "fields.json").unlink(missing_ok=True)
    write(folder, Profiles(traces / "pollux-osdi21" / "profiles"))
    stamp.write_text(read_by, encoding="utf-8")


def _reader_sum() -> str:
    """Return a sum over the code that reads the bundles and writes what it finds."""
    here = Path(__file__).parent
    files = sorted((p for p in Path(code_analyzer.__file__).parent.rglob("*") if p.suffix in (".py", ".toml")), key=str)
    total = hashlib.sha256()
    for file in (*files, *sorted(here.glob("*.py"))):
        total.update(file.read_bytes())
    return total.hexdigest()


def write(folder: Path, profiles: Profiles) -> None:
    """Write what is known of the jobs of a generated trace."""
    from benchmarks.semantic_trace.ladder import Ladder  # noqa: PLC0415 - it analyses the bundles

    jobs = knowledge.load(folder)
    ladder = Ladder(jobs, folder, profiles)
    with (folder / "workloads.jsonl").open("w", encoding="utf-8") as file:
        for job in jobs:
            file.write(json.dumps(told(job, ladder.fields[job.bundle], profiles), sort_keys=True) + "\n")
    past = np.hstack([knowledge.static(jobs, ladder.fields), knowledge.history(jobs, ladder.fields)])
    predicted = ladder.learned(past)  # where it says nothing (the first span): the median of all that it says
    _key(folder, "learned_s", jobs, np.exp(np.where(np.isnan(predicted), np.nanmedian(predicted), predicted)))
    _key(folder, "planned_s", jobs, [float(job.truth["planned_s"]) for job in jobs])


def told(job: Job, fields: dict[str, Any], profiles: Profiles) -> dict[str, Any]:
    """Return the line of one job. The command is part of the bundle's hash, the size is not."""
    plan = plan_of(job)
    return {
        "job_id": job.job_id, "workload": fields, "content_hash": job.bundle, "command_hash": f"{job.bundle}/{job.gpus}",
        "outcome": OUTCOMES[job.truth["state"]], "shown_s": shown_s(job, plan, profiles), "kind": kind_of(plan),
    }  # fmt: skip


def plan_of(job: Job) -> Plan:
    """Return what the job's program plans."""
    t = job.truth
    target = float(t["target"]) if t["target"] else None
    return Plan(t["application"], int(t["replicas"]), int(t["batch"]), int(t["epochs"]), float(t["fraction"]), target)


def shown_s(job: Job, plan: Plan, profiles: Profiles) -> float:
    """Return the time of all the steps that the job's output counts, at the speed of this run."""
    speed = float(job.truth["planned_s"]) / profiles.run_s(plan)
    return round(max(profiles.run_s(replace(plan, target=None)) * speed, 1.0), 1)


def kind_of(plan: Plan) -> str:
    """Return the declared kind of a plan."""
    batches = APPLICATIONS[plan.application].batches
    return KINDS[plan.application][batches.index(plan.batch) >= len(batches) / 2]


def _key(folder: Path, name: str, jobs: list[Job], values: Iterable[float]) -> None:
    """Write an order key, s: NAME.csv with the column NAME_s."""
    with (folder / f"{name.removesuffix('_s')}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("job_id", name))
        writer.writerows((job.job_id, round(float(value), 3)) for job, value in zip(jobs, values, strict=True))


if __name__ == "__main__":
    sys.exit(main())
