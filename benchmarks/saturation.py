"""The share of a cluster's GPUs that is given out when nothing more fits: our placers beside a plain best fit, on the same order.

    python benchmarks/saturation.py PODS NODES [--demand 1.3] [--one-node-in 1]

As in Weng et al., ATC'23, section 6: jobs come in the order of their creation and never leave, until what they have asked for is 1.3
times the cluster; a job that does not fit is passed over. The list is gone through again where it is too short. CPU and memory
are not looked at. `reference` is a best fit written down here from nothing: the node with the least free GPU resource on which the job
fits, and on it the GPU with the least left that is enough.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import inf
from pathlib import Path
from time import process_time

from schedmate.simulator.cluster import Cluster, from_list
from schedmate.simulator.engine import Simulation
from schedmate.simulator.readers import read_trace
from schedmate.simulator.trace import TraceJob

PLACERS = ("fifo-skip", "fgd")


def filling(jobs: tuple[TraceJob, ...], cluster: Cluster, demand: float) -> list[TraceJob]:
    """Return jobs that never leave, one a second, until they have asked for so many times the cluster."""
    order = sorted(jobs, key=lambda job: job.submit_s)
    out: list[TraceJob] = []
    asked = 0
    while asked < demand * cluster.gpus * 1000:
        job = order[len(out) % len(order)]
        out.append(replace(job, id=f"{job.id}.{len(out) // len(order)}", submit_s=float(len(out)), duration_s=inf))
        asked += job.gpus * job.share_milli
    return out


def reference(jobs: list[TraceJob], cluster: Cluster) -> float:
    """Return the share that a plain best fit gives out."""
    (specs,) = cluster.pools.values()
    nodes = [(spec.gpu_type, [1000] * spec.gpus) for spec in specs]
    given = 0
    for job in jobs:
        milli = job.share_milli
        best: tuple[int, int] | None = None
        for number, (kind, left) in enumerate(nodes):
            if job.gpu_types and kind not in job.gpu_types:
                continue
            if sum(1 for one in left if one >= milli) >= job.gpus:
                rank = (sum(left), number)
                if best is None or rank < best:
                    best = rank
        if best is not None:
            left = nodes[best[1]][1]
            for _ in range(job.gpus):
                at = min((one, gpu) for gpu, one in enumerate(left) if one >= milli)[1]
                left[at] -= milli
            given += job.gpus * milli
    return given / (cluster.gpus * 1000)


def placed(jobs: list[TraceJob], cluster: Cluster, policy: str) -> float:
    """Return the share that the dispatcher's core gives out; the loop refuses a node that is over-allocated, the core a GPU."""
    return Simulation(jobs, cluster, policy).run().integrals.peak


def main() -> None:
    """Print a line a placer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pods", type=Path)
    parser.add_argument("nodes", type=Path)
    parser.add_argument("--demand", type=float, default=1.3)
    parser.add_argument("--one-node-in", type=int, default=1)
    given = parser.parse_args()
    cluster = from_list(given.nodes)
    ((pool, specs),) = cluster.pools.items()
    cluster = Cluster({pool: specs[:: given.one_node_in]}, one_pool=True)
    jobs = filling(read_trace(given.pods).jobs, cluster, given.demand)
    print(f"{len(jobs)} jobs ask for {given.demand:g} times the {cluster.gpus} GPUs of {cluster.nodes} nodes")
    runs = {"best fit (reference)": reference, **{p: lambda j, c, p=p: placed(j, c, p) for p in PLACERS}}
    for name, run in runs.items():
        began = process_time()
        share = run(jobs, cluster)
        print(f"{name:24} {share:8.4%} of the GPUs given out, {process_time() - began:6.1f} CPU s")


if __name__ == "__main__":
    main()
