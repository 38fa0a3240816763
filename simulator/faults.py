"""Node failures: when each node is lost and when it comes back, from a file or drawn from a seed.

A file is a table `node,at_s,until_s` (and `pool`, where several pools have nodes of that name), on the clock of the trace's submissions
(`submit_s` of the jobs file); an empty `until_s` is for ever. Drawn failures are of every node alike and independent: it stays up for a
time from the exponential distribution of mean MTBF, is down for one of mean MTTR, and so on from the first submission. Both at once
are the union: a node is down while either says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, merge
from math import inf
from pathlib import Path

from schedmate.simulator.cluster import Cluster
from schedmate.simulator.draws import drawn_from
from schedmate.simulator.rows import header_of, rows_of
from schedmate.simulator.trace import TraceError

HOUR_S = 3600.0
Span = tuple[float, float]
"""From when until when a node is down, in seconds."""
NodeName = tuple[str, str]
"""Pool and node."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Where failures come from. With neither nodes nor an MTBF nothing fails.

    Attributes:
        listed: outages by (pool, node).
        mtbf_s: mean time between a node's return and its next failure; None: none is drawn.
        mttr_s: mean time until it is back.
        seed: of the drawn ones.
    """

    listed: tuple[tuple[NodeName, tuple[Span, ...]], ...] = ()
    mtbf_s: float | None = None
    mttr_s: float = HOUR_S
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.listed) or self.mtbf_s is not None

    def of(self, node: NodeName, start_s: float) -> Iterator[Span]:
        """Yield a node's outages in order, none touching the next; drawn ones never end."""
        listed = dict(self.listed).get(node, ())
        spans = merge(listed, self._drawn(node, start_s)) if self.mtbf_s is not None else iter(listed)
        current = next(spans, None)
        while current is not None and current[1] < inf and (span := next(spans, None)) is not None:
            if span[0] <= current[1]:
                current = (current[0], max(current[1], span[1]))
            else:
                yield current
                current = span
        if current is not None:
            yield current

    def _drawn(self, node: NodeName, start_s: float) -> Iterator[Span]:
        assert self.mtbf_s is not None
        draws = drawn_from(self.seed, "failures", *node)
        at = start_s
        while True:
            at += draws.expovariate(1.0 / self.mtbf_s)
            until = at + draws.expovariate(1.0 / self.mttr_s)
            yield (at, until)
            at = until


def read_faults(path: Path, cluster: Cluster) -> tuple[tuple[NodeName, tuple[Span, ...]], ...]:
    """Return the outages of a file.

    Raises:
        TraceError: a row names no node of the cluster, or one of several, or a time that makes no sense.
    """
    if not {"node", "at_s", "until_s"} <= set(header_of(path)):
        raise TraceError(f"{path.name} is no list of failures: it needs the columns node, at_s and until_s")
    pools_of: dict[str, list[str]] = {}
    for pool, nodes in cluster.pools.items():
        for node in nodes:
            pools_of.setdefault(node.name, []).append(pool)
    found: dict[NodeName, list[Span]] = {}
    for row in rows_of(path):
        name, pool = row.text("node"), row.values.get("pool", "").strip()
        pools = [one for one in pools_of.get(name, []) if pool in ("", one)]
        if not pools:
            raise row.wrong("node", "the cluster has no such node")
        if len(pools) > 1:
            raise row.wrong("node", "several pools have a node of that name: add the column pool")
        at = row.number("at_s", -inf)
        until = row.number("until_s", -inf) if row.values["until_s"].strip() else inf
        if until <= at:
            raise row.wrong("until_s", "it must be after at_s")
        found.setdefault((pools[0], name), []).append((at, until))
    return tuple((node, tuple(sorted(spans))) for node, spans in sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Change:
    """A node is lost, or back."""

    node: NodeName
    lost: bool


class Outages:
    """The failures of a cluster as they come.

    Args:
        faults: where they come from.
        nodes: (pool, node) of the whole cluster.
        start_s: when drawn ones begin.
    """

    def __init__(self, faults: Faults, nodes: Iterable[NodeName], start_s: float) -> None:
        self._spans = {node: faults.of(node, start_s) for node in nodes} if faults else {}
        self._heap: list[tuple[float, bool, NodeName, float]] = []  # when, is it back?, node, until when it is down
        for node in self._spans:
            self._draw(node)
        heapify(self._heap)
        self._returning: set[NodeName] = set()
        self._drawn = faults.mtbf_s is not None

    def __bool__(self) -> bool:
        return bool(self._spans)

    @property
    def returns(self) -> bool:
        """Is a node down that comes back?"""
        return bool(self._returning)

    def next_at(self) -> float:
        """Return when the next node is lost or back, `inf` for never."""
        return self._heap[0][0] if self._heap else inf

    def take(self, now: float, *, idle: bool) -> Sequence[Change]:
        """Return what has happened by now. Drawn failures spare a cluster in which nothing runs and nothing comes: they never end."""
        changes = []
        while self._heap and self._heap[0][0] <= now:
            _, back, node, until = heappop(self._heap)
            if back:
                self._returning.discard(node)
                self._draw(node)
                changes.append(Change(node, lost=False))
            elif idle and self._drawn:
                self._draw(node)
            else:
                if until < inf:
                    self._returning.add(node)
                    heappush(self._heap, (until, True, node, until))
                changes.append(Change(node, lost=True))
        return changes

    def _draw(self, node: NodeName) -> None:
        span = next(self._spans[node], None)
        if span is not None:
            heappush(self._heap, (span[0], False, node, span[1]))
