"""How fast a cluster works, from jobs whose published work is known: what a model that nobody ran here before will take a step.

    step time = launch + FLOPs of a GPU / effective speed + bytes synchronised / effective bandwidth (within a node, or across nodes)

Four numbers for a GPU type, each the cluster's own, none a model's (a percentage of the peak, as in Qi et al. 2017, "Paleo", but measured; the
constant part is what keeps small models from ever being fast). They are fitted to the medians of past step times in logarithms, by absolute error, each
model with one voice whatever the number of its jobs. How far such an estimate is off is measured by leaving each model out and telling it from the
others: that is the first time of a model. With fewer than two models there is nothing to judge by, and nothing is told.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any, Final

import numpy as np

from schedmate.services.history_estimator.groups import median
from schedmate.services.history_estimator.jobs import Job
from schedmate.services.history_estimator.novelty import outer_quantiles
from schedmate.services.history_estimator.work import Work, work_of

KINDS_MAX: Final = 64
VOICES_MIN: Final = 3
CLUSTERS_MAX: Final = 2_000
JOBS_EACH: Final = 64
KINDS_MIN: Final = 2
JOBS_MIN: Final = 10
LEFT_OUT_MAX: Final = 16
REFIT_SHARE: Final = 4
ROUNDS: Final = 3
INDIFFERENT: Final = 1.01
"""Numbers whose loss is so near the least are as good as the best; the middle one of them is taken."""
SPREAD_MIN: Final = log(2.0)
OF_KIND_MIN: Final = 3
OF_KIND_MAX: Final = 20

Numbers = np.ndarray[Any, np.dtype[np.float64]]
_LAUNCH_S: Final = np.geomspace(
    1e-3, 1.0, 31
)  # no step of training is a hundred kernels of ten microseconds short of nothing
_S_A_FLOP: Final = np.geomspace(1e-16, 1e-10, 91)
_S_A_BYTE: Final = np.concatenate([[0.0], np.geomspace(1e-12, 1e-7, 51)])
_GRIDS: Final = (_LAUNCH_S, _S_A_FLOP, _S_A_BYTE, _S_A_BYTE)
_FLOP: Final = 1


@dataclass(frozen=True, slots=True)
class Pace:
    """A cluster's pace on one GPU type; `low` and `high` are how far off the first times of a model were, in logarithms."""

    launch_s: float
    s_a_flop: float
    s_a_byte_within: float
    s_a_byte_across: float
    low: float
    high: float
    models: int

    @property
    def flops_per_s(self) -> float:
        """The effective speed of one GPU."""
        return 1.0 / self.s_a_flop

    def step_s(self, work: Work) -> float:
        """Return the time of a step, s."""
        a_byte = self.s_a_byte_across if work.across_nodes else self.s_a_byte_within
        return self.launch_s + self.s_a_flop * work.flops + a_byte * work.synced_bytes

    def log_run_s(self, work: Work) -> float:
        """Return the logarithm of the run time, s."""
        return log(work.steps) + log(self.step_s(work))


