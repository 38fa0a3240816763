"""A simulated pool: the core's state of it, its nodes, and what it is told next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from schedmate.services.dispatcher.core.config import Budget, PoolConfig
from schedmate.services.dispatcher.core.inputs import Gpu, Input, NodeReported
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.simulator.cluster import NodeSpec

NEVER = 1e15  # seconds; a bound that no trace reaches
PROFILER_NODES = 2  # of a policy that profiles, where the settings do not say


@dataclass(slots=True)
class Pool:
    """One pool. `timer` is when it must decide though nothing happens; `timed` whether it may have to."""

    name: str
    state: PoolState
    gpus_of: dict[str, int]
    used: dict[str, int]
    node_gpus: int
    uniform: bool
    leaf_nodes: int  # nodes of the largest leaf group, 0 without a topology
    specs: dict[str, NodeSpec]
    sessions: dict[str, int]
    away: dict[str, int] = field(default_factory=dict)  # why a node is not there: lost, in maintenance, both
    inputs: list[Input] = field(default_factory=list)
    timer: float = inf
    timed: bool = False


def leaf_nodes(nodes: Sequence[NodeSpec]) -> int:
    """Return the nodes of the largest leaf group, 0 where no node says where it stands."""
    if all(node.rack is None and node.spine is None for node in nodes):
        return 0
    return max(Counter((n.spine, n.rack, n.name if n.rack is None and n.spine is None else "") for n in nodes).values())


def report_of(node: NodeSpec, session: int = 1) -> NodeReported:
    """Return what a node reports as it joins: all of its GPUs, and nothing running."""
    gpus = tuple(Gpu(n, node.gpu_type, node.gpu_memory_mib, usable=True) for n in range(node.gpus))
    return NodeReported(
        node.name, session, "simulated", -1, -1, "127.0.0.1", 20_000, 29_999, gpus, (), stopping=False, lease_s=NEVER,
        rack=node.rack, spine=node.spine,
    )  # fmt: skip


def simulated(config: PoolConfig, policy: str, min_run_s: float = 0.0) -> PoolConfig:
    """Return the settings with which a pool is simulated: this policy, and no bound on what does not fail here."""
    given = config.to_json()
    given |= {
        "policy": policy, "start_timeout_s": NEVER, "stop_timeout_s": NEVER, "diagnosis_wait_s": NEVER,
        "preempted": Budget(cap=10**9, base_s=0.0, cap_s=0.0), "decisions_max": 10**9, "preemption_min_run_s": min_run_s, "gpu_sharing": True,
        "profiler_nodes": PROFILER_NODES if config.profiler_nodes is None else config.profiler_nodes,
    }  # fmt: skip
    return PoolConfig.from_json(given)
