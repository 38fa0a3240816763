"""Shortest job first, by the estimated run time."""

from __future__ import annotations

from schedmate.services.dispatcher.core.advice import ordered_s
from schedmate.services.dispatcher.core.policies.fifo import Fifo
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.state import Job, PoolState


class Sjf(Fifo):
    """The job with the shortest estimated run time first, not preempted; the head of the queue blocks.

    The reference of Helios (SC'21) and Lucid (ASPLOS'23), where it is given the true run times. Without advice every job
    carries the same estimate: the order of submission.
    """

    name = "sjf"
    uses_estimates = True

    def key(self, job: Job, state: PoolState) -> Key:
        """Priority class, then the estimate, then submission."""
        return (-job.priority, ordered_s(job, state), job.submitted_at, job.order)
