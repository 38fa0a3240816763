"""A job's life: what follows from the facts about it (protocol §4). Each function emits decisions; `apply` carries them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobEvent, JobState, StopIntent
from schedmate.services.dispatcher.core import reservations
from schedmate.services.dispatcher.core.config import Budget
from schedmate.services.dispatcher.core.decisions import Decision, Moved, Noted, Stop
from schedmate.services.dispatcher.core.inputs import DiagnosisArrived
from schedmate.services.dispatcher.core.moves import move, run_out
from schedmate.services.dispatcher.core.sharing import parted
from schedmate.services.dispatcher.core.state import ENDED, TOLD, Job, Member, PoolState
from schedmate.services.dispatcher.core.timers import deadline, limit_of

Emit = Callable[[Decision], None]

GPU_OOM: Final = "GPU_OOM"
"""The category of a run that found no more memory on its GPU, as diagnoses name it."""
_INFRASTRUCTURE_SIDES: Final = ("infra_hardware", "infra_network", "storage", "scheduler")
_SPENT_REASON: Final = {
    "user": Reason.RETRY_BUDGET_SPENT,
    "launch": Reason.LAUNCH_BUDGET_SPENT,
    "infrastructure": Reason.INFRASTRUCTURE_BUDGET_SPENT,
    "preempted": Reason.INFRASTRUCTURE_BUDGET_SPENT,
}


_GIVEN_WAY: Final = {
    reason.value: reason
    for reason in (Reason.PREEMPTED, Reason.RECLAIMED, Reason.MAINTENANCE, Reason.PROFILED, Reason.UNPACKED)
}
_LOST_REASONS: Final = {
    "refused": Reason.START_REFUSED,
    "node_lost": Reason.NODE_LOST,
    "declared_dead": Reason.NODE_DECLARED_DEAD,
}


def advance(state: PoolState, job: Job, emit: Emit) -> None:
    """Move a job as far as the facts allow."""
    while (step := _STEPS.get(job.state)) is not None:  # a terminal state has none
        before, intent, reason = job.state, job.intent, job.reason
        step(state, job, emit)
        if job.queue_key is not None and job.cancel_by is None:
            return  # it waits for GPUs, and for nothing else
        if job.state is before and job.intent == intent and job.reason == reason:
            return


def _plainly(state: PoolState, job: Job, emit: Emit, event: JobEvent, reason: Reason) -> None:
    """Move a job along the plain course; where nobody keeps what is decided there is nothing to tell of it."""
    if state.keeps_decisions:
        emit(Moved(job.id, job.attempt, event, reason))
    else:
        move(state, job, event, reason)


def _submitted(state: PoolState, job: Job, emit: Emit) -> None:
    if job.cancel_by is not None:
        emit(Moved(job.id, 0, JobEvent.CANCEL, Reason.CANCELLED_BY_REQUEST, f"cancelled by {job.cancel_by}"))
        return
    excess = _admission(state, job)
    if excess is not None:
        emit(Moved(job.id, 0, JobEvent.REJECT, Reason.EXCEEDS_POOL_LIMITS, excess))
    else:
        _plainly(state, job, emit, JobEvent.ADMIT, Reason.NOT_YET_CONSIDERED)


def _admission(state: PoolState, job: Job) -> str | None:
    config = state.config
    if config.gpus_per_job_max is not None and job.gpus_total > config.gpus_per_job_max:
        return f"{job.gpus_total} GPUs asked for, the pool's limit for a job is {config.gpus_per_job_max}"
    limit = config.tenant_limit(job.tenant)
    if limit is not None and job.gpus_total > limit:
        return f"{job.gpus_total} GPUs asked for, the limit of tenant {job.tenant} is {limit}"
    longest = config.time_limit_s_max
    if longest is not None and (job.time_limit_s is None or job.time_limit_s > longest):
        asked = f"{job.time_limit_s} s" if job.time_limit_s is not None else "no limit"
        return f"time limit: {asked} asked for, the pool allows at most {longest} s"
    return None


def _queued(state: PoolState, job: Job, emit: Emit) -> None:
    if job.cancel_by is not None:
        emit(Moved(job.id, job.attempt, JobEvent.CANCEL, Reason.CANCELLED_BY_REQUEST, f"cancelled by {job.cancel_by}"))
    elif job.queue_key is None and job.not_before <= state.at:
        state.enqueue(job)


def _holding(state: PoolState, job: Job, emit: Emit) -> None:
    """ASSIGNED or RUNNING: the members decide, then requests and deadlines."""
    members = job.members
    told, done, badly = _count(members)
    if job.state is JobState.ASSIGNED and not (told or badly):
        if done == len(members) and not state.keeps_decisions:
            run_out(state, job, Reason.ALL_MEMBERS_EXITED_ZERO)
            return
        _plainly(state, job, emit, JobEvent.START, Reason.ALL_MEMBERS_STARTED)
        return
    if done == len(members):
        _plainly(state, job, emit, JobEvent.COMPLETE, Reason.ALL_MEMBERS_EXITED_ZERO)
        return
    if job.cancel_by is not None:
        _stop(state, job, emit, StopIntent.CANCEL, Reason.CANCEL_REQUESTED, f"cancelled by {job.cancel_by}")
        return
    if badly:
        _ended_badly(state, job, emit)
    elif job.beside is not None and (goes := parted(state, job)) is not None:
        _stop(state, goes[0], emit, StopIntent.REQUEUE, Reason.UNPACKED, goes[1])
        if goes[0] is not job:
            _deadlines(state, job, emit)  # whoever stays has its own, which may be due by now
    else:
        _deadlines(state, job, emit)


def _count(members: Sequence[Member]) -> tuple[int, int, int]:
    """Return how many members have not started yet, have ended well, have ended badly."""
    told = done = badly = 0
    for member in members:
        if member.state == TOLD:
            told += 1
        elif member.state == ENDED:
            if member.cause == "exited" and member.exit_code == 0:  # as `Member.done`, asked of every end
                done += 1
            else:
                badly += 1
    return told, done, badly


def _ended_badly(state: PoolState, job: Job, emit: Emit) -> None:
    """A member is lost, or has failed: the others go too."""
    members = job.members
    gone = next((m for m in members if m.lost), None)
    if gone is not None:
        job_reason = _LOST_REASONS.get(gone.cause or "", Reason.MEMBER_LOST)
        _stop(state, job, emit, StopIntent.REQUEUE, job_reason, gone.detail or f"{gone.cause} on {gone.node}")
        return
    failed = next(m for m in members if m.state == ENDED and not m.done)
    detail = f"{describe_exit(failed)} on {failed.node}"
    if all(m.state == ENDED for m in members):
        emit(Moved(job.id, job.attempt, JobEvent.END_BADLY, Reason.AWAITING_DIAGNOSIS, detail))
    else:
        _stop(state, job, emit, StopIntent.DIAGNOSE, Reason.MEMBER_FAILED, detail)


def _deadlines(state: PoolState, job: Job, emit: Emit) -> None:
    if state.reservations and (node := reservations.gives_way(state, job)) is not None:
        detail = f"{node} is reserved for maintenance ({reservations.about(state, node)})"
        _stop(state, job, emit, StopIntent.REQUEUE, Reason.MAINTENANCE, detail)
        return
    due = deadline(state, job)
    if due is not None and due <= state.at:
        if job.state is JobState.ASSIGNED:
            late = sorted({m.node for m in job.members if m.state == TOLD})
            detail = f"not started within {state.config.start_timeout_s:g} s on {', '.join(late)}"
            _stop(state, job, emit, StopIntent.REQUEUE, Reason.START_TIMEOUT, detail)
        elif job.profiling and due < limit_of(job):
            detail = f"it was profiled for {state.config.profiler_s:g} s, and goes on outside the profiler"
            _stop(state, job, emit, StopIntent.REQUEUE, Reason.PROFILED, detail)
        else:
            _stop(state, job, emit, StopIntent.FAIL, Reason.TIME_LIMIT, f"ran for its {job.time_limit_s} s")
        return
    silent = sorted({m.node for m in job.members if state.nodes[m.node].unreachable})
    if silent and job.reason != Reason.NODE_UNREACHABLE:
        emit(Noted(job.id, job.attempt, Reason.NODE_UNREACHABLE, f"silent: {', '.join(silent)}"))
    elif not silent and job.reason == Reason.NODE_UNREACHABLE:
        back = Reason.ALL_MEMBERS_STARTED if job.state is JobState.RUNNING else Reason.STARTING
        emit(Noted(job.id, job.attempt, back, "the node is back"))


def describe_exit(member: Member) -> str:
    """Return how a member ended, in words."""
    if member.signal is not None:
        return f"ended by signal {member.signal}"
    if member.exit_code is not None:
        return f"exit code {member.exit_code}"
    return member.cause or "ended"


def stop_members(state: PoolState, job: Job, emit: Emit, *, again: bool = False) -> None:
    """Tell every member that has not ended to stop."""
    for number, member in enumerate(job.members):
        if member.state != ENDED and (again or not member.stop_ordered):
            emit(Stop(member.node, job.id, job.attempt, number, state.config.stop_grace_s))


def _stop(state: PoolState, job: Job, emit: Emit, intent: StopIntent, reason: Reason, detail: str) -> None:
    emit(Moved(job.id, job.attempt, JobEvent.STOP, reason, detail, intent=int(intent)))
    stop_members(state, job, emit)


def preempt(state: PoolState, job: Job, emit: Emit, detail: str) -> None:
    """Take the GPUs of a job for one of a higher priority class."""
    _stop(state, job, emit, StopIntent.REQUEUE, Reason.PREEMPTED, detail)


def reclaim_from(state: PoolState, job: Job, emit: Emit, detail: str) -> None:
    """Take back the GPUs that a job's tenant has borrowed."""
    _stop(state, job, emit, StopIntent.REQUEUE, Reason.RECLAIMED, detail)


