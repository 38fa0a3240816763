"""Speed and memory of the simulator on a real month, beside a bare event loop in the same run and beside what peers took.

    SCHEDMATE_TRACES=../shared/traces python benchmarks/simulator.py [--quick] [--factors 0.5,0.75,1.0]

- `october`: jobs a CPU second of each policy on Philly's October at each node factor. The bare loop, measured in the same run, pops the
  same arrivals and ends from a heap and counts GPUs, with no placement, no order and no core: what Python takes for the events alone.
- `peers`: CPU seconds on the peer week beside those of the peers' own simulators for the same trace and policy (`PEERS`).
- `hundred_thousand`: 100,000 generated jobs.
- `history`: the month with advice from history.
- `memory`: peak memory of a run beyond what its trace takes, for so many jobs and four times as many at the same load: what grows are the
  columns of outcomes, by so many bytes a job; jobs that have ended are not kept.

Times are CPU seconds of one process, without reading the trace. Without SCHEDMATE_TRACES generated jobs stand in, and it is said.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

from schedmate.simulator.cluster import Cluster, from_table, uniform
from schedmate.simulator.engine import Simulation
from schedmate.simulator.generate import philly_like
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import Setting, run_one, usable
from schedmate.simulator.trace import Trace

FIRST_COME: Final = (("fifo", "none"), ("sjf", "oracle"), ("qssf", "oracle"))
OTHERS: Final = (("smallest", "none"), ("fifo-skip", "none"))
PREEMPTIVE: Final = (("srtf", "oracle"), ("tiresias", "none"))
AIMS: Final = {"plain": 20_000, "preemptive": 5_000}
PEERS: Final = (  # nodes, policy, advice, CPU seconds of Lucid's simulator (one process, 1-second ticks) on the same 10,650 jobs
    (54, "fifo", "none", 307.0), (54, "sjf", "oracle", 185.0), (54, "qssf", "column:pred_noise_s", 277.0), (54, "tiresias", "none", 152.0),
    (72, "qssf", "column:pred_noise_s", 153.0), (72, "srtf", "oracle", 494.0), (72, "tiresias", "none", 170.0),
)  # fmt: skip
MANY: Final = 100_000
MEMORY_JOBS: Final = 10_000
MIB: Final = 2**20


def bare_loop_s(trace: Trace) -> float:
    """Return the CPU seconds of the events alone."""
    began = time.process_time()
    jobs = sorted(trace.jobs, key=lambda job: job.submit_s)
    ends: list[tuple[float, int]] = []
    used = at = 0
    while at < len(jobs) or ends:
        if at < len(jobs) and (not ends or jobs[at].submit_s < ends[0][0]):
            used += jobs[at].gpus
            heappush(ends, (jobs[at].submit_s + jobs[at].duration_s, jobs[at].gpus))
            at += 1
        else:
            used -= heappop(ends)[1]
    assert used == 0
    return time.process_time() - began


def traces() -> Path | None:
    """Return where the traces are."""
    folder = os.environ.get("SCHEDMATE_TRACES")
    return Path(folder) if folder else None


def generated(jobs: int) -> tuple[Trace, Cluster]:
    """Return a Philly-like trace of so many jobs, and a pool that it loads."""
    return Trace("generated", "csv", tuple(philly_like(jobs, 1))), uniform(120, 8)


def october(factor: float) -> tuple[Trace, Cluster]:
    """Return Philly's October, or a generated month where the traces are not at hand."""
    folder = traces()
    if folder is None:
        return generated(50_000)
    trace = read_trace(folder / "philly-2017" / "philly_2017_aug-oct.csv").window("2017-10-01", "2017-11-01")
    cluster = from_table(folder / "published-summaries" / "philly_vc.csv", factor, trace)
    return usable(trace, cluster), cluster


def of_october(factor: float, policies: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return the speed of each policy on the month."""
    trace, cluster = october(factor)
    bare = len(trace.jobs) / bare_loop_s(trace)
    out: dict[str, Any] = {"jobs": len(trace.jobs), "bare_event_loop_jobs_per_cpu_s": round(bare)}
    for policy, advice in policies:
        got = run_one(trace, cluster, Setting(policy, advice))
        speed = len(trace.jobs) / got["cpu_s"]
        out[policy] = {
            "advice": advice, "cpu_s": got["cpu_s"], "jobs_per_cpu_s": round(speed), "bare_loop_ratio": round(bare / speed, 1),
            "aim": AIMS["preemptive" if (policy, advice) in PREEMPTIVE else "plain"], "avg_jct_s": round(got["avg_jct_s"], 1),
        }  # fmt: skip
    return out


def of_peers() -> list[dict[str, Any]]:
    """Return the CPU seconds on the peer week beside the peers'."""
    folder = traces()
    if folder is None:
        return []
    week = read_trace(folder / "philly-week-peer" / "philly_week_20171001.csv")
    out = []
    for nodes, policy, advice, peer_s in PEERS:
        got = run_one(week, uniform(nodes, 8), Setting(policy, advice))
        out.append(
            {"nodes": nodes, "policy": policy, "cpu_s": got["cpu_s"], "peer_cpu_s": peer_s, "peer_over_ours": round(peer_s / got["cpu_s"])}
        )  # fmt: skip
    return out


def timed(trace: Trace, cluster: Cluster, setting: Setting) -> dict[str, Any]:
    """Return the CPU seconds of one run."""
    got = run_one(trace, cluster, setting)
    return {"jobs": len(trace.jobs), "policy": setting.policy, "advice": setting.advice, "cpu_s": got["cpu_s"]}


def peak_bytes() -> int:
    """Return the most memory that the process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def grown_bytes(jobs: int) -> int:
    """Run so many generated jobs in a process of their own; return how far its peak grew beyond the trace."""
    command = [sys.executable, __file__, "--grown", str(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)  # noqa: S603 - our own program
    return int(done.stdout)


def memory() -> dict[str, Any]:
    """Return how peak memory grows with the jobs of a trace at the same load."""
    few, many = grown_bytes(MEMORY_JOBS), grown_bytes(4 * MEMORY_JOBS)
    return {
        f"{MEMORY_JOBS}_jobs_mib": round(few / MIB, 1), f"{4 * MEMORY_JOBS}_jobs_mib": round(many / MIB, 1),
        "bytes_per_further_job": round((many - few) / (3 * MEMORY_JOBS)),
    }  # fmt: skip


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factors", default="0.5,0.75,1.0")
    parser.add_argument("--quick", action="store_true", help="one factor, FIFO, SRTF and Tiresias, no peers")
    parser.add_argument("--grown", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.grown is not None:
        trace, cluster = generated(given.grown)
        before = peak_bytes()
        Simulation(trace.jobs, cluster, "fifo").run()
        print(peak_bytes() - before)
        return
    quick = given.quick
    policies = (FIRST_COME[0], *PREEMPTIVE) if quick else (*FIRST_COME, *OTHERS, *PREEMPTIVE)
    out: dict[str, Any] = {"trace": "philly 2017-10" if traces() else "generated: SCHEDMATE_TRACES is not set"}
    out["memory"] = memory()  # first: a process's peak counts what the one that started it held
    out["october"] = {f: of_october(float(f), policies) for f in (["0.75"] if quick else given.factors.split(","))}
    if not quick:
        out["peers"] = of_peers()
        out["hundred_thousand"] = timed(*generated(MANY), Setting("fifo", "none"))
        out["history"] = timed(*october(0.75), Setting("qssf", "history"))
    print(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
