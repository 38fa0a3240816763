"""What knowing a job from its past saves Lucid's profiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schedmate.simulator.results.grid import GROUNDS, SCHEDMATE
from schedmate.simulator.results.intervals import gained
from schedmate.simulator.results.ledger import Line
from schedmate.simulator.results.tables import gain, number, seconds, table
from schedmate.simulator.results.worth import by_advice

AGAIN = f"{SCHEDMATE} (profiled again)"
_ROWS = (
    ("none", "none"), (AGAIN, "SchedMate's, everybody profiled"), (SCHEDMATE, "SchedMate's, known jobs are not profiled again"), ("oracle", "true run times, everybody profiled"),
)  # fmt: skip
_HEAD = (
    "offered load", "advice", "profiled", "ended there", "GPU hours", "job seconds", "known on arrival", "of these wrongly", "average JCT",
    "pairs", "speed in a pair",
)  # fmt: skip


def profiler_section(used: Mapping[str, Line]) -> str:
    """Say how much profiling history saves on the grounds whose jobs recur; empty where nothing was run."""
    rows, said = [], []
    for ground in GROUNDS:
        lines = by_advice(used, ground.name)
        if ground.workloads is None or ("lucid", SCHEDMATE) not in lines:
            continue
        load = ground.name.rpartition("-")[2]
        rows += [_row(load, name, lines["lucid", advice]) for advice, name in _ROWS if ("lucid", advice) in lines]
        if ("lucid", AGAIN) in lines:
            said.append(_saved(load, lines["lucid", AGAIN], lines["lucid", SCHEDMATE]))
    if not rows:
        return ""
    return (
        "## Lucid's profiler\n\n"
        "A job whose utilisation, memory and sharing class are known from the past of the same job, or of like jobs that are all of one class, does not run in the profiler first. "
        "On the semantic trace, each job as its application's declared kind uses a GPU (`simulator/residents.py`), two nodes for the profiler and 80 s a job ([Lucid](policies/lucid.md)); "
        "the same advice about run times in both rows that are compared. " + " ".join(said) + f"\n\n{table(_HEAD, rows)}\n"
    )  # fmt: skip


def _row(load: str, name: str, line: Line) -> tuple[str, ...]:
    told, packed = _of(line, "profiling"), _of(line, "packing")
    return (
        load, name, number(told["jobs"]), number(told["ended_there"]), number(told["gpu_h"]), seconds(told["job_s"]), number(told["recalled"]),
        number(told["recalled_wrong"]), seconds(line.figures["avg_jct_s"]), number(packed["pairs"]), number(packed["avg_speed"]),
    )  # fmt: skip


def _saved(load: str, again: Line, known: Line) -> str:
    """What not profiling again saves: GPU hours and job seconds in the profiler, and the average JCT."""
    before, after = _of(again, "profiling"), _of(known, "profiling")
    hours = before["gpu_h"] - after["gpu_h"]
    share = 100 * hours / before["gpu_h"] if before["gpu_h"] else 0.0
    faster = gained(again.blocks, known.blocks)
    verdict = "shorter" if faster.above_zero else "longer" if faster.below_zero else "no different beyond chance"
    return (
        f"At a load of {load} that saves {number(hours)} of {number(before['gpu_h'])} GPU hours ({share:.0f} %) and {seconds(before['job_s'] - after['job_s'])} job seconds of profiling; "
        f"the average JCT is {verdict} ({gain(faster)} s gained)."
    )


def _of(line: Line, name: str) -> dict[str, Any]:
    found: dict[str, Any] = line.figures[name]
    return found
