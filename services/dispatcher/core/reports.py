"""Folding what is said of nodes: reports, silence, operators' calls."""

from __future__ import annotations

from typing import Final

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import HOLDS_GPUS
from schedmate.services.dispatcher.core.beliefs import watch
from schedmate.services.dispatcher.core.endings import end_member
from schedmate.services.dispatcher.core.inputs import FoldError, NodeCommanded, NodeReported, NodeSilent, RunSeen
from schedmate.services.dispatcher.core.job import RUNS
from schedmate.services.dispatcher.core.state import ENDED, STARTED, TOLD, Job, Member, Node, PoolState

NODE_COMMANDS: Final = ("drain", "undrain", "cordon", "dead")


def reported(state: PoolState, value: NodeReported) -> None:
    """A node says how it is: the full truth about what runs there."""
    if value.session < 1 or not 0 < value.port_min <= value.port_max:
        raise FoldError(f"report of {value.node}: session or ports make no sense")
    if len({g.index for g in value.gpus}) != len(value.gpus):
        raise FoldError(f"report of {value.node}: a GPU is named twice")
    node = state.nodes.get(value.node)
    if node is not None and value.session < node.session:
        return
    if node is None:
        node = Node(name=value.node, order=state.joins, port_next=value.port_min)
        state.joins += 1
        state.nodes[node.name] = node
    before = (node.schedulable, node.gpus, node.rack, node.spine)
    restarted = value.session > node.session > 0
    node.session, node.boot_id = value.session, value.boot_id
    node.applied = (value.applied_seq, value.applied_index)
    node.address, node.port_min, node.port_max = value.address, value.port_min, value.port_max
    node.stopping, node.alive, node.unreachable = value.stopping, True, False
    node.lease_s = value.lease_s
    node.gpus = {g.index: (g.type, g.memory_mib) for g in value.gpus if g.usable}
    node.gpus_reported = len(value.gpus)
    _stands(state, node, value)
    if before != (node.schedulable, node.gpus, node.rack, node.spine):
        state.refresh_capacity(node)
        if state.policy.packs:  # who may be joined there, and by whom, goes by its GPUs
            for job in (state.jobs[job_id] for job_id in node.owners):
                if job.state in RUNS:
                    state.hosts.note(job, state)
    state.dirty_nodes[node.name] = None
    _reconcile(state, node, value, restarted=restarted)


def _stands(state: PoolState, node: Node, value: NodeReported) -> None:
    """Make known where the node stands; the first label of a pool gives every node its leaf group."""
    known = state.topology.given
    node.rack, node.spine = value.rack, value.spine
    state.topology.set_node(node.name, node.rack, node.spine)
    if state.topology.given != known:
        for other in state.nodes.values():
            if other is not node:
                state.refresh_capacity(other)


def says_something_new(state: PoolState, value: NodeReported) -> bool:
    """Tell whether folding this report would change anything but the applied place: chatter stays out of the log."""
    node = state.nodes.get(value.node)
    if node is None or node.session != value.session or not node.alive or node.unreachable:
        return node is None or value.session >= node.session
    known = (
        node.boot_id, node.lease_s, node.address, node.port_min, node.port_max, node.stopping, node.gpus_reported, node.rack, node.spine
    )  # fmt: skip
    told = (
        value.boot_id,
        value.lease_s,
        value.address,
        value.port_min,
        value.port_max,
        value.stopping,
        len(value.gpus),
        value.rack,
        value.spine,
    )
    if known != told or node.gpus != {g.index: (g.type, g.memory_mib) for g in value.gpus if g.usable}:
        return True
    seen = {(r.job, r.attempt, r.member) for r in value.runs}
    if any(_run_is_news(state, node, run) for run in value.runs):
        return True
    applied = (value.applied_seq, value.applied_index)
    return any(
        True
        for job_id in node.owners
        for number, member in enumerate(state.jobs[job_id].members)
        if _is_missing(state.jobs[job_id], number, member, value, seen, applied)
    )


def _run_is_news(state: PoolState, node: Node, run: RunSeen) -> bool:
    member = _wanted(state, node, run)
    if member is None or member.state == ENDED or run.ended:
        return True
    return run.started and member.state == TOLD


