"""A seeded trace that looks like Philly's: its mix of GPU counts, its long-tailed run times, its hours of the day.

The figures are those of the published trace (Jeon et al., ATC'19) as `docs/traces.md` describes it: nine jobs in ten take one GPU, the
median run is about twenty minutes and the mean some hours, larger jobs run longer, and nights and weekends are quieter. Nothing is
copied from it; two virtual clusters are busier than the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from math import cos, pi
from typing import Final

from schedmate.simulator.draws import drawn_from
from schedmate.simulator.trace import TraceJob

SIZES: Final = ((1, 0.905), (2, 0.02), (4, 0.035), (8, 0.035), (16, 0.004), (32, 0.001))
POOLS: Final = (("vc-a", 0.4), ("vc-b", 0.25), ("vc-c", 0.2), ("vc-d", 0.1), ("vc-e", 0.05))
FIRST: Final = datetime(2026, 1, 5)  # noqa: DTZ001 - a cluster's local time; a Monday
HEADER: Final = ("job_id", "pool", "submit_s", "submit_local", "num_gpus", "duration_s")
_DAY_S: Final = 86_400.0
_DURATION_MAX_S: Final = 30 * 86_400


def philly_like(jobs: int, seed: int, per_day: float = 1500.0) -> Iterator[TraceJob]:
    """Yield jobs in the order of their submission."""
    draws = drawn_from(seed, "philly-like")
    at = 0.0
    for number in range(jobs):
        at += draws.expovariate(per_day / _DAY_S * _busy(at))
        gpus = draws.choices([s for s, _ in SIZES], [w for _, w in SIZES])[0]
        pool = draws.choices([p for p, _ in POOLS], [w for _, w in POOLS])[0]
        median = 1200.0 if gpus == 1 else 5400.0
        duration = min(max(round(draws.lognormvariate(0.0, 2.2) * median), 1), _DURATION_MAX_S)
        submit = round(at)
        local = (FIRST + timedelta(seconds=submit)).strftime("%Y-%m-%d %H:%M:%S")
        yield TraceJob(f"g{number:06d}", submit, gpus, duration, pool=pool, tenant=pool, local=local)


def _busy(at: float) -> float:
    """Return how busy the hour is, 1 on average over a weekday."""
    day, hour = divmod(at, _DAY_S)
    weekend = 0.5 if int(day) % 7 >= 5 else 1.0  # noqa: PLR2004 - Saturday and Sunday
    return weekend * (1.0 - 0.6 * cos(2 * pi * (hour / _DAY_S - 3 / 24)))


def rows(jobs: Iterator[TraceJob]) -> Iterator[tuple[str | float, ...]]:
    """Yield the rows of the documented CSV under `HEADER`."""
    for job in jobs:
        yield (job.id, job.pool, job.submit_s, job.local or "", job.gpus, job.duration_s)
