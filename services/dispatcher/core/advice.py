"""How far advice may move a job: the formulas, in this one place.

**The run time by which a job is ordered.**

    weighed = c * clip(e / c, 1/R, R) ** w

`e` is the estimate (p50) of the job, `c` the estimate that every job carries without advice, `R` the clamp (`advice_ratio_max` of the
pool: no estimate counts for more than R times more, or less, than none), and `w` in [0, 1] the trust in its source (core/trust.py).
With w = 0 the job stands where it stands without advice, whatever was said. What is no positive finite number says nothing.

**What remains of it.** A job that outlasts what was said of it shows that it was said wrong: it is expected to run twice as long, and
twice as long again (as backfilling corrects predictions that have expired: Tsafrir, Etsion and Feitelson, IEEE TPDS 18(6), 2007).

    total = weighed * 2 ** k, the least k >= 0 for which total exceeds what it has run;  remaining = total - run

**The longest wait.** A job that has waited for `W` = `advice_wait_max_s` in all goes first, in the order of submission within its class;
what does not fit beside it waits, and nobody takes its GPUs for the order's sake any more. So it starts when those that were overdue
before it, and those that run by then, have ended: advice delays nobody by more than W on top of that.

The same bound around any policy, advised or not, is the pool's `wait_max_s` (0, the default: none), for whoever is passed over by others
or behind them for their size. Under a policy of rounds such a job goes first in every round, but its placement may still fail there.

A pool whose `advice` is "shadow" scores what is said (core/trust.py) and acts on none of it: w counts as 0. "off" does not even score it.
A pool whose `advice` is "raw" takes the estimate as it is, as an order key and nothing else (research: true run times, a column of a
trace; it may be negative): no clamp, no trust, no doubling, no bound but `wait_max_s`.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING, Final

from schedmate.schemas.states import JobState

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import Job, PoolState

NO_ADVICE_S: Final = 3600.0
_OUTLASTED_BY_S: Final = 1.0  # a total that is hit to the second is not exceeded


def usable(estimate_s: float | None, *, raw: bool) -> float | None:
    """Return what of an estimate can be used: a positive finite number; in a raw pool any number."""
    if estimate_s is None or estimate_s != estimate_s:  # noqa: PLR0124 - not a number
        return None
    return estimate_s if raw or (isfinite(estimate_s) and estimate_s > 0) else None


def weighed_s(job: Job, state: PoolState) -> float:
    """Return the run time by which the job is ordered."""
    estimate = job.p50_s
    if estimate is None:
        return NO_ADVICE_S
    if state.config.advice == "raw":
        return estimate
    weight = state.trust_in(job.basis)
    if weight == 0.0:
        return NO_ADVICE_S
    most = state.config.advice_ratio_max
    ratio = min(max(estimate / NO_ADVICE_S, 1.0 / most), most)
    return float(NO_ADVICE_S * ratio**weight)


def believed(job: Job, state: PoolState) -> bool:
    """Is something said of the job that is believed?"""
    return job.p50_s is not None and (state.config.advice == "raw" or state.trust_in(job.basis) > 0.0)


def has_run_s(job: Job, state: PoolState) -> float:
    """Return how long the job has run, in all attempts that were stopped and in this one."""
    runs = job.state in (JobState.ASSIGNED, JobState.RUNNING)
    return job.served_s + (state.at - job.since if runs else 0.0)


def remaining_s(job: Job, state: PoolState) -> float | None:
    """Return what remains of the run time by which the job is ordered, as its run (or its wait) began; None where nothing is believed.

    Of a job that runs it is counted from `since`, with the total that holds now: nothing but the doubling changes it.
    """
    if state.config.advice == "raw":
        return max(job.p50_s - job.served_s, 0.0) if job.p50_s is not None else None
    if not believed(job, state):
        return None
    return _doubled(weighed_s(job, state), has_run_s(job, state)) - job.served_s


def lasts_s(job: Job, state: PoolState) -> float:
    """Return how long the job is expected to hold its GPUs from its start: by the upper quantile of its estimate (p90, else p50).

    It holds them no longer than its time limit; infinite where nothing is known.
    """
    limit = float(job.time_limit_s) if job.time_limit_s is not None else inf
    if not believed(job, state):
        return limit
    weighed = weighed_s(job, state)
    if job.p90_s is not None and job.p50_s and job.p50_s > 0:
        weighed *= max(job.p90_s / job.p50_s, 1.0)
    if state.config.advice != "raw":
        weighed = _doubled(weighed, has_run_s(job, state))
    return min(max(weighed - job.served_s, 0.0), limit)


def _doubled(weighed: float, run_s: float) -> float:
    total = weighed
    while total < run_s + _OUTLASTED_BY_S:
        total *= 2.0
    return total
