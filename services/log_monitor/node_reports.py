"""What nodes' regular reports show of faults: a reboot, a GPU that is not well any more, one that somebody from outside holds. Pure.

A report says how a node is; a fault is what has changed for the worse since the report before. It is the node's own side speaking, so it is
told in the words that the rules for nodes know, and weighed by them like a line of a kernel's log.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from schedmate.schemas.events import NodeFaultObserved, NodeReported
from schedmate.services.log_monitor.node_faults import NODES_MAX


@dataclass(frozen=True, slots=True)
class _Seen:
    boot_id: str
    session: int
    report_no: int
    at: float
    ill: frozenset[int]
    taken: frozenset[int]


class NodeReports:
    """The last report of each node, bounded; an older or repeated one changes nothing."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def take(self, report: NodeReported) -> tuple[NodeFaultObserved, ...]:
        """Return the faults that a report shows and the one before did not."""
        before = self._seen.get(report.node)
        if before is not None and (report.session, report.report_no) <= (before.session, before.report_no):
            return ()
        now = _Seen(
            report.boot_id, report.session, report.report_no, report.at,
            ill=frozenset(g.index for g in report.gpus if not g.healthy),
            taken=frozenset(g.index for g in report.gpus if g.busy_external),
        )  # fmt: skip
        self._seen[report.node] = now
        self._seen.move_to_end(report.node)
        if len(self._seen) > NODES_MAX:
            self._seen.popitem(last=False)
        found: list[NodeFaultObserved] = []
        if before is not None and before.boot_id != report.boot_id:
            found.append(_fault(report, REBOOTED, None, before.at))
        ill, taken = (before.ill, before.taken) if before is not None else (frozenset[int](), frozenset[int]())
        found.extend(_fault(report, ILL.format(gpu), gpu, report.at) for gpu in sorted(now.ill - ill))
        found.extend(_fault(report, TAKEN.format(gpu), gpu, report.at) for gpu in sorted(now.taken - taken))
        return tuple(found)


REBOOTED: Final = "the node was rebooted: its boot id has changed"
ILL: Final = "GPU {} is not responding as a healthy one does, the node reports"
TAKEN: Final = "a foreign process holds memory of GPU {}, the node reports"


def _fault(report: NodeReported, text: str, gpu: int | None, at: float) -> NodeFaultObserved:
    return NodeFaultObserved(
        node=report.node, pool=report.pool, session=report.session, origin="nvml", gpu=gpu, text=text, at=at
    )
