"""What the plots of a run are drawn of, as plain values: small whatever the trace's size, so that a process can hand it to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.simulator.cluster import Cluster
from schedmate.simulator.measures import percentile
from schedmate.simulator.outcome import Outcome
from schedmate.simulator.trace import TraceJob

QUANTILES: Final = 201
BINS: Final = 600
GANTT_GPUS: Final = 64
GANTT_BARS_MAX: Final = 20_000


def curves_of(jobs: Sequence[TraceJob], cluster: Cluster, outcome: Outcome) -> dict[str, Any]:
    """Return the curves of an outcome whose runs were kept.

    `jct_s` are equidistant quantiles of the JCT; `times_s` the starts of equal bins from the first submission to the last end, `allocated`
    and `fragmented` the time means in each of allocated / all GPUs and of the share of nodes with 0 < free < all; `submitted_s` the last
    submission; `gantt` the first GPUs of the cluster, each with (start, length, GPUs of the job) of what ran on it.
    """
    assert outcome.runs is not None, "the simulation was told to keep the runs"
    jcts = sorted(end - job.submit_s for job, end in zip(jobs, outcome.end_s, strict=True) if end is not None)
    first = min((job.submit_s for job in jobs), default=0.0)
    last = max((until for _, _, until, _ in outcome.runs), default=first)
    times, allocated, fragmented = _over_time(jobs, cluster, outcome, first, last)
    return {
        "jct_s": [percentile(jcts, n / (QUANTILES - 1)) for n in range(QUANTILES)] if jcts else [],
        "times_s": times,
        "allocated": allocated,
        "fragmented": fragmented,
        "submitted_s": max((job.submit_s for job in jobs), default=first) - first,
        "gantt": _gantt(jobs, cluster, outcome, first),
    }


def _pool_names(jobs: Sequence[TraceJob], cluster: Cluster) -> list[str]:
    only = next(iter(cluster.pools)) if cluster.one_pool else None
    return [only or job.pool for job in jobs]


def _over_time(
    jobs: Sequence[TraceJob], cluster: Cluster, outcome: Outcome, first: float, last: float
) -> tuple[list[float], list[float], list[float]]:
    """Return the starts of the bins, and in each the mean share of allocated GPUs and of nodes in part allocated."""
    width = (last - first) / BINS
    if width <= 0:
        return [], [], []
    pools = _pool_names(jobs, cluster)
    all_of = {(pool, node.name): node.gpus * WHOLE_MILLI for pool, nodes in cluster.pools.items() for node in nodes}
    changes: list[tuple[float, int, tuple[str, str], tuple[int, ...]]] = []
    for number, start, end, seats in outcome.runs or ():
        milli = jobs[number].share_milli
        for seat in seats:
            node = (pools[number], seat.node)
            changes += ((start, milli, node, seat.gpus), (end, -milli, node, seat.gpus))
    changes.sort(key=lambda change: (change[0], change[1]))
    held: Counter[tuple[tuple[str, str], int]] = (
        Counter()
    )  # thousandths of a GPU that its jobs hold; where they share it all, more than it has
    used: Counter[tuple[str, str]] = Counter()
    sums = [[0.0] * BINS, [0.0] * BINS]
    level = [0, 0]  # thousandths of GPUs allocated, nodes in part allocated
    since = first
    for at, milli, node, gpus in changes:
        if at > since:
            _spread(sums, level, (since - first) / width, (at - first) / width)
            since = at
        before = used[node]
        for gpu in gpus:
            already = held[node, gpu]
            held[node, gpu] = already + milli
            used[node] += min(already + milli, WHOLE_MILLI) - min(already, WHOLE_MILLI)
        level[0] += used[node] - before
        level[1] += (0 < used[node] < all_of[node]) - (0 < before < all_of[node])
    shares = (cluster.gpus * WHOLE_MILLI, cluster.nodes)
    allocated, fragmented = ([value / share for value in row] for row, share in zip(sums, shares, strict=True))
    return [n * width for n in range(BINS)], allocated, fragmented


def _spread(sums: list[list[float]], level: list[int], since: float, until: float) -> None:
    """Add what stood from `since` to `until`, both counted in bins, to the bins that it touches."""
    first, last = int(since), min(int(until), BINS - 1)
    for n in range(first, last + 1):
        share = min(until, n + 1) - max(since, n)
        for row, value in zip(sums, level, strict=True):
            row[n] += value * share


def _gantt(jobs: Sequence[TraceJob], cluster: Cluster, outcome: Outcome, first: float) -> dict[str, list[list[float]]]:
    several = len(cluster.pools) > 1
    names = {
        (pool, node.name, gpu): f"{pool} {node.name}:{gpu}" if several else f"{node.name}:{gpu}"
        for pool, nodes in cluster.pools.items()
        for node in nodes
        for gpu in range(node.gpus)
    }
    shown = dict(list(names.items())[:GANTT_GPUS])
    bars: dict[str, list[list[float]]] = {name: [] for name in shown.values()}
    pools = _pool_names(jobs, cluster)
    drawn = 0
    for number, start, end, seats in outcome.runs or ():
        for seat in seats:
            for gpu in seat.gpus:
                name = shown.get((pools[number], seat.node, gpu))
                if name is not None and drawn < GANTT_BARS_MAX:
                    bars[name].append([start - first, end - start, jobs[number].gpus])
                    drawn += 1
    return bars
