"""Why a job waits, and what would unblock it: computed when asked for, never for every job at every step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import HOLDS_GPUS, JobState
from schedmate.services.dispatcher.core.capacity import GpuClass, Group, suits
from schedmate.services.dispatcher.core.fitting import AT_LIMIT, FITS, NEVER, RESERVED, avoided, could_hold_beside, fit
from schedmate.services.dispatcher.core.orders import told
from schedmate.services.dispatcher.core.profiling import is_profiled
from schedmate.services.dispatcher.core.quota import borrowed, entitled, reclaimable
from schedmate.services.dispatcher.core.reservations import closed_to, length_s
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.state import Job, Node, PoolState
from schedmate.services.dispatcher.core.timers import limit_of
from schedmate.services.dispatcher.core.victims import least

WAITS_FOR_MAX = 8
NODES_NAMED_MAX = 8


@dataclass(frozen=True, slots=True)
class Why:
    """A reason with its detail, and what would change it."""

    reason: Reason
    detail: str
    unblocks: str = ""
    waits_for: tuple[str, ...] = ()
    expected_at: float | None = None


def why(state: PoolState, job: Job, *, ahead: int | None = None, with_counterfactual: bool = True) -> Why:
    """Return why the job stands where it stands.

    Args:
        state: the pool.
        job: a live job of it.
        ahead: how many jobs stand before it in the queue, when known.
        with_counterfactual: also work out what would let it start (walks over the running jobs).
    """
    if job.state is not JobState.QUEUED:
        return Why(Reason(job.reason), job.detail)
    if job.queue_key is None:
        return Why(
            Reason.BACKING_OFF,
            f"attempt {job.attempt + 1} not before its back-off ends ({job.detail})".replace(" ()", ""),
            "starts when the back-off has run out and its GPUs are free",
            expected_at=job.not_before,
        )
    return _as_ordered(job, _waits(state, job, ahead, with_counterfactual=with_counterfactual))


def _as_ordered(job: Job, now: Why) -> Why:
    """Add what an operator ordered of the job."""
    ordered = told(job)
    return replace(now, detail=now.detail + ordered) if ordered else now


def _waits(state: PoolState, job: Job, ahead: int | None, *, with_counterfactual: bool) -> Why:
    verdict, groups = fit(state, job)
    if groups is not None or verdict == FITS:
        return Why(Reason.BEHIND_EARLIER_JOBS, _behind(ahead), "starts when the jobs before it have started")
    stands = {AT_LIMIT: _at_limit, NEVER: _never, RESERVED: _reserved}.get(verdict)
    if stands is not None:
        return stands(state, job)
    return _no_room(state, job, ahead, with_counterfactual=with_counterfactual)


def _behind(ahead: int | None) -> str:
    if ahead == 0:
        return "it would fit; it is the next to be placed"
    return f"it would fit; {'' if ahead is None else f'{ahead} '}earlier job{'' if ahead == 1 else 's'} go{'es' if ahead == 1 else ''} first"


def _at_limit(state: PoolState, job: Job) -> Why:
    config = state.config
    limit = config.most(job.tenant, borrows=config.may_borrow(resumable=job.resumable)) or 0
    if limit != config.tenant_limit(job.tenant):
        return _at_quota(state, job, limit)
    if job.gpus_total > limit:  # the limit was lowered after it had been admitted
        return Why(
            Reason.EXCEEDS_POOL_LIMITS,
            f"the limit of tenant {job.tenant} is {limit} GPUs by now; the job needs {job.gpus_total}",
            "starts only when the limit is raised",
        )
    used = state.tenant_gpus.get(job.tenant, 0)
    detail = f"tenant {job.tenant} holds {used} of its {limit} GPUs; the job needs {job.gpus_total}"
    return _told(state, Why(Reason.TENANT_GPU_LIMIT, detail), _own_ends(state, job, limit), "would be within the limit")


def _at_quota(state: PoolState, job: Job, quota: int) -> Why:
    """It would go over its tenant's quota, and may not borrow (core/quota.py)."""
    whose = f"the quota of tenant {job.tenant} is {quota} GPUs"
    refused = "nobody borrows here" if state.config.borrowers == "none" else "only jobs that can resume may borrow"
    if job.gpus_total > quota:
        detail = f"{whose}; the job needs {job.gpus_total}, and {refused}"
        return Why(Reason.TENANT_QUOTA, detail, "starts only when the quota is raised")
    held = state.tenant_gpus.get(job.tenant, 0)
    detail = f"{whose}, of which it holds {held}; the job needs {job.gpus_total}, and {refused}"
    return _told(state, Why(Reason.TENANT_QUOTA, detail), _own_ends(state, job, quota), "would be within the quota")


