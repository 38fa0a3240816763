"""What advice is worth: against the best policy without it, not against first-in-first-out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from schedmate.simulator.results.grid import Case
from schedmate.simulator.results.intervals import Interval, Sums, gained, share_closed
from schedmate.simulator.results.ledger import Line

WITHOUT: Final = {
    "fifo": "first in, first out",
    "smallest": "smallest first",
    "fifo-skip": "first in, first out with skipping",
    "srtf": "2D-LAS (`srtf` without advice)",
    "tiresias": "2D-LAS in rounds (`tiresias`)",
}
"""The policies that the best one without advice is chosen from; 2D-LAS stands twice, decided at every event and every 60 s."""
STOPPING: Final = frozenset({"srtf", "tiresias"})
"""Those of them that stop running jobs."""

Lines = Mapping[tuple[str, str], Line]
"""The runs of one ground with seed 0, by policy and the label of their advice."""


@dataclass(frozen=True, slots=True)
class Worth:
    """A run with advice against the base: seconds gained in the average JCT, and the share closed of what true run times gain.

    `share` is None where the same policy gains nothing over the base even with true run times: then there is nothing to close.
    """

    line: Line
    gained_s: Interval
    share: Interval | None


def by_advice(lines: Mapping[str, Line], ground: str) -> dict[tuple[str, str], Line]:
    """Return a ground's runs by policy and advice."""
    return {
        (line.case.policy, line.case.label): line
        for line in lines.values()
        if line.case.ground == ground and line.case.seed == 0
    }


def best_without(lines: Lines, *, stopping: bool = True) -> Line | None:
    """Return the run with the least average JCT among the policies without advice; `stopping`: those that stop jobs, too."""
    found = [line for (policy, advice), line in lines.items() if advice == "none" and policy in WITHOUT and (stopping or policy not in STOPPING)]  # fmt: skip
    return min(found, key=lambda line: (line.figures["avg_jct_s"], line.case.policy), default=None)


def worths(lines: Lines, base: Line) -> list[Worth]:
    """Compare every run with advice with the base, policy by policy."""
    return [
        Worth(line, gained(base.blocks, line.blocks), _share(lines, base.blocks, line))
        for (_, advice), line in sorted(lines.items())
        if advice != "none" and comparable(base, line)
    ]


def comparable(base: Line, line: Line) -> bool:
    """Tell whether two runs finished the same jobs; else nothing can be compared in pairs."""
    return {b: jobs for b, (jobs, _) in base.blocks.items()} == {b: jobs for b, (jobs, _) in line.blocks.items()}


def _share(lines: Lines, base: Sums, line: Line) -> Interval | None:
    oracle = lines.get((line.case.policy, "oracle"))
    if oracle is None or line.case.advice == "oracle":
        return None
    return share_closed(base, line.blocks, oracle.blocks)


def of_pool(line: Line, pool: str) -> dict[str, tuple[int, float]]:
    """Return the blocks of one pool."""
    return {name: block for name, block in line.blocks.items() if name.rpartition("/")[0] == pool}


def pools_of(line: Line) -> list[str]:
    """Return the pools, those with most jobs first."""
    jobs: dict[str, int] = {}
    for name, (count, _) in line.blocks.items():
        pool = name.rpartition("/")[0]
        jobs[pool] = jobs.get(pool, 0) + count
    return sorted(jobs, key=lambda pool: (-jobs[pool], pool))


def total_gain(base: Line, line: Line, pool: str) -> tuple[int, float]:
    """Return a pool's jobs, and the seconds that all of them together gain."""
    before, after = of_pool(base, pool), of_pool(line, pool)
    return sum(jobs for jobs, _ in before.values()), sum(before[b][1] - after[b][1] for b in before)


def title_of(case: Case) -> str:
    """Return how a run is called in a sentence."""
    if case.advice == "none":
        return WITHOUT.get(case.policy, f"`{case.policy}`")
    return f"`{case.policy}` with `{case.label}`"
