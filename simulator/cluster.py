"""What the jobs run on: pools of nodes, from a count, a table of virtual clusters or a list of nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, isfinite
from pathlib import Path

from schedmate.simulator.rows import header_of, rows_of
from schedmate.simulator.trace import Trace, TraceError

PHILLY_GPUS_PER_NODE = 8
NODES_MAX = 1_000_000
UNTYPED = "gpu"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node."""

    name: str
    gpus: int
    gpu_type: str = UNTYPED
    rack: str | None = None
    spine: str | None = None
    gpu_memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Pools by name; with a single pool all jobs go there, whatever their own pool is called."""

    pools: dict[str, tuple[NodeSpec, ...]]
    one_pool: bool

    @property
    def nodes(self) -> int:
        """Nodes of all pools."""
        return sum(len(nodes) for nodes in self.pools.values())

    @property
    def typed(self) -> bool:
        """Does any node name its GPU type?"""
        return any(node.gpu_type != UNTYPED for nodes in self.pools.values() for node in nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(node.gpus for nodes in self.pools.values() for node in nodes)


def uniform(nodes: int, gpus_per_node: int) -> Cluster:
    """Return one pool of equal nodes."""
    if not 1 <= nodes <= NODES_MAX or gpus_per_node < 1:
        raise TraceError("a cluster has at least one node and one GPU a node")
    return Cluster({"default": _equal(nodes, gpus_per_node)}, one_pool=True)


def _equal(nodes: int, gpus: int) -> tuple[NodeSpec, ...]:
    width = len(str(nodes - 1))
    return tuple(NodeSpec(f"n{number:0{width}}", gpus) for number in range(nodes))


def from_table(path: Path, factor: float, trace: Trace, gpus_per_node: int = PHILLY_GPUS_PER_NODE) -> Cluster:
    """Return one pool a virtual cluster of a `vc,node num` table.

    A pool has max(ceil(n x factor), enough for its largest job) nodes.
    """
    if not (isfinite(factor) and factor > 0):
        raise TraceError(f"the node factor must be a number above 0, not {factor}")
    if not {"vc", "node num"} <= set(header_of(path)):
        raise TraceError(f"{path.name} is no table of pools: it needs the columns vc and node num")
    largest: dict[str, int] = {}
    for job in trace.jobs:
        largest[job.pool] = max(largest.get(job.pool, 0), job.gpus)
    pools: dict[str, tuple[NodeSpec, ...]] = {}
    for row in rows_of(path):
        vc, nodes = row.text("vc"), row.count("node num", 1)
        if vc in pools:
            raise row.wrong("vc", "it stands twice")
        enough = ceil(largest.get(vc, 0) / gpus_per_node)
        pools[vc] = _equal(max(ceil(nodes * factor - 1e-9), enough), gpus_per_node)
    if not pools:
        raise TraceError(f"{path.name} names no pool")
    if not set(pools) & set(largest):
        raise TraceError(f"no job of {trace.name} belongs to a pool of {path.name}")
    return Cluster(pools, one_pool=False)


def from_list(path: Path) -> Cluster:
    """Return the nodes of a list: `node,gpus[,gpu_type][,pool][,rack][,spine]`, openb's `sn,gpu,model`, or Tiresias' `num_switch,...` line."""
    header = set(header_of(path))
    if {"num_switch", "num_node_p_switch", "num_gpu_p_node"} <= header:
        row = next(iter(rows_of(path)))
        nodes = row.count("num_switch", 1) * row.count("num_node_p_switch", 1)
        return uniform(nodes, row.count("num_gpu_p_node", 1))
    if {"sn", "gpu", "model"} <= header:
        names = ("sn", "gpu", "model")
    elif {"node", "gpus"} <= header:
        names = ("node", "gpus", "gpu_type")
    else:
        raise TraceError(
            f"{path.name} is no list of nodes: it needs node,gpus (and gpu_type, pool), or openb's sn,gpu,model"
        )
    pools: dict[str, list[NodeSpec]] = {}
    seen: set[str] = set()
    for row in rows_of(path):
        name = row.text(names[0])
        if name in seen:
            raise row.wrong(names[0], "it stands twice")
        seen.add(name)
        gpus = row.count(names[1])
        if gpus:
            rack, spine = (row.values.get(label, "").strip() or None for label in ("rack", "spine"))
            spec = NodeSpec(name, gpus, row.values.get(names[2], "").strip() or UNTYPED, rack, spine)
            pools.setdefault(row.values.get("pool", "").strip() or "default", []).append(spec)
    if not pools:
        raise TraceError(f"{path.name} has no node with GPUs")
    return Cluster(_frozen(pools.items()), one_pool=len(pools) == 1)


def in_racks(cluster: Cluster, nodes_per_rack: int, racks_per_spine: int | None = None) -> Cluster:
    """Return the cluster with a declared topology: racks of so many nodes, in the order of the nodes, in each pool anew."""
    if nodes_per_rack < 1 or (racks_per_spine is not None and racks_per_spine < 1):
        raise TraceError("a rack has at least one node and a spine at least one rack")
    pools = {
        name: tuple(
            replace(
                node,
                rack=f"{name}-r{n // nodes_per_rack}",
                spine=f"{name}-s{n // nodes_per_rack // racks_per_spine}" if racks_per_spine is not None else None,
            )
            for n, node in enumerate(nodes)
        )
        for name, nodes in cluster.pools.items()
    }
    return Cluster(pools, one_pool=cluster.one_pool)


def _frozen(pools: Iterable[tuple[str, list[NodeSpec]]]) -> dict[str, tuple[NodeSpec, ...]]:
    return {name: tuple(nodes) for name, nodes in pools}
