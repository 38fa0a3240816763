"""How far a source of advice is believed in a pool: what it said of jobs that have finished, against how long they ran.

Each finished job is compared with 64 that finished before it, every 4th of them: jobs that end one after the other are alike where the
policy orders by the very estimates that are judged. a_i is the mean, over the pairs, of +1 where the source put the two in the order of
their run times, and -1 where it did not. tau is the mean of a_i over about the last 2,000 jobs (each weighs 1/2,000 less with every later
one), n their weight. Of a source that knows nothing a_i has the mean 0 and the variance 1/9 + 1/64, and jobs that are compared with the
same others share their luck, which makes that of the mean (1 + 4)/9 + 1/64 over n. So

    w = clip(2 * (tau - 4 * sqrt(((1 + 4)/9 + 1/64) / n)), 0, 1), in tenths, rounded down

is 0 until a source has shown that it knows something, and falls back to 0 when it knows nothing any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor, sqrt
from typing import Any, Final, Self

COMPARED: Final = 64
REMEMBERED: Final = 2000.0
EVERY: Final = 4
COMPARED_MIN: Final = 16
_VARIANCE: Final = (1 + EVERY) / 9 + 1 / COMPARED
_DEVIATIONS: Final = 4.0
_STEPS: Final = 10


@dataclass(slots=True)
class Trust:
    """What is known of one source in one pool."""

    agreement: float = 0.0
    jobs: float = 0.0
    recent: list[tuple[float, float]] = field(default_factory=list)  # (estimate, run time)
    weight: float = 0.0
    seen: int = 0

    def learn(self, estimate_s: float, run_s: float) -> bool:
        """A job has finished; return whether the weight has changed."""
        agreed = pairs = 0
        for estimate, run in self.recent:
            pairs += 1
            if estimate != estimate_s and run != run_s:
                agreed += 1 if (estimate < estimate_s) == (run < run_s) else -1
        if self.seen % EVERY == 0 or len(self.recent) < COMPARED:
            self.recent.append((estimate_s, run_s))
            if len(self.recent) > COMPARED:
                del self.recent[0]
        self.seen += 1
        if pairs < COMPARED_MIN:
            return False
        keep = 1.0 - 1.0 / REMEMBERED
        self.agreement = self.agreement * keep + agreed / pairs
        self.jobs = self.jobs * keep + 1.0
        shown = self.agreement / self.jobs - _DEVIATIONS * sqrt(_VARIANCE / self.jobs)
        weight = floor(min(max(2.0 * shown, 0.0), 1.0) * _STEPS) / _STEPS
        changed, self.weight = weight != self.weight, weight
        return changed

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "agreement": self.agreement,
            "jobs": self.jobs,
            "recent": [list(r) for r in self.recent],
            "weight": self.weight,
            "seen": self.seen,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return it from a JSON object."""
        return cls(
            value["agreement"], value["jobs"], [(r[0], r[1]) for r in value["recent"]], value["weight"], value["seen"]
        )
