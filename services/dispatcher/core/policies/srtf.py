"""Shortest remaining time first, preemptive."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from schedmate.services.dispatcher.core.advice import neutral_left_s, remaining_s, turns_at
from schedmate.services.dispatcher.core.policies.fifo import Fifo
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.state import Job, PoolState

LEVEL_GPU_S = 18_000.0
MARGIN_S = 1.0  # nobody is stopped for less than that; above all not for the rounding of a sum
_KNOWN, _UNKNOWN = 0, 1
_BEHIND = 1e12  # seconds: behind every estimate


class Srtf(Fifo):
    """The job with the shortest remaining time first; it takes the GPUs of those with more. Nobody is held back by a head that does not fit.

    The preemptive reference of Helios (SC'21) and Lucid (ASPLOS'23). A job without an estimate is ranked as in 2D-LAS (Tiresias,
    NSDI'19, section 3.2): by whether it has had more than 18,000 GPU seconds, which is all that is known of it. In a pool that believes a source
    about other jobs it counts as the neutral hour instead, and twice that as it outlasts it: behind every estimate it would never run again.
    """

    name = "srtf"
    head_blocks = False
    work_conserving = True
    uses_estimates = True
    preempts = True

    def key(self, job: Job, state: PoolState) -> Key:
        """Priority class, then what remains, then submission."""
        left = _left_s(job, state)
        if left is None:
            left = _BEHIND if job.served_s * job.gpus_total > LEVEL_GPU_S else 0.0
        return (-job.priority, left, job.submitted_at, job.order)

    def held_key(self, job: Job, state: PoolState) -> Key:
        """When it will end; without an estimate, when it has had (or will have had) its share: first those that had it first."""
        left = _left_s(job, state)
        if left is not None:
            return (_KNOWN, job.since + left, job.order)
        return (_UNKNOWN, -(job.since + LEVEL_GPU_S / job.gpus_total - job.served_s), job.order)

    def turns_at(self, job: Job, state: PoolState) -> float | None:
        """As it passes a quantile of what was said of it."""
        return turns_at(job, state)

    def outlasted(self, held_key: Key, state: PoolState) -> bool:
        """Has the holder run for longer than was expected?"""
        return held_key[0] == _KNOWN and held_key[1] <= state.at and state.config.advice != "raw"

    def giving_way(self, job: Job, state: PoolState) -> Callable[[Key], bool]:
        """Does the holder have more left than the waiting job?"""
        now, left = state.at, _left_s(job, state)
        before_unknown = left is not None or job.served_s * job.gpus_total <= LEVEL_GPU_S
        known_above = left + MARGIN_S if left is not None else inf

        def gives_way(held_key: Key) -> bool:
            kind, at, _ = held_key
            return bool(before_unknown and -at < now if kind == _UNKNOWN else at - now > known_above)

        return gives_way


def _left_s(job: Job, state: PoolState) -> float | None:
    """Return what remains of the job; None where no source of the pool is believed."""
    left = remaining_s(job, state)
    return neutral_left_s(job, state) if left is None and state.heeds() else left
