"""Fragmentation gradient descent: first in, first out with skipping, placed where least is spoilt for others."""

from __future__ import annotations

from schedmate.services.dispatcher.core.fragmentation import LeastFragmentation
from schedmate.services.dispatcher.core.placement import Placer
from schedmate.services.dispatcher.core.policies.fifo import FifoSkip
from schedmate.services.dispatcher.core.shares import SharePlacer

_PLACER = LeastFragmentation()


class Fgd(FifoSkip):
    """Submission order, a job that does not fit holds nobody back; each goes where fragmentation grows least.

    Weng et al., "Beware of Fragmentation", ATC'23 (core/fragmentation.py).
    """

    name = "fgd"
    counts_demand = True
    placer: Placer = _PLACER
    share_placer: SharePlacer = _PLACER
