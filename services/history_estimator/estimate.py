"""From past jobs to a distribution of the run time. Pure. Nothing known gives `unknown`, without numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schedmate.schemas.events import EstimateBasis
from schedmate.services.history_estimator.record import JobRecord

SIMILAR_MAX: Final = 20
RISK_JOBS_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """A distribution of the run time, in seconds, and what it rests on."""

    basis: EstimateBasis
    p10_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    early_end_risk: float | None = None
    similar: tuple[str, ...] = ()
    similar_elsewhere: int = 0
    gpu_utilisation: float | None = None
    gpu_memory_bytes: int | None = None
    sharing_class: str | None = None


UNKNOWN: Final = Estimate(EstimateBasis.UNKNOWN)


def from_history(
    job: JobRecord, repeats: Sequence[JobRecord], of_user: Sequence[JobRecord], *, user_jobs_min: int
) -> Estimate:
    """Estimate a job from the finished jobs that it repeats, else from its user's. Both newest first.

    A repeat is exact when nothing says that its source was another; where the source is known to have changed, the same job's earlier
    forms still are the best likeness, and are named so.
    """
    same_tenant = [r for r in repeats if r.tenant == job.tenant and r.job_id != job.job_id]
    exact = [r for r in same_tenant if job.content_hash is None or r.content_hash in {None, job.content_hash}]
    for basis, jobs, least in (
        (EstimateBasis.EXACT_PRIOR, exact, 1),
        (EstimateBasis.SIMILAR_JOBS, same_tenant, 1),
        (EstimateBasis.USER_MEDIAN, _of_same_size(job, of_user, user_jobs_min), user_jobs_min),
    ):
        ran = [r for r in jobs if r.runtime_s is not None]
        if len(ran) >= least:
            return _distribution(basis, ran, jobs)
    risk = _early_end_risk(same_tenant) or _early_end_risk([r for r in of_user if r.tenant == job.tenant])
    return UNKNOWN if risk is None else Estimate(EstimateBasis.UNKNOWN, early_end_risk=risk)


def from_progress(before: Estimate | None, *, elapsed_s: float, eta_s: float, fraction: float | None) -> Estimate:
    """Estimate the whole run time from how far a run is; what is left is the less certain the less is done."""
    doubt = 1.0 - (fraction if fraction is not None else 0.0)
    return Estimate(
        EstimateBasis.PROGRESS,
        p10_s=elapsed_s + eta_s / (1.0 + 0.5 * doubt),
        p50_s=elapsed_s + eta_s,
        p90_s=elapsed_s + eta_s * (1.0 + doubt),
        early_end_risk=before.early_end_risk if before is not None else None,
        similar=before.similar if before is not None else (),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of ordered values, linear between them (Hyndman and Fan 1996, type 7)."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _of_same_size(job: JobRecord, of_user: Sequence[JobRecord], least: int) -> Sequence[JobRecord]:
    mine = [r for r in of_user if r.tenant == job.tenant and r.user == job.user and r.job_id != job.job_id]
    same = [r for r in mine if r.gpus_total == job.gpus_total]
    return same if sum(r.runtime_s is not None for r in same) >= least else mine


def _distribution(basis: EstimateBasis, ran: Sequence[JobRecord], jobs: Sequence[JobRecord]) -> Estimate:
    durations = sorted(r.runtime_s for r in ran if r.runtime_s is not None)
    # few observations hide the spread: the outer quantiles are moved out, by half for a single one
    widening = 1.0 + 0.5 / math.sqrt(len(durations))
    return Estimate(
        basis,
        p10_s=round(quantile(durations, 0.1) / widening, 3),
        p50_s=round(quantile(durations, 0.5), 3),
        p90_s=round(quantile(durations, 0.9) * widening, 3),
        early_end_risk=_early_end_risk(jobs),
        similar=tuple(r.job_id for r in ran[:SIMILAR_MAX]),
    )


def _early_end_risk(jobs: Sequence[JobRecord]) -> float | None:
    """Return the share of jobs that failed or were cancelled, pulled to the middle for few; None for too few."""
    if len(jobs) < RISK_JOBS_MIN:
        return None
    early = sum(r.outcome in {"failed", "cancelled"} for r in jobs)
    return round((early + 0.5) / (len(jobs) + 1), 4)
