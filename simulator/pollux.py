"""Pollux's workloads (OSDI'21): a job's progress follows the measured profiles that lie beside the file, in `profiles/`.

A row names an application, its replicas and its batch size. How the profiles are read stands in `docs/pollux.md`: steps to the last
epoch by statistical efficiency, step time by placement and local batch size, 30 s at every start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Final

from schedmate.services.dispatcher.core.inputs import JobArrived
from schedmate.simulator.rows import Row, rows_of
from schedmate.simulator.trace import TraceError, TraceJob

EPOCHS: Final = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
LOCAL_BATCH_MAX: Final = {"yolov3": 8}
GPUS_PER_NODE: Final = 4
START_S: Final = 30.0
POLLUX_SETTINGS: Final = {"level_gpu_s": 16 * 3600.0, "placer": "freest"}
"""How the artifact's Tiresias schedules."""
_EPSILON: Final = 1e-8

Times = tuple[float, float]
"""Step time and, of it, synchronisation time, in seconds."""


def pollux_jobs(path: Path, rows: Iterable[Row]) -> Iterator[TraceJob]:
    """Yield the jobs of a workload. The run time of one is that on the fewest nodes of 4 GPUs, without its starts."""
    profiles = path.parent / "profiles"
    if not profiles.is_dir():
        raise TraceError(
            f"{path.name} has no run times: it needs the folder of measured profiles beside it, {profiles}"
        )
    for row in rows:
        application, replicas, batch = row.text("application"), row.count("num_replicas", 1), row.count("batch_size", 1)
        if application not in EPOCHS:
            raise row.wrong("application", f"there are profiles of {', '.join(EPOCHS)}")
        pace = PolluxPace(profiles / application, replicas, batch)
        name, submit = row.text("name"), row.number("time")
        asks = JobArrived(
            name, "default", "default", 1, replicas, 0, None, 0, None, 0, submit, "", None, resumable=True
        )
        yield TraceJob(name, submit, replicas, pace.run_s(consolidated(replicas)), asks=(asks,), pace=pace)


def consolidated(replicas: int) -> tuple[int, ...]:
    """Return the replicas on each node where they are on the fewest nodes."""
    full, rest = divmod(replicas, GPUS_PER_NODE)
    return (GPUS_PER_NODE,) * full + ((rest,) if rest else ())


@dataclass(frozen=True, slots=True)
class PolluxPace:
    """How fast a job of an application with so many replicas and this (global) batch size goes."""

    folder: Path
    replicas: int
    batch: int

    @property
    def start_s(self) -> float:
        """What every start costs, the first one too."""
        return START_S

    def run_s(self, shape: Sequence[int]) -> float:
        """Return the whole run time on a placement, replicas on each of its nodes."""
        profile = profile_of(self.folder)
        local, extra = profile.local_batch(self.replicas, self.batch)
        step_s, sync_s = profile.times(tuple(shape), local)
        return profile.steps(self.replicas * local * (extra + 1)) * (step_s + extra * (step_s - sync_s))

    def slowdown(self, shape: Sequence[int]) -> float:
        """Return the run time on a placement over that on the fewest nodes."""
        return self.run_s(shape) / self.run_s(consolidated(self.replicas))


