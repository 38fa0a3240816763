"""Where a job goes: a `Placer` chooses the GPUs of a gang, all or none. A policy names its own; `BestFit` is the plain one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from schedmate.services.dispatcher.core.capacity import Group
from schedmate.services.dispatcher.core.topology import chosen_within, fewest_leaves

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import Job, PoolState

_NOWHERE: Final[frozenset[str]] = frozenset()


class Placer(Protocol):
    """Chooses groups for the members of a gang, all or none. It has no memory: what it looks at is the pool's state."""

    def place(self, state: PoolState, job: Job, avoid: frozenset[str]) -> list[Group] | None:
        """Return one group a member, in the order of members, or None when the gang does not fit now."""
        ...

    def avoids(self, state: PoolState, job: Job) -> frozenset[str]:
        """Return the nodes that the job keeps away from as long as others could hold it."""
        ...


class BestFit:
    """Each member goes to the node with the fewest free GPUs that are enough, the first in order on a tie.

    A gang stays within one GPU type. With several memory sizes the smallest sufficient class is tried first only through
    the number of free GPUs: least left over wins. Where nodes have labels a gang goes into the fewest leaf groups (core/topology.py).
    """

    def avoids(self, state: PoolState, job: Job) -> frozenset[str]:  # noqa: ARG002 - the protocol's signature
        """Nothing is kept free."""
        return _NOWHERE

    def place(self, state: PoolState, job: Job, avoid: frozenset[str]) -> list[Group] | None:
        """Return one group a member, or None."""
        capacity = state.capacity
        classes = capacity.classes_for(job.gpu_type, job.gpu_memory_mib)
        if job.nodes == 0:
            arrange = partial(fewest_leaves, state.topology) if state.topology.given else None
            return next(
                (found for c in classes if (found := capacity.pack(c, job.gpus, avoid, arrange)) is not None), None
            )
        if job.nodes == 1 and not avoid:
            if len(classes) == 1:
                only = capacity.best(classes[0], job.gpus)
                return [only] if only is not None else None
            best: Group | None = None
            for gpu_class in classes:
                group = capacity.best(gpu_class, job.gpus)
                if group is not None and (
                    best is None or (len(group.free), group.order) < (len(best.free), best.order)
                ):
                    best = group
            return [best] if best is not None else None
        return place_gang(state, job, avoid)


class Freest(BestFit):
    """Each member goes to the node with the most free GPUs, the first in order on a tie; a packed job takes the freest nodes, torn if need be.

    So Pollux's artifact (OSDI'21) places under Tiresias: it fails only where there are too few GPUs, at the price of the network.
    """

    def place(self, state: PoolState, job: Job, avoid: frozenset[str]) -> list[Group] | None:
        """Return one group a member, or None."""
        if job.within is not None:
            return place_gang(state, job, avoid)
        capacity = state.capacity
        classes = capacity.classes_for(job.gpu_type, job.gpu_memory_mib)
        for kind in sorted({c[0] for c in classes}):
            found = [
                group
                for gpu_class in classes
                if gpu_class[0] == kind
                for group in capacity.groups_with(gpu_class, job.gpus if job.nodes else 1)
                if group.node not in avoid
            ]
            found.sort(key=lambda g: (-len(g.free), g.order))
            chosen = _freest_enough(found, job)
            if chosen is not None:
                return chosen
        return None


def _freest_enough(groups: list[Group], job: Job) -> list[Group] | None:
    chosen: dict[str, Group] = {}
    left = job.gpus
    for group in groups:
        if group.node in chosen:
            continue
        chosen[group.node] = group
        left -= len(group.free)
        if len(chosen) == job.nodes or (job.nodes == 0 and left <= 0):
            return list(chosen.values())
    return None


PLACERS: Final[dict[str, Placer]] = {"best-fit": BestFit(), "freest": Freest()}
"""What a pool's setting `placer` may name; a policy's own placer needs no name."""


def place_gang(state: PoolState, job: Job, avoid: frozenset[str]) -> list[Group] | None:
    """Return a group on each of so many nodes of one GPU type, in order; None when there are not enough."""
    classes = state.capacity.classes_for(job.gpu_type, job.gpu_memory_mib)
    for kind in sorted({c[0] for c in classes}):
        candidates = [
            group
            for gpu_class in classes
            if gpu_class[0] == kind
            for group in state.capacity.groups_with(gpu_class, job.gpus)
            if group.node not in avoid
        ]
        candidates.sort(key=lambda g: (len(g.free), g.order))
        one_a_node: dict[str, Group] = {}
        for group in candidates:
            one_a_node.setdefault(group.node, group)
        if len(one_a_node) >= job.nodes:
            chosen = chosen_within(state.topology, list(one_a_node.values()), job.nodes, job.within)
            if chosen is not None:
                return sorted(chosen, key=lambda g: g.order)
    return None
