"""The node's lease as the worker counts it (protocol §3): from before it sent the newest acknowledged report."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Lease:
    """Times are CLOCK_BOOTTIME. A lapse ends an epoch: runs of an earlier epoch are never let live on."""

    lease_s: float  # infinite: it never lapses
    epoch: int
    deadline: float | None  # None before the first acknowledgement of the epoch

    @classmethod
    def adopt(cls, lease_s: float, last: tuple[int, float] | None, known_epoch: int, now: float) -> Lease:
        """Return the lease of a worker that starts: the one still running on this node, or a new epoch.

        `last` is what supervisors were told since the node booted; a lease of 0 seconds never lapses.
        """
        length = lease_s if lease_s > 0 else math.inf
        if last is not None and last[0] >= known_epoch and now < last[1]:
            return cls(length, last[0], last[1])
        return cls(length, max(known_epoch, last[0] if last is not None else 0) + 1, None)

    def has_lapsed(self, now: float) -> bool:
        """Tell whether the runs must be dead by now."""
        return self.deadline is not None and now >= self.deadline

    def acknowledged(self, sent_at: float) -> Lease:
        """Return the lease renewed by a report that was sent after `sent_at`."""
        deadline = sent_at + self.lease_s
        return replace(self, deadline=deadline if self.deadline is None else max(self.deadline, deadline))

    def next_epoch(self) -> Lease:
        """Return the lease after a lapse, when nothing of the epoch lives any more."""
        return replace(self, epoch=self.epoch + 1, deadline=None)
