"""The order of the jobs that hold GPUs, and of all live ones where the policy decides in rounds."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core.job import RUNS, Job, pinned_key, ran_s
from schedmate.services.dispatcher.core.profiling import Profiler
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.ripening import Ripening
from schedmate.services.dispatcher.core.sharing import Hosts

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import PoolState

_BEYOND: Final = 1.0 + 1e-9  # past an edge, whatever the rounding


def waits_for_leaving(state: PoolState) -> bool:
    """Is somebody on the way out for others, whose stop has not outlasted its bound?"""
    return any(state.jobs[job_id].reason != Reason.STOP_TIMEOUT for job_id in state.leaving)


def rank_anew(state: PoolState) -> None:
    """Another policy: its structures are built from the jobs."""
    state.holders, state.held_keys, state.holding, state.held_gpus, state.ranks, state.rank_of = [], {}, {}, 0, {}, {}
    state.crossings = []
    state.hosts, state.profiler = Hosts(), Profiler()
    state.ripening = Ripening(state.config, state.policy)
    state.ripens = bool(state.ripening)
    state.leaving = {
        j.id: None for j in state.jobs.values() if j.state is JobState.STOPPING and j.requeue_cause == "preempted"
    }
    for job in sorted(state.jobs.values(), key=lambda one: one.place):  # those that run as they were placed
        if job.state in RUNS:
            hold(state, job)
        elif job.queue_key is not None:
            rank(state, job, job.queue_key)


def hold(state: PoolState, job: Job) -> None:
    """The job runs (or what is known of it has changed): it stands where the policy ranks it."""
    if state.ripens:
        state.ripening.runs(job, state.at)
    if state.policy.packs:
        state.hosts.note(job, state)
    if state.policy.preempts or state.policy.backfills:
        let_go(state, job)
        key = state.policy.held_key(job, state)
        state.held_keys[job.id] = key
        insort(state.holders, (key, job.id))
        turns = state.policy.turns_at(job, state)
        if turns is not None:
            heappush(state.crossings, (turns, job.id, job.attempt))
    elif state.policy.rounds_s is not None:
        if job.id not in state.holding:
            state.holding[job.id] = None
            state.held_gpus += job.gpus_total
        if job.id not in state.rank_of or state.config.ageing_s:  # the rank of a job that runs is not that of its wait
            rank(state, job, _running_key(state, job))
        _set_crossing(state, job, job.served_s * job.gpus_total)


def _running_key(state: PoolState, job: Job) -> Key:
    """Return the key of a running job in the order of the rounds: of one that waited enough, that of its wait."""
    key = pinned_key(job, state.policy.key(job, state))
    return (key[0], -inf, job.submitted_at, job.order) if state.waited_enough(job) else key


def let_go(state: PoolState, job: Job) -> None:
    """The job runs no more, or is on its way out."""
    state.hosts.forget(job.id)
    key = state.held_keys.pop(job.id, None)
    if key is not None:
        del state.holders[bisect_left(state.holders, (key, job.id))]
    if job.id in state.holding:
        del state.holding[job.id]
        state.held_gpus -= job.gpus_total
        state.queue.changed = True  # a round has others to give its number of GPUs to, also while it still holds them


def rank(state: PoolState, job: Job, key: Key) -> None:
    """A live job stands in the order of the rounds."""
    unrank(state, job)
    state.rank_of[job.id] = key
    insort(state.ranks.setdefault(job.gpus_total, []), (key, job.id))


def unrank(state: PoolState, job: Job) -> None:
    """The job stands there no more."""
    key = state.rank_of.pop(job.id, None)
    if key is not None:
        entries = state.ranks[job.gpus_total]
        del entries[bisect_left(entries, (key, job.id))]
        if not entries:
            del state.ranks[job.gpus_total]


def next_crossing(state: PoolState) -> float | None:
    """Return when the next running job will have had more than its first level gives."""
    while state.crossings:
        at, job_id, attempt = state.crossings[0]
        job = state.jobs.get(job_id)
        if job is not None and job_id in state.holding and job.attempt == attempt:
            return at
        heappop(state.crossings)
    return None


def cross_levels(state: PoolState) -> None:
    """Whoever has had more than its level gives stands in the next one."""
    while (at := next_crossing(state)) is not None and at < state.at:
        job = state.jobs[heappop(state.crossings)[1]]
        if state.rank_of[job.id][1] == -inf:
            continue  # it has waited enough: it stays where it stands
        crossed = (job.served_s + at - job.since) * job.gpus_total
        gpu_s = max((job.served_s + state.at - job.since) * job.gpus_total, crossed * _BEYOND)
        _rank_with(state, job, gpu_s)
        _set_crossing(state, job, gpu_s)


def _set_crossing(state: PoolState, job: Job, gpu_s: float) -> None:
    """The job runs and has had so much: remember when it comes to the next level."""
    ends = state.policy.next_level(gpu_s, state)
    if ends is not None:
        heappush(state.crossings, (job.since + ends / job.gpus_total - job.served_s, job.id, job.attempt))


def _rank_with(state: PoolState, job: Job, gpu_s: float) -> None:
    """The running job stands where one stands that has had so much GPU time."""
    served, job.served_s = job.served_s, gpu_s / job.gpus_total
    rank(state, job, pinned_key(job, state.policy.key(job, state)))
    job.served_s = served


def rank_running(state: PoolState, job: Job) -> None:
    """What orders a running job has changed: in the order of the rounds it stands where it belongs now, unless it waited enough before."""
    if job.id in state.rank_of and state.rank_of[job.id][1] != -inf:
        _rank_with(state, job, (job.served_s + state.at - job.since) * job.gpus_total)


def learn_service(state: PoolState, job: Job) -> None:
    """A job has finished: where that moves the others, they stand elsewhere from now on."""
    level = state.level_gpu_s
    if level is None or not state.attained.learn(ran_s(job) * job.gpus_total, level):
        return
    for other in state.jobs.values():
        if other is job:
            continue
        if other.queue_key is not None:
            state.place_anew(other)
        else:
            rank_running(state, other)


def rank_outlasted(state: PoolState) -> None:
    """Holders that have run for longer than was expected, or past what was said of them, stand where they are expected to end now."""
    turned = []
    while state.crossings and state.crossings[0][0] <= state.at:
        turned.append(heappop(state.crossings))
    for _, job_id, attempt in turned:
        job = state.jobs.get(job_id)
        if job is not None and job.attempt == attempt and job_id in state.held_keys:
            hold(state, job)
    at = 0
    while at < len(state.holders) and state.policy.outlasted(state.holders[at][0], state):
        first = state.holders[at]
        hold(state, state.jobs[first[1]])
        at += state.holders[at] == first  # nothing else is known of it


def nothing_gives_way(state: PoolState, job: Job) -> bool:
    """Tell whether not even the last of the holders gives way to the job."""
    return not state.holders or not state.policy.giving_way(job, state)(state.holders[-1][0])
