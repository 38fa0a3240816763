"""Folding inputs: what the core is told becomes part of its state, or is refused and leaves it unchanged.

A fold is idempotent by meaning: a fact that is known already changes nothing. Each function checks before it touches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import HOLDS_GPUS, JobState
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.inputs import (
    CancelRequested,
    ConfigChanged,
    DiagnosisArrived,
    EstimateArrived,
    Input,
    JobArrived,
    MemberExited,
    MemberRefused,
    MemberStarted,
    NodeCommanded,
    NodeReported,
    NodeSilent,
    ProgressArrived,
    RunSeen,
    Tick,
)
from schedmate.services.dispatcher.core.policy import UnknownPolicyError, policy_named
from schedmate.services.dispatcher.core.state import ENDED, STARTED, TOLD, Job, Member, Node, PoolState

NODE_COMMANDS: Final = ("drain", "undrain", "cordon", "dead")
CORDON_CONFIDENCE_MIN: Final = 0.5
SUSPECTS_MAX: Final = 8
REMAINING_EDGE_S: Final = 10.0
REMAINING_EDGE_RATIO: Final = 0.1


class FoldError(ValueError):
    """The input contradicts what a pool can be; it is recorded as refused."""


def fold(state: PoolState, value: Input) -> None:
    """Make an input part of the state.

    Raises:
        FoldError: the input is refused; the state is unchanged.
    """
    handler = _HANDLERS.get(type(value))
    if handler is None:
        raise FoldError(f"no such input: {type(value).__name__}")
    handler(state, value)


def _held_early(state: PoolState, job_id: str, value: Input) -> bool:
    """An event for a job not seen yet is held (bounded); one for an ended job is nobody's business."""
    if job_id in state.jobs or job_id in state.ended:
        return False
    if state.config.early_max > 0:
        _forget_early(state, state.config.early_max - 1)
        state.early.setdefault(job_id, []).append(value)
        state.early_count += 1
    return True


def _forget_early(state: PoolState, bound: int) -> None:
    """Forget the oldest events that are held, down to so many."""
    while state.early_count > bound and state.early:
        state.early_count -= len(state.early.pop(next(iter(state.early))))


def _forget_cancels(state: PoolState, bound: int) -> None:
    """Forget the oldest cancels that are held, down to so many."""
    while len(state.cancels) > bound:
        del state.cancels[next(iter(state.cancels))]


# --- jobs ---


def _arrived(state: PoolState, value: JobArrived) -> None:
    if value.job in state.jobs or value.job in state.ended:
        state.repeats += 1
        return
    if value.gpus < 1 or value.nodes < 0 or value.retries < 0 or value.gpu_memory_mib < 0:
        raise FoldError(f"job {value.job} asks for an impossible size")
    job = Job(
        id=value.job,
        tenant=value.tenant,
        user=value.user,
        priority=value.priority,
        gpus=value.gpus,
        nodes=value.nodes,
        gpu_type=value.gpu_type,
        gpu_memory_mib=value.gpu_memory_mib,
        time_limit_s=value.time_limit_s,
        retries=value.retries,
        submitted_at=value.submitted_at,
        order=state.arrivals,
        spec=value.spec,
        trace=value.trace,
        since=state.at,
        resumable=value.resumable,
    )
    state.arrivals += 1
    state.jobs[job.id] = job
    job.cancel_by = state.cancels.pop(job.id, None)
    state.touch(job)
    held = state.early.pop(job.id, [])
    state.early_count -= len(held)
    for early in held:
        fold(state, early)


def _cancel(state: PoolState, value: CancelRequested) -> None:
    job = state.jobs.get(value.job)
    if job is not None:
        if job.cancel_by is None:
            job.cancel_by = value.by
            state.touch(job)
        else:
            state.repeats += 1
    elif value.job not in state.ended and value.job not in state.cancels and state.config.early_max > 0:
        _forget_cancels(state, state.config.early_max - 1)
        state.cancels[value.job] = value.by