def _stopping(state: PoolState, job: Job, emit: Emit) -> None:
    if job.cancel_by is not None and job.intent < StopIntent.CANCEL:
        emit(
            Noted(
                job.id,
                job.attempt,
                Reason.CANCEL_REQUESTED,
                f"cancelled by {job.cancel_by}",
                intent=int(StopIntent.CANCEL),
            )
        )
    if any(m.state != ENDED for m in job.members):
        due = deadline(state, job)
        if due is not None and due <= state.at:
            late = sorted({m.node for m in job.members if m.state != ENDED})
            emit(
                Noted(
                    job.id,
                    job.attempt,
                    Reason.STOP_TIMEOUT,
                    f"still running on {', '.join(late)}; its GPUs are held back",
                )
            )
            stop_members(state, job, emit, again=True)
        return
    if all(m.done for m in job.members):
        emit(
            Moved(
                job.id,
                job.attempt,
                JobEvent.COMPLETE,
                Reason.ALL_MEMBERS_EXITED_ZERO,
                "it ended before the stop reached it",
            )
        )
    elif job.intent == StopIntent.CANCEL:
        emit(Moved(job.id, job.attempt, JobEvent.CANCEL, Reason.CANCELLED_BY_REQUEST, f"cancelled by {job.cancel_by}"))
    elif job.intent == StopIntent.FAIL:
        emit(Moved(job.id, job.attempt, JobEvent.FAIL, Reason.TIME_LIMIT, job.detail, category="TIME_LIMIT"))
    elif job.intent == StopIntent.DIAGNOSE:
        emit(Moved(job.id, job.attempt, JobEvent.END_BADLY, Reason.AWAITING_DIAGNOSIS, job.detail))
    else:
        _requeue(state, job, emit, job.requeue_cause, job.requeue_avoid, job.resume_from, job.detail)


