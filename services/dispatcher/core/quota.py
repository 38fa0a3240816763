"""Quota with borrowing and reclaim: every tenant has a nominal number of GPUs, and what it leaves unused others may borrow.

A pool has quotas when its setting `tenant_quota` names any; whoever is not named has none of its own and only borrows. Beside it
`tenant_gpus` stays what it is: a limit that nobody passes, borrowing or not.

- A waiting job is *entitled* when its tenant would not hold more than its quota with it. Entitled jobs go before those that would
  borrow, in the policy's order among themselves; a borrower that does not fit holds back borrowers only.
- Of the jobs of a tenant, by class and then by start, those that its quota has room for are *its own*; the others are *borrowed*.
  Only borrowed jobs give way to another tenant: for its quota, for a higher class or for the policy's order.
- An entitled job that does not fit *reclaims*: the least set (core/victims.py) of other tenants' borrowed jobs is stopped, each after
  it has run for `reclaim_min_run_s`, and only where the job then fits. Jobs that can resume give way whatever their class, others
  only to a higher one. Who may borrow is a setting (`borrowers`): with "resumable" a quota can always be had back.
- A larger job than what is left of its tenant's quota borrows, and reclaims nothing.

Why nobody takes turns: a reclaimed job is not entitled afterwards (its tenant's own jobs run on and left it no room), so it takes
nothing back; and whoever reclaimed runs within its tenant's quota, so nobody reclaims from it. One set of victims admits one job. For
the policy's order, or a class, nobody stops a job of its own tenant that would be entitled as soon as it has left, where it would borrow
itself: that one would go before it and be stopped again, for ever.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heappushpop, merge
from typing import Final

from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core.fitting import could_come
from schedmate.services.dispatcher.core.lifecycle import Emit, reclaim_from
from schedmate.services.dispatcher.core.ownership import holders_of_gpus
from schedmate.services.dispatcher.core.queue import Key, Kind
from schedmate.services.dispatcher.core.state import Job, PoolState
from schedmate.services.dispatcher.core.victims import least

Entry = tuple[Key, str, Kind]
"""As of `WaitingQueue.heads`: key, job, kind."""

OWN: Final = 0
BORROWS: Final = 1
_RUNS: Final = (JobState.ASSIGNED, JobState.RUNNING)


def entitled(state: PoolState, job: Job) -> bool:
    """Tell whether the job would stay within its tenant's quota, were it started now."""
    tenant = job.tenant
    return state.tenant_gpus.get(tenant, 0) + job.gpus_total <= state.config.tenant_quota.get(tenant, 0)


def heads(state: PoolState) -> list[Entry]:
    """Return the first waiting job of each kind as a heap; in a pool with quotas whether it is entitled stands before its key."""
    heap = state.queue.heads()
    if state.config.tenant_quota:
        heap = [_ranked(state, entry) for entry in heap]
        heapify(heap)
    return heap


def next_of(state: PoolState, heap: list[Entry]) -> Entry:
    """Take the next entry; whose tenant's quota has been used up in this pass goes back among the borrowers first."""
    entry = heappop(heap)
    if state.config.tenant_quota:
        while entry[0][0] == OWN and not entitled(state, state.jobs[entry[1]]):
            entry = heappushpop(heap, ((BORROWS, *entry[0][1:]), *entry[1:]))
    return entry


def put_following(state: PoolState, heap: list[Entry], kind: Kind) -> None:
    """The first job of a kind has been placed: put the next one in its place."""
    following = state.queue.head_of(kind)
    if following is not None:
        heappush(heap, _ranked(state, following) if state.config.tenant_quota else following)


def _ranked(state: PoolState, entry: Entry) -> Entry:
    key, job_id, kind = entry
    return ((OWN if entitled(state, state.jobs[job_id]) else BORROWS, *key), job_id, kind)


