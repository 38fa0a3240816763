"""What three quantiles of a run time are worth as an order: a distribution between them, and its Gittins index.

**The distribution.** Between p10 and p50 and between p50 and p90 ln(run time) is spread evenly, and so are the outer tenths, over a quarter
of the length (in the log) of the part beside them: four pieces that hold 0.1, 0.4, 0.4 and 0.1 of the chance. That adds nothing to what
the quantiles say. (The three-point rule of Keefer and Bodily, Management Science 29(5), 1983, takes the same three for the mean, but has no
hazard between its points.)

**The index.** For a job that has run for a, of the run time S,

    G(a) = min over b > a of  E[min(S, b) - a | S > a] / P(S <= b | S > a)

what is expected to be spent, for each such job that ends, on serving it until b at the most (Gittins 1989; the least G first minimises the
mean time in the system: Aalto, Ayesta and Righter, Queueing Systems 63, 2009). b is sought among the ends of the pieces, cut to where each
is at most a doubling long, and at once, which is one over the hazard. Where the three quantiles are one, G is what remains.

Beyond the last piece nothing is known: the job is expected to run for as long again.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, inf, log, log2
from typing import Final

Edges = tuple[float, float, float, float, float]
"""The ends of the four pieces, seconds, ascending."""
_MASSES: Final = (0.1, 0.4, 0.4, 0.1)
_OUTER: Final = 0.25
_NARROW: Final = 1.0 + 1e-9  # a piece of which the ends are no further apart is a point
_CUTS_MAX: Final = 32
_CACHED: Final = 65_536


def edges_of(p10_s: float, p50_s: float, p90_s: float) -> Edges:
    """Return the ends of the pieces; a quantile on the wrong side of p50 counts as p50."""
    low, high = min(p10_s, p50_s), max(p90_s, p50_s)
    return (low * (low / p50_s) ** _OUTER, low, p50_s, high, high * (high / p50_s) ** _OUTER)


@lru_cache(maxsize=_CACHED)
def index_s(p10_s: float, p50_s: float, p90_s: float, run_s: float) -> float:
    """Return G(run_s), seconds. The quantiles are positive and finite, `run_s` is from 0 on."""
    edges = edges_of(p10_s, p50_s, p90_s)
    if run_s >= edges[-1]:
        return run_s
    best = inf
    alive = 1.0  # the chance to run longer than run_s
    ended = spent = 0.0  # of it, what ends by b, and the run time of what does
    for low, high, mass in _cut(edges):
        if high <= run_s:
            alive -= mass
            continue
        if high > low * _NARROW:
            per_log = mass / log(high / low)
            part = per_log * log(high / max(low, run_s))
            if low <= run_s:
                alive -= mass - part
                best = alive * run_s / per_log
            spent += per_log * (high - max(low, run_s))
        else:
            part = mass
            spent += mass * high
        ended += part
        best = min(best, (spent - run_s * ended + (alive - ended) * (high - run_s)) / ended)
    return best


def _cut(edges: Edges) -> list[tuple[float, float, float]]:
    """Return the pieces (from, to, chance), each at most a doubling long, but no more than `_CUTS_MAX` of one."""
    out = []
    for low, high, mass in zip(edges, edges[1:], _MASSES, strict=False):
        parts = min(max(1, ceil(log2(high / low))), _CUTS_MAX)
        step = (high / low) ** (1.0 / parts)
        at = low
        for part in range(1, parts + 1):
            until = high if part == parts else low * step**part
            out.append((at, until, mass / parts))
            at = until
    return out


def turn_s(edges: Edges, run_s: float) -> float:
    """Return when a job that has run for so long was ranked last: when it passed a quantile, or had run twice as long as before."""
    doubled = 2.0 ** floor(log2(run_s)) if run_s >= 1.0 else 0.0
    return max((edge for edge in edges if doubled < edge <= run_s), default=doubled)


def next_turn_s(edges: Edges, run_s: float) -> float:
    """Return after how long a run it will be ranked anew."""
    doubled = 2.0 ** (floor(log2(run_s)) + 1) if run_s >= 1.0 else 1.0
    return min((edge for edge in edges if run_s < edge < doubled), default=doubled)