# --- members ---


def _is_current(state: PoolState, job_id: str, attempt: int) -> bool:
    job = state.jobs.get(job_id)
    return job is not None and job.attempt == attempt and job.state in HOLDS_GPUS


def _member_of(state: PoolState, job_id: str, attempt: int, number: int, node: str, session: int) -> Member | None:
    """The member that an event speaks of, if it belongs to the current assignment and comes from the node that holds it."""
    if not _is_current(state, job_id, attempt):
        return None
    job = state.jobs[job_id]
    if not 0 <= number < len(job.members):
        raise FoldError(f"job {job_id} has no member {number}")
    member = job.members[number]
    if member.node != node:
        raise FoldError(f"member {number} of job {job_id} is on {member.node}, not on {node}")
    return member if session >= member.session else None


def _started(state: PoolState, value: MemberStarted) -> None:
    member = _member_of(state, value.job, value.attempt, value.member, value.node, value.session)
    if member is not None and member.state == TOLD:
        member.state = STARTED
        member.started_at = value.at
        member.session = value.session
        state.touch(state.jobs[value.job])
    else:
        state.repeats += 1


def _exited(state: PoolState, value: MemberExited) -> None:
    member = _member_of(state, value.job, value.attempt, value.member, value.node, value.session)
    if member is None and _is_current(state, value.job, value.attempt):
        return  # told by an earlier session: the node's report tells it again, and until then it must not be let go
    state.releases.append((value.node, value.job, value.attempt, value.member))
    if member is not None and member.state != ENDED:
        _end(
            state,
            state.jobs[value.job],
            member,
            cause=value.cause,
            exit_code=value.exit_code,
            signal=value.signal,
            started_at=value.started_at,
            ended_at=value.ended_at,
        )
    else:
        state.repeats += 1


def _end(
    state: PoolState,
    job: Job,
    member: Member,
    *,
    cause: str,
    exit_code: int | None = None,
    signal: int | None = None,
    started_at: float | None = None,
    ended_at: float | None = None,
    detail: str = "",
) -> None:
    member.state = ENDED
    member.cause = cause
    member.exit_code = exit_code
    member.signal = signal
    member.started_at = started_at if started_at is not None else member.started_at
    member.ended_at = ended_at if ended_at is not None else state.at
    member.detail = detail
    state.touch(job)
    _judge_node(state, job, member)


def _judge_node(state: PoolState, job: Job, member: Member) -> None:
    """Keep the node's record: a node on which jobs fail fast that do well elsewhere is a black hole (scenario BR-42)."""
    node = state.nodes[member.node]
    config = state.config
    ran_s = (member.ended_at or 0.0) - member.started_at if member.started_at is not None else 0.0
    if member.done or (member.started_at is not None and ran_s > config.fast_failure_s):
        node.strikes = ()
        for name in job.suspects:
            if name != node.name:
                _strike(state, state.nodes[name], job.id)
        job.suspects = ()
    elif member.cause in ("exited", "launch_failed"):
        suspect(state, job, node)


def suspect(state: PoolState, job: Job, node: Node) -> None:
    """The job failed on the node before it did anything. Whose fault it was shows when it does well elsewhere, or never.

    Jobs that have done well elsewhere for long enough by now confirm what they suspect: nobody waits for their end.
    """
    if node.name not in job.suspects:
        job.suspects = (*job.suspects, node.name)[-SUSPECTS_MAX:]
    state.suspecting[job.id] = None
    known = [state.jobs[job_id] for job_id in state.suspecting if job_id in state.jobs]
    suspecting = sorted((other for other in known if other.suspects), key=lambda one: one.order)
    state.suspecting = dict.fromkeys(other.id for other in suspecting)
    for other in suspecting:
        well_for = state.at - other.started_at if other.started_at is not None else 0.0
        does_well = other.state is JobState.RUNNING and well_for > state.config.fast_failure_s
        if does_well and node.name in other.suspects:
            for name in other.suspects:
                _strike(state, state.nodes[name], other.id)
            other.suspects = ()


