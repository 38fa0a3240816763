"""How far a source of advice is believed in a pool: what it said of pairs of jobs, against which of the two ran longer.

**Pairs.** The jobs that a source speaks of are taken two by two as they are first spoken of: neighbours, which compete for the same
GPUs. Only what was said before a job first started counts. A pair is decided when it is known that one of the two runs at least
`APART` times as long as the other: both have ended, or the shorter one has, and the other has run for that long and goes on (so a
source that calls a job short is judged while that job still runs). Runs that lie nearer to each other, and pairs of which the source
says the same, are no evidence. A job that was cancelled or failed is only known to run longer than it did. The source is right (+1)
or wrong (-1); what is no positive finite number is wrong.

**Why a source that knows nothing is not believed.** When a pair is decided depends on when both have run for so long, not on which of
the two is the longer one: of such a source each verdict x is a fair coin, whatever the policy did with its word. Two gamblers bet a
quarter and three quarters of their capital on its being right (`capital *= 1 + bet * x`), and neither falls below 1. Only when their
mean has reached `BELIEVED` is the source believed at all: one that knows nothing comes there once in `BELIEVED` pairs at the most
(a martingale's maximal inequality: Ville 1939; Shafer, "Testing by betting", JRSS A 184(2), 2021; restarted at 1: Shin, Ramdas and
Rinaldo, "E-detectors", NEJSDS 2(2), 2024), one that is always right after some thirty pairs.

**The weight.** Let skill be the mean of x over the last `REMEMBERED` pairs that were decided (each weighs 1/`REMEMBERED` less with every
later one), and, over the last of which both have ended, near to each other or not, spread_e the mean of |ln e - ln e'| and spread_r that
of |ln r - ln r'|. For a source that is believed

    w = min(1, sin(pi/2 * skill) * spread_r / spread_e)

which is by how much ln r grows with ln e (the slope of a regression: the correlation is sin(pi/2 * tau) of Kendall's tau, Greiner 1909,
times the ratio of the spreads). An estimate that is the truth times noise of sigma counts less the larger sigma is; one that is careful by
itself, such as a median of many, counts whole. w goes in the steps of `STEPS`, up when the next one is reached but for a tenth, down when it
is missed by a fifth. For any other source w is 0. When skill falls below `SKILL_MIN` a source is believed no more, and must show it all again.

**What a job's own progress says** is said while it runs, when it is known already how long it has: so of two jobs the times that are left are
compared, what was said of each at its first reading with what it ran from then on, by the same pairs. Of a source that knows nothing each
verdict is a fair coin again: which of the two runs longer from its reading on does not depend on what was said. Its intervals are not counted.

**Its intervals.** Where a source says p10 and p90 before a job starts, the share of whole runs that lie between them is counted over the last
`COVERAGE_JOBS` (eight in ten should; of so many, because the jobs of a sweep lie inside or outside together: a few sweeps are no evidence of
a broken source). When it falls below `COVERAGE_MIN`, what is said is broken, whatever order it puts jobs in: the source is
believed no more, and not again before the share is back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import isfinite, log, pi, sin
from typing import Any, Final, Self

APART: Final = 2.0
BETS: Final = (0.25, 0.75)
BELIEVED: Final = 1e6
REMEMBERED: Final = 50.0
SKILL_MIN: Final = 0.05
STEPS: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
STEP_REACHED: Final = 0.9
STEP_DOWN: Final = 0.8
COVERAGE_JOBS: Final = 1000.0
COVERAGE_JUDGED_MIN: Final = 50
COVERAGE_MIN: Final = 0.5
RUN_MIN_S: Final = 1.0
"""A run of no length counts as one of a second: twice nothing is nothing."""


@dataclass(slots=True)
class Pair:
    """Two jobs and what was said of them; `second` is empty until it comes. `ended` is the one that has ended, `run_s` how long it ran.

    `judged`: the other one has outlasted it, and is only waited for to know by how much.
    """

    first: str
    first_s: float | None
    second: str = ""
    second_s: float | None = None
    ended: str = ""
    run_s: float = 0.0
    judged: bool = False

    def other(self, job: str) -> str:
        """Return the other job of the pair, empty where there is none yet."""
        return self.second if job == self.first else self.first

    @property
    def decided_s(self) -> float:
        """How long the other one has to run to be known as the longer one."""
        return max(self.run_s, RUN_MIN_S) * APART

    @property
    def spread(self) -> float:
        """How far apart the two estimates are: |ln e - ln e'|."""
        return abs(log(self.first_s) - log(self.second_s)) if self.first_s and self.second_s else 0.0

    def verdict(self, shorter: str) -> int:
        """Return 1 where the source put the shorter one first, -1 where it did not, 0 where it said the same of both."""
        short, long = (self.first_s, self.second_s) if shorter == self.first else (self.second_s, self.first_s)
        if short is None or long is None:
            return -1
        return (short < long) - (short > long)