def _own_ends(state: PoolState, job: Job, limit: int) -> list[Job]:
    """Return the jobs of its own tenant that must end so that the job stays within a limit, the earliest expected first."""
    used = state.tenant_gpus.get(job.tenant, 0)
    ended: list[Job] = []
    for running in _by_expected_end(state, [j for j in _running(state) if j.tenant == job.tenant]):
        ended.append(running)
        used -= running.gpus_total
        if used + job.gpus_total <= limit:
            break
    return ended


def _reclaiming(state: PoolState, job: Job) -> Why | None:
    """The job is within its tenant's quota and others have borrowed what it needs: they are stopped when they may be."""
    if not (state.config.tenant_quota and entitled(state, job)):
        return None
    borrowers = borrowed(state)
    victims = least(state, job, lambda victim: reclaimable(job, victim, borrowers))
    if victims is None:
        return None
    if not victims:  # those that are on their way out are enough
        victims = [j for j in _running(state) if j.state is JobState.STOPPING and j.reason == Reason.RECLAIMED]
        if not victims:
            return None
        at = max(expected_end(state, victim) or state.at for victim in victims)
    else:
        at = max(state.at, *(victim.since + state.config.reclaim_min_run_s for victim in victims))
    held = state.tenant_gpus.get(job.tenant, 0)
    detail = (
        f"needs {_request(state, job)}; tenant {job.tenant} holds {held} of its quota of {state.config.nominal(job.tenant)} GPUs, "
        f"and others have borrowed what it needs"
    )
    names = ", ".join(victim.id for victim in victims[:WAITS_FOR_MAX])
    back = f"starts when {names} {'gives' if len(victims) == 1 else 'give'} back what {'it has' if len(victims) == 1 else 'they have'} borrowed"
    return Why(Reason.WAITS_FOR_RECLAIM, detail, back, tuple(victim.id for victim in victims[:WAITS_FOR_MAX]), at)


def _borrows(state: PoolState, job: Job) -> str:
    """Return what a pool with quotas adds to the reason of a job that finds no room."""
    if not state.config.tenant_quota:
        return ""
    held, quota = state.tenant_gpus.get(job.tenant, 0), state.config.nominal(job.tenant)
    if held + job.gpus_total > quota:
        return f"; it would borrow: tenant {job.tenant} holds {held} of its quota of {quota}"
    return f"; tenant {job.tenant} holds {held} of its quota of {quota}, and stopping those who have borrowed would not help"


def _request(state: PoolState, job: Job) -> str:
    milli = state.milli_of(job)
    size = f"{job.gpus} GPU{'s' if job.gpus != 1 else ''}" if milli == WHOLE_MILLI else f"{milli / 1000:g} of a GPU"
    if job.gpu_type is not None:
        size += f" of type {job.gpu_type.replace('|', ' or ')}"
    if job.gpu_memory_mib:
        size += f" with {job.gpu_memory_mib / 1024:g} GiB"
    if job.nodes == 0:
        return f"{size} on as few nodes as hold them"
    together = f" in one {job.within}" if job.within is not None else ""
    return f"{size} on one node" if job.nodes == 1 else f"{size} on each of {job.nodes} nodes{together}"


def _never(state: PoolState, job: Job) -> Why:
    alive = [n for n in state.nodes.values() if n.alive]
    if not alive:
        return Why(Reason.NO_LIVE_NODE, f"needs {_request(state, job)}; no node is reporting", "starts when nodes join")
    suitable = [n for n in alive if _usable(n, job) > 0]
    if not suitable:
        kinds = ", ".join(
            sorted({f"{kind} ({memory / 1024:g} GiB)" for n in alive for kind, memory in n.gpus.values()})
        )
        return Why(
            Reason.NO_SUCH_GPU_TYPE,
            f"needs {_request(state, job)}; the pool has {kinds or 'no usable GPU'}",
            "starts when a node with such GPUs joins",
        )
    together = _together(state, suitable, job)
    if job.within is not None and together < job.nodes:
        return Why(
            Reason.NEVER_FITS,
            f"needs {_request(state, job)}; even empty, no {job.within} has more than {together} such nodes",
            f"starts only when a larger {job.within} joins",
        )
    held = [n for n in suitable if not n.schedulable and _usable(n, job) >= job.gpus]
    large = [n for n in suitable if _usable(n, job) >= job.gpus]
    if held and len(large) >= job.nodes:
        maintained = all(n.reserved is not None for n in held)
        return Why(
            Reason.HELD_BY_RESERVATION if maintained else Reason.HELD_BY_CORDON,
            f"needs {_request(state, job)}; {', '.join(f'{n.name} ({_standing(n)})' for n in held[:5])} would do",
            f"starts when {held[0].name} takes jobs again",
        )
    largest = max(suitable, key=lambda n: (_usable(n, job), -n.order))
    return Why(
        Reason.NEVER_FITS,
        f"needs {_request(state, job)}; even empty, {len(large)} of {len(alive)} nodes could hold a member, the largest has "
        f"{_usable(largest, job)} GPUs ({largest.name})",
        "starts only when larger or more nodes join",
    )


