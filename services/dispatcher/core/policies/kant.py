"""Kant's E-Binpack and E-Spread: training is packed on two levels, inference is spread in a zone of its own."""

from __future__ import annotations

from schedmate.services.dispatcher.core.capacity import Group
from schedmate.services.dispatcher.core.placement import BestFit, Placer, place_gang
from schedmate.services.dispatcher.core.policies.fifo import Fifo
from schedmate.services.dispatcher.core.state import Job, PoolState


class EnhancedBinpack(BestFit):
    """Best fit on two levels: the node with the fewest free GPUs that are enough, and of equal ones that in the fullest leaf group.

    So whole nodes stay free for jobs of a node, and whole leaf groups for gangs, which go into the fewest groups that hold them
    (core/topology.py). Without labels it is best fit.
    """

    def place(self, state: PoolState, job: Job, avoid: frozenset[str]) -> list[Group] | None:
        """Return one group a member, or None."""
        if job.nodes != 1 or not state.topology.given:
            return super().place(state, job, avoid)
        capacity = state.capacity
        best: tuple[int, int, int] | None = None
        chosen: Group | None = None
        for gpu_class in capacity.classes_for(job.gpu_type, job.gpu_memory_mib):
            for group in capacity.groups_with(gpu_class, job.gpus):
                if best is not None and len(group.free) > best[0]:
                    break
                rank = (len(group.free), capacity.leaf_free[group.leaf], group.order)
                if group.node not in avoid and (best is None or rank < best):
                    best, chosen = rank, group
        return [chosen] if chosen is not None else None


class EnhancedSpread(EnhancedBinpack):
    """Inference is spread over the pool's `inference_zone` (over the whole pool where it has none); everything else is packed.

    A member goes to the node with the most free GPUs, of equal ones that in the emptiest leaf group, and the members of a gang to
    different leaf groups as far as there are. Inference that the zone has no room for is packed elsewhere. Training keeps out of the zone,
    unless it could not be held outside even by an empty pool.
    """

    def avoids(self, state: PoolState, job: Job) -> frozenset[str]:
        """Training keeps out of the zone."""
        return frozenset() if job.inference else state.topology.zone(state.config.inference_zone)

    def place(self, state: PoolState, job: Job, avoid: frozenset[str]) -> list[Group] | None:
        """Return one group a member, or None."""
        if job.inference and job.nodes > 0:
            zone = state.topology.zone(state.config.inference_zone)
            spread = _spread(state, job, avoid, zone)
            if spread is not None or not zone:
                return spread
            packed = super().place(state, job, avoid | zone)
            if packed is not None:
                return packed
        return super().place(state, job, avoid)


def _spread(state: PoolState, job: Job, avoid: frozenset[str], zone: frozenset[str]) -> list[Group] | None:
    if job.within is not None:
        return place_gang(state, job, avoid | (frozenset(state.nodes) - zone if zone else frozenset()))
    capacity = state.capacity
    classes = capacity.classes_for(job.gpu_type, job.gpu_memory_mib)
    for kind in sorted({c[0] for c in classes}):
        one_a_node: dict[str, Group] = {}
        for gpu_class in classes:
            if gpu_class[0] == kind:
                for group in capacity.groups_with(gpu_class, job.gpus):
                    if group.node not in avoid and (not zone or group.node in zone):
                        one_a_node.setdefault(group.node, group)
        if len(one_a_node) >= job.nodes:
            return sorted(_apart(state, list(one_a_node.values()))[: job.nodes], key=lambda g: g.order)
    return None


def _apart(state: PoolState, groups: list[Group]) -> list[Group]:
    """Order groups: the freest of each leaf group first, then the second of each, and so on; the emptier leaf group before the fuller."""
    leaf_free, leaf = state.capacity.leaf_free, state.topology.leaf
    taken: dict[str, int] = {}
    ranked = []
    for group in sorted(groups, key=lambda g: (-len(g.free), g.order)):
        name = leaf(group.node)
        turn = taken[name] = taken.get(name, -1) + 1
        ranked.append(((turn, -len(group.free), -leaf_free.get(name, 0), group.order), group))
    return [group for _, group in sorted(ranked, key=lambda entry: entry[0])]


class KantBinpack(Fifo):
    """Priority class, then submission; who does not fit is passed over; every job is packed on nodes and on leaf groups.

    After Zeng et al., "Kant: An Efficient Unified Scheduling System for Large-Scale AI Clusters", arXiv 2510.01256 (2025): E-Binpack with
    backfilling. The paper's algorithms are not given in a form that could be followed line by line: this is our reading of what it says
    they do (docs/policies/kant.md).
    """

    name = "kant-binpack"
    head_blocks = False
    work_conserving = True
    placer: Placer = EnhancedBinpack()


class KantSpread(KantBinpack):
    """The same order; inference is spread in the pool's `inference_zone`, training packed outside of it (E-Spread of the same paper)."""

    name = "kant-spread"
    placer: Placer = EnhancedSpread()
