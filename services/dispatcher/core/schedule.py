"""The scheduling pass: waiting jobs in the policy's order, each placed whole or not at all."""

from __future__ import annotations

from collections.abc import Callable

from schedmate.services.dispatcher.core.backfill import backfill
from schedmate.services.dispatcher.core.capacity import Group
from schedmate.services.dispatcher.core.decisions import Placed, Seat
from schedmate.services.dispatcher.core.fitting import AT_LIMIT, NO_ROOM, at_limit, avoided, fit
from schedmate.services.dispatcher.core.job import PINNED_FIRST
from schedmate.services.dispatcher.core.lifecycle import Emit
from schedmate.services.dispatcher.core.margin import make_room
from schedmate.services.dispatcher.core.preemption import make_way
from schedmate.services.dispatcher.core.profiling import is_profiled
from schedmate.services.dispatcher.core.queue import Kind
from schedmate.services.dispatcher.core.quota import heads, next_of, put_following, reclaim
from schedmate.services.dispatcher.core.rounds import decide_round
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.sharing import APATHETIC, DEFAULT, EAGER, host_for, mode
from schedmate.services.dispatcher.core.state import Job, Node, PoolState


def schedule(state: PoolState, emit: Emit, full: Callable[[], bool]) -> None:
    """Place what can be placed. `full` tells when the entry has reached its bound; the rest follows in the next one."""
    if state.config.ageing_s:
        state.ageing.raise_due(state)
    if state.oldest:
        state.promote_overdue()
    if state.policy.rounds_s is not None:
        decide_round(state, emit, _place)
        return
    if _settled(state):
        return
    if state.queue.empty and not state.policy.packs:  # GPUs were freed, and nobody waits for them
        state.held_by, state.queue.changed, state.pass_epoch = None, False, state.capacity.epoch
        state.blocked.clear()
        return
    if state.policy.packs:
        _refresh_profiler(state)
    while _pass_again(state, emit, full):
        pass


def _pass_again(state: PoolState, emit: Emit, full: Callable[[], bool]) -> bool:
    """Go through the queue; tell whether what was decided lets somebody start, or be made room for, who stands before it."""
    added, leaving = state.hosts.added, len(state.leaving)
    placed = _pass(state, emit, full)
    if state.more:
        return False
    if (state.config.tenant_quota or state.reservations) and (placed or len(state.leaving) != leaving):
        # whoever was placed made others of its tenant borrowers, whoever was stopped made room within its tenant's quota; and who was
        # passed over for a maintenance to come may have lost the room that it would have had
        return True
    if not (placed and state.policy.packs):
        return False
    # those before them in the queue may join whoever was placed, or have a node that the profiler has left
    joinable = state.hosts.added != added and mode(state) != APATHETIC
    return _refresh_profiler(state) or joinable


def _settled(state: PoolState) -> bool:
    """Has nothing happened since the last pass that could place anybody?"""
    config, policy = state.config, state.policy
    if config.preemption or config.tenant_quota or policy.preempts or policy.backfills or state.reservations:
        return False  # who gives way, when who runs is expected to end and which nodes are open change as time goes by
    if state.pass_epoch != state.capacity.epoch:
        return False
    queue = state.queue
    if queue.changed and state.held_by is not None and state.held_by == queue.first():
        queue.changed = False  # whoever came stands behind a job that still does not fit
    return not queue.changed


def _refresh_profiler(state: PoolState) -> bool:
    changed = state.profiler.refresh(state)
    if changed:
        state.blocked.clear()
    return changed


def _pass(state: PoolState, emit: Emit, full: Callable[[], bool]) -> bool:
    """Go through the queue once; tell whether anything was placed."""
    queue = state.queue
    packing = mode(state) if state.policy.packs else APATHETIC
    if state.pass_epoch != state.capacity.epoch:
        state.blocked.clear()
    heap = heads(state)
    state.held_by = None
    passed_over = 0
    placed = False
    jobs = state.jobs
    while heap:
        if full():
            state.more = True
            return placed
        key, job_id, kind = next_of(state, heap)
        job = jobs[job_id]
        if packing == EAGER and _join(state, job, packing, passed_over, emit):
            placed = True
            put_following(state, heap, kind)
            continue
        verdict, groups = _verdict(state, job, kind)
        if groups is not None:
            placed = True
            _place(state, job, groups, passed_over, emit)
            put_following(state, heap, kind)
            continue
        if packing == DEFAULT and _join(state, job, packing, passed_over, emit):
            placed = True
            put_following(state, heap, kind)
            continue
        if verdict == AT_LIMIT and state.policy.preempts and make_room(state, job, emit):
            break  # others of its own tenant go for it
        if verdict == NO_ROOM and _holds_others_back(state, job, emit, full):
            if state.policy.head_blocks and not (state.policy.preempts or state.policy.backfills or state.policy.packs):
                state.held_by = (key, job_id)
            break
        passed_over += 1
    queue.changed = state.more  # the rest of those that may go past the first one follows in the next entry
    state.pass_epoch = state.capacity.epoch
    return placed


