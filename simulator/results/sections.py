"""The parts of a ground's section that compare: what advice is worth, in all and pool by pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schedmate.simulator.bounds import lower_bounds, overall_s
from schedmate.simulator.cluster import Cluster
from schedmate.simulator.results.intervals import Interval, gained
from schedmate.simulator.results.ledger import Line
from schedmate.simulator.results.tables import gain, number, percent, seconds, table
from schedmate.simulator.results.worth import (
    Lines,
    Worth,
    best_without,
    of_pool,
    pools_of,
    title_of,
    total_gain,
    worths,
)
from schedmate.simulator.trace import Trace

TRUE = "oracle"
CARRIERS = 2  # the pools that are named as carrying most of the gain


def sentences(lines: Lines, base: Line, missing: int = 0) -> str:
    """Say where advice helps and where it does not; `missing`: runs of this ground that are not finished."""
    found = _told(lines, worths(lines, base))
    real = [w for w in found if w.line.case.advice != TRUE]
    said = [_true_times(found), _listed(real, missing)]
    still = best_without(lines, stopping=False)
    if still is not None and still is not base:
        said.append(_without_stopping(lines, still))
    said.append(_itself(lines))
    return " ".join(part for part in said if part)


def _told(lines: Lines, found: Sequence[Worth]) -> list[Worth]:
    """Leave out advice that changes nothing: what such a run gains is its policy's, not the advice's."""
    return [w for w in found if (own := lines.get((w.line.case.policy, "none"))) is None or own.blocks != w.line.blocks]


def _true_times(found: Sequence[Worth]) -> str:
    """What true run times gain at most: all that advice could."""
    oracles = [w for w in found if w.line.case.advice == TRUE]
    if not oracles:
        return ""
    best = max(oracles, key=lambda w: w.gained_s.value)
    behind = [f"`{w.line.case.policy}`" for w in oracles if w.gained_s.value <= 0]
    if best.gained_s.value > 0:
        said = f"True run times gain {_seconds(best.gained_s)} over it at best ({title_of(best.line.case)})."
    else:
        lost = _seconds(_negative(best.gained_s))
        return f"Even true run times gain nothing over it: {title_of(best.line.case)}, the nearest, is {lost} behind."
    if behind:
        said += f" {_and(behind)} {'are' if len(behind) > 1 else 'is'} behind it even with true run times."
    return said


def _listed(real: Sequence[Worth], missing: int) -> str:
    so_far = f" (so far: {missing} runs of this ground are not finished)" if missing else ""
    better = [w for w in real if w.gained_s.above_zero]
    if not real:
        return ""
    if not better:
        likely = [w for w in real if w.gained_s.value > 0 and not w.gained_s.above_zero]
        said = f"**Advice does not help here**{so_far}: no source but the true run times gains over the best policy without advice beyond chance"
        if likely:
            best = max(likely, key=lambda w: w.gained_s.value)
            said += f" (the nearest: {title_of(best.line.case)}, {_seconds(best.gained_s)})"
        return said + "."
    listed = _and([f"{title_of(w.line.case)} {_seconds(w.gained_s)}" for w in sorted(better, key=lambda w: -w.gained_s.value)])  # fmt: skip
    return f"Advice gains over it beyond chance{so_far}: {listed}; no other source does."


def _without_stopping(lines: Lines, still: Line) -> str:
    """The same where no running job may be stopped."""
    found = [w for w in _told(lines, worths(lines, still)) if not w.line.figures["preemptions"]]
    better = [w for w in found if w.gained_s.above_zero and w.line.case.advice != TRUE]
    oracles = [w for w in found if w.line.case.advice == TRUE and w.gained_s.value > 0]
    said = f"Where no job may be stopped, the best without advice is {title_of(still.case)} ({seconds(still.figures['avg_jct_s'])} s)"
    if oracles:
        best = max(oracles, key=lambda w: w.gained_s.value)
        said += f", true run times gain {_seconds(best.gained_s)} ({title_of(best.line.case)})"
    if better:
        said += ", and advice " + _and([f"{_seconds(w.gained_s)} ({title_of(w.line.case)})" for w in better])
    elif found:
        said += ", and no other advice gains beyond chance"
    return said + "."


def _itself(lines: Lines) -> str:
    """Advice that makes a policy worse than the same policy without it."""
    worse = []
    for (policy, advice), line in sorted(lines.items()):
        own = lines.get((policy, "none"))
        if advice in ("none", TRUE) or line.case.advice.startswith("column:") or own is None:
            continue
        if (lost := gained(own.blocks, line.blocks)).below_zero:
            worse.append(f"`{policy}` with `{advice}` (by {_seconds(_negative(lost))})")  # fmt: skip
    return f"Worse than the same policy without advice: {_and(worse)}." if worse else ""


def worth_table(lines: Lines, base: Line) -> str:
    """Every run with advice against the best without, with intervals."""
    still = best_without(lines, stopping=False)
    rows = []
    idle: dict[str, list[str]] = {}  # policy -> advice that changes nothing
    for w in worths(lines, base):
        own, line = lines.get((w.line.case.policy, "none")), w.line
        if own is not None and own.blocks == line.blocks:
            idle.setdefault(line.case.policy, []).append(f"`{line.case.label}`")
            continue
        rows.append((
            f"`{line.case.policy}`", line.case.label, number(line.figures["avg_jct_s"]), gain(w.gained_s), percent(w.share),
            gain(gained(still.blocks, line.blocks)) if still is not None else "-",
            gain(gained(own.blocks, line.blocks)) if own is not None else "-",
        ))  # fmt: skip
    if not rows:
        return ""
    blocks = len(base.blocks)
    head = ("policy", "advice", "average JCT", f"gained over {title_of(base.case)}", "share closed",
            f"gained over {title_of(still.case)}" if still is not None else "", "gained over itself without advice")  # fmt: skip
    return (
        f"**The value of advice.** Seconds of the average JCT gained over the best policy without advice, over the best of those that stop no job, and over the same policy without advice; "
        f"95 % intervals by paired block bootstrap ({blocks} blocks: {'virtual cluster x week' if len(pools_of(base)) > 1 else 'days'}). "
        "Share closed: (best without - this) / (best without - the same policy with true run times); `-` where true run times gain this policy nothing over the best without.\n\n"
        f"{table(head, rows)}\n{_idle(idle)}"
    )


def _idle(idle: Mapping[str, Sequence[str]]) -> str:
    """Name the advice that left every job where it was without advice."""
    if not idle:
        return ""
    listed = "; ".join(f"`{policy}`: {_and(sources)}" for policy, sources in sorted(idle.items()))
    return f"\nThe same as without advice, because nothing was believed or nothing was said ({listed}).\n"


def pool_table(lines: Lines, base: Line, trace: Trace, cluster: Cluster) -> str:
    """The lower bound and every comparison, pool by pool."""
    bounds = lower_bounds(trace.jobs, cluster)
    reached = min(lines.values(), key=lambda line: float(line.figures["avg_jct_s"]))
    bound = overall_s(bounds)
    said = (
        f"**Lower bound.** No schedule has an average JCT below {seconds(bound)} s: max(mean run time, SRPT of the pool as one fast machine), pool by pool; "
        f"the best run here ({title_of(reached.case)}) is {100 * (reached.figures['avg_jct_s'] / bound - 1):.1f} % above it.\n\n"
    )
    if cluster.one_pool:
        (only,) = bounds.values()
        return said + f"Mean run time {seconds(only.run_s)} s, SRPT {seconds(only.srpt_s)} s: the {only.side} binds.\n"
    compared = [w for w in worths(lines, base) if w.line.blocks != lines.get((w.line.case.policy, "none"), base).blocks]
    pools = pools_of(base)
    rows = []
    for pool in pools:
        jobs = sum(count for count, _ in of_pool(base, pool).values())
        own = of_pool(base, pool)
        rows.append((
            f"`{pool}`", f"{jobs:,}", f"{len(cluster.pools[pool])}", f"{seconds(bounds[pool].at_least_s)} ({bounds[pool].side})",
            seconds(sum(total for _, total in own.values()) / jobs), *(gain(gained(own, of_pool(w.line, pool))) for w in compared),
        ))  # fmt: skip
    head = ("VC", "jobs", "nodes", "lower bound", title_of(base.case), *(title_of(w.line.case) for w in compared))
    return (
        said
        + _carriers(lines, base)
        + "<details><summary>Every comparison by virtual cluster: seconds gained over the best without advice (a cluster's few weeks are its "
        "blocks, so these intervals are rough)</summary>\n\nRuns that come to the same as without advice are left out.\n\n"
        f"{table(head, rows)}\n\n</details>\n"
    )


def _carriers(lines: Lines, base: Line) -> str:
    """Name the pools that carry most of what the best policies gain."""
    said = []
    fifo = lines.get(("fifo", "none"))
    best = min(lines.values(), key=lambda line: float(line.figures["avg_jct_s"]))
    for before, after in ((fifo, base), (base, best)):
        if before is None or before is after:
            continue
        gains = {pool: total_gain(before, after, pool)[1] for pool in pools_of(base)}
        whole = sum(gains.values())
        if whole <= 0:
            continue
        top = sorted(gains, key=lambda pool: -gains[pool])[:CARRIERS]
        share = 100 * sum(gains[pool] for pool in top) / whole
        named = _and([f"`{pool}`" for pool in top])
        said.append(f"Of what {title_of(after.case)} gains over {title_of(before.case)}, {named} carry {share:.0f} %.")
    return " ".join(said) + "\n\n" if said else ""


def _seconds(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.value:,.0f} s"
    return f"{interval.value:,.0f} s ({interval.low:,.0f} to {interval.high:,.0f})"


def _negative(interval: Interval) -> Interval:
    return Interval(-interval.value, _minus(interval.high), _minus(interval.low))


def _minus(value: float | None) -> float | None:
    return None if value is None else -value


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
