"""Policies of rounds: every so often, which jobs shall hold GPUs is decided anew over all live jobs.

A round walks over waiting and running jobs alike in the policy's order and gives out the pool's GPUs by their number, skipping what is
larger than what is left. Who runs and is given none is stopped; who waits and is given some is placed, in that order, when everybody
who was stopped has gone. A placement may fail for want of GPUs that lie together; then the job waits for the next round. Between
two rounds nothing is placed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heapreplace
from math import ceil

from schedmate.services.dispatcher.core.capacity import Group
from schedmate.services.dispatcher.core.fitting import could_come, fit
from schedmate.services.dispatcher.core.lifecycle import Emit, preempt
from schedmate.services.dispatcher.core.quota import share_out
from schedmate.services.dispatcher.core.ranking import cross_levels, next_crossing, waits_for_leaving
from schedmate.services.dispatcher.core.state import Job, PoolState

Place = Callable[[PoolState, Job, list[Group], int, Emit], None]


def decide_round(state: PoolState, emit: Emit, place: Place) -> None:
    """Hold a round if one is due; place the chosen when those that the round stopped have gone."""
    every = state.policy.rounds_s
    assert every is not None
    if state.round_at is None and len(state.queue):
        state.round_at = ceil(state.at / every) * every  # it may be this instant
    placed = False
    if state.round_at is not None and state.at >= state.round_at:
        changed = (
            state.queue.changed
            or state.pass_epoch != state.capacity.epoch
            or _crosses(state)
            or bool(state.reservations)
        )
        if changed and len(state.queue):
            chosen = _hold(state)
            for job in chosen.stopped:
                preempt(state, job, emit, "the round gives its GPUs to jobs that the policy puts first")
            if not waits_for_leaving(state):
                placed = _place_all(state, chosen.waiting, emit, place)
        state.queue.changed = False
        state.pass_epoch = state.capacity.epoch
    elif state.round_goes_on and not waits_for_leaving(state):
        placed = _place_all(state, _hold(state).waiting, emit, place)
    if placed and (state.config.ageing_s or state.config.tenant_quota):
        # what the wait had gained them is gone, and what their tenants have left has changed: the next round may give others GPUs
        state.queue.changed = True


def _crosses(state: PoolState) -> bool:
    crossing = next_crossing(state)
    return crossing is not None and crossing < state.at


def _place_all(state: PoolState, chosen: list[str], emit: Emit, place: Place) -> bool:
    placed = False
    for job_id in chosen:
        job = state.jobs[job_id]
        _, groups = fit(state, job)
        if groups is not None:
            place(state, job, groups, 0, emit)
            placed = True
    return placed


@dataclass(frozen=True, slots=True)
class _Chosen:
    waiting: list[str]
    stopped: list[Job]


def _hold(state: PoolState) -> _Chosen:
    """Give out the GPUs by their number, in the policy's order."""
    cross_levels(state)
    if state.config.tenant_quota:
        return _Chosen(*share_out(state))
    quota = state.capacity.free_gpus + state.held_gpus
    kinds = state.ranks
    heap = [(entries[0], gpus, 0) for gpus, entries in kinds.items() if gpus <= quota]
    heap.sort()
    kept: set[str] = set()
    chosen: list[str] = []
    holding = state.holding
    while heap and quota > 0:
        _, gpus, at = heap[0]
        entries = kinds[gpus]
        others = min((entry[0] for entry in heap[1:3]), default=None)  # the first that is of another kind
        end = len(entries)
        while gpus <= quota:  # all of this kind that come before it
            job_id = entries[at][1]
            if job_id in holding:
                kept.add(job_id)
                quota -= gpus
            elif could_come(state, state.jobs[job_id]):  # who never fits takes nobody's share
                chosen.append(job_id)
                quota -= gpus
            at += 1
            if at == end or (others is not None and others < entries[at]):
                break
        if at < end and gpus <= quota:
            heapreplace(heap, (entries[at], gpus, at))
        else:
            heappop(heap)
    stopped: list[Job] = []
    if len(kept) < len(holding):
        since_max = state.at - state.config.preemption_min_run_s
        others_of = (state.jobs[j] for j in holding if j not in kept)
        stopped = [job for job in others_of if job.resumable and job.since <= since_max]
        stopped.sort(key=lambda job: job.place)  # `holding` has them as they started, which nobody recovers
    return _Chosen(chosen, stopped)
