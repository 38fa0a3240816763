"""What no schedule can be better than: a lower bound of the mean job completion time, pool by pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from schedmate.simulator.cluster import Cluster
from schedmate.simulator.trace import TraceJob

RUN_TIME, SRPT = "run time", "SRPT"


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound of the mean JCT of a pool's jobs; `side` names the one of the two that binds."""

    jobs: int
    run_s: float
    srpt_s: float

    @property
    def at_least_s(self) -> float:
        """The bound: the larger of the two."""
        return max(self.run_s, self.srpt_s)

    @property
    def side(self) -> str:
        """Which of the two binds."""
        return RUN_TIME if self.run_s >= self.srpt_s else SRPT


def lower_bounds(jobs: Sequence[TraceJob], cluster: Cluster) -> dict[str, Bound]:
    """Return the bound of every pool that has jobs: max(mean run time, SRPT)."""
    members: dict[str, list[TraceJob]] = {}
    only = next(iter(cluster.pools))
    for job in jobs:
        members.setdefault(only if cluster.one_pool else job.pool, []).append(job)
    return {
        pool: Bound(
            len(own),
            sum(job.duration_s for job in own) / len(own),
            srpt_s(own, sum(node.gpus for node in cluster.pools[pool])),
        )
        for pool, own in sorted(members.items())
    }


def overall_s(bounds: dict[str, Bound]) -> float:
    """Return the bound of the mean over all jobs: the pools' bounds, weighted by their jobs."""
    return sum(bound.at_least_s * bound.jobs for bound in bounds.values()) / sum(b.jobs for b in bounds.values())


def srpt_s(jobs: Sequence[TraceJob], gpus: int) -> float:
    """Return the mean JCT of shortest-remaining-processing-time on one machine as fast as the whole pool.

    A job's work is its run time x its GPUs. Whatever a schedule does on `gpus` GPUs, one machine of their joint speed can do as well by
    sharing its time, and on one machine SRPT has the least mean completion time (Schrage, Operations Research 16(3), 1968). Restarts,
    nodes and whole gangs are left out, which can only make it smaller.
    """
    arrivals = sorted((job.submit_s, job.duration_s * job.gpus / gpus) for job in jobs)
    waiting: list[tuple[float, float]] = []  # (time still needed, submission)
    total = now = 0.0
    at = 0
    while at < len(arrivals) or waiting:
        if not waiting:
            now = max(now, arrivals[at][0])
        while at < len(arrivals) and arrivals[at][0] <= now:
            heappush(waiting, (arrivals[at][1], arrivals[at][0]))
            at += 1
        left, submit = heappop(waiting)
        until = arrivals[at][0] if at < len(arrivals) else float("inf")
        if now + left <= until:
            now += left
            total += now - submit
        else:
            heappush(waiting, (left - (until - now), submit))
            now = until
    return total / len(arrivals)