class Profile:
    """The measurements of one application."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        found = sorted(folder.glob("validation-*.csv"), key=lambda p: int(p.stem.split("-")[1]))
        self._validation = {int(p.stem.split("-")[1]): list(rows_of(p)) for p in found}
        if not self._validation:
            raise TraceError(f"{folder} has no validation-BATCH.csv")
        self.batch_first, self.batch_max = min(self._validation), max(self._validation)
        self._shapes: dict[str, list[tuple[float, Times]]] = {}
        by_count: dict[tuple[int, int, float], list[Times]] = {}
        for row in rows_of(folder / "placements.csv"):
            shape, local = row.text("placement"), row.number("local_bsz")
            times = (row.number("step_time"), row.number("sync_time"))
            self._shapes.setdefault(shape, []).append((local, times))
            by_count.setdefault((len(shape), sum(map(int, shape)), local), []).append(times)
        largest = max(local for _, _, local in by_count)
        for row in rows_of(folder / "scalability.csv"):
            key = (row.count("num_nodes"), row.count("num_replicas"), row.number("local_bsz"))
            by_count.setdefault(key, []).append((row.number("step_time"), row.number("sync_time")))
        self._counts: dict[int, dict[int, list[tuple[float, Times]]]] = {}
        for (nodes, replicas, local), measured in sorted(by_count.items()):
            mean = (sum(t[0] for t in measured) / len(measured), sum(t[1] for t in measured) / len(measured))
            self._counts.setdefault(nodes, {}).setdefault(replicas, []).append((local, mean))
        self.local_max = LOCAL_BATCH_MAX.get(self.name, largest)

    def local_batch(self, replicas: int, batch: int) -> tuple[int, int]:
        """Return the batch of one replica in one pass, and the passes that are accumulated before the last one."""
        local = ceil(batch / replicas - _EPSILON)
        extra = ceil(local / self.local_max - _EPSILON) - 1
        if replicas == 1 and batch > self.batch_first:
            extra = max(1, extra)
        return min(ceil(local / (extra + 1) - _EPSILON), self.batch_max // (replicas * (extra + 1))), extra

    def steps(self, batch: int) -> float:
        """Return the steps to the end of the last epoch: the progress that each takes over what a step of this batch gains."""
        epochs = min(EPOCHS[self.name], *(len(rows) for rows in self._validation.values()))
        steps = before = 0.0
        for epoch in range(epochs):
            progress = min(rows[epoch].number("progress") for rows in self._validation.values())
            sqr, var = (self._noise(batch, epoch, column) for column in ("grad_sqr", "grad_var"))
            gain = (var + sqr) / (var / (batch / self.batch_first) + sqr)
            steps += (progress - before) / gain
            before = progress
        return steps

    def _noise(self, batch: int, epoch: int, column: str) -> float:
        """Return the square or the variance of the gradient, linear between the two nearest batch sizes that were validated."""
        sizes = list(self._validation)
        at = min(max(bisect_left(sizes, batch), 0), len(sizes) - 1)
        above, below = sizes[at], sizes[max(at - 1, 0)] if sizes[at] > batch else sizes[at]
        high, low = (self._validation[size][epoch].number(column) for size in (above, below))
        return low + (high - low) * (batch - below) / (above - below) if above > below else high

    def times(self, shape: tuple[int, ...], local: float) -> Times:
        """Return the times of a placement.

        The order of nodes counts as a ring: the smallest of its rotations was measured for all placements on up to 4 nodes. Others are
        linear in the local batch, then in the replicas, then in the nodes, between the means of what was measured.
        """
        ring = min("".join(map(str, shape[n:] + shape[:n])) for n in range(len(shape)))
        if ring in self._shapes:
            return _between(self._shapes[ring], local)
        replicas = sum(shape)
        by_nodes = [
            (float(nodes), _between([(float(r), _between(m, local)) for r, m in by_replicas.items()], replicas))
            for nodes, by_replicas in sorted(self._counts.items())
        ]
        return _between(by_nodes, len(shape))


@cache
def profile_of(folder: Path) -> Profile:
    """Return the profile of an application, read once."""
    return Profile(folder)


def _between(known: Sequence[tuple[float, Times]], at: float) -> Times:
    """Interpolate linearly; beyond the ends the last value stands."""
    below = max((k for k in known if k[0] <= at), default=None, key=lambda k: k[0])
    above = min((k for k in known if k[0] >= at), default=None, key=lambda k: k[0])
    if below is None or above is None:
        edge = below or above
        assert edge is not None, "something was measured"
        return edge[1]
    if below[0] == above[0]:
        return below[1]
    share = (at - below[0]) / (above[0] - below[0])
    return (
        below[1][0] + share * (above[1][0] - below[1][0]),
        below[1][1] + share * (above[1][1] - below[1][1]),
    )
