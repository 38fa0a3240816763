"""EASY backfilling on predicted run times."""

from __future__ import annotations

from schedmate.services.dispatcher.core.advice import lasts_s
from schedmate.services.dispatcher.core.policies.fifo import Fifo
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.state import Job, PoolState


class Easy(Fifo):
    """First in, first out; while the head waits for its reservation, later jobs go first where they do not delay it.

    Lifka, "The ANL/IBM SP scheduling system", JSSPP'95; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001. Expected ends are the estimates'
    upper quantile (p90, else p50), weighed as in core/advice.py: without advice every job carries the same, and nobody is expected to end
    before those that run already. core/backfill.py has the rule.
    """

    name = "easy"
    uses_estimates = True
    backfills = True

    def key(self, job: Job, state: PoolState) -> Key:  # noqa: ARG002 - an estimate moves nobody in the order
        """Priority class first, then the time of submission, then the arrival."""
        return (-job.priority, job.submitted_at, job.order)

    def held_key(self, job: Job, state: PoolState) -> Key:
        """When it is expected to end."""
        return (job.since + lasts_s(job, state), job.order)

    def outlasted(self, held_key: Key, state: PoolState) -> bool:
        """Has the holder run for longer than was expected, and is not stopped for it?"""
        return held_key[0] <= state.at and state.config.advice != "raw"
