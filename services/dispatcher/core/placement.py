"""Where a job goes: a `Placer` chooses the GPUs of a gang, all or none. A policy names its own; `BestFit` is the plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from schedmate.services.dispatcher.core.capacity import Group

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import Job, PoolState


class Placer(Protocol):
    """Chooses groups for the members of a gang, all or none. It has no memory: what it looks at is the pool's state."""

    def place(self, state: PoolState, job: Job, avoid: frozenset[str]) -> list[Group] | None:
        """Return one group a member, in the order of members, or None when the gang does not fit now."""
        ...


class BestFit:
    """Each member goes to the node with the fewest free GPUs that are enough, the first in order on a tie.

    A gang stays within one GPU type. With several memory sizes the smallest sufficient class is tried first only through
    the number of free GPUs: least left over wins.
    """

    def place(self, state: PoolState, job: Job, avoid: frozenset[str]) -> list[Group] | None:
        """Return one group a member, or None."""
        capacity = state.capacity
        classes = capacity.classes_for(job.gpu_type, job.gpu_memory_mib)
        if job.nodes == 0:
            return next((found for c in classes if (found := capacity.pack(c, job.gpus, avoid)) is not None), None)
        if job.nodes == 1 and not avoid:
            best: Group | None = None
            for gpu_class in classes:
                group = capacity.best(gpu_class, job.gpus)
                if group is not None and (
                    best is None or (len(group.free), group.order) < (len(best.free), best.order)
                ):
                    best = group
            return [best] if best is not None else None
        for kind in sorted({c[0] for c in classes}):
            candidates = [
                group
                for gpu_class in classes
                if gpu_class[0] == kind
                for group in capacity.groups_with(gpu_class, job.gpus)
                if group.node not in avoid
            ]
            candidates.sort(key=lambda g: (len(g.free), g.order))
            chosen: dict[str, Group] = {}
            for group in candidates:
                chosen.setdefault(group.node, group)
                if len(chosen) == job.nodes:
                    return sorted(chosen.values(), key=lambda g: g.order)
        return None
