"""Quasi-shortest service first: expected GPU time."""

from __future__ import annotations

from schedmate.services.dispatcher.core.advice import ordered_s
from schedmate.services.dispatcher.core.policies.fifo import Fifo
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.state import Job, PoolState


class Qssf(Fifo):
    """The job with the least expected GPU time (estimated run time x GPUs) first; the head of the queue blocks.

    Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC'21, section 4.2
    (HeliosArtifact). Without advice every job carries the same estimate: fewest GPUs first.
    """

    name = "qssf"
    uses_estimates = True

    def key(self, job: Job, state: PoolState) -> Key:
        """Priority class, then the expected GPU time, then submission."""
        return (-job.priority, ordered_s(job, state) * job.gpus_total, job.submitted_at, job.order)
