"""How far advice may move a job: one formula, in this one place.

    weighed = c * clip(e / c, 1/R, R) ** w

`e` is the estimate (p50) of the job, `c` the estimate that every job carries without advice, `R` the clamp (`advice_ratio_max` of the
pool: no estimate counts for more than R times more, or less, than none), and `w` in [0, 1] the trust in its source. With w = 0 the
job stands where it stands without advice, whatever was said. A pool whose `advice` is "raw" takes the estimate as it is, as an order
key and nothing else (research: true run times, a column of a trace; it may be negative).

How long advice may keep a job waiting: a job that has waited for `advice_wait_max_s` since it last came to wait goes first, in the order of submission within its
class, and what does not fit beside it waits (`PoolState.promote_overdue`). Not in a "raw" pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import Job, PoolState

NO_ADVICE_S: Final = 3600.0


def weighed_s(job: Job, state: PoolState) -> float:
    """Return the run time by which the job is ordered."""
    estimate = job.p50_s
    if estimate is None:
        return NO_ADVICE_S
    if state.config.advice == "raw":
        return estimate
    most = state.config.advice_ratio_max
    ratio = min(max(estimate / NO_ADVICE_S, 1.0 / most), most)
    return float(NO_ADVICE_S * ratio ** state.trust_in(job.basis))


def remaining_s(job: Job, state: PoolState) -> float | None:
    """Return what remains of the run time by which the job is ordered, None where nothing is said of it that is believed."""
    if job.p50_s is None or (state.config.advice != "raw" and state.trust_in(job.basis) == 0.0):
        return None
    return max(weighed_s(job, state) - job.served_s, 0.0)


def expected_s(job: Job, state: PoolState) -> float:
    """Return the run time by which the job is expected to have ended: the weighed estimate, at its upper quantile where there is one."""
    weighed = weighed_s(job, state)
    if job.p90_s is None or not job.p50_s or weighed <= 0:
        return weighed
    return weighed * max(job.p90_s / job.p50_s, 1.0)
