"""EASY backfilling on predicted run times."""

from __future__ import annotations

from math import inf

from schedmate.services.dispatcher.core.policies.fifo import Fifo
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.state import Job, PoolState


class Easy(Fifo):
    """First in, first out; while the head waits for its reservation, later jobs go first where they do not delay it.

    Lifka, "The ANL/IBM SP scheduling system", JSSPP'95; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001. Expected ends are the estimates'
    upper quantile (p90, else p50); core/backfill.py has the rule.
    """

    name = "easy"
    uses_estimates = True
    backfills = True

    def key(self, job: Job, state: PoolState) -> Key:  # noqa: ARG002 - an estimate moves nobody in the order
        """Priority class first, then the time of submission, then the arrival."""
        return (-job.priority, job.submitted_at, job.order)

    def held_key(self, job: Job, state: PoolState) -> Key:  # noqa: ARG002
        """When it is expected to end."""
        told = job.p90_s if job.p90_s is not None else job.p50_s
        return (job.since + max(told - job.served_s, 0.0) if told is not None else inf, job.order)
