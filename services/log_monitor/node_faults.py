"""What the nodes' own side has said lately, and which hardware failures runs of different tenants met on a node."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schedmate.schemas.events import NodeFaultObserved
from schedmate.services.log_monitor.failures.rules import Rule, Rules

FAULTS_PER_NODE_MAX: Final = 50
NODES_MAX: Final = 10_000
FAILURES_PER_NODE_MAX: Final = 20
_SOURCES: Final = {"kernel": "kernel", "nvml": "node"}


class NodeFaults:
    """Recent faults by node, bounded. A repeat of a fault changes nothing."""

    def __init__(self) -> None:
        self._faults: OrderedDict[str, deque[NodeFaultObserved]] = OrderedDict()

    def add(self, fault: NodeFaultObserved) -> bool:
        """Remember a fault; False when it was known."""
        known = self._faults.setdefault(fault.node, deque(maxlen=FAULTS_PER_NODE_MAX))
        self._faults.move_to_end(fault.node)
        if len(self._faults) > NODES_MAX:
            self._faults.popitem(last=False)
        if any(f.at == fault.at and f.text == fault.text for f in known):
            return False
        known.append(fault)
        return True

    def during(self, node: str, start: float, end: float) -> tuple[NodeFaultObserved, ...]:
        """Return the faults of a node in [start, end], earliest first."""
        return tuple(sorted((f for f in self._faults.get(node, ()) if start <= f.at <= end), key=lambda f: f.at))


def rule_of_fault(fault: NodeFaultObserved, rules: Rules) -> Rule | None:
    """Return the rule for what a node says, when it is a fault of the node itself."""
    rule = rules.of_xid(fault.xid) if fault.xid is not None else None
    if rule is None:
        rule = next((r for r in rules.match(fault.text, _SOURCES[fault.origin]) if r.node), None)
    return rule if rule is not None and rule.node else None


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """A hardware failure that a run's log showed on a node."""

    run_id: str
    tenant: str
    category: str
    at: float


def read_failures(body: Mapping[str, Any] | None) -> tuple[NodeFailure, ...]:
    """Return the failures in a node's document."""
    if body is None:
        return ()
    return tuple(NodeFailure(**entry) for entry in body.get("failures", ()))


def with_failure(failures: Iterable[NodeFailure], new: NodeFailure) -> tuple[NodeFailure, ...]:
    """Return the failures with one more, once a run, the newest kept."""
    kept = {f.run_id: f for f in failures}
    kept.setdefault(new.run_id, new)
    return tuple(sorted(kept.values(), key=lambda f: (f.at, f.run_id)))[-FAILURES_PER_NODE_MAX:]


def failures_body(failures: Iterable[NodeFailure]) -> dict[str, Any]:
    """Return the document of a node's failures."""
    return {
        "failures": [{"run_id": f.run_id, "tenant": f.tenant, "category": f.category, "at": f.at} for f in failures]
    }


def borne_out(failures: Iterable[NodeFailure], *, category: str, tenant: str, at: float, within_s: float) -> bool:
    """Tell whether a run of another tenant failed in the same way on this node within the last `within_s` seconds."""
    return any(
        f.category == category and f.tenant != tenant and at - within_s <= f.at <= at + within_s for f in failures
    )
