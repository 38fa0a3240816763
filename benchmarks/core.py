"""Decisions a second of the pure core: jobs of mixed sizes arrive, start and end on a full cluster.

    python benchmarks/core.py [--nodes 256] [--gpus 8] [--pending 1000] [--decisions 60000]

One decision is one record of the pool's log (a placement, a state change, a release). The queue is kept at its length: for
every job that ends another one arrives. Times are CPU seconds of one process; batches hold what `--batch` jobs do at once.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.decisions import Placed
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import step

SIZES = ((1, 1), (1, 1), (1, 1), (2, 1), (4, 1), (8, 1), (8, 2))


def arrival(number: int, rng: random.Random) -> i.JobArrived:
    """Return a job of a usual size."""
    gpus, nodes = rng.choice(SIZES)
    return i.JobArrived(
        job=f"job-{number}", tenant=f"t{number % 7}", user="u", priority=1, gpus=gpus, nodes=nodes, gpu_type=None,
        gpu_memory_mib=0, time_limit_s=None, retries=1, submitted_at=float(number), spec="{}", trace=None,
    )  # fmt: skip


def node(number: int, gpus: int) -> i.NodeReported:
    """Return the first report of a node."""
    return i.NodeReported(
        node=f"n{number:04d}", session=1, boot_id="b", applied_seq=-1, applied_index=-1, address="10.0.0.1", port_min=20000,
        port_max=29999, gpus=tuple(i.Gpu(n, "a100", 40960, usable=True) for n in range(gpus)), runs=(), stopping=False, lease_s=600.0,
    )  # fmt: skip


def measure(
    nodes: int, gpus: int, pending: int, decisions: int, batch: int, policy: str, seed: int = 1
) -> dict[str, float]:
    """Return decisions and jobs a CPU second in the steady state."""
    rng = random.Random(seed)  # noqa: S311 - a workload, not a secret
    state = PoolState("default", PoolConfig(policy=policy), policy_named(policy))
    step(state, [node(n, gpus) for n in range(nodes)], 0.0)
    number = 0
    while len(state.queue) < pending:
        step(state, [arrival(n, rng) for n in range(number, number + 200)], 0.0)
        number += 200
    running = [job.id for job in state.jobs.values() if job.members]
    told = jobs = 0
    now = 1.0
    began = time.process_time()
    while told < decisions:
        now += 1.0
        inputs: list[i.Input] = []
        for _ in range(min(batch, len(running))):
            at = rng.randrange(len(running))
            running[at], running[-1] = running[-1], running[at]
            job = state.jobs[running.pop()]
            for member, seat in enumerate(job.members):
                inputs.append(i.MemberStarted(job.id, job.attempt, member, seat.node, 1, now))
                inputs.append(i.MemberExited(job.id, job.attempt, member, seat.node, 1, "exited", 0, None, now, now))
            inputs.append(arrival(number, rng))
            number += 1
            jobs += 1
        done = step(state, inputs, now)
        told += len(done.decisions)
        running.extend(d.job for d in done.decisions if isinstance(d, Placed))
    took = time.process_time() - began
    return {"decisions_per_s": told / took, "jobs_per_s": jobs / took, "pending": len(state.queue)}


def main() -> None:
    """Print the figures of 1,000 pending, and of 100 against 10,000 side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--pending", type=int, default=1000)
    parser.add_argument("--decisions", type=int, default=60_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--policy", default="fifo")
    given = parser.parse_args()
    out = {"nodes": given.nodes, "gpus": given.gpus, "policy": given.policy, "batch": given.batch}
    main_run = measure(given.nodes, given.gpus, given.pending, given.decisions, given.batch, given.policy)
    few = measure(given.nodes, given.gpus, 100, given.decisions, given.batch, given.policy)
    many = measure(given.nodes, given.gpus, 10_000, given.decisions, given.batch, given.policy)
    out |= {
        f"decisions_per_s_{given.pending}_pending": round(main_run["decisions_per_s"]),
        "decisions_per_s_100_pending": round(few["decisions_per_s"]),
        "decisions_per_s_10000_pending": round(many["decisions_per_s"]),
        "ratio_10000_to_100": round(many["decisions_per_s"] / few["decisions_per_s"], 2),
        "jobs_per_s": round(main_run["jobs_per_s"]),
    }
    print(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
