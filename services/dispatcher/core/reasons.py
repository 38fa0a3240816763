"""Why a job waits, and what would unblock it: computed when asked for, never for every job at every step."""

from __future__ import annotations

from dataclasses import dataclass

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import HOLDS_GPUS, JobState
from schedmate.services.dispatcher.core.capacity import GpuClass
from schedmate.services.dispatcher.core.fitting import AT_LIMIT, FITS, NEVER, avoided, fit
from schedmate.services.dispatcher.core.state import Job, Node, PoolState

WAITS_FOR_MAX = 8


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
    verdict, groups = fit(state, job)
    if groups is not None or verdict == FITS:
        return Why(Reason.BEHIND_EARLIER_JOBS, _behind(ahead), "starts when the jobs before it have started")
    if verdict == AT_LIMIT:
        return _at_limit(state, job)
    if verdict == NEVER:
        return _never(state, job)
    return _no_room(state, job, ahead, with_counterfactual=with_counterfactual)


def _behind(ahead: int | None) -> str:
    return "it would fit; earlier jobs go first" if ahead is None else f"it would fit; {ahead} earlier jobs go first"


def _at_limit(state: PoolState, job: Job) -> Why:
    limit = state.config.tenant_limit(job.tenant)
    used = state.tenant_gpus.get(job.tenant, 0)
    return Why(
        Reason.TENANT_GPU_LIMIT,
        f"tenant {job.tenant} holds {used} of its {limit} GPUs; the job needs {job.gpus_total}",
        "starts when jobs of the tenant end",
        tuple(j.id for j in _running(state) if j.tenant == job.tenant)[:WAITS_FOR_MAX],
    )


def _request(job: Job) -> str:
    size = f"{job.gpus} GPU{'s' if job.gpus != 1 else ''}"
    if job.gpu_type is not None:
        size += f" of type {job.gpu_type}"
    if job.gpu_memory_mib:
        size += f" with {job.gpu_memory_mib / 1024:g} GiB"
    return f"{size} on one node" if job.nodes == 1 else f"{size} on each of {job.nodes} nodes"


def _never(state: PoolState, job: Job) -> Why:
    alive = [n for n in state.nodes.values() if n.alive]
    if not alive:
        return Why(Reason.NO_LIVE_NODE, f"needs {_request(job)}; no node is reporting", "starts when nodes join")
    suitable = [n for n in alive if _usable(n, job) > 0]
    if not suitable:
        kinds = ", ".join(
            sorted({f"{kind} ({memory / 1024:g} GiB)" for n in alive for kind, memory in n.gpus.values()})
        )
        return Why(
            Reason.NO_SUCH_GPU_TYPE,
            f"needs {_request(job)}; the pool has {kinds or 'no usable GPU'}",
            "starts when a node with such GPUs joins",
        )
    held = [n.name for n in suitable if not n.schedulable and _usable(n, job) >= job.gpus]
    large = [n for n in suitable if _usable(n, job) >= job.gpus]
    if held and len(large) >= job.nodes:
        return Why(
            Reason.HELD_BY_CORDON,
            f"needs {_request(job)}; {', '.join(held[:5])} would do but {'is' if len(held) == 1 else 'are'} cordoned or draining",
            f"starts when {held[0]} is undrained",
        )
    largest = max(suitable, key=lambda n: (_usable(n, job), -n.order))
    return Why(
        Reason.NEVER_FITS,
        f"needs {_request(job)}; even empty, {len(large)} of {len(alive)} nodes could hold a member, the largest has "
        f"{_usable(largest, job)} GPUs ({largest.name})",
        "starts only when larger or more nodes join",
    )


def _usable(node: Node, job: Job) -> int:
    return sum(1 for c in node.gpus.values() if _suits(c, job))


def _suits(gpu_class: GpuClass, job: Job) -> bool:
    return job.gpu_type in (None, gpu_class[0]) and gpu_class[1] >= job.gpu_memory_mib


