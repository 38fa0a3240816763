"""When a pool must decide though nobody tells it anything: the deadlines of its jobs, and the rounds of its policy."""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Final

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core import reservations
from schedmate.services.dispatcher.core.job import Job
from schedmate.services.dispatcher.core.ranking import next_crossing

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import PoolState

_NEVER: Final = 1e14  # seconds; a deadline so far away is none


def deadline(state: PoolState, job: Job) -> float | None:
    """Return when the job must be looked at if nothing happens before."""
    now = job.state
    if now is JobState.QUEUED:
        return job.not_before if job.queue_key is None else None
    if now is JobState.RUNNING:
        due = limit_of(job)
        if job.profiling and job.started_at is not None:
            due = min(due, job.started_at + state.config.profiler_s)
        return due if due < _NEVER else None
    if now is JobState.ASSIGNED:
        return job.since + state.config.start_timeout_s
    if now is JobState.STOPPING:
        return job.since + state.config.stop_timeout_s if job.reason != Reason.STOP_TIMEOUT else None
    return job.since + state.config.diagnosis_wait_s if now is JobState.DIAGNOSING else None


def limit_of(job: Job) -> float:
    """Return when a running job comes to its own time limit."""
    if job.time_limit_s is None or job.started_at is None:
        return inf
    return job.started_at + job.time_limit_s


def set_timer(state: PoolState, job: Job) -> None:
    """Remember the job's deadline."""
    due = deadline(state, job)
    if due is not None and due < _NEVER:
        heappush(state.timers, (due, job.id))


def next_timer(state: PoolState, *, idle_rounds: bool = True) -> float | None:
    """Return when something is due that no event will tell: a job's deadline, or a round (also one that will decide nothing)."""
    due = _next_deadline(state)
    round_at = state.round_at if idle_rounds else deciding_round(state)
    if round_at is not None:
        due = round_at if due is None else min(due, round_at)
    if state.ripens and len(state.queue) and (ripe := state.ripening.next_at(state)) is not None:
        due = ripe if due is None else min(due, ripe)
    if state.reservations and (turns := reservations.next_turn(state)) is not None:
        due = turns if due is None else min(due, turns)
    if state.config.ageing_s and (rises := state.ageing.next_at(state)) is not None:
        due = rises if due is None else min(due, rises)
    return due


def _next_deadline(state: PoolState) -> float | None:
    """Return the earliest deadline that still holds, dropping those that do not."""
    while state.timers:
        due, job_id = state.timers[0]
        job = state.jobs.get(job_id)
        if job is not None and deadline(state, job) == due:
            return due
        heappop(state.timers)
    return None


def turn_round(state: PoolState) -> None:
    """Set when the next round is, as an entry closes: at the next multiple of the policy's period, as long as jobs wait."""
    every = state.policy.rounds_s
    if every is None or not len(state.queue):
        state.round_at = None
    elif state.round_at is None or state.round_at <= state.at:
        state.round_at = (floor(state.at / every) + 1) * every


def deciding_round(state: PoolState) -> float | None:
    """Return when the next round is that may decide something, as things stand.

    A round decides what the one before it has decided until a job comes or goes, GPUs are freed, or a job crosses a level.
    """
    every = state.policy.rounds_s
    if every is None or state.round_at is None or state.queue.changed or state.pass_epoch != state.capacity.epoch:
        return state.round_at
    crossing = next_crossing(state)
    return None if crossing is None else max(state.round_at, (floor(crossing / every) + 1) * every)


def skip_idle_rounds(state: PoolState, now: float) -> None:
    """Nobody has told the pool of the rounds before `now`, which would have decided nothing: the next one is due from now on."""
    every = state.policy.rounds_s
    if every is not None and state.round_at is not None and state.round_at < now:
        state.round_at = ceil(now / every) * every


def take_due(state: PoolState) -> list[Job]:
    """Return the jobs whose deadline has come, in the order of (deadline, id)."""
    due: list[Job] = []
    while (first := _next_deadline(state)) is not None and first <= state.at:
        due.append(state.jobs[heappop(state.timers)[1]])
    return due