def _together(state: PoolState, nodes: list[Node], job: Job) -> int:
    """Return the most nodes that share what the job's members must share, empty or not."""
    domains = Counter(state.topology.domain(n.name, job.within) for n in nodes if _usable(n, job) >= job.gpus)
    domains.pop(None, 0)
    return max(domains.values(), default=0)


def _standing(node: Node) -> str:
    if node.cordoned is not None:
        return "cordoned"
    if node.unreachable:
        return "silent"
    if node.reserved is not None:
        return "in maintenance"
    return "draining" if node.draining else "going away"


def _usable(node: Node, job: Job) -> int:
    """Return the most GPUs of one class on the node that suit the job."""
    return max(Counter(c for c in node.gpus.values() if _suits(c, job)).values(), default=0)


def _suits(gpu_class: GpuClass, job: Job) -> bool:
    return suits(gpu_class, job.gpu_type, job.gpu_memory_mib)


def _no_room(state: PoolState, job: Job, ahead: int | None, *, with_counterfactual: bool) -> Why:
    reclaims = _reclaiming(state, job)
    if reclaims is not None:
        return reclaims
    avoid = avoided(state, job)
    closed = closed_to(state, job)
    suitable = [g for g in state.capacity.groups() if _suits(g.gpu_class, job) and g.node not in avoid]
    if closed and not could_hold_beside(state, job, avoid):
        return _reserved(state, job)
    if state.milli_of(job) < WHOLE_MILLI:
        return _no_share(state, job, suitable)
    free_total = sum(len(g.free) for g in suitable)
    largest = max(suitable, key=lambda g: (len(g.free), -g.order))
    quarantined = [j for j in _running(state) if j.reason == Reason.STOP_TIMEOUT]
    if free_total >= job.gpus_total:
        reason = Reason.FRAGMENTED
        seen = f"{free_total} are free in all, the largest free is {len(largest.free)} on {largest.node}"
    else:
        reason = Reason.GPUS_QUARANTINED if quarantined else Reason.INSUFFICIENT_GPUS
        seen = f"the largest free is {len(largest.free)} on {largest.node}"
    detail = f"needs {_request(state, job)}; {seen}{_borrows(state, job)}"
    failed = (avoid - closed) & frozenset(job.avoid)
    if failed:
        detail += f"; it keeps away from {_some(failed)}, where it failed"
    kept = avoid - closed - failed
    if kept:
        detail += _kept(state, job, kept)
    if ahead:
        detail += f"; {ahead} earlier job{'s' if ahead != 1 else ''} wait{'s' if ahead == 1 else ''} too"
    if not with_counterfactual:
        return Why(reason, detail)
    return _counterfactual(state, job, Why(reason, detail))


def _reserved(state: PoolState, job: Job) -> Why:
    """It would fit, but for nodes that are wanted free before it is expected to have ended."""
    closed = closed_to(state, job)
    one = min(
        (r for r in state.reservations.values() if r.end > state.at and closed.intersection(r.nodes)),
        key=lambda r: (r.start, r.id),
    )
    length = length_s(state, job)
    known = f"the job may run for {length:.0f} s" if length is not None else "nobody knows how long the job runs"
    names = ", ".join(sorted(closed.intersection(one.nodes))[:5])
    begins = datetime.fromtimestamp(one.start, tz=UTC)
    detail = (
        f"needs {_request(state, job)}; {names} {'is' if len(one.nodes) == 1 else 'are'} reserved for maintenance from "
        f"{begins:%Y-%m-%d %H:%M:%S} UTC on, and {known}"
    )
    left = max(int(one.start - state.at), 0)
    within = f"starts now with a time limit of at most {left} s, else when the maintenance has ended"
    return Why(Reason.HELD_BY_RESERVATION, detail, within, expected_at=one.end)


def _no_share(state: PoolState, job: Job, suitable: list[Group]) -> Why:
    """No GPU is free, and of none that is held in part is enough left."""
    left = [(milli, g.node) for g in suitable for milli in state.capacity.shares.left_of(g).values()]
    most, node = max(left, default=(0, ""))
    seen = f"the most left of one is {most / 1000:g} on {node}" if left else "none is free, and none is held in part"
    return Why(
        Reason.INSUFFICIENT_GPUS,
        f"needs {_request(state, job)}; {seen}",
        "starts when a GPU is free, or enough of one is given back",
    )


