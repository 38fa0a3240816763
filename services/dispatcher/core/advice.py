"""How far advice may move a job: the formulas, in this one place.

**The run time by which a job is ordered.**

    weighed = c * clip(e / c, 1/R, R) ** w

`e` is the estimate of the job (see **quantiles** below; the p50 where none but that is said), `c` the estimate that every job carries without advice, `R` the clamp (`advice_ratio_max` of the
pool: no estimate counts for more than R times more, or less, than none), and `w` in [0, 1] the trust in its source (core/trust.py).
With w = 0 the job stands where it stands without advice, whatever was said. What is no positive finite number says nothing. A job's time limit bounds its
quantiles as they are said, `weighed` where anything is believed, and what remains: nobody is expected to run past it.

**What remains of it.** A job that outlasts what was said of it shows that it was said wrong: it is expected to run twice as long, and
twice as long again (as backfilling corrects predictions that have expired: Tsafrir, Etsion and Feitelson, IEEE TPDS 18(6), 2007).

    total = weighed * 2 ** k, the least k >= 0 for which total exceeds what it has run;  remaining = total - run

**Quantiles.** Where an estimate carries p10, p50 and p90, and the pool's `advice_rule` is "quantiles", `e` is the Gittins index G(0) of the
distribution that they describe (core/quantiles.py), and what remains of a job that has run for `a` is the index of that distribution moved
(in the log, whole) to where G(0) is `weighed`:

    f = weighed / G(0; p10, p50, p90);  remaining = G(a; f * p10, f * p50, f * p90)

taken anew when the run passes a quantile and when it has doubled: who outlasts the quantiles that were said is ranked by what is left of
the distribution. Before a job has run (`sjf`, `qssf`, `lucid`) that is the least time that must be spent on jobs like it for each that ends.
Trust judges the very `e` that is acted on. With "p50", or where a quantile lacks, `e` is p50. A policy that backfills orders nobody by
estimates: there `e` is p50, and ends are expected by p90.

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
from schedmate.services.dispatcher.core.quantiles import edges_of, index_s, next_turn_s, turn_s

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.job import Said
    from schedmate.services.dispatcher.core.state import Job, PoolState

NO_ADVICE_S: Final = 3600.0
_OUTLASTED_BY_S: Final = 1e-3  # a total that is just hit is not exceeded, however times were rounded


def usable(estimate_s: float | None, *, raw: bool) -> float | None:
    """Return what of an estimate can be used: a positive finite number; in a raw pool any number."""
    if estimate_s is None or estimate_s != estimate_s:  # noqa: PLR0124 - not a number
        return None
    return estimate_s if raw or (isfinite(estimate_s) and estimate_s > 0) else None


def bounded(estimate_s: float | None, limit_s: float | None) -> float | None:
    """Return an estimate that its job's time limit bounds."""
    return min(estimate_s, float(limit_s)) if estimate_s is not None and limit_s is not None else estimate_s


def weighed_s(job: Job, state: PoolState) -> float:
    """Return the p50 of the job's run time, weighed."""
    return _weighed(job, job.p50_s, state)


def said_s(said: Said, state: PoolState) -> float | None:
    """Return what is said of a job, as it is acted on before the job has run: `e`."""
    p10_s, p50_s, p90_s, _ = said
    if not acts_on_quantiles(state) or p10_s is None or p50_s is None or p90_s is None:
        return p50_s
    return index_s(p10_s, p50_s, p90_s, 0.0)


def ordered_s(job: Job, state: PoolState) -> float:
    """Return the run time by which a job that waits is ordered."""
    quantiles = _quantiles(job, state)
    return _weighed(job, job.p50_s if quantiles is None else index_s(*quantiles, 0.0), state)


def acts_on_quantiles(state: PoolState) -> bool:
    """Are jobs ordered by the quantiles of what is said, where it has them?"""
    return state.by_quantiles


def believed(job: Job, state: PoolState) -> bool:
    """Is something said of the job that is believed?"""
    return job.p50_s is not None and (state.config.advice == "raw" or state.trust_in(job.basis) > 0.0)


def has_run_s(job: Job, state: PoolState) -> float:
    """Return how long the job has run, in all attempts that were stopped and in this one."""
    runs = job.state in (JobState.ASSIGNED, JobState.RUNNING)
    return job.served_s + (state.at - job.since if runs else 0.0)


def remaining_s(job: Job, state: PoolState) -> float | None:
    """Return what remains of the run time by which the job is ordered, as its run (or its wait) began; None where nothing is believed.

    Of a job that runs it is counted from `since`, with the total that holds now: nothing but the doubling, or the next quantile, changes it.
    """
    if state.config.advice == "raw":
        return max(job.p50_s - job.served_s, 0.0) if job.p50_s is not None else None
    if not believed(job, state):
        return None
    quantiles = _quantiles(job, state)
    if quantiles is None:
        left = _doubled(ordered_s(job, state), has_run_s(job, state)) - job.served_s
    else:
        low, middle, high = _moved(job, quantiles, state)
        run_s = max(turn_s(edges_of(low, middle, high), has_run_s(job, state)), job.served_s)
        left = run_s + index_s(low, middle, high, run_s) - job.served_s
    return left if job.time_limit_s is None else min(left, float(job.time_limit_s))


def neutral_left_s(job: Job, state: PoolState) -> float:
    """Return what remains of a job of which nothing is believed, among jobs of which something is: of the neutral hour, doubling as it outlasts it."""
    left = _doubled(NO_ADVICE_S, has_run_s(job, state)) - job.served_s
    return left if job.time_limit_s is None else min(left, float(job.time_limit_s))


def turns_at(job: Job, state: PoolState) -> float | None:
    """Return when a running job will be ranked anew for what it has run by then, None where nothing but the doubling changes its rank."""
    quantiles = _quantiles(job, state)
    if quantiles is None or not believed(job, state):
        return None
    return job.since + next_turn_s(edges_of(*_moved(job, quantiles, state)), has_run_s(job, state)) - job.served_s


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


def _quantiles(job: Job, state: PoolState) -> tuple[float, float, float] | None:
    """Return the three quantiles where a job is ordered by them."""
    if not state.by_quantiles or job.p10_s is None or job.p50_s is None or job.p90_s is None:
        return None
    return job.p10_s, job.p50_s, job.p90_s


def _moved(job: Job, quantiles: tuple[float, float, float], state: PoolState) -> tuple[float, float, float]:
    """Return the distribution that is believed: whole, and where its index before the run is `weighed`."""
    said = index_s(*quantiles, 0.0)
    factor = _weighed(job, said, state) / said
    return quantiles[0] * factor, quantiles[1] * factor, quantiles[2] * factor


def _weighed(job: Job, estimate_s: float | None, state: PoolState) -> float:
    if estimate_s is None:
        return NO_ADVICE_S
    if state.config.advice == "raw":
        return estimate_s
    weight = state.trust_in(job.basis)
    if weight == 0.0:
        return NO_ADVICE_S
    most = state.config.advice_ratio_max
    ratio = min(max(estimate_s / NO_ADVICE_S, 1.0 / most), most)
    weighed = float(NO_ADVICE_S * ratio**weight)
    return weighed if job.time_limit_s is None else min(weighed, float(job.time_limit_s))


def _doubled(weighed: float, run_s: float) -> float:
    total = weighed
    while total < run_s + _OUTLASTED_BY_S:
        total *= 2.0
    return total
