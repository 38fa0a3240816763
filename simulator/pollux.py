"""Pollux's workloads (OSDI'21): a job's run time follows the measured profiles that lie beside the file, in `profiles/`.

A row names an application, its replicas and its batch size. The reading of the profiles: a job ends with its application's last epoch
(`EPOCHS`, as in the artifact's own simulator, which sets no target metric); its run time is the iterations of that epoch in
`validation-BATCH.csv` times the step time of a consolidated placement on nodes of 4 GPUs, the steps of gradient accumulation included.
Between measured local batch sizes step times are interpolated; a placement that was not measured takes the measurement of
`scalability.csv` with the nearest replicas on the nearest number of nodes. The step time of other placements is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from math import ceil
from pathlib import Path
from typing import Final

from schedmate.simulator.rows import Row, rows_of
from schedmate.simulator.trace import TraceError, TraceJob

EPOCHS: Final = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
LOCAL_BATCH_MAX: Final = {"yolov3": 8}
GPUS_PER_NODE: Final = 4


def pollux_jobs(path: Path, rows: Iterable[Row]) -> Iterator[TraceJob]:
    """Yield the jobs of a workload."""
    profiles = path.parent / "profiles"
    if not profiles.is_dir():
        raise TraceError(
            f"{path.name} has no run times: it needs the folder of measured profiles beside it, {profiles}"
        )
    for row in rows:
        application, replicas, batch = row.text("application"), row.count("num_replicas", 1), row.count("batch_size", 1)
        if application not in EPOCHS:
            raise row.wrong("application", f"there are profiles of {', '.join(EPOCHS)}")
        yield TraceJob(row.text("name"), row.number("time"), replicas, run_s(profiles / application, replicas, batch))


@cache
def run_s(folder: Path, replicas: int, batch: int) -> float:
    """Return the run time on a consolidated placement, in whole seconds."""
    valid = list(rows_of(folder / f"validation-{batch}.csv"))
    epoch = min(EPOCHS[folder.name], len(valid)) - 1
    iterations = valid[epoch].number("iteration")
    measured = _measured(folder, replicas)
    largest = LOCAL_BATCH_MAX.get(folder.name) or max(local for local, _, _ in measured)
    first = min(int(p.stem.split("-")[1]) for p in folder.glob("validation-*.csv"))
    local = ceil(batch / replicas - 1e-8)
    extra = ceil(local / largest - 1e-8) - 1
    if replicas == 1 and batch > first:
        extra = max(1, extra)
    step_s, sync_s = _interpolated(measured, ceil(local / (extra + 1) - 1e-8))
    return round(iterations * (step_s + extra * (step_s - sync_s)))


def _measured(folder: Path, replicas: int) -> list[tuple[float, float, float]]:
    """Return (local batch size, step time, synchronisation time) of the placement, by local batch size."""
    full, rest = divmod(replicas, GPUS_PER_NODE)
    wanted = "".join(sorted([str(GPUS_PER_NODE)] * full + ([str(rest)] if rest else [])))
    found = [r for r in rows_of(folder / "placements.csv") if r.text("placement") == wanted]
    if not found:
        every = list(rows_of(folder / "scalability.csv"))
        shapes = {(r.count("num_nodes"), r.count("num_replicas")) for r in every}
        nodes = full + bool(rest)
        near = min(shapes, key=lambda s: (abs(s[1] - replicas), abs(s[0] - nodes), s))
        found = [r for r in every if (r.count("num_nodes"), r.count("num_replicas")) == near]
    return sorted((r.number("local_bsz"), r.number("step_time"), r.number("sync_time")) for r in found)


def _interpolated(measured: list[tuple[float, float, float]], local: float) -> tuple[float, float]:
    below = max((m for m in measured if m[0] <= local), default=measured[0])
    above = min((m for m in measured if m[0] >= local), default=measured[-1])
    share = (local - below[0]) / (above[0] - below[0]) if above[0] > below[0] else 0.0
    return below[1] + share * (above[1] - below[1]), below[2] + share * (above[2] - below[2])
