"""What the rule `quantiles` is worth beside `p50`: average JCT of the same policy with the same advice, ordered by the one and by the other.

    SCHEDMATE_TRACES=... python benchmarks/quantile_rule.py [--policies sjf,qssf,srtf] [--nodes 54] [--advice drawn,history]

`history` is the estimator's advice. `drawn` is advice of which the quantiles are right and say something: of each job the log of the run time
is seen with a noise of its own sigma, one of SIGMAS, and what is said is what follows from that and from the trace's mean and spread
(normal in the log): p50 in the middle, eight runs of ten between p10 and p90 whatever was said.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, pstdev

from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.simulator.advice import advisor
from schedmate.simulator.cluster import uniform
from schedmate.simulator.draws import drawn_from
from schedmate.simulator.engine import Simulation
from schedmate.simulator.measures import measured
from schedmate.simulator.outcome import Advisor
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import usable
from schedmate.simulator.trace import TraceJob

SIGMAS = (0.1, 1.0, 3.0)
TENTH = 1.2815515655446004  # so many sigmas from the median lie a tenth and nine tenths of a normal distribution
TRACE = "philly-week-peer/philly_week_20171001.csv"


class Drawn:
    """Advice with quantiles that are right, and wide for some jobs and narrow for others."""

    basis = "drawn"

    def __init__(self, jobs: Sequence[TraceJob], seed: int) -> None:
        draws = drawn_from(seed, "quantile-rule")
        logs = [log(max(job.duration_s, 1.0)) for job in jobs]
        middle, spread = fmean(logs), pstdev(logs)
        self._told: list[tuple[float, float, float]] = []
        for true in logs:
            sigma = draws.choice(SIGMAS)
            seen = true + draws.gauss(0.0, sigma)
            share = spread**2 / (spread**2 + sigma**2)  # of what is seen; the rest of what is known of all
            at, wide = share * seen + (1.0 - share) * middle, TENTH * sigma * share**0.5
            self._told.append((exp(at - wide), exp(at), exp(at + wide)))

    def estimate_s(self, number: int, pool: str) -> float | None:  # noqa: ARG002 - the protocol's signature
        """Return the median."""
        return self._told[number][1]

    def quantiles(self, number: int) -> tuple[float | None, float | None, str]:
        """Return what a tenth, and nine tenths, lie below."""
        low, _, high = self._told[number]
        return low, high, self.basis

    def started(self, number: int, at: float) -> None:
        """What runs tells it nothing."""

    def finished(self, number: int, pool: str, at: float = 0.0) -> None:
        """What has ended tells it nothing."""


def main() -> None:
    """Run the comparison and print it as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="sjf,qssf,srtf")
    parser.add_argument("--nodes", type=int, default=54)
    parser.add_argument("--advice", default="drawn,history")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    cluster = uniform(given.nodes, 8)
    trace = usable(read_trace(Path(os.environ["SCHEDMATE_TRACES"]) / TRACE), cluster)
    print("| advice | policy | p50, s | quantiles, s | quantiles / p50 |")
    print("|---|---|---|---|---|", flush=True)
    for source in given.advice.split(","):
        for policy in given.policies.split(","):
            jct = []
            for rule in ("p50", "quantiles"):
                told: Advisor | None = (
                    Drawn(trace.jobs, given.seed)
                    if source == "drawn"
                    else advisor(source, trace, given.seed, one_pool=True)
                )
                config = PoolConfig(advice_rule=rule)
                outcome = Simulation(trace.jobs, cluster, policy, told, config=config).run()
                jct.append(measured(trace.jobs, cluster, outcome)["avg_jct_s"])
            print(f"| {source} | {policy} | {jct[0]:,.0f} | {jct[1]:,.0f} | {jct[1] / jct[0]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
