"""What a simulation came to, as figures; `docs/metrics-glossary.md` defines each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import floor
from typing import Any, Final

from schedmate.simulator.cluster import Cluster
from schedmate.simulator.outcome import Outcome
from schedmate.simulator.trace import TraceJob

SIZES: Final = (("1", 1, 1), ("2-4", 2, 4), ("8", 5, 8), ("16-64", 9, 64), (">64", 65, 10**9))
HOUR_S: Final = 3600.0


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return a percentile of sorted values, interpolated linearly between the two nearest; None of nothing."""
    if not ordered:
        return None
    at = share * (len(ordered) - 1)
    low = floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of nothing."""
    return sum(values) / len(values) if values else None


def measured(jobs: Sequence[TraceJob], cluster: Cluster, outcome: Outcome) -> dict[str, Any]:
    """Return the figures of an outcome, with the names of design §8 and more."""
    done = [n for n, end in enumerate(outcome.end_s) if end is not None]
    jct = {n: _known(outcome.end_s[n]) - jobs[n].submit_s for n in done}
    waits = {n: outcome.wait_s[n] for n in done}
    jcts, queue = sorted(jct.values()), sorted(waits.values())
    ends = [_known(outcome.end_s[n]) for n in done]
    integrals = outcome.integrals
    useful = sum(jobs[n].duration_s * jobs[n].gpus for n in done)
    return {
        "jobs": len(jobs),
        "finished": len(done),
        "avg_jct_s": mean(jcts),
        "p50_jct_s": percentile(jcts, 0.5),
        "p99_jct_s": percentile(jcts, 0.99),
        "p999_jct_s": percentile(jcts, 0.999),
        "avg_wait_s": mean(queue),
        "p50_wait_s": percentile(queue, 0.5),
        "p99_wait_s": percentile(queue, 0.99),
        "p999_wait_s": percentile(queue, 0.999),
        "max_wait_s": queue[-1] if queue else None,
        "makespan_s": max(ends) - min(job.submit_s for job in jobs) if ends else None,
        "preemptions": outcome.preemptions,
        "utilisation": outcome.utilisation,
        "gar": integrals.gar,
        "sor": integrals.sor,
        "allocated_max": integrals.peak,
        "gfr": integrals.gfr,
        "stranded_gpus": integrals.stranded_gpus,
        "jwtd": _waits_by_size(jobs, waits),
        **_spread(outcome, done),
        "ftf": mean(fairness(jobs, cluster, outcome, done)),
        "maintenance_stops": outcome.maintenance_stops,
        "node_failures": outcome.node_failures,
        "failures": outcome.failures,
        "failed": outcome.failed,
        "lost_gpu_h": outcome.lost_gpu_s / HOUR_S,
        "lost_to_failures_gpu_h": outcome.lost_to_failures_gpu_s / HOUR_S,
        "goodput": useful / (useful + outcome.lost_gpu_s) if useful else None,
        **(outcome.residents.figures() if outcome.residents is not None else {}),
        "sizes": _by_size(jobs, jct, outcome),
        "pools": _by_pool(jobs, cluster, jct, waits),
    }


def _known(value: float | None) -> float:
    assert value is not None, "a job that has ended has an end"
    return value


def _waits_by_size(jobs: Sequence[TraceJob], waits: dict[int, float]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, low, high in SIZES:
        of_size = sorted(wait for n, wait in waits.items() if low <= jobs[n].gpus <= high)
        out[name] = {
            "jobs": len(of_size), "mean_s": mean(of_size),
            "p50_s": percentile(of_size, 0.5), "p90_s": percentile(of_size, 0.9), "p99_s": percentile(of_size, 0.99),
        }  # fmt: skip
    return out


def _by_size(jobs: Sequence[TraceJob], jct: dict[int, float], outcome: Outcome) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, low, high in SIZES:
        numbers = [n for n in jct if low <= jobs[n].gpus <= high]
        out[name] = _times(numbers, jct, {n: outcome.wait_s[n] for n in numbers}) | _spread(outcome, numbers)
    return out


def _by_pool(
    jobs: Sequence[TraceJob], cluster: Cluster, jct: dict[int, float], waits: dict[int, float]
) -> dict[str, Any]:
    members: dict[str, list[int]] = {}
    for n in jct:
        members.setdefault(next(iter(cluster.pools)) if cluster.one_pool else jobs[n].pool, []).append(n)
    return {pool: _times(numbers, jct, waits) for pool, numbers in sorted(members.items())}


def _times(numbers: Sequence[int], jct: dict[int, float], waits: dict[int, float]) -> dict[str, Any]:
    """Return JCT and wait of some jobs: mean, p50, p99, p99.9."""
    out: dict[str, Any] = {"jobs": len(numbers)}
    for name, values in (("jct", jct), ("wait", waits)):
        ordered = sorted(values[n] for n in numbers)
        out[f"avg_{name}_s"] = mean(ordered)
        for label, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
            out[f"{label}_{name}_s"] = percentile(ordered, share)
    return out


def _spread(outcome: Outcome, numbers: Sequence[int]) -> dict[str, float | None]:
    """Return JTTED, of nodes and of leaf groups, averaged over some jobs."""
    used, least = outcome.nodes_used, outcome.nodes_least
    groups, groups_least = outcome.leaves_used, outcome.leaves_least
    return {
        "jtted": mean([used[n] / least[n] for n in numbers if least[n]]),
        "jtted_leaf_groups": mean([groups[n] / groups_least[n] for n in numbers if groups_least[n]]),
    }


def fairness(jobs: Sequence[TraceJob], cluster: Cluster, outcome: Outcome, done: Iterable[int]) -> list[float]:
    """Return each ended job's finish-time fairness: its JCT over its JCT alone in a private 1/n share of its pool.

    n is the time mean of the tenants with live jobs during the job. Alone in a share of S GPUs a job of g GPUs takes its run time, and
    g/S times as long where it is larger than the share (after Themis, NSDI'20, section 3.1, for jobs that cannot be resized).
    """
    members: dict[str, list[int]] = {}
    for n in done:
        members.setdefault("" if cluster.one_pool else jobs[n].pool, []).append(n)
    out = []
    for pool, numbers in sorted(members.items()):
        gpus = cluster.gpus if cluster.one_pool else sum(node.gpus for node in cluster.pools[pool])
        times, areas, counts = _active_tenants(jobs, outcome, numbers)
        for n in numbers:
            submit, end = jobs[n].submit_s, _known(outcome.end_s[n])
            if end <= submit or jobs[n].duration_s <= 0:
                continue
            tenants = (_area(times, areas, counts, end) - _area(times, areas, counts, submit)) / (end - submit)
            out.append((end - submit) / (jobs[n].duration_s * max(1.0, jobs[n].gpus * tenants / gpus)))
    return out


def _active_tenants(
    jobs: Sequence[TraceJob], outcome: Outcome, numbers: Sequence[int]
) -> tuple[list[float], list[float], list[int]]:
    """Return when the number of active tenants changed, its integral up to then, and the number from then on."""
    changes = sorted(
        [(jobs[n].submit_s, 1, jobs[n].tenant) for n in numbers]
        + [(_known(outcome.end_s[n]), 0, jobs[n].tenant) for n in numbers]
    )
    live: dict[str, int] = {}
    times, areas, counts = [changes[0][0]], [0.0], [0]
    for at, starts, tenant in changes:
        if at > times[-1]:
            areas.append(areas[-1] + counts[-1] * (at - times[-1]))
            times.append(at)
            counts.append(counts[-1])
        before = live.get(tenant, 0)
        live[tenant] = before + (1 if starts else -1)
        counts[-1] += (live[tenant] > 0) - (before > 0)
    return times, areas, counts


def _area(times: list[float], areas: list[float], counts: list[int], at: float) -> float:
    last = bisect_right(times, at) - 1
    return areas[last] + counts[last] * (at - times[last])