def _diagnosing(state: PoolState, job: Job, emit: Emit) -> None:
    if job.cancel_by is not None:
        emit(Moved(job.id, job.attempt, JobEvent.CANCEL, Reason.CANCELLED_BY_REQUEST, f"cancelled by {job.cancel_by}"))
        return
    diagnosis = job.diagnosis if job.diagnosis is not None and job.diagnosis.attempt == job.attempt else None
    if diagnosis is not None:
        _act_on(state, job, emit, diagnosis)
        return
    due = deadline(state, job)
    if due is not None and due <= state.at:
        unlaunched = any(m.cause == "launch_failed" for m in job.members)
        pays = "launch" if unlaunched else "user"
        _requeue(state, job, emit, pays, first_bad_node(job), job.resume_from, "no diagnosis came in time")


def first_bad_node(job: Job) -> str | None:
    """Return the node of the member that ended badly first."""
    bad = [(m.ended_at or 0.0, n, m.node) for n, m in enumerate(job.members) if m.state == ENDED and not m.done]
    own = [entry for entry in bad if job.members[entry[1]].cause != "stopped"]
    return min(own or bad)[2] if bad else None


def _act_on(state: PoolState, job: Job, emit: Emit, diagnosis: DiagnosisArrived) -> None:
    """One table of actions: what a diagnosis leads to, and which budget pays for it."""
    what = diagnosis.category
    if diagnosis.work_was_complete:
        emit(Moved(job.id, job.attempt, JobEvent.COMPLETE, Reason.WORK_WAS_COMPLETE, what))
    elif what == GPU_OOM and job.neighbours:  # whoever was on the GPU with it may have taken what it lacked
        told = f"{what}, beside another job: it has its GPUs alone from now on"
        _requeue(state, job, emit, "infrastructure", None, diagnosis.resume_from or job.resume_from, told, alone=True)
    elif diagnosis.action == "do_not_retry":
        emit(Moved(job.id, job.attempt, JobEvent.FAIL, Reason.DIAGNOSED_PERMANENT, what, category=what))
    elif diagnosis.action == "retry_with_changes":
        change = diagnosis.proposed_change
        emit(
            Moved(job.id, job.attempt, JobEvent.FAIL, Reason.NEEDS_CHANGES, what, category=what, proposed_change=change)
        )
    else:
        elsewhere = diagnosis.action == "retry_elsewhere_cordon"
        pays = "infrastructure" if elsewhere or diagnosis.culpable in _INFRASTRUCTURE_SIDES else "user"
        known = diagnosis.culprit_node in state.nodes
        avoid = (diagnosis.culprit_node if known else None) or first_bad_node(job)
        _requeue(state, job, emit, pays, avoid, diagnosis.resume_from or job.resume_from, what)


