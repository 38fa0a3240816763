"""Jobs a CPU second of the simulator on a real month, beside a bare event loop in the same run.

    SCHEDMATE_TRACES=../shared/traces python benchmarks/simulator.py [--policies fifo,sjf,qssf,srtf,tiresias] [--factor 0.75]

The bare loop pops the same arrivals and ends from a heap and counts GPUs, with no placement, no order and no core: what Python
takes for the events alone. Times are CPU seconds of one process. Without SCHEDMATE_TRACES a generated trace is used, and said.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from heapq import heappop, heappush
from pathlib import Path

from schedmate.simulator.cluster import Cluster, from_table, uniform
from schedmate.simulator.generate import philly_like
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import Setting, run_one, usable
from schedmate.simulator.trace import Trace

ADVICE = {"sjf": "oracle", "qssf": "oracle", "srtf": "oracle"}


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


def october(factor: float) -> tuple[Trace, Cluster]:
    """Return Philly's October, or a generated month where the traces are not at hand."""
    folder = os.environ.get("SCHEDMATE_TRACES")
    if folder is None:
        return Trace("generated", "csv", tuple(philly_like(50_000, 1))), uniform(120, 8)
    trace = read_trace(Path(folder, "philly-2017", "philly_2017_aug-oct.csv")).window("2017-10-01", "2017-11-01")
    cluster = from_table(Path(folder, "published-summaries", "philly_vc.csv"), factor, trace)
    return usable(trace, cluster), cluster


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="fifo,sjf,qssf,smallest,fifo-skip,srtf,tiresias")
    parser.add_argument("--factor", type=float, default=0.75)
    given = parser.parse_args()
    trace, cluster = october(given.factor)
    bare = bare_loop_s(trace)
    out: dict[str, object] = {
        "trace": trace.name,
        "jobs": len(trace.jobs),
        "bare_event_loop_jobs_per_cpu_s": round(len(trace.jobs) / bare),
    }
    for policy in given.policies.split(","):
        advice = ADVICE.get(policy, "none")
        got = run_one(trace, cluster, Setting(policy, advice))
        out[policy] = {
            "advice": advice, "cpu_s": got["cpu_s"], "jobs_per_cpu_s": round(len(trace.jobs) / got["cpu_s"]),
            "avg_jct_s": round(got["avg_jct_s"], 1),
        }  # fmt: skip
    print(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
