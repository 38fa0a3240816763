"""Maintenance reservations of a simulation, from a file: known from the beginning, as operators announce them.

A file is a table `node,from_s,until_s` (and `pool`, where several pools have nodes of that name), on the clock of the trace's submissions;
an empty `node` with a number in the column `count` reserves so many nodes of the pool, chosen as a live pool chooses them. What they
mean for jobs is the core's (core/reservations.py).
"""

from __future__ import annotations

from math import inf
from pathlib import Path

from schedmate.services.dispatcher.core.inputs import ReservationMade
from schedmate.simulator.cluster import Cluster
from schedmate.simulator.rows import Row, header_of, rows_of
from schedmate.simulator.trace import TraceError

Reservations = dict[str, tuple[ReservationMade, ...]]
"""By pool."""


def read_reservations(path: Path, cluster: Cluster) -> Reservations:
    """Return the reservations of a file.

    Raises:
        TraceError: a row names no node or pool of the cluster, or one of several, or a time that makes no sense.
    """
    if not {"node", "from_s", "until_s"} <= set(header_of(path)):
        raise TraceError(f"{path.name} is no list of reservations: it needs the columns node, from_s and until_s")
    found: dict[str, list[ReservationMade]] = {}
    for row in rows_of(path):
        name = row.values["node"].strip()
        pool = _pool_of(row, name, cluster)
        count = 0 if name else row.count("count", 1)
        start, end = row.number("from_s", -inf), row.number("until_s", -inf)
        if end <= start:
            raise row.wrong("until_s", "it must be after from_s")
        nodes = (name,) if name else ()
        found.setdefault(pool, []).append(ReservationMade(f"r{row.line}", nodes, count, start, end, "trace", ""))
    return {pool: tuple(made) for pool, made in sorted(found.items())}


def _pool_of(row: Row, node: str, cluster: Cluster) -> str:
    pool = row.values.get("pool", "").strip()
    pools = [
        name
        for name, nodes in cluster.pools.items()
        if pool in ("", name) and (not node or any(one.name == node for one in nodes))
    ]
    if not pools:
        raise row.wrong("node" if node else "pool", "the cluster has no such node or pool")
    if len(pools) > 1:
        raise row.wrong("node", "several pools have such nodes: add the column pool")
    return pools[0]
