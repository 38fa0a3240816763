"""How a job comes from one state to the next: what every move does to the pool's state, whether somebody records it or not.

`move` is the plain course of a job (admitted, started, done, ended); `apply` adds what a recorded stop or another attempt brings with it.
"""

from __future__ import annotations

from typing import Final

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import HOLDS_GPUS, TERMINAL, JobEvent, JobState, transition
from schedmate.services.dispatcher.core.beliefs import learn
from schedmate.services.dispatcher.core.ownership import unlease
from schedmate.services.dispatcher.core.ranking import hold, learn_service, let_go, unrank
from schedmate.services.dispatcher.core.state import Job, PoolState
from schedmate.services.dispatcher.core.timers import set_timer

STATE_NAMES: Final = {state: state.value for state in JobState}


def move(state: PoolState, job: Job, event: JobEvent, reason: Reason | str, detail: str = "") -> None:
    """Move a job by an event that carries nothing else."""
    after = leave(state, job, event)
    job.state, job.reason, job.detail, job.since = after, reason, detail, state.at
    if event is JobEvent.START:
        job.started_at = state.at
        job.expected_end = state.at + job.p50_s if job.p50_s is not None else None
    enter(state, job)


def run_out(state: PoolState, job: Job, reason: Reason) -> None:
    """Move an assigned job of which every member has ended well through its run to its end: nobody has seen it run, and nobody will."""
    job.state = transition(job.state, JobEvent.START)
    job.started_at = state.at
    move(state, job, JobEvent.COMPLETE, reason)


def leave(state: PoolState, job: Job, event: JobEvent) -> JobState:
    """Take the job from where its state has put it; return the state that the event leads to."""
    before = job.state
    after = transition(before, event)
    if before is JobState.QUEUED:
        state.dequeue(job)
    elif before in HOLDS_GPUS:
        if before is not JobState.STOPPING:
            let_go(state, job)
        elif state.leaving.pop(job.id, 0) is None:
            state.round_goes_on = True
        if after not in HOLDS_GPUS:
            unlease(state, job)
    if state.rank_of and not (after is JobState.RUNNING or after is JobState.ASSIGNED):
        unrank(state, job)
    if after in TERMINAL:
        if state.trust:
            learn(state, job, whole=after is JobState.SUCCEEDED)
        if state.policy.counts_service and after is JobState.SUCCEEDED:
            learn_service(state, job)
        state.ended[job.id] = STATE_NAMES[after]
        state.ended_now[job.id] = job
        del state.jobs[job.id]
    return after


def enter(state: PoolState, job: Job) -> None:
    """Put the job where its state puts it."""
    now = job.state
    if now is JobState.RUNNING or now is JobState.ASSIGNED:
        hold(state, job)
    elif now is JobState.QUEUED:
        if job.not_before <= state.at:
            state.enqueue(job)
            return  # it waits for GPUs, and for no time
    elif now in TERMINAL:
        return
    set_timer(state, job)
