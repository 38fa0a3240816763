"""Fewest GPUs first."""

from __future__ import annotations

from schedmate.services.dispatcher.core.policies.fifo import Fifo
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.state import Job, PoolState


class Smallest(Fifo):
    """The job with the fewest GPUs first, ties by submission; the head of the queue blocks.

    What QSSF comes to when every job carries the same estimate (Helios, SC'21, section 4.2): most of what an order gains
    on FIFO it gains by size alone.
    """

    name = "smallest"

    def key(self, job: Job, state: PoolState) -> Key:  # noqa: ARG002 - the protocol's signature
        """Priority class, then GPUs, then submission."""
        return (-job.priority, job.gpus_total, job.submitted_at, job.order)
