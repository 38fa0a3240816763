"""The risk that a job ends early, failed or cancelled, as a hazard: early ends a second of run, by how long the job has run.

Piecewise constant over spans of the run time; jobs that ended well, and jobs that still run, count with the time that they have run.
The risk up to a time t is 1 - exp(-sum of hazard x time in each span), the life table's estimate.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import expm1, inf
from typing import Final

SPANS_S: Final = (0.0, 60.0, 300.0, 1_800.0, 7_200.0, 28_800.0, 86_400.0, 259_200.0, inf)
JOBS_MIN: Final = 3
KEPT: Final = 0.998
"""An older job counts so much less with every later one."""


class Hazard:
    """Early ends and time at risk of one group of jobs."""

    __slots__ = ("_at_risk_s", "_early", "jobs")

    def __init__(self) -> None:
        self.jobs = 0
        self._early = [0.0] * (len(SPANS_S) - 1)
        self._at_risk_s = [0.0] * (len(SPANS_S) - 1)

    def learn(self, run_s: float, *, early: bool) -> None:
        """A job has ended after so long."""
        self.jobs += 1
        for span in range(len(self._early)):
            self._early[span] *= KEPT
            self._at_risk_s[span] *= KEPT
        for span, seconds in _spans(run_s):
            self._at_risk_s[span] += seconds
        if early:
            self._early[min(bisect_right(SPANS_S, run_s) - 1, len(self._early) - 1)] += 1.0

    def risk(self, until_s: float, since_s: float = 0.0) -> float | None:
        """Return the risk of an early end up to a run time, given that it runs since so long; None for too few jobs."""
        if self.jobs < JOBS_MIN:
            return None
        before = dict(_spans(since_s))
        total = 0.0
        for span, seconds in _spans(until_s):
            open_s = seconds - before.get(span, 0.0)
            if open_s > 0 and self._early[span] > 0:
                # the time of half a job more: where all that came so far ended early, the rate is no certainty
                total += self._early[span] / (self._at_risk_s[span] + 0.5 * seconds) * open_s
        return -expm1(-total)


def _spans(run_s: float) -> list[tuple[int, float]]:
    """Return the seconds of a run that lie in each span."""
    out = []
    for span, (low, high) in enumerate(pairwise(SPANS_S)):
        if run_s <= low:
            break
        out.append((span, min(run_s, high) - low))
    return out
