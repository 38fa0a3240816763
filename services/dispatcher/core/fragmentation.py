"""Placement by the gradient of fragmentation: a job goes where it spoils least of what other jobs could use.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", ATC'23, sections 4 and 5:
the fragmentation of a node by a workload is the GPU resource on it that a job drawn from that workload cannot use, in the mean; a job
goes to the node (and GPU) where this grows least. The workload is what has asked so far (`PoolState.demand`). Our reading: a node is
its GPUs of one class, CPU and memory are not looked at; on a tie the node with the least left, then the first in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from schedmate.services.dispatcher.core.capacity import GpuClass, Group, suits
from schedmate.services.dispatcher.core.placement import BestFit
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import Job, PoolState, Request

Lefts = tuple[int, tuple[int, ...]]
"""Free GPUs of a node, and what is left of those that are held in part, least first."""

_MEMO_MAX: Final = 1 << 18


def unusable(gpu_class: GpuClass, lefts: Lefts, request: Request) -> int:
    """Return the thousandths of GPUs that are left on a node and that a job with this request cannot use."""
    free, parts = lefts
    gpus, milli, gpu_type = request
    left = free * WHOLE_MILLI + sum(parts)
    if not suits(gpu_class, gpu_type, 0):
        return left
    if milli == WHOLE_MILLI:
        return sum(parts) if free >= gpus else left
    if free or (parts and parts[-1] >= milli):
        return sum(part for part in parts if part < milli)
    return left


def after(lefts: Lefts, gpus: int, milli: int) -> Lefts:
    """Return what is left when a job that fits has come; a share goes to the GPU with the least left that is enough."""
    free, parts = lefts
    if milli == WHOLE_MILLI:
        return (free - gpus, parts)
    at = bisect_left(parts, milli)
    if at == len(parts):
        return (free - 1, tuple(sorted((*parts, WHOLE_MILLI - milli))))
    rest = (parts[at] - milli,) if parts[at] > milli else ()
    return (free, tuple(sorted((*parts[:at], *parts[at + 1 :], *rest))))


@lru_cache(maxsize=_MEMO_MAX)
def _growth(gpu_class: GpuClass, before: Lefts, then: Lefts, request: Request) -> int:
    return unusable(gpu_class, then, request) - unusable(gpu_class, before, request)


class LeastFragmentation(BestFit):
    """The node where the job spoils least for what has asked so far. Gangs of several nodes go as `BestFit` places them."""

    def place(self, state: PoolState, job: Job, avoid: frozenset[str]) -> list[Group] | None:
        """Return the group alone in a list, or None."""
        if job.nodes != 1:
            return super().place(state, job, avoid)
        return self._least(state, job, WHOLE_MILLI, avoid)

    def place_share(self, state: PoolState, job: Job, milli: int, avoid: frozenset[str]) -> list[Group] | None:
        """Return the group alone in a list, or None."""
        return self._least(state, job, milli, avoid)

    def _least(self, state: PoolState, job: Job, milli: int, avoid: frozenset[str]) -> list[Group] | None:
        alike: dict[tuple[GpuClass, Lefts], Group] = {}  # the first in order of the nodes in the same standing
        for group in self._candidates(state, job, milli):
            if group.node in avoid:
                continue
            parts = state.capacity.shares.left_of(group).values()
            standing = (group.gpu_class, (len(group.free), tuple(sorted(parts))))
            known = alike.get(standing)
            if known is None or group.order < known.order:
                alike[standing] = group
        demand = tuple(state.demand.items())
        best: tuple[int, int, int] | None = None
        for (gpu_class, lefts), group in alike.items():
            then = after(lefts, job.gpus, milli)
            grows = sum(jobs * _growth(gpu_class, lefts, then, request) for request, jobs in demand)
            rank = (grows, lefts[0] * WHOLE_MILLI + sum(lefts[1]), group.order)
            if best is None or rank < best:
                best = rank
        return [state.capacity.group(best[2])] if best is not None else None

    def _candidates(self, state: PoolState, job: Job, milli: int) -> Iterator[Group]:
        """Yield the groups on which the job fits; some of them twice."""
        capacity = state.capacity
        for gpu_class in capacity.classes_for(job.gpu_type, job.gpu_memory_mib):
            yield from capacity.groups_with(gpu_class, job.gpus)
            if milli < WHOLE_MILLI:
                yield from (capacity.group(order) for _, order, _ in capacity.shares.enough(gpu_class, milli))
