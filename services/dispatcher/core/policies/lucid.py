"""Lucid: jobs are profiled first, ordered by expected GPU time, and packed in pairs where the cluster is busy."""

from __future__ import annotations

from typing import Final

from schedmate.services.dispatcher.core.placement import Placer
from schedmate.services.dispatcher.core.policies.qssf import Qssf
from schedmate.services.dispatcher.core.profiling import ProfilerFirst, is_preferred, is_profiled
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.state import Job, PoolState

BEFORE_OTHERS: Final = 1e6
"""More than any job has GPUs."""


class Lucid(Qssf):
    """Least expected GPU time (estimated run time x GPUs) first, nobody held back by a head that does not fit.

    Hu et al., "Lucid: A Non-Intrusive, Scalable and Interpretable Scheduler for Deep Learning Training Jobs", ASPLOS'23: the profiler
    (core/profiling.py), the binder of pairs (core/sharing.py), and the orchestrator's order, with the pool's estimates for its Workload
    Estimate Model. In the profiler the job with the fewest GPUs goes first.
    """

    name = "lucid"
    head_blocks = False
    packs = True
    placer: Placer = ProfilerFirst()

    def key(self, job: Job, state: PoolState) -> Key:
        """Priority class, then the expected GPU time (in the profiler: the GPUs), then submission."""
        if is_profiled(state, job):
            first = BEFORE_OTHERS if is_preferred(state, job) else 0.0
            return (-job.priority, float(job.gpus) - first, job.submitted_at, job.order)
        return super().key(job, state)