def _is_missing(
    job: Job,
    number: int,
    member: Member,
    report: NodeReported,
    seen: set[tuple[str, int, int]],
    applied: tuple[int, int],
) -> bool:
    """Is a member missing from the report? One of the session in which it started may be older than its start, a later one is not."""
    if member.node != report.node or member.state == ENDED or (job.id, job.attempt, number) in seen:
        return False
    return job.place <= applied or (member.state == STARTED and report.session > member.session)


def _reconcile(state: PoolState, node: Node, report: NodeReported, *, restarted: bool) -> None:
    """A report is the full truth: what it lacks is lost, what nobody wants gets a stop, what has ended is let go.

    A worker that was `restarted` is told again what it was to stop: the order may have stood in records that were lost.
    """
    for run in report.runs:
        _reconcile_run(state, node, run, restarted=restarted)
    seen = {(r.job, r.attempt, r.member) for r in report.runs}
    for job_id in node.owners:
        job = state.jobs[job_id]
        for number, member in enumerate(job.members):
            if _is_missing(job, number, member, report, seen, node.applied):
                end_member(state, job, member, cause="lost", detail=f"{node.name} knows nothing of it")
        if job.reason == Reason.NODE_UNREACHABLE:
            state.touch(job)


def _reconcile_run(state: PoolState, node: Node, run: RunSeen, *, restarted: bool) -> None:
    member = _wanted(state, node, run)
    if run.ended:
        state.releases.append((node.name, run.job, run.attempt, run.member))
        if member is not None and member.state != ENDED:
            end_member(
                state,
                state.jobs[run.job],
                member,
                cause=run.cause or "lost",
                exit_code=run.exit_code,
                signal=run.signal,
                started_at=run.started_at,
                ended_at=run.ended_at,
            )
    elif member is None or member.state == ENDED:
        state.stops.append((node.name, run.job, run.attempt, run.member))
    else:
        if restarted and member.stop_ordered:
            state.stops.append((node.name, run.job, run.attempt, run.member))
        if run.started and member.state == TOLD:
            member.state, member.started_at = STARTED, run.started_at
            watch(state, state.jobs[run.job])
            state.touch(state.jobs[run.job])


def _wanted(state: PoolState, node: Node, run: RunSeen) -> Member | None:
    job = state.jobs.get(run.job)
    if (
        job is None
        or job.attempt != run.attempt
        or job.state not in HOLDS_GPUS
        or not 0 <= run.member < len(job.members)
    ):
        return None
    member = job.members[run.member]
    return member if member.node == node.name else None


def silent(state: PoolState, value: NodeSilent) -> None:
    """A node's lease has run out: what ran there is lost, or waits for it where leases do not expire."""
    node = state.nodes.get(value.node)
    if node is None or node.session != value.session or not node.alive:
        return
    if state.config.lease_expires:
        bury(state, node, "node_lost")
    elif not node.unreachable:
        node.unreachable = True
        state.refresh_capacity(node)
        state.dirty_nodes[node.name] = None
        for job_id in node.owners:
            state.touch(state.jobs[job_id])


def bury(state: PoolState, node: Node, cause: str, detail: str = "") -> None:
    """Nothing runs on the node any more: by its lease, or by an operator's word."""
    node.alive, node.unreachable = False, False
    state.refresh_capacity(node)
    state.dirty_nodes[node.name] = None
    for job_id in node.owners:
        job = state.jobs[job_id]
        for member in job.members:
            if member.node == node.name and member.state != ENDED:
                end_member(state, job, member, cause=cause, detail=detail or f"{node.name} is lost")


def node_commanded(state: PoolState, value: NodeCommanded) -> None:
    """An operator says what shall be of a node."""
    if value.command not in NODE_COMMANDS:
        raise FoldError(f"no such node command: {value.command}")
    node = state.nodes.get(value.node)
    if node is None:
        raise FoldError(f"the pool has no node {value.node}")
    state.dirty_nodes[node.name] = None
    match value.command:
        case "drain":
            node.draining = True
        case "undrain":
            node.draining, node.cordoned, node.cordon_wanted, node.strikes = False, None, None, ()
        case "cordon":
            node.cordon_wanted = value.why or f"cordoned by {value.by}"
        case "dead":
            if node.alive:
                bury(state, node, "declared_dead", f"{value.by} declared {node.name} dead")
    state.refresh_capacity(node)