def _no_room(state: PoolState, job: Job, ahead: int | None, *, with_counterfactual: bool) -> Why:
    suitable = [g for g in state.capacity.groups() if _suits(g.gpu_class, job)]
    free_total = sum(len(g.free) for g in suitable)
    largest = max(suitable, key=lambda g: (len(g.free), -g.order))
    quarantined = [j for j in _running(state) if j.reason == Reason.STOP_TIMEOUT]
    if free_total >= job.gpus_total:
        reason = Reason.FRAGMENTED
        seen = f"{free_total} are free in all, the largest free is {len(largest.free)} on {largest.node}"
    else:
        reason = Reason.GPUS_QUARANTINED if quarantined else Reason.INSUFFICIENT_GPUS
        seen = f"the largest free is {len(largest.free)} on {largest.node}"
    detail = f"needs {_request(job)}; {seen}"
    if ahead:
        detail += f"; {ahead} earlier job{'s' if ahead != 1 else ''} wait{'s' if ahead == 1 else ''} too"
    if not with_counterfactual:
        return Why(reason, detail)
    return _counterfactual(state, job, Why(reason, detail))


def _running(state: PoolState) -> list[Job]:
    return [j for j in state.jobs.values() if j.state in HOLDS_GPUS]


def expected_end(job: Job) -> float | None:
    """Return when a job that holds GPUs is expected to end, as far as advice tells."""
    if job.expected_end is not None:
        return job.expected_end
    if job.p50_s is not None:
        return (job.started_at if job.started_at is not None else job.since) + job.p50_s
    return None


def _counterfactual(state: PoolState, job: Job, now: Why) -> Why:
    """Let the running jobs end one by one, the earliest expected first, until the gang fits (with nobody before it)."""
    avoid = avoided(state, job)
    groups = {g.order: g for g in state.capacity.groups() if _suits(g.gpu_class, job) and g.node not in avoid}
    free = {order: len(g.free) for order, g in groups.items()}
    seat_of = {
        (g.node, index): order for order, g in groups.items() for index in _indices(state.nodes[g.node], g.gpu_class)
    }
    ended: list[tuple[Job, set[int]]] = []
    for running in sorted(_running(state), key=lambda j: (expected_end(j) is None, expected_end(j) or 0.0, j.order)):
        touched = {seat_of[m.node, index] for m in running.members for index in m.gpus if (m.node, index) in seat_of}
        for member in running.members:
            for index in member.gpus:
                if (member.node, index) in seat_of:
                    free[seat_of[member.node, index]] += 1
        if touched:
            ended.append((running, touched))
        chosen = [order for order, count in free.items() if count >= job.gpus]
        if _enough(job, chosen, {o: (g.node, g.gpu_class[0]) for o, g in groups.items()}):
            return _told(now, [j for j, orders in ended if orders & set(chosen)])
    return now


def _indices(node: Node, gpu_class: GpuClass) -> list[int]:
    return [index for index, c in node.gpus.items() if c == gpu_class]


def _enough(job: Job, chosen: list[int], place: dict[int, tuple[str, str]]) -> bool:
    nodes: dict[str, set[str]] = {}
    for order in chosen:
        node, kind = place[order]
        nodes.setdefault(kind, set()).add(node)
    return any(len(names) >= job.nodes for names in nodes.values())


def _told(now: Why, waits_for: list[Job]) -> Why:
    ends = [expected_end(j) for j in waits_for]
    known = [e for e in ends if e is not None]
    at = max(known) if known and len(known) == len(ends) else None
    names = ", ".join(j.id for j in waits_for[:3]) + (f" and {len(waits_for) - 3} more" if len(waits_for) > 3 else "")  # noqa: PLR2004
    verb = "ends" if len(waits_for) == 1 else "end"
    text = f"would fit when {'job' if len(waits_for) == 1 else 'jobs'} {names} {verb}"
    return Why(now.reason, now.detail, text, tuple(j.id for j in waits_for[:WAITS_FOR_MAX]), at)
