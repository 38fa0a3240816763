"""What the predictions of the ladder are worth to a scheduler: average JCT against the best policy without advice."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from schedmate.simulator.cluster import uniform
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import Setting, run_one

if TYPE_CHECKING:
    from benchmarks.semantic_trace.ladder import Ladder, Step

GPUS_PER_NODE = 4
WITHOUT = ("fifo", "smallest", "fifo-skip", "tiresias", "srtf")
ADVISED = ("sjf", "qssf", "srtf")
SHOWN = ("metadata: medians by user and name", "metadata, learned", "TF-IDF of the raw source, learned", "static analysis, learned", "static analysis: steps from the code x a learned step time", "static analysis and history", "the true workload, learned", "the true run time")  # fmt: skip


def worth(climbed: Ladder, steps: list[Step], summary: dict[str, Any], folder: Path) -> list[str]:
    """Return the tables, one a load: JCT of each policy with each step's predictions, and the share of the gap that it closes."""
    trace = read_trace(folder / "jobs.csv")
    out: list[str] = []
    for load, nodes in summary["nodes_at_load"].items():
        cluster = uniform(nodes, GPUS_PER_NODE)
        jct = {name: run_one(trace, cluster, Setting(name, "none"))["avg_jct_s"] for name in WITHOUT}
        best = min(jct, key=lambda name: jct[name])
        out += [f"### Offered load {load}: {nodes} nodes of {GPUS_PER_NODE} GPUs", "",
                "Without advice: " + ", ".join(f"{name} {value:,.0f} s" for name, value in jct.items()) + f"; the best is {best}.", "",
                "| known | " + " | ".join(f"{p}: JCT, share closed, FIFO / it" for p in ADVISED) + " |", "| --- |" + " --- |" * len(ADVISED)]  # fmt: skip
        rows: dict[str, dict[str, float]] = {}
        for step in steps:
            if step.name in SHOWN:
                file = _predictions(folder, climbed, step)
                rows[step.name] = {p: run_one(trace, cluster, Setting(p, f"column:{file}:predicted_s"))["avg_jct_s"] for p in ADVISED}  # fmt: skip
        for name, values in rows.items():
            cells = [_cell(values[p], jct[best], rows["the true run time"][p], jct["fifo"]) for p in ADVISED]
            out.append(f"| {name} | " + " | ".join(cells) + " |")
        out.append("")
    return out


def _cell(jct: float, best: float, oracle: float, fifo: float) -> str:
    gap = best - oracle
    share = f"{(best - jct) / gap:.0%}" if gap > 0.005 * best else "none to close"
    return f"{jct:,.0f} s, {share}, {fifo / jct:.2f}x"


def _predictions(folder: Path, climbed: Ladder, step: Step) -> Path:
    """Write a step's predictions, s; where it says nothing (the first span) the median of all that are made."""
    path = folder / "predicted.csv"
    told = step.predicted
    filled = np.where(np.isnan(told), np.nanmedian(told), told)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("job_id", "predicted_s"))
        for job, value in zip(climbed.jobs, filled, strict=True):
            writer.writerow((job.job_id, round(float(np.exp(value)), 3)))
    return path
