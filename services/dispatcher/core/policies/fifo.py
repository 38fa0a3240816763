"""First in, first out: the order of submission, strict or with skipping."""

from __future__ import annotations

from collections.abc import Callable

from schedmate.services.dispatcher.core.placement import BestFit, Placer
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.shares import BestFitShare, SharePlacer
from schedmate.services.dispatcher.core.state import Job, PoolState


class Fifo:
    """First in, first out within a priority class; the head of the queue blocks.

    The order of every batch system's plain queue; the baseline of Tiresias (NSDI'19), Helios (SC'21) and Lucid (ASPLOS'23).
    """

    name = "fifo"
    head_blocks = True
    uses_estimates = False
    rounds_s: float | None = None
    level_gpu_s: float | None = None
    preempts = False
    backfills = False
    work_conserving = False
    placer: Placer = BestFit()
    share_placer: SharePlacer = BestFitShare()
    counts_demand = False
    packs = False
    counts_service = False

    def key(self, job: Job, state: PoolState) -> Key:  # noqa: ARG002 - the protocol's signature
        """Priority class first, then the time of submission, then the arrival."""
        return (-job.priority, job.submitted_at, job.order)

    def held_key(self, job: Job, state: PoolState) -> Key:  # noqa: ARG002
        """Nobody gives way for order: all hold alike."""
        return (job.order,)

    def next_level(self, gpu_s: float, state: PoolState) -> float | None:  # noqa: ARG002
        """Nobody's rank changes as it runs."""
        return None

    def turns_at(self, job: Job, state: PoolState) -> float | None:  # noqa: ARG002
        """Nobody's rank changes as it runs."""
        return None

    def outlasted(self, held_key: Key, state: PoolState) -> bool:  # noqa: ARG002
        """Nothing that was said moves anybody."""
        return False

    def giving_way(self, job: Job, state: PoolState) -> Callable[[Key], bool]:  # noqa: ARG002
        """Nobody gives way for order."""
        return _nobody


def _nobody(held_key: Key) -> bool:  # noqa: ARG001 - one signature for all
    return False


class FifoSkip(Fifo):
    """First in, first out, but a job that does not fit now holds nobody back."""

    name = "fifo-skip"
    head_blocks = False
    work_conserving = True
