"""Carrying out decisions: the only code beside `fold` that changes a pool's state.

The same function serves the decider (as it decides) and recovery (from the recorded decisions), so both come to the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobEvent, transition
from schedmate.services.dispatcher.core.beliefs import watch
from schedmate.services.dispatcher.core.decisions import Decision, Moved, NodeMarked, Noted, Placed, Release, Stop
from schedmate.services.dispatcher.core.endings import suspect
from schedmate.services.dispatcher.core.lifecycle import REQUEUE_CAUSES, first_bad_node
from schedmate.services.dispatcher.core.moves import STATE_NAMES, enter, leave, move
from schedmate.services.dispatcher.core.ownership import lease
from schedmate.services.dispatcher.core.ranking import hold
from schedmate.services.dispatcher.core.state import AVOID_MAX, TOLD, Job, Member, PoolState
from schedmate.services.dispatcher.core.timers import set_timer

PORT_TRIES: Final = 100_000
_EVENTS: Final = {event.value: event for event in JobEvent}


def apply(state: PoolState, decision: Decision, index: int) -> None:
    """Carry out the decision that stands at `index` of the entry `state.seq`."""
    HANDLERS[type(decision)](state, decision, index)


def _moved(state: PoolState, decision: Moved, index: int) -> None:
    job = state.jobs[decision.job]
    event = _EVENTS[decision.event]
    state.before[index] = STATE_NAMES[job.state]
    if event is not JobEvent.STOP and event is not JobEvent.REQUEUE:
        move(state, job, event, decision.reason, decision.detail)
        return
    ran_s = state.at - job.since
    after = leave(state, job, event)
    job.state, job.reason, job.detail, job.since = after, decision.reason, decision.detail, state.at
    if event is JobEvent.STOP:
        _note_stop(state, job, decision, ran_s)
    else:
        _note_requeue(job, decision)
    enter(state, job)


def _note_stop(state: PoolState, job: Job, decision: Moved, ran_s: float) -> None:
    job.served_s += ran_s
    job.intent = decision.intent
    job.requeue_cause = REQUEUE_CAUSES.get(Reason(decision.reason), "infrastructure")
    preempted = job.requeue_cause == "preempted"
    if preempted:
        state.leaving[job.id] = None
    late = [m.node for m in job.members if m.state == TOLD] if decision.reason == Reason.START_TIMEOUT else []
    for name in late:
        suspect(state, job, state.nodes[name])
    job.requeue_avoid = None if preempted else first_bad_node(job) or next(iter(late), None)


def _note_requeue(job: Job, decision: Moved) -> None:
    job.spent = {**job.spent, decision.spends: job.spent.get(decision.spends, 0) + 1}
    job.not_before = decision.not_before
    job.resume_from = decision.resume_from
    job.alone = job.alone or decision.alone
    job.intent, job.members, job.diagnosis = 0, [], None
    job.started_at = job.expected_end = None
    if decision.avoid is not None and decision.avoid not in job.avoid:
        job.avoid = (*job.avoid, decision.avoid)[-AVOID_MAX:]


def _noted(state: PoolState, decision: Noted, index: int) -> None:
    job = state.jobs[decision.job]
    state.before[index] = STATE_NAMES[job.state]
    job.reason, job.detail = decision.reason, decision.detail
    job.intent = max(job.intent, decision.intent)
    if decision.reason == Reason.STOP_TIMEOUT:
        state.queue.changed = True  # nobody waits for it to leave any more
    set_timer(state, job)


def _placed(state: PoolState, decision: Placed, index: int) -> None:
    job = state.jobs[decision.job]
    job.state = transition(job.state, JobEvent.PLACE)
    state.dequeue(job)
    job.waited_s += state.at - job.since
    job.attempt = decision.attempt
    job.place = (state.seq, index)
    job.members = [Member(seat.node, seat.session, seat.gpus) for seat in decision.seats]
    job.master_port = decision.master_port
    job.reason, job.detail, job.since = Reason.STARTING, "", state.at
    job.held_milli, job.beside, job.profiling = decision.gpu_milli, decision.beside, decision.profiling
    job.sole = not state.packs_now
    job.neighbours = False
    if decision.beside is not None:  # the GPUs are leased already
        host = state.jobs[decision.beside]
        host.beside = job.id
        host.neighbours = job.neighbours = True
        state.hosts.forget(decision.beside)
    elif job.holds_whole:
        for member in job.members:
            state.capacity.claim(member.node, member.gpus)
    else:
        for member in job.members:
            state.capacity.claim_share(member.node, member.gpus[0], job.held_milli)
    lease(state, job)
    hold(state, job)
    if state.trust:
        watch(state, job)
    first = state.nodes[job.members[0].node]
    first.port_next = decision.master_port + 1
    set_timer(state, job)


def _stopped(state: PoolState, decision: Stop, index: int) -> None:  # noqa: ARG001 - one signature for all
    job = state.jobs.get(decision.job)
    if job is not None and job.attempt == decision.attempt and decision.member < len(job.members):
        job.members[decision.member].stop_ordered = True


def _released(state: PoolState, decision: Release, index: int) -> None:
    """The worker is told; the pool's state knows already."""


def _node_marked(state: PoolState, decision: NodeMarked, index: int) -> None:  # noqa: ARG001
    node = state.nodes[decision.node]
    if decision.mark == "cordoned":
        node.cordoned, node.cordon_wanted = decision.why, None
    node.reserved_told = node.reserved is not None
    node.told = (node.alive, node.draining, node.cordoned is not None, node.unreachable)
    state.refresh_capacity(node)


HANDLERS: Final[dict[type[Decision], Callable[[PoolState, Any, int], None]]] = {
    Moved: _moved,
    Noted: _noted,
    Placed: _placed,
    Stop: _stopped,
    Release: _released,
    NodeMarked: _node_marked,
}
