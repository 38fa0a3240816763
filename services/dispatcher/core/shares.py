"""Shares of GPUs: which GPUs are held in part, and how much of each is left.

A share is so many thousandths of one GPU. A GPU that is held in part belongs to no whole job until its last share has come back, and
the shares on it never come to more than the whole. Best fit on what is left: a share goes to the GPU with the least left that is
enough; where none is, a whole free GPU is broken, on the node where the policy's placer would put a job of one GPU.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", ATC'23, section 2, has
the shape of such requests: a part of one GPU, or several whole ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.capacity import GpuClass, Group
    from schedmate.services.dispatcher.core.state import Job, PoolState

WHOLE_MILLI: Final = 1000

Left = tuple[int, int, int]
"""What is left of a GPU in thousandths, the order of its group, its index."""


class ShareIndex:
    """What is left of the GPUs that are held in part, by class: least left first, then in order."""

    def __init__(self) -> None:
        self._of_class: dict[GpuClass, list[Left]] = {}
        self._of_group: dict[int, dict[int, int]] = {}

    def left_of(self, group: Group) -> dict[int, int]:
        """Return what is left of the group's GPUs that are held in part: index → thousandths."""
        return self._of_group.get(group.order, {})

    def set_left(self, group: Group, gpu: int, milli: int | None) -> None:
        """So much is left of the GPU; None: it is no longer held in part."""
        known = self._of_group.setdefault(group.order, {})
        entries = self._of_class.setdefault(group.gpu_class, [])
        before = known.pop(gpu, None)
        if before is not None:
            del entries[bisect_left(entries, (before, group.order, gpu))]
        if milli is not None:
            known[gpu] = milli
            insort(entries, (milli, group.order, gpu))
        elif not known:
            del self._of_group[group.order]

    def forget(self, group: Group) -> None:
        """The group is gone."""
        for gpu in list(self.left_of(group)):
            self.set_left(group, gpu, None)

    def enough(self, gpu_class: GpuClass, milli: int) -> list[Left]:
        """Return the GPUs of a class with so much left, least left first."""
        entries = self._of_class.get(gpu_class, [])
        return entries[bisect_left(entries, (milli, -1, -1)) :]

    def seat(self, group: Group, milli: int) -> int:
        """Return the GPU of a group that a share goes to: the one with the least left that is enough, else a free one."""
        left = [(rest, gpu) for gpu, rest in self.left_of(group).items() if rest >= milli]
        return min(left)[1] if left else group.free[0]


class SharePlacer(Protocol):
    """Chooses the group for a job that asks for a share of one GPU. It has no memory."""

    def place_share(self, state: PoolState, job: Job, milli: int, avoid: frozenset[str]) -> list[Group] | None:
        """Return the group, alone in a list, or None when the share does not fit now."""
        ...


class BestFitShare:
    """The GPU with the least left that is enough, the first in order on a tie; else a free GPU, as the policy places one."""

    def place_share(self, state: PoolState, job: Job, milli: int, avoid: frozenset[str]) -> list[Group] | None:
        """Return the group, or None."""
        capacity = state.capacity
        best: Left | None = None
        for gpu_class in capacity.classes_for(job.gpu_type, job.gpu_memory_mib):
            for left in capacity.shares.enough(gpu_class, milli):
                if best is not None and left >= best:
                    break
                if capacity.group(left[1]).node not in avoid:
                    best = left
                    break
        if best is not None:
            return [capacity.group(best[1])]
        return state.placer.place(state, job, avoid)