def _strike(state: PoolState, node: Node, job_id: str) -> None:
    if job_id in node.strikes:
        return
    node.strikes = (*node.strikes, job_id)[-state.config.strikes_max :]
    if len(node.strikes) >= state.config.strikes_max and node.cordoned is None:
        node.cordon_wanted = f"{len(node.strikes)} jobs in a row failed fast here and not elsewhere"
        state.dirty_nodes[node.name] = None


def _refused(state: PoolState, value: MemberRefused) -> None:
    job = state.jobs.get(value.job)
    member = _member_of(state, value.job, value.attempt, value.member, value.node, value.session)
    if job is None or member is None or member.state == ENDED or (value.seq, value.index) != job.place:
        return
    _end(state, job, member, cause="refused", detail=f"{value.cause}: {value.detail}".rstrip(": "))
    if value.cause == "setup_failed":
        suspect(state, job, state.nodes[value.node])


# --- nodes ---


def _reported(state: PoolState, value: NodeReported) -> None:
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
    before = (node.schedulable, node.gpus)
    restarted = value.session > node.session > 0
    node.session, node.boot_id = value.session, value.boot_id
    node.applied = (value.applied_seq, value.applied_index)
    node.address, node.port_min, node.port_max = value.address, value.port_min, value.port_max
    node.stopping, node.alive, node.unreachable = value.stopping, True, False
    node.lease_s = value.lease_s
    node.gpus = {g.index: (g.type, g.memory_mib) for g in value.gpus if g.usable}
    node.gpus_reported = len(value.gpus)
    if before != (node.schedulable, node.gpus):
        state.refresh_capacity(node)
    state.dirty_nodes[node.name] = None
    _reconcile(state, node, value, restarted=restarted)


