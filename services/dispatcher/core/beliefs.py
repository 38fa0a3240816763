"""How far a pool believes its sources of advice (core/trust.py): what it hears of its jobs, and how their runs count for and against."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from schedmate.schemas.events import EstimateBasis
from schedmate.services.dispatcher.core.advice import has_run_s, said_s
from schedmate.services.dispatcher.core.config import UNSCORED
from schedmate.services.dispatcher.core.hearing import settle
from schedmate.services.dispatcher.core.job import RUNS, Job, began_at, ran_s
from schedmate.services.dispatcher.core.trust import RUN_MIN_S, Trust

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import PoolState

PROGRESS: Final = EstimateBasis.PROGRESS.value


def heed(state: PoolState, job: Job) -> None:
    """The job's source has spoken: its word counts for or against it, unless the job has started before.

    Of its own progress only a job that runs can speak: there the first word counts, and from then on (core/trust.py).
    """
    said = job.advised if job.advised is not None else (job.p10_s, job.p50_s, job.p90_s, job.basis)
    if state.config.advice in UNSCORED:
        return
    if said[3] == PROGRESS:
        _heed_progress(state, job, said[1])
    elif job.attempt == 0:
        state.trust.setdefault(said[3] or "", Trust()).said(job.id, said_s(said, state), said[0], said[2])


def _heed_progress(state: PoolState, job: Job, whole_s: float | None) -> None:
    if job.read_s is not None or job.state not in RUNS or whole_s is None:
        return
    job.read_s = has_run_s(job, state)
    state.trust.setdefault(PROGRESS, Trust()).said(job.id, max(whole_s - job.read_s, RUN_MIN_S))
    watch(state, job)


def _unjudged_s(job: Job, basis: str) -> float:
    """Return how much of the job's run had passed before the word that is judged."""
    return (job.read_s or 0.0) if basis == PROGRESS else 0.0


def hear_anew(state: PoolState) -> None:
    """Another number of what is said is acted on from now on: what was said of live jobs decides nothing by the old one."""
    for known in state.trust.values():
        known.part_all()
    for job in state.jobs.values():
        if (job.p50_s if job.advised is None else job.advised[1]) is not None:
            heed(state, job)


def watch(state: PoolState, job: Job) -> None:
    """The job runs: remember when it will have outlasted a partner that has ended (core/trust.py)."""
    for basis, known in state.trust.items():
        runs_s = known.outlasts(job.id)
        if runs_s is not None:
            runs_s += _unjudged_s(job, basis)
            heappush(state.trust_due, (began_at(job) + runs_s - job.served_s, job.order, job.id, basis))


def learn(state: PoolState, job: Job, *, whole: bool) -> None:
    """A job has ended (`whole`: of itself, well): its sources are believed more, or less."""
    before = {basis: known.weight for basis, known in state.trust.items()}
    heeded = state.heeds()
    _settle(state)
    run_s = ran_s(job) if whole else job.served_s
    for basis, known in state.trust.items():
        partner = state.jobs.get(known.partner(job.id))
        known.ended(job.id, max(run_s - _unjudged_s(job, basis), 0.0), whole=whole)
        if partner is not None and partner.state in RUNS:
            watch(state, partner)
    for basis, known in state.trust.items():
        if known.weight != before[basis]:
            _weight_moved(state, basis)
    _heeds_now(state, heeded)


def _settle(state: PoolState) -> None:
    """Decide the pairs of which the running job has lasted for long enough by now."""
    while state.trust_due and state.trust_due[0][0] <= state.at:
        due, order, job_id, basis = heappop(state.trust_due)
        job, known = state.jobs.get(job_id), state.trust[basis]
        runs_s = known.outlasts(job_id)
        if job is None or runs_s is None or job.state not in RUNS:
            continue
        holds = began_at(job) + runs_s + _unjudged_s(job, basis) - job.served_s
        if holds > due:  # it was stopped meanwhile, or its processes came up later
            heappush(state.trust_due, (holds, order, job_id, basis))
        else:
            known.outlasted(job_id)


def trust_is(state: PoolState, basis: str, weight: float) -> None:
    """The log says how far the source was believed from then on."""
    known = state.trust.setdefault(basis, Trust())
    if known.weight != weight:
        heeded = state.heeds()
        known.weight = weight
        _weight_moved(state, basis)
        _heeds_now(state, heeded)


def _heeds_now(state: PoolState, heeded: bool) -> None:
    """Where the first source is believed, or none any more, those of whom nothing is believed stand elsewhere (`remaining_s`)."""
    if state.heeds() != heeded and (state.policy.uses_estimates or state.reservations):
        for job in state.jobs.values():
            state.place_anew(job)


def _weight_moved(state: PoolState, basis: str) -> None:
    """Whoever the weight moves stands elsewhere from now on."""
    state.trust_moved[basis] = state.trust[basis].weight
    for other in state.jobs.values():
        moves = other.p50_s is not None and other.basis == basis
        if other.spare is not None and (moves or other.spare[3] == basis):
            moves = settle(state, other) or moves
        if moves and (state.policy.uses_estimates or state.reservations):
            state.place_anew(other)
