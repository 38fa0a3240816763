"""Sources of advice: what is said about a job's run time as it arrives.

`none` says nothing; `constant` says the same of every job; `random` is a seeded permutation of the true run times within the pool;
`noisy:SIGMA[,BIAS]` multiplies the true run time by exp(N(BIAS, SIGMA^2)); `oracle` is the true run time; `history` is what
history-estimator says, from the jobs of the simulation that had ended before; `history:median` is the median of the last 200 of them of
the same pool and GPU count; `column:NAME` and `column:FILE.csv:NAME` are a raw order key
out of the trace, or out of a second file joined on `job_id`.

`oracle` and `column` are research: they are taken as they are, with no clamp and no trust weight.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from math import exp, isfinite
from pathlib import Path
from typing import Final

from schedmate.services.dispatcher.core.advice import NO_ADVICE_S
from schedmate.simulator.draws import drawn_from
from schedmate.simulator.outcome import Advisor
from schedmate.simulator.rows import header_of, rows_of
from schedmate.simulator.trace import Trace, TraceError, TraceJob
from schedmate.simulator.workloads import Known

HISTORY_JOBS: Final = 200
RAW: Final = ("oracle", "column")
KNOWN: Final = (
    "none, constant, random, noisy:SIGMA[,BIAS], oracle, history, history:median, column:NAME or column:FILE.csv:NAME"
)


class Told:
    """One estimate a job, known before the start."""

    def __init__(self, basis: str, estimates: Sequence[float | None]) -> None:
        self.basis = basis
        self._estimates = estimates

    def estimate_s(self, number: int, pool: str) -> float | None:  # noqa: ARG002 - the protocol's signature
        """Return the estimate of the job."""
        return self._estimates[number]

    def quantiles(self, number: int) -> tuple[None, None, str]:  # noqa: ARG002 - the protocol's signature
        """Return that nothing is said but the estimate."""
        return None, None, self.basis

    def started(self, number: int, at: float) -> None:
        """What runs tells it nothing."""

    def finished(self, number: int, pool: str, at: float = 0.0) -> None:
        """What has ended tells it nothing."""


class RunningMedian:
    """The causal median of the last jobs of the same pool and GPU count."""

    basis = "history"

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        self._jobs = jobs
        self._last: dict[tuple[str, int], deque[float]] = {}
        self._sorted: dict[tuple[str, int], list[float]] = {}

    def estimate_s(self, number: int, pool: str) -> float | None:
        """Return the median so far, None before anything has ended."""
        known = self._sorted.get((pool, self._jobs[number].gpus))
        if not known:
            return None
        middle = len(known) // 2
        return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2

    def quantiles(self, number: int) -> tuple[None, None, str]:  # noqa: ARG002 - the protocol's signature
        """Return that nothing is said but the estimate."""
        return None, None, self.basis

    def started(self, number: int, at: float) -> None:
        """What runs tells it nothing."""

    def finished(self, number: int, pool: str, at: float = 0.0) -> None:  # noqa: ARG002 - the protocol's signature
        """Remember a run time, and forget the one before the last 200."""
        job = self._jobs[number]
        key = (pool, job.gpus)
        last, known = self._last.setdefault(key, deque()), self._sorted.setdefault(key, [])
        if len(last) == HISTORY_JOBS:
            del known[bisect_left(known, last.popleft())]
        last.append(job.duration_s)
        insort(known, job.duration_s)


def history(jobs: Sequence[TraceJob], known: Sequence[Known] = (), *, recalls: bool = True) -> Advisor:
    """Return history-estimator as a source of advice; `known`: what it is told of the jobs beside their rows."""
    from schedmate.simulator.estimated import Estimated  # noqa: PLC0415 - numpy and all, only where it is asked for

    return Estimated(jobs, known, recalls=recalls)


def is_raw(source: str) -> bool:
    """Tell whether the source's estimates are taken as they are."""
    return source.split(":", maxsplit=1)[0] in RAW


def check_advice(source: str) -> None:
    """Refuse a source that nobody knows, before anything is read."""
    name, _, rest = source.partition(":")
    if name == "noisy" and rest:
        _noise(source, rest)
    elif source not in ("none", "constant", "random", "oracle", "history", "history:median") and not (
        name == "column" and rest
    ):
        raise TraceError(f"no advice is called {source!r}; there are {KNOWN}")


def advisor(
    source: str, trace: Trace, seed: int, *, one_pool: bool, known: Sequence[Known] = (), recalls: bool = True
) -> Advisor | None:
    """Return the source of this name over a trace, None for `none`; `check_advice` has let the name pass.

    `known` and `recalls` are `history`'s: what is known of the jobs beside their rows, and whether it tells how they used their GPUs.

    Raises:
        TraceError: it cannot tell what it should.
    """
    if source == "none":
        return None
    if source == "history":
        return history(trace.jobs, known, recalls=recalls)
    if source == "history:median":
        return RunningMedian(trace.jobs)
    return Told(source.partition(":")[0], _told(source, trace, seed, one_pool=one_pool))


def _told(source: str, trace: Trace, seed: int, *, one_pool: bool) -> Sequence[float | None]:
    name, _, rest = source.partition(":")
    if name == "random":
        return _permuted(trace.jobs, seed, one_pool=one_pool)
    if name == "column":
        return _column(rest, trace)
    if name == "noisy":
        sigma, bias = _noise(source, rest)
        draws = drawn_from(seed, "noisy")
        return [job.duration_s * exp(draws.gauss(bias, sigma)) for job in trace.jobs]
    return [NO_ADVICE_S if name == "constant" else job.duration_s for job in trace.jobs]


def _permuted(jobs: Sequence[TraceJob], seed: int, *, one_pool: bool) -> list[float]:
    """Permute the true run times within each pool."""
    members: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        members.setdefault("" if one_pool else job.pool, []).append(number)
    out = [0.0] * len(jobs)
    for pool, numbers in members.items():
        shuffled = [jobs[n].duration_s for n in numbers]
        drawn_from(seed, "random", pool).shuffle(shuffled)
        for number, duration in zip(numbers, shuffled, strict=True):
            out[number] = duration
    return out


def _noise(source: str, rest: str) -> tuple[float, float]:
    try:
        sigma, bias = float(rest.split(",", maxsplit=1)[0]), float(rest.split(",")[1]) if "," in rest else 0.0
    except ValueError as error:
        raise TraceError(f"advice {source!r}: write noisy:SIGMA or noisy:SIGMA,BIAS") from error
    if not (isfinite(sigma) and isfinite(bias) and sigma >= 0):
        raise TraceError(f"advice {source!r}: SIGMA is a number from 0 on, BIAS a number")
    return sigma, bias


def _column(rest: str, trace: Trace) -> list[float | None]:
    file, _, name = rest.rpartition(":")
    if not file:
        return list(trace.numbers(name))
    path = Path(file)
    if not path.is_file():
        raise TraceError(f"there is no file {path} of predictions")
    if missing := {"job_id", name} - set(header_of(path)):
        raise TraceError(f"{path.name} has no column {', '.join(sorted(missing))}")
    told = {row.text("job_id"): row.number(name, float("-inf")) for row in rows_of(path)}
    without = [job.id for job in trace.jobs if job.id not in told]
    if without:
        raise TraceError(f"{path.name} says nothing of {len(without)} jobs of {trace.name}, job {without[0]} the first")
    return [told[job.id] for job in trace.jobs]