def _holds_others_back(state: PoolState, job: Job, emit: Emit, full: Callable[[], bool]) -> bool:
    """Do what a job that does not fit calls for; tell whether those behind it wait for it."""
    policy = state.policy
    config = state.config
    if (
        (config.tenant_quota and reclaim(state, job, emit))
        or (config.preemption and make_way(state, job, emit))
        or (policy.preempts and make_room(state, job, emit))
    ):
        return True
    if policy.backfills and not state.overdue(job):
        backfill(state, job, emit, _place, full)
        return True
    return policy.head_blocks or state.overdue(job) or job.pin == PINNED_FIRST


def _verdict(state: PoolState, job: Job, kind: Kind) -> tuple[str, list[Group] | None]:
    """Return the verdict on a kind, remembered while nothing was freed.

    The limit is looked at each time: it may be reached without anything being freed, and whoever recovered the pool remembers
    nothing. What is remembered must be what would be found anew: with reservations to come nothing is, for nodes close to jobs as
    time goes by, and the room that a job waits to use may be taken by the next one.
    """
    if state.limits_tenants and at_limit(state, job):
        return AT_LIMIT, None
    known = state.blocked.get(kind)
    if known is not None and known[0] == state.capacity.epoch:
        return known[1], None
    verdict, groups = fit(state, job)
    if groups is None and not state.reservations:
        state.blocked[kind] = (state.capacity.epoch, verdict)
    return verdict, groups


def _place(state: PoolState, job: Job, groups: list[Group], passed_over: int, emit: Emit) -> None:
    first = state.nodes[groups[0].node]
    placed = Placed(  # by position: names cost as much again
        job.id, job.attempt + 1, _seats(state, job, groups), first.address, _free_port(first), passed_over, len(groups[0].free),
        state.capacity.free_gpus, job.p50_s, job.basis, job.resume_from, state.milli_of(job), None,
        state.policy.packs and first.name in state.profiler.nodes and is_profiled(state, job),
    )  # fmt: skip
    emit(placed)


def _join(state: PoolState, job: Job, packing: str, passed_over: int, emit: Emit) -> bool:
    """Put the job beside another one, where there is one that it goes with (core/sharing.py)."""
    if state.limits_tenants and at_limit(state, job):
        return False
    host = host_for(state, job, avoided, packing)
    if host is None:
        return False
    nodes = state.nodes
    first = nodes[host.members[0].node]
    seats = tuple(Seat(m.node, nodes[m.node].session, m.gpus) for m in host.members)
    emit(
        Placed(
            job.id, job.attempt + 1, seats, first.address, _free_port(first), passed_over, 0, state.capacity.free_gpus,
            job.p50_s, job.basis, job.resume_from, beside=host.id,
        )
    )  # fmt: skip
    return True


def _seats(state: PoolState, job: Job, groups: list[Group]) -> tuple[Seat, ...]:
    """Give each member its GPUs; the members of a packed job take what the groups have until it has enough."""
    nodes = state.nodes
    milli = state.milli_of(job)
    if milli < WHOLE_MILLI:
        group = groups[0]
        return (Seat(group.node, nodes[group.node].session, (state.capacity.shares.seat(group, milli),)),)
    if len(groups) == 1:
        group = groups[0]
        return (Seat(group.node, nodes[group.node].session, tuple(group.free[: job.gpus])),)
    left = job.gpus_total
    seats = []
    for group in groups:
        taken = tuple(group.free[: min(job.gpus, left)])
        seats.append(Seat(group.node, nodes[group.node].session, taken))
        left -= len(taken)
    return tuple(seats)


def _free_port(node: Node) -> int:
    """Return the next port of the node's range that no gang uses, going round so that a port is not reused at once."""
    span = node.port_max - node.port_min + 1
    start = node.port_next if node.port_min <= node.port_next <= node.port_max else node.port_min
    if start not in node.ports:
        return start
    for step in range(1, span):
        port = node.port_min + (start - node.port_min + step) % span
        if port not in node.ports:
            return port
    return start  # more gangs than ports: the range is too small, and the launcher will say so
