"""Tiresias with a known distribution: discretised two-dimensional Gittins index."""

from __future__ import annotations

from schedmate.services.dispatcher.core.attained import next_edge
from schedmate.services.dispatcher.core.policies.tiresias import Tiresias
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.state import Job, PoolState


class TiresiasGittins(Tiresias):
    """The two queues of `tiresias`; within each the highest Gittins index first, then first in, first out.

    Gu et al., NSDI'19, section 3.2 (2D-Gittins: "when the distribution of job service is known"; 3.3 for the queues). The distribution
    is that of the pool's own finished jobs (core/attained.py); while fewer than 100 have finished the order is that of `tiresias`.
    """

    name = "tiresias-gittins"
    counts_service = True

    def key(self, job: Job, state: PoolState) -> Key:
        """Priority class, then the queue, then the Gittins index, then submission."""
        priority, level, submitted, order = super().key(job, state)
        return (priority, level, state.attained.place(job.served_s * job.gpus_total), submitted, order)

    def next_level(self, gpu_s: float, state: PoolState) -> float | None:
        """The end of the queue, or of the bin, whichever comes first."""
        ends = [edge for edge in (super().next_level(gpu_s, state), next_edge(gpu_s)) if edge is not None]
        return min(ends, default=None)
