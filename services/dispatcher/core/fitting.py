"""Does a waiting job fit now, and where? Asked by the scheduling pass, by preemption and by the reasons."""

from __future__ import annotations

from schedmate.services.dispatcher.core.capacity import GpuClass, Group, suits
from schedmate.services.dispatcher.core.reservations import closed_to
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.state import Job, PoolState

REMEMBERED_MAX = 10_000
FITS, NO_ROOM, AT_LIMIT, NEVER, RESERVED = "fits", "no-room", "at-limit", "never", "reserved"


def fit(state: PoolState, job: Job) -> tuple[str, list[Group] | None]:
    """Return whether the job fits now, and where."""
    if state.limits_tenants and at_limit(state, job):
        return AT_LIMIT, None
    capacity = state.capacity
    if job.gpu_milli < WHOLE_MILLI and state.milli_of(job) < WHOLE_MILLI:
        groups = state.policy.share_placer.place_share(state, job, job.gpu_milli, avoided(state, job))
        return (FITS if groups is not None else _waits_for(state, job)), groups
    if job.gpus_total > capacity.free_gpus:
        return _waits_for(state, job), None
    avoid = avoided(state, job)
    groups = state.placer.place(state, job, avoid)
    if groups is not None:
        return FITS, groups
    if state.reservations and state.placer.place(state, job, _shunned(state, job, frozenset())) is not None:
        return RESERVED, None
    return _waits_for(state, job), None


def _waits_for(state: PoolState, job: Job) -> str:
    """Tell what a job waits for that does not fit now: for others to end, for a maintenance to end, or for nodes that are not there."""
    if not could_hold(state, job):
        return NEVER
    return RESERVED if state.reservations and not could_come(state, job) else NO_ROOM


def place_avoiding(state: PoolState, job: Job, reserved: frozenset[str]) -> list[Group] | None:
    """Return where the job fits beside reserved nodes."""
    avoid = avoided(state, job) | reserved
    if state.milli_of(job) < WHOLE_MILLI:
        return state.policy.share_placer.place_share(state, job, state.milli_of(job), avoid)
    return state.placer.place(state, job, avoid)


def at_limit(state: PoolState, job: Job) -> bool:
    """Tell whether the job would take its tenant over its limit, or over its quota where it may not borrow."""
    return over_limit(state, job) > 0


def over_limit(state: PoolState, job: Job) -> int:
    """Return how many GPUs the job's tenant would hold too many with it; 0 or less where it is within its limit."""
    config = state.config
    limit = config.tenant_limit(job.tenant)
    if config.tenant_quota and config.borrowers != "any":
        limit = config.most(job.tenant, borrows=config.may_borrow(resumable=job.resumable))
    return state.tenant_gpus.get(job.tenant, 0) + job.gpus_total - limit if limit is not None else 0


def could_hold(state: PoolState, job: Job) -> bool:
    """Tell whether the job would fit if nothing ran."""
    capacity = state.capacity
    if not capacity.could_hold(job.gpus, job.nodes, job.gpu_type, job.gpu_memory_mib):
        return False
    return job.within is None or could_hold_beside(state, job, frozenset())


def could_come(state: PoolState, job: Job) -> bool:
    """Tell whether the job would fit if nothing ran, on nodes that no reservation closes to it."""
    if not could_hold(state, job):
        return False
    closed = closed_to(state, job) if state.reservations else frozenset()
    return not closed or could_hold_beside(state, job, closed)


def avoided(state: PoolState, job: Job) -> frozenset[str]:
    """Return the nodes that the job keeps away from.

    Those that reservations close to it; and as long as others could hold it, those it failed on and those that are kept for others.
    """
    if not state.reservations:
        kept = state.placer.avoids(state, job)
        return _shunned(state, job, frozenset()) if job.avoid or kept else kept
    closed = closed_to(state, job)
    return _shunned(state, job, closed) | closed


def _shunned(state: PoolState, job: Job, closed: frozenset[str]) -> frozenset[str]:
    kept = state.placer.avoids(state, job)
    if not (job.avoid or kept):
        return kept
    failed = frozenset(job.avoid)
    for avoid in (failed | kept, failed) if kept else (failed,):
        if avoid and could_hold_beside(state, job, avoid | closed):
            return avoid
    return frozenset()


def could_hold_beside(state: PoolState, job: Job, avoid: frozenset[str]) -> bool:
    """Tell whether the other nodes could hold the job if nothing ran."""
    request = (job.gpus, job.nodes, job.gpu_type, job.gpu_memory_mib, job.within, avoid)
    known = state.capacity.beside.get(request)
    if known is None:
        if len(state.capacity.beside) >= REMEMBERED_MAX:
            state.capacity.beside.clear()
        known = state.capacity.beside[request] = _could_hold_beside(state, job, avoid)
    return known


def _could_hold_beside(state: PoolState, job: Job, avoid: frozenset[str]) -> bool:
    found: dict[tuple[str, str], set[str]] = {}
    usable_of: dict[GpuClass, int] = {}
    for group in state.capacity.groups():
        if group.node in avoid or not suits(group.gpu_class, job.gpu_type, job.gpu_memory_mib):
            continue
        usable_of[group.gpu_class] = usable_of.get(group.gpu_class, 0) + group.usable
        domain = state.topology.domain(group.node, job.within)
        if group.usable >= job.gpus and domain is not None:
            found.setdefault((group.gpu_class[0], domain), set()).add(group.node)
    if job.nodes == 0:
        return any(usable >= job.gpus for usable in usable_of.values())
    return any(len(nodes) >= job.nodes for nodes in found.values())
