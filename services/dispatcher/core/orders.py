"""What an operator orders of one job: an estimate in place of all others, and its place in the queue.

**An estimate of the operator's** stands in the place of what advisors say until it is cleared. It is no advice: it is taken whole, whatever
the pool believes and also where it acts on no advice. The job's time limit bounds it, and nobody waits longer for it than for advice
(core/advice.py). What advisors say meanwhile is kept, counts for or against them, and is back when the order is cleared.

**A pin** puts a waiting job first, or last, in its priority class; of several the one that was pinned last is the very first, or the very
last. It moves the order alone: quotas, limits and gangs hold for it as for any other, and whoever is overdue goes before it (one that is pinned
last is not passed over for longer than others). While a job that is pinned first does not fit, those behind it wait (`easy` lets them go
past where they do not delay it), and once it runs nobody takes its GPUs for the order's sake.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core.advice import bounded
from schedmate.services.dispatcher.core.inputs import EstimateOrdered, JobPinned
from schedmate.services.dispatcher.core.job import OPERATOR, PINNED_FIRST, PINNED_LAST, Job

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import PoolState

NOT_PINNED: Final = "none"
PLACES: Final = (PINNED_FIRST, PINNED_LAST, NOT_PINNED)


def estimate_wrong(value: EstimateOrdered) -> str | None:
    """Return why an ordered estimate makes no sense, None where it does or clears the order."""
    if value.p50_s is None:
        return None if value.p10_s is value.p90_s is None else "quantiles without a p50"
    for name, number in (("p10", value.p10_s), ("p50", value.p50_s), ("p90", value.p90_s)):
        if number is not None and not (isfinite(number) and number > 0):
            return f"{name} is no positive number of seconds"
    if value.p10_s is not None and value.p10_s > value.p50_s:
        return "p10 is above p50"
    return "p90 is below p50" if value.p90_s is not None and value.p90_s < value.p50_s else None


def order_estimate(job: Job, value: EstimateOrdered) -> bool:
    """Put the operator's estimate in the place of the advisors', or clear it; tell whether that changes anything."""
    before = (job.p10_s, job.p50_s, job.p90_s, job.basis)
    if value.p50_s is None:
        if job.advised is None:
            return False
        (job.p10_s, job.p50_s, job.p90_s, job.basis), job.advised, job.ordered_by = job.advised, None, ""
    else:
        if job.advised is None:
            job.advised = before
        limit_s = job.time_limit_s
        job.p10_s, job.p90_s = bounded(value.p10_s, limit_s), bounded(value.p90_s, limit_s)
        job.p50_s, job.basis, job.ordered_by = bounded(value.p50_s, limit_s), OPERATOR, value.by
    if job.state is JobState.RUNNING and job.started_at is not None:
        job.expected_end = job.started_at + job.p50_s if job.p50_s is not None else None
    return before != (job.p10_s, job.p50_s, job.p90_s, job.basis)


def pin(state: PoolState, job: Job, value: JobPinned) -> bool:
    """Pin the job, or let it go; tell whether that changes anything."""
    place = "" if value.place == NOT_PINNED else value.place
    if not place and not job.pin:
        return False
    job.pin, job.pinned_at = place, state.at
    job.pinned_by, job.pin_why = (value.by, value.why) if place else ("", "")
    return True


def told(job: Job) -> str:
    """Return what the reason of a waiting job says of what an operator ordered; empty where nothing."""
    said = ""
    if job.pin:
        said += f"; {job.pinned_by} has pinned it {job.pin}" + (f": {job.pin_why}" if job.pin_why else "")
    if job.basis == OPERATOR and job.p50_s is not None:
        said += f"; {job.ordered_by} has set its estimate to {job.p50_s:.0f} s"
    return said