def borrowed(state: PoolState) -> set[str]:
    """Return the running jobs for which their tenants' quotas have no room."""
    by_tenant: dict[str, list[Job]] = {}
    for name in holders_of_gpus(state):
        job = state.jobs[name]
        if job.state in _RUNS:
            by_tenant.setdefault(job.tenant, []).append(job)
    found: set[str] = set()
    for tenant, jobs in by_tenant.items():
        left = state.config.nominal(tenant)
        for job in sorted(jobs, key=lambda one: (-one.priority, one.place)):
            if job.gpus_total <= left:
                left -= job.gpus_total
            else:
                found.add(job.id)
    return found


def given_way_by(state: PoolState) -> frozenset[str] | None:
    """Return the jobs of other tenants that may be stopped for this one's sake; None: all, the pool has no quotas."""
    return frozenset(borrowed(state)) if state.config.tenant_quota else None


def spared(job: Job, victim: Job, borrowers: frozenset[str] | None) -> bool:
    """Tell whether the victim is within its tenant's quota, which no other tenant's job takes from it."""
    return borrowers is not None and victim.tenant != job.tenant and victim.id not in borrowers


def come_back_first(state: PoolState, job: Job, victims: list[Job]) -> bool:
    """Tell whether one of the victims would go before the job as soon as they have left: entitled, where the job would borrow."""
    if not state.config.tenant_quota:
        return False
    leaving = [one for name in holders_of_gpus(state) if (one := state.jobs[name]).state is JobState.STOPPING]
    own = [one for one in (*victims, *leaving) if one.tenant == job.tenant]
    left = state.config.nominal(job.tenant) - state.tenant_gpus.get(job.tenant, 0) + sum(one.gpus_total for one in own)
    return job.gpus_total > left and any(v.tenant == job.tenant and v.gpus_total <= left for v in victims)


def reclaimable(job: Job, victim: Job, borrowers: set[str]) -> bool:
    """Tell whether a running job gives way to an entitled one, now or when it has run long enough."""
    return (
        victim.state in _RUNS
        and victim.id in borrowers
        and victim.tenant != job.tenant
        and (victim.resumable or victim.priority < job.priority)
    )


def reclaim(state: PoolState, job: Job, emit: Emit) -> bool:
    """Stop the least set of borrowed jobs that lets an entitled job fit; False (and nothing touched) when there is none."""
    if not entitled(state, job):
        return False
    borrowers = borrowed(state)
    since_max = state.at - state.config.reclaim_min_run_s
    victims = least(state, job, lambda v: v.since <= since_max and reclaimable(job, v, borrowers))
    if victims is None:
        return False
    for victim in victims:
        reclaim_from(state, victim, emit, f"tenant {job.tenant} wants its quota back for job {job.id}")
    return True


def share_out(state: PoolState) -> tuple[list[str], list[Job]]:
    """Give out a round's GPUs (core/rounds.py) by their number: to each tenant up to its quota, then what is left to whoever is next.

    Jobs that cannot be stopped, or have not run long enough to be, keep what they hold. Returns the waiting jobs that are given
    GPUs, in the order in which they are placed, and the running ones that are given none.
    """
    since_max = state.at - state.config.reclaim_min_run_s
    left = state.capacity.free_gpus + state.held_gpus
    granted: dict[str, int] = {}
    given: dict[str, None] = {}

    def give(job: Job) -> None:
        nonlocal left
        left -= job.gpus_total
        granted[job.tenant] = granted.get(job.tenant, 0) + job.gpus_total
        given[job.id] = None

    holding = sorted((state.jobs[job_id] for job_id in state.holding), key=lambda job: job.order)
    for job in holding:
        if not job.resumable or job.since > since_max:
            give(job)
    ranked = (state.jobs[job_id] for _, job_id in merge(*state.ranks.values()))
    in_order = [job for job in ranked if job.id in state.holding or could_come(state, job)]
    for lends in (False, True):
        for job in in_order:
            most = state.config.most(job.tenant, borrows=lends and state.config.may_borrow(resumable=job.resumable))
            held = granted.get(job.tenant, 0) + job.gpus_total
            if job.id not in given and job.gpus_total <= left and (most is None or held <= most):
                give(job)
    waiting = [job_id for job_id in given if job_id not in state.holding]
    return waiting, [job for job in holding if job.id not in given]
