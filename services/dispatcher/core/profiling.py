"""A part of the pool in which jobs run first, for a short time: the profiler.

Lucid (ASPLOS'23), section 3.2: a job of few GPUs runs first on a few nodes of its own, for at most a fixed time. Many end there (what
fails, fails early) and have waited little; of the others it is known how they use a GPU when they go on outside. The smallest go first
(space-aware), and the profiler takes one node more while many wait for it (time-aware). Only a job that can resume is profiled: it is
stopped when its time is up.

Beyond Lucid: whoever estimates may say of a job whether the profiler's time is well spent on it, because much is still to be learned of its
kind. Then it goes before the others there; a job of which it is said that it is not goes outside at once. Unsaid, or in a pool that does
not act on advice, all is as in Lucid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from schedmate.services.dispatcher.core.capacity import Group
from schedmate.services.dispatcher.core.placement import BestFit
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import Job, PoolState

GROWS_ABOVE: Final = 10
"""So many jobs wait for the profiler before it takes a further node."""


def is_profiled(state: PoolState, job: Job) -> bool:
    """Tell whether a waiting job runs in the profiler first."""
    config = state.config
    return (
        bool(config.profiler_nodes)
        and job.attempt == 0
        and job.profile is None
        and job.resumable
        and job.nodes == 1
        and job.gpus <= config.profiler_gpus_max
        and state.milli_of(job) == WHOLE_MILLI
        and not (job.worth_probing is False and state.acts_on_advice)
    )


def is_preferred(state: PoolState, job: Job) -> bool:
    """Tell whether a job goes before the others in the profiler."""
    return job.worth_probing is True and state.acts_on_advice


def sets_apart(state: PoolState, job: Job) -> tuple[bool, tuple[float, float, int] | None]:
    """Return what decides where a job may go, beside its size: is it profiled first, and what is known of it?"""
    return (is_profiled(state, job), job.profile)


def _waiting(state: PoolState) -> int:
    return sum(jobs for kind, jobs in state.queue.counts() if kind[-1][-1][0])


class Profiler:
    """Which nodes are the profiler's now: the last of those that take jobs, never all. It follows from the state; see `refresh`."""

    def __init__(self) -> None:
        self.nodes: frozenset[str] = frozenset()
        self.others: frozenset[str] = frozenset()
        self.changes = 0
        self._known: tuple[int, int] = (-1, -1)

    def refresh(self, state: PoolState) -> bool:
        """See which nodes are the profiler's, at the beginning of a pass; tell whether others are than before."""
        wanted = state.config.profiler_nodes or 0
        if wanted:
            wanted += _waiting(state) > GROWS_ABOVE
        known = (state.capacity.topology_epoch, wanted)
        if known == self._known:
            return False
        self._known = known
        names = list(dict.fromkeys(group.node for group in state.capacity.groups()))
        before, self.nodes = self.nodes, frozenset(names[max(1, len(names) - wanted) :] if wanted else [])
        self.others = frozenset(names) - self.nodes if self.nodes else self.nodes
        self.changes += before != self.nodes
        return before != self.nodes


class ProfilerFirst(BestFit):
    """Best fit, in the profiler for those that run there first, outside it for all others."""

    def avoids(self, state: PoolState, job: Job) -> frozenset[str]:
        """Whoever is profiled stays in the profiler and all others keep out, as long as an empty pool could hold them so."""
        return state.profiler.others if is_profiled(state, job) else state.profiler.nodes

    def place(self, state: PoolState, job: Job, avoid: frozenset[str]) -> list[Group] | None:
        """Return one group a member, or None."""
        if job.nodes != 1:
            return super().place(state, job, avoid)
        best: tuple[int, int] | None = None
        for gpu_class in state.capacity.classes_for(job.gpu_type, job.gpu_memory_mib):
            group = next((g for g in state.capacity.groups_with(gpu_class, job.gpus) if g.node not in avoid), None)
            if group is not None:
                rank = (len(group.free), group.order)
                best = rank if best is None else min(best, rank)
        return [state.capacity.group(best[1])] if best is not None else None
