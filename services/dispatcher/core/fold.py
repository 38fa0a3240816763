"""Folding inputs: what the core is told becomes part of its state, or is refused and leaves it unchanged.

A fold is idempotent by meaning: a fact that is known already changes nothing. Each function checks before it touches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from schedmate.schemas.states import HOLDS_GPUS, JobState
from schedmate.services.dispatcher.core import orders, reservations
from schedmate.services.dispatcher.core.advice import acts_on_quantiles, bounded, usable
from schedmate.services.dispatcher.core.ageing import Ageing
from schedmate.services.dispatcher.core.beliefs import hear_anew, heed, watch
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.endings import end_member, suspect
from schedmate.services.dispatcher.core.hearing import hear, settle
from schedmate.services.dispatcher.core.inputs import (
    CancelRequested,
    ConfigChanged,
    DiagnosisArrived,
    EstimateArrived,
    EstimateOrdered,
    FoldError,
    Input,
    JobArrived,
    JobPinned,
    MemberExited,
    MemberRefused,
    MemberStarted,
    NodeCommanded,
    NodeReported,
    NodeSilent,
    ProfileArrived,
    ProgressArrived,
    ReservationMade,
    ReservationWithdrawn,
    Tick,
)
from schedmate.services.dispatcher.core.policy import UnknownPolicyError, policy_named
from schedmate.services.dispatcher.core.ranking import rank_anew, rank_running
from schedmate.services.dispatcher.core.reports import bury, node_commanded, reported, silent
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.sharing import recalled
from schedmate.services.dispatcher.core.state import ENDED, STARTED, TOLD, Job, Member, PoolState
from schedmate.services.dispatcher.core.timers import set_timer
from schedmate.services.dispatcher.core.topology import WITHIN

CORDON_CONFIDENCE_MIN: Final = 0.5
REMAINING_EDGE_S: Final = 10.0
REMAINING_EDGE_RATIO: Final = 0.1


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
    shared = value.gpu_milli != WHOLE_MILLI
    if shared and not (0 < value.gpu_milli < WHOLE_MILLI and value.gpus == value.nodes == 1):
        raise FoldError(
            f"job {value.job} asks for {value.gpu_milli} thousandths: a share is a part of one GPU on one node"
        )
    if value.within is not None and value.within not in WITHIN:
        raise FoldError(f"job {value.job}: members may share a rack or a spine, not {value.within!r}")
    job = Job(  # by position: names cost as much again
        value.job, value.tenant, value.user, value.priority, value.gpus, value.nodes, value.gpu_type, value.gpu_memory_mib,
        value.time_limit_s, value.retries, value.submitted_at, state.arrivals, value.spec, value.trace,
    )  # fmt: skip
    job.since, job.resumable = state.at, value.resumable
    job.gpu_milli, job.inference = value.gpu_milli, value.inference
    job.within = value.within if value.nodes > 1 else None
    state.arrivals += 1
    state.jobs[job.id] = job
    if state.policy.counts_demand:
        request = (job.gpus, state.milli_of(job), job.gpu_type)
        state.demand[request] = state.demand.get(request, 0) + 1
    state.touch(job)
    if state.cancels:
        job.cancel_by = state.cancels.pop(job.id, None)
    if state.early:
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


def _current(state: PoolState, job_id: str, attempt: int) -> Job | None:
    """The job, if it holds GPUs in this attempt."""
    job = state.jobs.get(job_id)
    return job if job is not None and job.attempt == attempt and job.state in HOLDS_GPUS else None


def _member_of(job: Job, value: MemberStarted | MemberExited | MemberRefused) -> Member | None:
    """The member of the current assignment that an event speaks of, if it comes from the node that holds it, in no earlier session."""
    number = value.member
    if not 0 <= number < len(job.members):
        raise FoldError(f"job {job.id} has no member {number}")
    member = job.members[number]
    if member.node != value.node:
        raise FoldError(f"member {number} of job {job.id} is on {member.node}, not on {value.node}")
    return member if value.session >= member.session else None


def _started(state: PoolState, value: MemberStarted) -> None:
    job = _current(state, value.job, value.attempt)
    member = _member_of(job, value) if job is not None else None
    if job is not None and member is not None and member.state == TOLD:
        member.state = STARTED
        member.started_at = value.at
        member.session = value.session
        watch(state, job)  # it may have begun before it was placed, by its node's clock
        state.touch(job)
    else:
        state.repeats += 1


def _exited(state: PoolState, value: MemberExited) -> None:
    job = _current(state, value.job, value.attempt)
    member = _member_of(job, value) if job is not None else None
    if member is None and job is not None:
        return  # told by an earlier session: the node's report tells it again, and until then it must not be let go
    state.releases.append((value.node, value.job, value.attempt, value.member))
    if job is not None and member is not None and member.state != ENDED:
        end_member(
            state,
            job,
            member,
            cause=value.cause,
            exit_code=value.exit_code,
            signal=value.signal,
            started_at=value.started_at,
            ended_at=value.ended_at,
        )
    else:
        state.repeats += 1


def _refused(state: PoolState, value: MemberRefused) -> None:
    job = _current(state, value.job, value.attempt)
    member = _member_of(job, value) if job is not None else None
    if job is None or member is None or member.state == ENDED or (value.seq, value.index) != job.place:
        return
    end_member(state, job, member, cause="refused", detail=f"{value.cause}: {value.detail}".rstrip(": "))
    if value.cause == "setup_failed":
        suspect(state, job, state.nodes[value.node])


# --- reservations ---


def _reservation(state: PoolState, value: ReservationMade) -> None:
    wrong = reservations.made(state, value)
    if wrong is not None:
        raise FoldError(wrong)


def _withdrawal(state: PoolState, value: ReservationWithdrawn) -> None:
    wrong = reservations.withdrawn(state, value)
    if wrong is not None:
        raise FoldError(wrong)


# --- advice ---


def remaining_says_something_new(state: PoolState, value: ProgressArrived, now: float) -> bool:
    """Tell whether an expected end has moved by more than a tenth of what remains, ten seconds, and what the reading is uncertain by.

    Chatter stays out of the log.
    """
    job = state.jobs.get(value.job)
    if job is None or job.attempt != value.attempt or job.expected_end is None:
        return job is not None and job.attempt == value.attempt
    moved_s = abs(now + max(value.remaining_s, 0.0) - job.expected_end)
    return moved_s > max(REMAINING_EDGE_S, REMAINING_EDGE_RATIO * value.remaining_s, value.within_s)


def _estimate(state: PoolState, value: EstimateArrived) -> None:
    job = state.jobs.get(value.job)
    if job is None and _held_early(state, value.job, value):
        return
    if job is None or value.revision <= job.estimate_revision:
        state.repeats += 1
        return
    job.estimate_revision = value.revision
    raw = state.config.advice == "raw"
    limit_s = None if raw else job.time_limit_s
    p10_s, p50_s, p90_s = (bounded(usable(one, raw=raw), limit_s) for one in (value.p10_s, value.p50_s, value.p90_s))
    if job.advised is not None:
        job.advised = (p10_s, p50_s, p90_s, value.basis)
    else:
        hear(state, job, (p10_s, p50_s, p90_s, value.basis))
    if value.worth_probing is not None:
        job.worth_probing = value.worth_probing
    if value.p50_s is not None:
        heed(state, job)
    settle(state, job)
    if value.sharing_class is not None and job.profile is None and job.attempt == 0 and state.acts_on_advice:
        job.profile = recalled(value.gpu_utilisation, value.gpu_memory_mib, value.sharing_class)
    if (state.policy.uses_estimates or state.reservations) and job.state is not JobState.SUBMITTED:
        state.place_anew(job)


def _estimate_order(state: PoolState, value: EstimateOrdered) -> None:
    wrong = orders.estimate_wrong(value)
    if wrong is not None:
        raise FoldError(f"the estimate ordered for job {value.job} makes no sense: {wrong}")
    if _held_early(state, value.job, value):
        return
    job = state.jobs.get(value.job)
    if job is None or not orders.order_estimate(job, value):
        state.repeats += 1
    elif state.policy.uses_estimates or state.reservations:
        state.place_anew(job)
        state.queue.changed = True


def _pin(state: PoolState, value: JobPinned) -> None:
    if value.place not in orders.PLACES:
        raise FoldError(f"job {value.job} is pinned {' or '.join(orders.PLACES)}, not {value.place!r}")
    if _held_early(state, value.job, value):
        return
    job = state.jobs.get(value.job)
    if job is None or not orders.pin(state, job, value):
        state.repeats += 1
        return
    state.place_anew(job)
    if job.queue_key is None:
        rank_running(state, job)
    state.queue.changed = True


def _profile(state: PoolState, value: ProfileArrived) -> None:
    if not (0 <= value.utilisation <= 1 and 0 <= value.memory_utilisation <= 1 and value.memory_mib >= 0):
        raise FoldError(
            f"the profile of job {value.job} makes no sense"
        )  # before it is held: the job must not fail by it
    if _held_early(state, value.job, value):
        return
    job = state.jobs.get(value.job)
    profile = (value.utilisation, value.memory_utilisation, value.memory_mib)
    if job is None or job.profile == profile:
        state.repeats += 1
        return
    job.profile = profile
    if state.policy.packs:
        state.place_anew(job)
        if job.state in (JobState.ASSIGNED, JobState.RUNNING):
            state.hosts.note(job, state)
        state.queue.changed = True  # it may be joined now
        state.touch(job)


def _progress(state: PoolState, value: ProgressArrived) -> None:
    job = state.jobs.get(value.job)
    if job is not None and job.attempt == value.attempt and job.state is JobState.RUNNING and job.advised is None:
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
    state.ageing = Ageing()
    judged_by = acts_on_quantiles(state)
    state.configure(config, policy)
    if acts_on_quantiles(state) != judged_by:
        hear_anew(state)
    state.round_at = None
    _forget_early(state, config.early_max)
    _forget_cancels(state, config.early_max)
    for job in state.jobs.values():
        settle(state, job)
    for job in waiting:
        state.enqueue(job)
    rank_anew(state)
    for job in state.jobs.values():
        set_timer(state, job)
        if job.members:
            state.touch(job)  # what stops it may have changed
    if config.lease_expires:
        _bury_silent(state)
    state.capacity.epoch += 1


def _bury_silent(state: PoolState) -> None:
    """Nodes whose lease ran out while leases did not expire are lost now."""
    for node in state.nodes.values():
        if node.unreachable:
            bury(state, node, "node_lost")


def _tick(state: PoolState, value: Tick) -> None:
    """Time alone changes nothing; the deadlines are looked at when the entry is decided."""


_HANDLERS: Final[dict[type[Input], Callable[[PoolState, Any], None]]] = {
    JobArrived: _arrived,
    CancelRequested: _cancel,
    MemberStarted: _started,
    MemberExited: _exited,
    MemberRefused: _refused,
    NodeReported: reported,
    NodeSilent: silent,
    NodeCommanded: node_commanded,
    EstimateArrived: _estimate,
    EstimateOrdered: _estimate_order,
    JobPinned: _pin,
    ProfileArrived: _profile,
    ProgressArrived: _progress,
    DiagnosisArrived: _diagnosis,
    ConfigChanged: _config,
    ReservationMade: _reservation,
    ReservationWithdrawn: _withdrawal,
    Tick: _tick,
}