@dataclass(slots=True)
class Paces:
    """The jobs of known work on one GPU type, and the pace that they show."""

    _kinds: OrderedDict[str, deque[tuple[Work, float]]] = field(default_factory=OrderedDict)
    jobs: int = 0
    _fit_at: int = JOBS_MIN
    _pace: Pace | None = None

    def learn(self, work: Work, log_s: float) -> None:
        """A job of this work took so long, as the logarithm of seconds."""
        if work.kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            self._kinds.popitem(last=False)
        self._kinds.setdefault(work.kind, deque(maxlen=JOBS_EACH)).append((work, log_s))
        self.jobs += 1

    def of_kind(self, work: Work) -> list[float] | None:
        """Return what the last jobs of the work's kind make of it, logarithms of run times, newest last; None where they are few, or no pace is known."""
        jobs = self._kinds.get(work.kind, ())
        pace = self.pace() if len(jobs) >= OF_KIND_MIN else None
        if pace is None:
            return None
        told = pace.log_run_s(work)
        return [told + log_s - pace.log_run_s(done) for done, log_s in list(jobs)[-OF_KIND_MAX:]]

    def pace(self) -> Pace | None:
        """Return the pace, fitted anew when a quarter more jobs have ended; None where too little is known."""
        if self.jobs >= self._fit_at:
            self._pace = fitted([list(jobs) for jobs in self._kinds.values()])
            self._fit_at = self.jobs + max(self.jobs // REFIT_SHARE, 1)
        return self._pace


@dataclass(frozen=True, slots=True)
class Timed:
    """A run time told from published work, as logarithms of seconds; `elsewhere` is how many jobs of other tenants it rests on."""

    low: float
    middle: float
    high: float
    elsewhere: int = 0


class Clusters:
    """The paces by tenant and GPU type. A tenant's own decide; others', three at least and each with one voice, where it has none."""

    def __init__(self) -> None:
        self._own: OrderedDict[tuple[str, str], Paces] = OrderedDict()

    def learn(self, job: Job, log_s: float) -> None:
        """A job has ended whole, and took so long."""
        work = work_of(job.workload, job.gpus)
        if work is None:
            return
        key = (job.tenant, job.gpu_type or "")
        if key not in self._own and len(self._own) >= CLUSTERS_MAX:
            self._own.popitem(last=False)
        self._own.setdefault(key, Paces()).learn(work, log_s)
        self._own.move_to_end(key)  # who has been silent longest is forgotten, not who has been here longest

    def of_kind(self, job: Job) -> list[float] | None:
        """Return what the tenant's last jobs of the job's kind make of its published work, logarithms of run times; None where they tell nothing.

        Each one's run time, times the ratio of the two jobs' work at the cluster's pace.
        """
        own = self._own.get((job.tenant, job.gpu_type or "")) if job.workload else None
        work = work_of(job.workload, job.gpus) if own is not None else None
        return own.of_kind(work) if own is not None and work is not None else None

    def told(self, job: Job, *, across_tenants: bool) -> Timed | None:
        """Return the run time of a job by its published work; None where its source does not state it, or no pace is known."""
        work = work_of(job.workload, job.gpus)
        if work is None:
            return None
        own = self._own.get((job.tenant, job.gpu_type or ""))
        pace = own.pace() if own is not None else None
        if pace is not None:
            middle = pace.log_run_s(work)
            return Timed(middle + pace.low, middle, middle + pace.high)
        if not across_tenants:
            return None
        others = [
            paces
            for (tenant, gpu_type), paces in self._own.items()
            if gpu_type == (job.gpu_type or "") and tenant != job.tenant
        ]
        paces = [(found, paces.jobs) for paces in others if (found := paces.pace()) is not None]
        if len(paces) < VOICES_MIN:
            return None
        middle = median(sorted(p.log_run_s(work) for p, _ in paces))
        low, high = median(sorted(p.low for p, _ in paces)), median(sorted(p.high for p, _ in paces))
        return Timed(middle + low, middle, middle + high, sum(jobs for _, jobs in paces))


def fitted(models: Sequence[Sequence[tuple[Work, float]]]) -> Pace | None:
    """Return the pace that jobs show, a sequence a model; None with fewer than two models, or ten jobs."""
    told = [jobs for jobs in models if jobs]
    if len(told) < KINDS_MIN or sum(map(len, told)) < JOBS_MIN:
        return None
    tables = [_table(jobs) for jobs in told]
    whole = _solved(tables)
    off: list[Numbers] = []
    for place in _spread(len(tables), LEFT_OUT_MAX):
        others = _solved([table for n, table in enumerate(tables) if n != place])
        columns, logs = tables[place]
        off.append(logs - np.log(np.maximum(columns @ others, 1e-12)))
    low, high = outer_quantiles(off)
    launch_s, s_a_flop, within, across = whole.tolist()
    return Pace(launch_s, s_a_flop, within, across, min(low, -SPREAD_MIN), max(high, SPREAD_MIN), len(told))


def _table(jobs: Sequence[tuple[Work, float]]) -> tuple[Numbers, Numbers]:
    """Return the columns (1, FLOPs, bytes within a node, bytes across nodes) and the logarithms of step times."""
    columns = np.array([[1.0, w.flops, 0.0 if w.across_nodes else w.synced_bytes, w.synced_bytes if w.across_nodes else 0.0] for w, _ in jobs])  # fmt: skip
    return columns, np.array([log_s - log(w.steps) for w, log_s in jobs])


def _solved(tables: Sequence[tuple[Numbers, Numbers]]) -> Numbers:
    """Return the four numbers of least absolute error in logarithms, by going down one after the other over a grid; each model one voice."""
    columns = np.vstack([c for c, _ in tables])
    logs = np.concatenate([t for _, t in tables])
    weights = np.concatenate([np.full(len(t), 1.0 / len(t)) for _, t in tables])
    speed = logs - np.log(np.maximum(columns[:, _FLOP], 1.0))
    found = np.array([_LAUNCH_S[0], exp(_weighted_median(speed, weights)), 0.0, 0.0])
    for _ in range(ROUNDS):
        for place, grid in enumerate(_GRIDS):
            if not columns[:, place].any():
                continue
            tried = np.append(grid, found[place])
            rest = columns @ np.where(np.arange(len(found)) == place, 0.0, found)
            told = np.log(np.maximum(rest[None, :] + tried[:, None] * columns[None, :, place], 1e-12))
            loss = (np.abs(told - logs[None, :]) * weights[None, :]).sum(axis=1)
            as_good = np.sort(tried[loss <= INDIFFERENT * loss.min()])
            found[place] = as_good[(len(as_good) - 1) // 2]
    return found


def _weighted_median(values: Numbers, weights: Numbers) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][int(np.searchsorted(reached, 0.5 * reached[-1]))])


def _spread(count: int, most: int) -> list[int]:
    """Return at most so many places, spread over all."""
    return sorted({round(n * (count - 1) / max(min(count, most) - 1, 1)) for n in range(min(count, most))})
