"""Free GPUs, kept in an order that changes by what changed.

A node's GPUs of one type and memory size form a *group*; a member of a gang takes GPUs of one group. Groups stand in buckets by
their number of free GPUs, so that best fit is the first entry of the first bucket that is large enough.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from schedmate.services.dispatcher.core.shares import WHOLE_MILLI, ShareIndex

GpuClass = tuple[str, int]
"""GPU type and memory in MiB (0 where unknown)."""

_GROUPS_PER_NODE = 64


def suits(gpu_class: GpuClass, gpu_type: str | None, memory_mib: int) -> bool:
    """Tell whether GPUs of a class satisfy a request: a type, or several separated by bars, and the least memory."""
    if gpu_class[1] < memory_mib:
        return False
    return gpu_type is None or gpu_class[0] == gpu_type or ("|" in gpu_type and gpu_class[0] in gpu_type.split("|"))


@dataclass(slots=True)
class Group:
    """GPUs of one class on one node. `order` is its place among all groups: nodes in the order they joined."""

    order: int
    node: str
    gpu_class: GpuClass
    usable: int
    free: list[int]
    leaf: str = ""
    """Its leaf group (core/topology.py), "" where no node of the pool has a label."""


@dataclass(slots=True)
class _ClassIndex:
    buckets: list[list[int]] = field(default_factory=lambda: [[]])


class Capacity:
    """Groups of the schedulable nodes. `epoch` grows whenever something may fit that did not before."""

    def __init__(self) -> None:
        self.epoch = 0
        self.topology_epoch = 0
        self.free_gpus = 0
        self.usable_gpus = 0
        self.shares = ShareIndex()
        self._groups: dict[int, Group] = {}
        self._by_node: dict[str, dict[int, Group]] = {}  # node -> gpu index -> its group
        self._classes: dict[GpuClass, _ClassIndex] = {}
        self._sorted_classes: tuple[GpuClass, ...] = ()
        self.leaf_free: dict[str, int] = {}  # free GPUs by leaf group
        self._classes_for: dict[tuple[str | None, int], list[GpuClass]] = {}
        self.beside: dict[tuple[Any, ...], bool] = {}  # what core/fitting.py has found out of the nodes as they are
        self._could_hold: dict[tuple[int, int, str | None, int], bool] = {}

    def set_node(
        self,
        node: str,
        order: int,
        gpus: dict[int, GpuClass],
        free: set[int],
        left: dict[int, int] | None = None,
        leaf: str = "",
    ) -> None:
        """Make a node's usable GPUs (index → class) known. No GPUs: the node leaves.

        `free` are those without an owner, `left` what is left (in thousandths) of those that are held in part, `leaf` the node's leaf group.
        """
        for group in {g.order: g for g in self._by_node.pop(node, {}).values()}.values():
            self._remove(group)
            self.usable_gpus -= group.usable
            self.shares.forget(group)
            del self._groups[group.order]
        by_class: dict[GpuClass, list[int]] = {}
        for index in sorted(gpus):
            by_class.setdefault(gpus[index], []).append(index)
        seats: dict[int, Group] = {}
        for number, gpu_class in enumerate(sorted(by_class)):
            indices = by_class[gpu_class]
            group = Group(
                order * _GROUPS_PER_NODE + number,
                node,
                gpu_class,
                len(indices),
                [i for i in indices if i in free],
                leaf,
            )
            self._groups[group.order] = group
            self.usable_gpus += group.usable
            self._insert(group)
            for index in indices:
                seats[index] = group
            for index in indices:
                if left is not None and index in left:
                    self.shares.set_left(group, index, left[index])
        if seats:
            self._by_node[node] = seats
        self.epoch += 1
        self.topology_epoch += 1
        self._could_hold.clear()
        self.beside.clear()

    def claim(self, node: str, gpus: tuple[int, ...]) -> None:
        """Lease these very GPUs; those of a node that is not schedulable are nobody's business here."""
        for group, indices in self._grouped(node, gpus):
            free, many = group.free, len(indices)
            first = tuple(free[:many]) == indices  # as most placers choose
            self._set_free(group, free[many:] if first else [i for i in free if i not in indices])

    def give(self, node: str, gpus: tuple[int, ...]) -> None:
        """Take GPUs back."""
        for group, indices in self._grouped(node, gpus):
            self._set_free(group, sorted({*group.free, *indices} if group.free else indices))
        self.epoch += 1

    def claim_share(self, node: str, gpu: int, milli: int) -> None:
        """Lease so many thousandths of this very GPU."""
        group = self._by_node.get(node, {}).get(gpu)
        if group is None:
            return
        left = self.shares.left_of(group).get(gpu)
        if left is None:
            self.claim(node, (gpu,))
            left = WHOLE_MILLI
        self.shares.set_left(group, gpu, left - milli)

    def give_share(self, node: str, gpu: int, milli: int) -> None:
        """Take so many thousandths back; with the last of them the GPU is free."""
        group = self._by_node.get(node, {}).get(gpu)
        if group is None:
            return
        left = self.shares.left_of(group)[gpu] + milli
        self.shares.set_left(group, gpu, left if left < WHOLE_MILLI else None)
        if left == WHOLE_MILLI:
            self.give(node, (gpu,))
        self.epoch += 1

    def _grouped(self, node: str, gpus: tuple[int, ...]) -> list[tuple[Group, tuple[int, ...]]]:
        seats = self._by_node.get(node)
        if seats is None:
            return []
        first = seats.get(gpus[0]) if gpus else None
        if first is not None and (len(gpus) == 1 or all(seats.get(i) is first for i in gpus)):
            return [(first, gpus)]
        found = {seats[i].order: seats[i] for i in gpus if i in seats}
        return [(group, tuple(i for i in gpus if seats.get(i) is group)) for group in found.values()]

    def classes_for(self, gpu_type: str | None, memory_mib: int) -> list[GpuClass]:
        """Return the classes that satisfy a request, in a fixed order."""
        known = self._classes_for.get((gpu_type, memory_mib))
        if known is None:
            known = self._classes_for[gpu_type, memory_mib] = [
                c for c in self._sorted_classes if suits(c, gpu_type, memory_mib)
            ]
        return known

    def groups_with(self, gpu_class: GpuClass, at_least: int) -> Iterator[Group]:
        """Yield the groups of a class with enough free GPUs: least free first, then in order."""
        buckets = self._classes[gpu_class].buckets
        for bucket in buckets[at_least:]:
            for order in bucket:
                yield self._groups[order]

    def best(self, gpu_class: GpuClass, at_least: int) -> Group | None:
        """Return the first of `groups_with`."""
        for bucket in self._classes[gpu_class].buckets[at_least:]:
            if bucket:
                return self._groups[bucket[0]]
        return None

    def suited(self, node: str, classes: set[GpuClass]) -> tuple[int, AbstractSet[int]]:
        """Return how many GPUs of a node that are of one of the classes are free, and which those of the classes are, free or not."""
        seats = self._by_node.get(node)
        if not seats:
            return 0, frozenset()
        one = next(iter(seats.values()))
        if one.usable == len(seats):  # all of them are alike
            return (len(one.free), seats.keys()) if one.gpu_class in classes else (0, frozenset())
        groups = {g.order: g for g in seats.values() if g.gpu_class in classes}
        return sum(len(g.free) for g in groups.values()), {i for i, g in seats.items() if g.order in groups}

    def pack(
        self,
        gpu_class: GpuClass,
        gpus: int,
        avoid: frozenset[str] = frozenset(),
        arrange: Callable[[list[Group], int], list[Group]] | None = None,
    ) -> list[Group] | None:
        """Return the groups that hold a packed job: one group where one is enough, as `best` chooses it.

        A larger job takes empty nodes, the first in order first (or those that `arrange` chooses for so many), and what remains of it
        the freest other one.
        """
        buckets = self._classes[gpu_class].buckets
        one = next((g for g in self.groups_with(gpu_class, gpus) if g.node not in avoid), None)
        if one is not None:
            return [one]
        of_class = [g for g in self._groups.values() if g.gpu_class == gpu_class and g.node not in avoid]
        if any(g.usable >= gpus for g in of_class):
            return None
        taken: list[Group] = []
        left = gpus
        empty = sorted((g for g in of_class if len(g.free) == g.usable), key=lambda g: g.order)
        if arrange is not None and empty:
            chosen = arrange(empty, min(gpus // max(g.usable for g in empty), len(empty)))
            empty = [*chosen, *(g for g in empty if g not in chosen)]
        for group in empty:
            if left < group.usable:
                break
            taken.append(group)
            left -= group.usable
            if left == 0:
                return taken
        used = {g.order for g in taken}
        for bucket in reversed(buckets[1:]):
            for order in bucket:
                if order not in used and self._groups[order].node not in avoid:
                    group = self._groups[order]
                    return [*taken, group] if len(group.free) >= left else None
        return None

    def groups_of(self, node: str) -> list[Group]:
        """Return the groups of a node, in order."""
        return list({group.order: group for group in self._by_node.get(node, {}).values()}.values())

    def group(self, order: int) -> Group:
        """Return the group at this place of the order."""
        return self._groups[order]

    def groups(self) -> Iterator[Group]:
        """Yield every group in order."""
        for order in sorted(self._groups):
            yield self._groups[order]

    def could_hold(self, gpus: int, nodes: int, gpu_type: str | None, memory_mib: int) -> bool:
        """Tell whether the gang would fit if nothing ran on the schedulable nodes."""
        request = (gpus, nodes, gpu_type, memory_mib)
        known = self._could_hold.get(request)
        if known is None:
            nodes_of: dict[str, set[str]] = {}
            usable_of: dict[GpuClass, int] = {}
            for gpu_class in self.classes_for(gpu_type, memory_mib):
                for group in self._groups.values():
                    if group.gpu_class == gpu_class:
                        usable_of[gpu_class] = usable_of.get(gpu_class, 0) + group.usable
                        if group.usable >= gpus:
                            nodes_of.setdefault(gpu_class[0], set()).add(group.node)
            known = any(len(names) >= nodes for names in nodes_of.values())
            if nodes == 0:  # packed: its members stay within one class
                known = any(usable >= gpus for usable in usable_of.values())
            self._could_hold[request] = known
        return known

    def _set_free(self, group: Group, free: list[int]) -> None:
        """The group has these GPUs free from now on: it goes to the bucket of their number."""
        buckets, order = self._classes[group.gpu_class].buckets, group.order
        before, after = len(group.free), len(free)
        bucket = buckets[before]
        del bucket[bisect_left(bucket, order)]
        insort(buckets[after], order)  # every number up to the usable ones has its bucket: see `_insert`
        group.free = free
        self.free_gpus += after - before
        if group.leaf:
            self.leaf_free[group.leaf] += after - before

    def _insert(self, group: Group) -> None:
        index = self._classes.get(group.gpu_class)
        if index is None:
            index = self._classes[group.gpu_class] = _ClassIndex()
            self._sorted_classes = tuple(sorted(self._classes))
            self._classes_for.clear()
        free = len(group.free)
        while len(index.buckets) <= group.usable:
            index.buckets.append([])
        insort(index.buckets[free], group.order)
        self.free_gpus += free
        if group.leaf:
            self.leaf_free[group.leaf] = self.leaf_free.get(group.leaf, 0) + free

    def _remove(self, group: Group) -> None:
        free = len(group.free)
        bucket = self._classes[group.gpu_class].buckets[free]
        del bucket[bisect_left(bucket, group.order)]
        self.free_gpus -= free
        if group.leaf:
            self.leaf_free[group.leaf] -= free
