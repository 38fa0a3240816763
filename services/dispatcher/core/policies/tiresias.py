"""Tiresias: discretised two-dimensional least attained service."""

from __future__ import annotations

from schedmate.services.dispatcher.core.policies.fifo import Fifo
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.state import Job, PoolState


class Tiresias(Fifo):
    """Two queues by attained GPU time, the first up to 18,000 GPU seconds; within each, first in, first out; decided every 60 s.

    Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI'19, section 3.2 (2D-LAS, discretised), with the
    threshold and the rounds of the simulator of Lucid (ASPLOS'23). Uses no estimate.
    """

    name = "tiresias"
    head_blocks = False
    rounds_s: float | None = 60.0
    level_gpu_s: float | None = 18_000.0

    def key(self, job: Job, state: PoolState) -> Key:
        """Priority class, then the level of attained service, then submission."""
        split = state.level_gpu_s
        assert split is not None
        level = 1 if job.served_s * job.gpus_total > split else 0
        return (-job.priority, level, job.submitted_at, job.order)

    def next_level(self, gpu_s: float, state: PoolState) -> float | None:
        """The end of the first queue, for whoever is in it."""
        split = state.level_gpu_s
        return split if split is not None and gpu_s <= split else None
