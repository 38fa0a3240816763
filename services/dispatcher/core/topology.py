"""Where nodes stand in the network, by the labels that they report: a rack (the nodes under one leaf switch) and a spine over it.

A node's *leaf group* is its rack; where it has none, its spine; without labels it is a group of its own. A gang over several nodes goes
into the fewest leaf groups that hold it now, and into the smallest of those that would do (best fit on groups), so that large groups stay
whole for large gangs; of equal choices one within a single spine is taken. The problem is bin packing with equal items, so the greedy
choice (the largest groups first, the smallest sufficient one last) has the fewest groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schedmate.services.dispatcher.core.capacity import Group

WITHIN: Final = ("rack", "spine")


class Topology:
    """Labels of a pool's nodes."""

    def __init__(self) -> None:
        self._racks: dict[str, str] = {}
        self._spines: dict[str, str] = {}
        self._zones: dict[str, frozenset[str]] = {}
        self._nodes: set[str] = set()

    def set_node(self, node: str, rack: str | None, spine: str | None) -> None:
        """Make a node's labels known."""
        self._nodes.add(node)
        self._zones.clear()
        for labels, label in ((self._racks, rack), (self._spines, spine)):
            if label is None:
                labels.pop(node, None)
            else:
                labels[node] = label

    @property
    def given(self) -> bool:
        """Does any node have a label?"""
        return bool(self._racks or self._spines)

    def leaf(self, node: str) -> str:
        """Return the leaf group of a node. Racks of two spines may have the same name."""
        rack, spine = self._racks.get(node), self._spines.get(node)
        return f"//{node}" if rack is None and spine is None else f"{spine or ''}/{rack or ''}"

    def domain(self, node: str, within: str | None) -> str | None:
        """Return what all members must share: the leaf group or the spine; "" without a wish, None where the node has no such label."""
        if within is None:
            return ""
        if within == "spine":
            return self._spines.get(node)
        return self.leaf(node) if node in self._racks else None

    def zone(self, labels: str) -> frozenset[str]:
        """Return the nodes that a list of nodes, racks and spines (separated by commas) names."""
        known = self._zones.get(labels)
        if known is None:
            named = {label.strip() for label in labels.split(",")} - {""}
            known = self._zones[labels] = frozenset(
                n for n in self._nodes if {n, self._racks.get(n), self._spines.get(n)} & named
            )
        return known

    def spine(self, node: str) -> str:
        """Return the spine of a node; one without a label stands under its own."""
        return self._spines.get(node) or f"//{node}"


def chosen_within(
    topology: Topology, candidates: Sequence[Group], members: int, within: str | None
) -> list[Group] | None:
    """Return the nodes for the members of a gang, None when they are not enough.

    Args:
        topology: the labels.
        candidates: one group a node, the best fit first; each has room for a member.
        members: how many are needed.
        within: what they must share, "rack" or "spine"; None: nothing.
    """
    if within is None and not topology.given:
        return list(candidates[:members]) if len(candidates) >= members else None
    domains: dict[str, list[Group]] = {}
    for group in candidates:
        domain = topology.domain(group.node, within)
        if domain is not None:
            domains.setdefault(domain, []).append(group)
    enough = [groups for groups in domains.values() if len(groups) >= members]
    if not enough:
        return None
    smallest = min(enough, key=lambda groups: (len(groups), min(g.order for g in groups)))
    return fewest_leaves(topology, smallest, members)


def fewest_leaves(topology: Topology, candidates: Sequence[Group], members: int) -> list[Group]:
    """Return `members` of the candidates (at least so many, one a node, the best fit first) in the fewest leaf groups."""
    spines: dict[str, list[Group]] = {}
    for group in candidates:
        spines.setdefault(topology.spine(group.node), []).append(group)
    best = _fill(topology, candidates, members)
    best_leaves, spare = len({topology.leaf(g.node) for g in best}), len(candidates) + 1
    for groups in spines.values():
        if members <= len(groups) < spare:
            inside = _fill(topology, groups, members)
            if len({topology.leaf(g.node) for g in inside}) == best_leaves:
                best, spare = inside, len(groups)
    return best


def _fill(topology: Topology, candidates: Sequence[Group], members: int) -> list[Group]:
    leaves: dict[str, list[Group]] = {}
    for group in candidates:
        leaves.setdefault(topology.leaf(group.node), []).append(group)
    left = sorted(leaves.values(), key=lambda groups: (len(groups), min(g.order for g in groups)))
    chosen: list[Group] = []
    while len(chosen) < members:
        need = members - len(chosen)
        at = next((n for n, groups in enumerate(left) if len(groups) >= need), len(left) - 1)
        chosen += left.pop(at)[:need]
    return chosen