def _kept(state: PoolState, job: Job, kept: frozenset[str]) -> str:
    """Return what nodes the job keeps away from because they are for others."""
    if is_profiled(state, job) and not kept & state.profiler.nodes:
        return f"; it runs first in the profiler, on {_some(state.profiler.nodes)}"
    return f"; {_some(kept)} {'are' if len(kept) > 1 else 'is'} kept for {'the profiler' if state.policy.packs else 'inference'}"


def _some(nodes: frozenset[str]) -> str:
    shown = sorted(nodes)
    return ", ".join(shown[:NODES_NAMED_MAX]) + (
        f" and {len(shown) - NODES_NAMED_MAX} more" if len(shown) > NODES_NAMED_MAX else ""
    )


def _running(state: PoolState) -> list[Job]:
    return [j for j in state.jobs.values() if j.state in HOLDS_GPUS]


def expected_end(state: PoolState, job: Job) -> float | None:
    """Return when a job that holds GPUs is expected to end, as far as advice tells; not before now."""
    if job.state is JobState.STOPPING:
        return None if job.reason == Reason.STOP_TIMEOUT else max(job.since + state.config.stop_grace_s, state.at)
    ends = job.expected_end
    if ends is None and job.p50_s is not None:
        ends = (job.started_at if job.started_at is not None else job.since) + job.p50_s
    return max(min(ends, limit_of(job)), state.at) if ends is not None else None


def _by_expected_end(state: PoolState, jobs: list[Job]) -> list[Job]:
    """Order jobs: the earliest expected end first, those of which nothing is known last."""
    ends = {j.id: expected_end(state, j) for j in jobs}
    return sorted(jobs, key=lambda j: (ends[j.id] is None, ends[j.id] or 0.0, j.order))


def _counterfactual(state: PoolState, job: Job, now: Why) -> Why:
    """Let the running jobs end one by one, the earliest expected first, until the gang fits (with nobody before it)."""
    avoid = avoided(state, job)
    groups = {g.order: g for g in state.capacity.groups() if _suits(g.gpu_class, job) and g.node not in avoid}
    free = {order: len(g.free) for order, g in groups.items()}
    place = {
        order: (g.node, f"{g.gpu_class[0]} {domain}")
        for order, g in groups.items()
        if (domain := state.topology.domain(g.node, job.within)) is not None
    }
    seat_of = {
        (g.node, index): order for order, g in groups.items() for index in _indices(state.nodes[g.node], g.gpu_class)
    }
    ended: list[Job] = []
    for running in _by_expected_end(state, _running(state)):
        if _give(running, free, seat_of, 1):
            ended.append(running)
            if _enough(job, free, place):
                break
    for needless in list(ended):  # whoever may go on is not waited for
        _give(needless, free, seat_of, -1)
        if _enough(job, free, place):
            ended.remove(needless)
        else:
            _give(needless, free, seat_of, 1)
    return _told(state, now, ended, "would fit")


def _give(job: Job, free: dict[int, int], seat_of: dict[tuple[str, int], int], sign: int) -> bool:
    """Add a job's GPUs to what is free (or take them away again); False when none of them counts."""
    seats = [seat_of[m.node, gpu] for m in job.members for gpu in m.gpus if (m.node, gpu) in seat_of]
    for order in seats:
        free[order] += sign
    return bool(seats)


def _indices(node: Node, gpu_class: GpuClass) -> list[int]:
    return [index for index, c in node.gpus.items() if c == gpu_class]


def _enough(job: Job, free: dict[int, int], place: dict[int, tuple[str, str]]) -> bool:
    nodes: dict[str, set[str]] = {}
    for order, count in free.items():
        if count >= job.gpus and order in place:
            node, kind = place[order]
            nodes.setdefault(kind, set()).add(node)
    return any(len(names) >= job.nodes for names in nodes.values())


def _told(state: PoolState, now: Why, waits_for: list[Job], then: str) -> Why:
    if not waits_for:
        return now
    ends = [expected_end(state, j) for j in waits_for]
    known = [e for e in ends if e is not None]
    at = max(known) if known and len(known) == len(ends) else None
    names = ", ".join(j.id for j in waits_for[:3]) + (f" and {len(waits_for) - 3} more" if len(waits_for) > 3 else "")  # noqa: PLR2004
    verb = "ends" if len(waits_for) == 1 else "end"
    text = f"{then} when {'job' if len(waits_for) == 1 else 'jobs'} {names} {verb}"
    return Why(now.reason, now.detail, text, tuple(j.id for j in waits_for[:WAITS_FOR_MAX]), at)