def budget_of(state: PoolState, job: Job, cause: str) -> Budget:
    """Return the budget that pays for another attempt after this cause."""
    match cause:
        case "user":
            return state.config.user_budget(job.retries)
        case "launch":
            return state.config.launch
        case "preempted":
            return state.config.preempted
        case _:
            return state.config.infrastructure


def _requeue(
    state: PoolState,
    job: Job,
    emit: Emit,
    cause: str,
    avoid: str | None,
    resume_from: str | None,
    detail: str,
    *,
    alone: bool = False,
) -> None:
    budget = budget_of(state, job, cause)
    times = job.spent.get(cause, 0) + 1
    if times > budget.cap:
        category = job.diagnosis.category if job.diagnosis is not None else None
        told = f"{detail}; {budget.cap} further attempts were allowed for this cause" if detail else ""
        emit(Moved(job.id, job.attempt, JobEvent.FAIL, _SPENT_REASON[cause], told, category=category))
        return
    emit(
        Moved(
            job.id,
            job.attempt,
            JobEvent.REQUEUE,
            _GIVEN_WAY.get(job.reason, Reason.PREEMPTED) if cause == "preempted" else Reason.RETRYING,
            detail,
            not_before=state.at + _backoff_s(state, budget, times),
            spends=cause,
            avoid=avoid,
            resume_from=resume_from,
            alone=alone,
        )
    )


def _backoff_s(state: PoolState, budget: Budget, times: int) -> float:
    """Return how long a job backs off: past the next round where the policy decides in rounds, so that others have one before it."""
    wait_s = budget.backoff_s(times)
    return wait_s + (state.policy.rounds_s or 0.0) if wait_s > 0 else 0.0


_STEPS: Final[dict[JobState, Callable[[PoolState, Job, Emit], None]]] = {
    JobState.SUBMITTED: _submitted,
    JobState.QUEUED: _queued,
    JobState.ASSIGNED: _holding,
    JobState.RUNNING: _holding,
    JobState.STOPPING: _stopping,
    JobState.DIAGNOSING: _diagnosing,
}

REQUEUE_CAUSES: Final = {
    Reason.START_REFUSED: "launch",
    Reason.START_TIMEOUT: "launch",
    Reason.PREEMPTED: "preempted",
    Reason.RECLAIMED: "preempted",
    Reason.MAINTENANCE: "preempted",
    Reason.PROFILED: "preempted",
    Reason.UNPACKED: "preempted",
    Reason.NODE_LOST: "infrastructure",
    Reason.NODE_DECLARED_DEAD: "infrastructure",
    Reason.MEMBER_LOST: "infrastructure",
}
"""Which budget pays when a stop with this reason ends in another attempt."""
