"""What placement does to a cluster: Philly's October on 8-GPU nodes in racks of 16, under one order and several placers.

    SCHEDMATE_TRACES=... python benchmarks/placement.py [--one-pool] [--policies A,B]

Every row is the same order (submission, who does not fit is passed over) on the same nodes; the racks are declared, Philly's own are not
published. `fifo-skip, blind` is placed without labels and then measured by where its jobs lie. `--one-pool` gives all virtual clusters
one pool, the sum of their nodes: most of them are smaller than two racks. `--inference SHARE` declares so many of the one-GPU jobs to be
inference (drawn by seed), with the last rack of each pool (or `--zone RACKS`) kept for them under `kant-spread`.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from time import process_time

from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.topology import Topology
from schedmate.simulator.cluster import Cluster, from_table, in_racks, uniform
from schedmate.simulator.draws import drawn_from
from schedmate.simulator.engine import Simulation
from schedmate.simulator.measures import measured
from schedmate.simulator.outcome import Outcome
from schedmate.simulator.pools import leaf_nodes
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import usable
from schedmate.simulator.trace import Trace

NODES_PER_RACK = 16
FACTOR = 0.75


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one-pool", action="store_true")
    parser.add_argument("--policies", default="fifo-skip,kant-binpack")
    parser.add_argument("--inference", type=float, default=0.0)
    parser.add_argument("--zone", default="")
    given = parser.parse_args()
    folder = os.environ.get("SCHEDMATE_TRACES")
    if not folder:
        sys.exit("set SCHEDMATE_TRACES to the folder that has philly-2017 and published-summaries")
    trace = read_trace(Path(folder, "philly-2017", "philly_2017_aug-oct.csv")).window("2017-10-01", "2017-11-01")
    plain = from_table(Path(folder, "published-summaries", "philly_vc.csv"), FACTOR, trace)
    trace = usable(trace, plain)
    if given.one_pool:
        plain = uniform(plain.nodes, 8)
    trace = _with_inference(trace, given.inference)
    racked = in_racks(plain, NODES_PER_RACK)
    gangs = sum(job.gpus > 8 for job in trace.jobs)
    print(
        f"{len(trace.jobs):,} jobs, {gangs} of more than a node, {plain.nodes} nodes of 8 GPUs, {len(plain.pools)} pools, racks of {NODES_PER_RACK}"
    )
    print("| placement | avg JCT s | GAR | SOR | GFR | stranded GPUs | nodes / least, gangs | racks / least, gangs | gangs torn | CPU s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for policy in given.policies.split(","):
        config = PoolConfig(inference_zone=given.zone or _last_racks(racked))
        if policy == "fifo-skip":
            _row("fifo-skip, blind", trace, plain, racked, policy, PoolConfig())
        _row(policy, trace, racked, racked, policy, config)


def _with_inference(trace: Trace, share: float) -> Trace:
    draws = drawn_from(0, "inference")
    jobs = tuple(replace(job, inference=job.gpus == 1 and draws.random() < share) for job in trace.jobs)
    return replace(trace, jobs=jobs)


def _last_racks(cluster: Cluster) -> str:
    return ",".join(str(nodes[-1].rack) for nodes in cluster.pools.values())


def _row(name: str, trace: Trace, cluster: Cluster, racked: Cluster, policy: str, config: PoolConfig) -> None:
    began = process_time()
    outcome = Simulation(trace.jobs, cluster, policy, config=config, keep_seats=True).run()
    took = process_time() - began
    figures = measured(trace.jobs, cluster, outcome)
    nodes, racks, torn = _gangs(trace, racked, outcome)
    cells = [f"{figures['avg_jct_s']:,.1f}", *(f"{figures[k]:.4f}" for k in ("gar", "sor", "gfr")), f"{figures['stranded_gpus']:.1f}",
             f"{nodes:.4f}", f"{racks:.4f}", f"{torn:.2%}", f"{took:.1f}"]  # fmt: skip
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _gangs(trace: Trace, racked: Cluster, outcome: Outcome) -> tuple[float, float, float]:
    """Return, over the jobs of more than one node, nodes and racks used over the least, and the share in more racks than needed."""
    topologies = {name: Topology() for name in racked.pools}
    for name, nodes in racked.pools.items():
        for node in nodes:
            topologies[name].set_node(node.name, node.rack, node.spine)
    only = next(iter(racked.pools)) if racked.one_pool else None
    used: list[tuple[float, float]] = []
    for n, job in enumerate(trace.jobs):
        least, seats = outcome.nodes_least[n], (outcome.seats or [])[n]
        if least > 1 and seats:
            pool = only or job.pool
            racks = len({topologies[pool].leaf(seat.node) for seat in seats})
            used.append((len(seats) / least, racks / -(-least // leaf_nodes(racked.pools[pool]))))
    count = len(used) or 1
    return sum(u[0] for u in used) / count, sum(u[1] for u in used) / count, sum(u[1] > 1 for u in used) / count


if __name__ == "__main__":
    main()
