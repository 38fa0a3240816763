"""What wrong advice costs, over seeds: random advice against none, and noise of growing sigma.

    SCHEDMATE_TRACES=../shared/traces python benchmarks/robustness.py [--seeds 20] [--policies sjf,qssf,srtf] [--factor 0.75]

Without `--factor` on the peer week (54 nodes), with it on Philly's October. Prints, for each policy, the mean over the seeds of the
average JCT and of the p99.9 wait as shares of those without advice, with the standard error; random advice may cost 2 % at most.
"""

from __future__ import annotations

import argparse
import json
import os
from math import sqrt
from pathlib import Path
from typing import Any

from schedmate.simulator.cluster import Cluster, from_table, uniform
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import Setting, run_all, usable
from schedmate.simulator.trace import Trace

ALLOWED = 1.02


def loaded(factor: float | None) -> tuple[Trace, Cluster]:
    """Return the trace and its cluster."""
    folder = Path(os.environ["SCHEDMATE_TRACES"])
    if factor is None:
        return read_trace(folder / "philly-week-peer" / "philly_week_20171001.csv"), uniform(54, 8)
    trace = read_trace(folder / "philly-2017" / "philly_2017_aug-oct.csv").window("2017-10-01", "2017-11-01")
    cluster = from_table(folder / "published-summaries" / "philly_vc.csv", factor, trace)
    return usable(trace, cluster), cluster


def share(results: list[dict[str, Any]], key: str, base: float) -> dict[str, float]:
    """Return mean and standard error of a figure as a share of the one without advice."""
    values = [result[key] / base for result in results]
    mean = sum(values) / len(values)
    spread = sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1)
    return {"mean": round(mean, 4), "standard_error": round(sqrt(spread / len(values)), 4)}


def main() -> None:
    """Print the shares as JSON; the exit status tells whether random advice stayed within its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--policies", default="sjf,qssf,srtf")
    parser.add_argument("--advice", default="random;noisy:0.5;noisy:1;noisy:2;noisy:4")
    parser.add_argument("--factor", type=float, default=None)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    trace, cluster = loaded(given.factor)
    out: dict[str, Any] = {}
    held = True
    for policy in given.policies.split(","):
        (base,) = run_all(trace, cluster, [Setting(policy, "none")], 1)
        out[policy] = {"none": {"avg_jct_s": base["avg_jct_s"], "p999_wait_s": base["p999_wait_s"]}}
        for advice in given.advice.split(";"):
            settings = [Setting(policy, advice, seed) for seed in range(given.seeds)]
            results = list(run_all(trace, cluster, settings, given.processes))
            told = {key: share(results, key, base[key]) for key in ("avg_jct_s", "p999_wait_s")}
            out[policy][advice] = told
            held = held and (advice != "random" or all(figure["mean"] <= ALLOWED for figure in told.values()))
    print(json.dumps(out, indent=2))
    raise SystemExit(0 if held else 1)


if __name__ == "__main__":
    main()