@dataclass(slots=True)
class Trust:
    """What is known of one source in one pool. `single` waits for its partner; `pairs` has each live job's pair, `intervals` p10 and p90.

    `covered` is the share of the last `judged` whole runs that lay in what was said of them.
    """

    weight: float = 0.0
    skill: float = 0.0
    spread_e: float = 0.0
    spread_r: float = 0.0
    compared: int = 0
    decided: int = 0
    capital: list[float] = field(default_factory=lambda: [1.0] * len(BETS))
    believed: bool = False
    judged: int = 0
    covered: float = 0.0
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    single: Pair | None = None
    pairs: dict[str, Pair] = field(default_factory=dict)

    @property
    def misses(self) -> bool:
        """Whether too many runs lie outside what was said of them."""
        return self.judged >= COVERAGE_JUDGED_MIN and self.covered < COVERAGE_MIN

    def said(self, job: str, estimate_s: float | None, p10_s: float | None = None, p90_s: float | None = None) -> None:
        """The source speaks of a job that has not started yet."""
        self.intervals.pop(job, None)
        if p10_s is not None and p90_s is not None:
            self.intervals[job] = (p10_s, p90_s)
        self._pair(job, estimate_s)

    def _pair(self, job: str, estimate_s: float | None) -> None:
        told = estimate_s if estimate_s is not None and isfinite(estimate_s) and estimate_s > 0 else None
        pair = self.pairs.get(job)
        if pair is not None:
            if pair.first == job:
                pair.first_s = told
            else:
                pair.second_s = told
        elif self.single is None:
            self.single = self.pairs[job] = Pair(job, told)
        else:
            pair, self.single = self.single, None
            pair.second, pair.second_s = job, told
            self.pairs[job] = pair

    def ended(self, job: str, run_s: float, *, whole: bool) -> None:
        """A job has ended. `whole`: it ran as long as it runs; else (cancelled, failed) it would have run longer, nobody knows how long."""
        self._cover(job, run_s, whole=whole)
        pair = self.pairs.pop(job, None)
        if pair is None:
            return
        if not pair.ended:
            if whole:
                pair.ended, pair.run_s = job, run_s
            else:
                self._part(pair, job)
            return
        if not pair.judged:
            if run_s >= pair.decided_s:
                self._judge(pair, pair.ended)
            elif whole and pair.run_s >= max(run_s, RUN_MIN_S) * APART:
                self._judge(pair, job)
        if whole:
            self._compare(pair, abs(log(max(run_s, RUN_MIN_S) / max(pair.run_s, RUN_MIN_S))))
        self._weigh()

    def part_all(self) -> None:
        """What was said of the live jobs decides nothing; what is known of the source stays."""
        self.single = None
        self.pairs.clear()

    def outlasts(self, job: str) -> float | None:
        """Return how long the live job has to run to be known as the longer one of its pair, None where that is not in question."""
        pair = self.pairs.get(job)
        return pair.decided_s if pair is not None and pair.ended and not pair.judged else None

    def outlasted(self, job: str) -> None:
        """The live job has run for that long."""
        pair = self.pairs[job]
        self._judge(pair, pair.ended)
        self._weigh()

    def partner(self, job: str) -> str:
        """Return the other job of the job's pair, empty where there is none."""
        pair = self.pairs.get(job)
        return pair.other(job) if pair is not None else ""

    def _part(self, pair: Pair, ended: str) -> None:
        """Nothing can be learnt of a pair of which one ended before its time and the first; the other one looks for a new partner."""
        other = pair.other(ended)
        if pair is self.single:
            self.single = None
        elif other in self.pairs:
            told = pair.first_s if other == pair.first else pair.second_s
            del self.pairs[other]
            self._pair(other, told)

    def _cover(self, job: str, run_s: float, *, whole: bool) -> None:
        interval = self.intervals.pop(job, None)
        if interval is None or not whole:
            return
        self.judged += 1
        inside = interval[0] <= run_s <= interval[1]
        self.covered += (float(inside) - self.covered) / min(self.judged, COVERAGE_JOBS)
        if self.believed and self.misses:
            self._disbelieve()
            self._weigh()

    def _disbelieve(self) -> None:
        self.believed = False
        self.capital = [1.0] * len(BETS)

    def _judge(self, pair: Pair, shorter: str) -> None:
        """It is known which of the two is the shorter one by far."""
        pair.judged = True
        verdict = pair.verdict(shorter)
        if verdict == 0:
            return
        self.decided += 1
        self.capital = [max(c * (1.0 + bet * verdict), 1.0) for c, bet in zip(self.capital, BETS, strict=True)]
        self.skill += (verdict - self.skill) / min(self.decided, REMEMBERED)
        if not self.believed and sum(self.capital) / len(BETS) >= BELIEVED:
            self.believed = not self.misses
        elif self.believed and self.skill < SKILL_MIN:
            self._disbelieve()

    def _compare(self, pair: Pair, spread_r: float) -> None:
        """Both runs are known."""
        if pair.first_s is not None and pair.second_s is not None:
            self.compared += 1
            part = 1.0 / min(self.compared, REMEMBERED)
            self.spread_e += (pair.spread - self.spread_e) * part
            self.spread_r += (spread_r - self.spread_r) * part

    def _weigh(self) -> None:
        if not self.believed:
            self.weight = 0.0
            return
        wanted = 1.0 if self.spread_e == 0.0 else sin(pi / 2 * self.skill) * self.spread_r / self.spread_e
        reached = max((step for step in STEPS if step * STEP_REACHED <= wanted), default=STEPS[0])
        if reached > self.weight or wanted < self.weight * STEP_DOWN:
            self.weight = reached

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "capital": list(self.capital),
            "intervals": {job: list(interval) for job, interval in self.intervals.items()},
            "single": _pair_to_json(self.single) if self.single is not None else None,
            "pairs": [_pair_to_json(p) for p in {id(p): p for p in self.pairs.values()}.values()],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return it from a JSON object; one of another shape (an older core's) is a source of which nothing is known."""
        if "capital" not in value:
            return cls()
        known = cls(**{name: value[name] for name in _NUMBERS if name in value}, capital=list(value["capital"]))
        known.intervals = {job: (low, high) for job, (low, high) in value.get("intervals", {}).items()}
        single = value["single"]
        if single is not None:
            known.single = Pair(**single)
        for given in value["pairs"]:
            pair = known.single if known.single is not None and given["first"] == known.single.first else Pair(**given)
            for job in (pair.first, pair.second):
                if job and job != pair.ended:
                    known.pairs[job] = pair
        return known


_NUMBERS: Final = (
    "weight",
    "skill",
    "spread_e",
    "spread_r",
    "compared",
    "decided",
    "believed",
    "judged",
    "covered",
)
_PAIR_FIELDS: Final = tuple(f.name for f in fields(Pair))


def _pair_to_json(pair: Pair) -> dict[str, Any]:
    return {name: getattr(pair, name) for name in _PAIR_FIELDS}