def says_something_new(state: PoolState, value: NodeReported) -> bool:
    """Tell whether folding this report would change anything but the applied place: chatter stays out of the log."""
    node = state.nodes.get(value.node)
    if node is None or node.session != value.session or not node.alive or node.unreachable:
        return node is None or value.session >= node.session
    known = (node.boot_id, node.lease_s, node.address, node.port_min, node.port_max, node.stopping, node.gpus_reported)
    told = (
        value.boot_id,
        value.lease_s,
        value.address,
        value.port_min,
        value.port_max,
        value.stopping,
        len(value.gpus),
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


def remaining_says_something_new(state: PoolState, value: ProgressArrived, now: float) -> bool:
    """Tell whether an expected end has moved by more than a tenth of what remains, ten seconds, and what the reading is uncertain by.

    Chatter stays out of the log.
    """
    job = state.jobs.get(value.job)
    if job is None or job.attempt != value.attempt or job.expected_end is None:
        return job is not None and job.attempt == value.attempt
    moved_s = abs(now + max(value.remaining_s, 0.0) - job.expected_end)
    return moved_s > max(REMAINING_EDGE_S, REMAINING_EDGE_RATIO * value.remaining_s, value.within_s)


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
                _end(state, job, member, cause="lost", detail=f"{node.name} knows nothing of it")
        if job.reason == Reason.NODE_UNREACHABLE:
            state.touch(job)


def _reconcile_run(state: PoolState, node: Node, run: RunSeen, *, restarted: bool) -> None:
    member = _wanted(state, node, run)
    if run.ended:
        state.releases.append((node.name, run.job, run.attempt, run.member))
        if member is not None and member.state != ENDED:
            _end(
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


def _silent(state: PoolState, value: NodeSilent) -> None:
    node = state.nodes.get(value.node)
    if node is None or node.session != value.session or not node.alive:
        return
    if state.config.lease_expires:
        _bury(state, node, "node_lost")
    elif not node.unreachable:
        node.unreachable = True
        state.refresh_capacity(node)
        state.dirty_nodes[node.name] = None
        for job_id in node.owners:
            state.touch(state.jobs[job_id])


def _bury(state: PoolState, node: Node, cause: str, detail: str = "") -> None:
    """Nothing runs on the node any more: by its lease, or by an operator's word."""
    node.alive, node.unreachable = False, False
    state.refresh_capacity(node)
    state.dirty_nodes[node.name] = None
    for job_id in node.owners:
        job = state.jobs[job_id]
        for member in job.members:
            if member.node == node.name and member.state != ENDED:
                _end(state, job, member, cause=cause, detail=detail or f"{node.name} is lost")


def _node_commanded(state: PoolState, value: NodeCommanded) -> None:
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
                _bury(state, node, "declared_dead", f"{value.by} declared {node.name} dead")
    state.refresh_capacity(node)


# --- advice ---


def _estimate(state: PoolState, value: EstimateArrived) -> None:
    if _held_early(state, value.job, value):
        return
    job = state.jobs.get(value.job)
    if job is None or value.revision <= job.estimate_revision:
        state.repeats += 1
        return
    job.estimate_revision = value.revision
    job.p10_s, job.p50_s, job.p90_s, job.basis = value.p10_s, value.p50_s, value.p90_s, value.basis
    if state.policy.uses_estimates:
        state.place_anew(job)


def _progress(state: PoolState, value: ProgressArrived) -> None:
    job = state.jobs.get(value.job)
    if job is not None and job.attempt == value.attempt and job.state is JobState.RUNNING:
        job.expected_end = state.at + max(value.remaining_s, 0.0)


def _diagnosis(state: PoolState, value: DiagnosisArrived) -> None:
    if _held_early(state, value.job, value):
        return
    node = state.nodes.get(value.culprit_node) if value.culprit_node is not None else None
    bears = value.node_evidence and value.confidence >= CORDON_CONFIDENCE_MIN
    if node is not None and bears and value.action == "retry_elsewhere_cordon" and node.cordoned is None:
        node.cordon_wanted = f"{value.category} diagnosed in job {value.job}"
        state.dirty_nodes[node.name] = None
    job = state.jobs.get(value.job)
    current = job is not None and job.attempt == value.attempt and job.state in (*HOLDS_GPUS, JobState.DIAGNOSING)
    if job is not None and current and (job.diagnosis is None or job.diagnosis.attempt != value.attempt):
        job.diagnosis = value
        state.touch(job)
    else:
        state.repeats += 1


# --- the rest ---


def _config(state: PoolState, value: ConfigChanged) -> None:
    try:
        config = PoolConfig.from_json(value.config)
        policy = policy_named(config.policy)
    except (TypeError, UnknownPolicyError) as error:
        raise FoldError(str(error)) from error
    waiting = [job for job in state.jobs.values() if job.queue_key is not None]
    for job in waiting:
        state.dequeue(job)
    state.oldest.clear()
    state.config, state.policy = config, policy
    state.round_at = None
    _forget_early(state, config.early_max)
    _forget_cancels(state, config.early_max)
    for job in waiting:
        state.enqueue(job)
    state.rank_anew()
    for job in state.jobs.values():
        state.set_timer(job)
    if config.lease_expires:
        for node in state.nodes.values():
            if node.unreachable:  # its lease ran out while leases did not expire
                _bury(state, node, "node_lost")
    state.capacity.epoch += 1


def _tick(state: PoolState, value: Tick) -> None:
    """Time alone changes nothing; the deadlines are looked at when the entry is decided."""


_HANDLERS: Final[dict[type[Input], Callable[[PoolState, Any], None]]] = {
    JobArrived: _arrived,
    CancelRequested: _cancel,
    MemberStarted: _started,
    MemberExited: _exited,
    MemberRefused: _refused,
    NodeReported: _reported,
    NodeSilent: _silent,
    NodeCommanded: _node_commanded,
    EstimateArrived: _estimate,
    ProgressArrived: _progress,
    DiagnosisArrived: _diagnosis,
    ConfigChanged: _config,
    Tick: _tick,
}
