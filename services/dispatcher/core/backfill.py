"""EASY backfilling: the first job that does not fit gets a reservation, and others go before it where they do not delay it.

The reservation is the nodes on which the job will fit first if every job that holds GPUs ends when it is expected to, and that time.
When that is, is known of jobs with a time limit, and of those of which something is said that is believed (core/advice.py: p90, else
p50). A later job is started

- on any nodes, where it is known to end before that time;
- else beside the reserved nodes.

Where too little is known for a time there is no reservation to go past: a later job is started only on nodes that are of no use to the
first one. So without advice and without time limits the order is that of `fifo`, and with true run times the first job never starts
later than its first reservation said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from schedmate.services.dispatcher.core.advice import lasts_s
from schedmate.services.dispatcher.core.capacity import Group
from schedmate.services.dispatcher.core.fitting import at_limit, avoided, place_avoiding
from schedmate.services.dispatcher.core.lifecycle import Emit
from schedmate.services.dispatcher.core.queue import Key, Kind
from schedmate.services.dispatcher.core.ranking import rank_outlasted
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.state import Job, Member, PoolState

Place = Callable[[PoolState, Job, list[Group], int, Emit], None]

DEPTH_MAX = 64
"""How many waiting jobs of one kind are looked at in a pass."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Where and when the first job that does not fit will start; `at` is infinite where that is not known. `free`: GPUs free there now."""

    at: float
    nodes: frozenset[str]
    free: int


def reserve(state: PoolState, job: Job) -> Reservation:
    """Return the reservation of a job that does not fit now."""
    rank_outlasted(state)
    free, kinds = _free_for(state, job)
    now = dict(free)
    need, members = _members(state, job, free)
    roomy: dict[object, set[str]] = {}
    for name, count in free.items():
        if count >= need:
            roomy.setdefault(kinds[name], set()).add(name)
    jobs, now_s, first = state.jobs, state.at, True
    for key, job_id in state.holders:
        ends = max(float(key[0]), now_s)
        if ends == inf:
            break
        holder = jobs[job_id]
        if not holder.holds_alone:
            continue  # its GPU is free only when the others on it have ended too
        grown = [name for member in holder.members if (name := member.node) in free and _gives(free, member, need)]
        for name in grown:
            roomy.setdefault(kinds[name], set()).add(name)
        if not (grown or first):
            continue  # where it was not enough, it is not now
        first = False
        together = next((t for n in roomy.values() if (t := _together(state, job, n, members)) is not None), None)
        if together is not None:
            chosen = sorted(together, key=lambda name: (free[name], state.nodes[name].order))[:members]
            return Reservation(ends, frozenset(chosen), sum(now[name] for name in chosen))
    return Reservation(inf, frozenset(free), sum(now.values()))


def _gives(free: dict[str, int], member: Member, need: int) -> bool:
    """Give a member's GPUs back to its node; tell whether the node has so many only now."""
    had = free[member.node]
    free[member.node] = has = had + len(member.gpus)
    return had < need <= has


def _free_for(state: PoolState, job: Job) -> tuple[dict[str, int], dict[str, object]]:
    """Return the free GPUs of each node that could serve the job, and its kind: a gang stays within one type, a packed job within one class."""
    avoid = avoided(state, job)
    free: dict[str, int] = {}
    kinds: dict[str, object] = {}
    for gpu_class in state.capacity.classes_for(job.gpu_type, job.gpu_memory_mib):
        for group in state.capacity.groups_with(gpu_class, 0):
            if group.node not in avoid:
                free[group.node] = len(group.free)
                kinds[group.node] = gpu_class[0] if job.nodes else gpu_class
    return free, kinds


def _members(state: PoolState, job: Job, nodes: dict[str, int]) -> tuple[int, int]:
    """Return GPUs a member and members; of a packed job as if every member took a whole node."""
    if job.nodes:
        return job.gpus, job.nodes
    largest = max((n for n in (len(state.nodes[name].gpus) for name in nodes)), default=1)
    return min(job.gpus, largest), -(-job.gpus // largest)


def _together(state: PoolState, job: Job, roomy: set[str], members: int) -> set[str] | None:
    """Return nodes enough for the members that share what the job asks for; None when there are not."""
    if job.within is None:
        return roomy if len(roomy) >= members else None
    domains: dict[str | None, set[str]] = {}
    for name in roomy:
        domains.setdefault(state.topology.domain(name, job.within), set()).add(name)
    domains.pop(None, None)
    enough = [names for names in domains.values() if len(names) >= members]
    return min(enough, key=lambda names: min(state.nodes[n].order for n in names), default=None)


def backfill(state: PoolState, first: Job, emit: Emit, place: Place, full: Callable[[], bool]) -> None:
    """Start later jobs where they do not delay the first one: those that are known to end soonest first, else as they stand."""
    reserved = reserve(state, first)
    if reserved.at == inf and reserved.free == state.capacity.free_gpus:
        return
    nobody: frozenset[str] = frozenset()
    too_large: set[tuple[Kind, bool]] = set()
    for lasts, _, kind, job in _candidates(state, first):
        beside = not state.at + lasts < reserved.at < inf
        if (kind, beside) in too_large or at_limit(state, job) or _too_many(state, job):
            continue
        if full():
            state.more = True
            return
        groups = place_avoiding(state, job, reserved.nodes if beside else nobody)
        if groups is None:
            too_large.add((kind, beside))  # nor does any other of its kind
        else:
            place(state, job, groups, 1, emit)


def _candidates(state: PoolState, first: Job) -> list[tuple[float, Key, Kind, Job]]:
    """Return the first waiting jobs of each kind of which one would fit somewhere."""
    out = []
    for kind in state.queue.kinds():
        waiting = [state.jobs[job_id] for job_id in state.queue.first_of(kind, DEPTH_MAX)]
        if _too_many(state, waiting[0]) or place_avoiding(state, waiting[0], frozenset()) is None:
            continue
        for job in waiting:
            if job is not first:
                assert job.queue_key is not None
                out.append((lasts_s(job, state), job.queue_key, kind, job))
    out.sort(key=lambda one: one[:2])
    return out


def _too_many(state: PoolState, job: Job) -> bool:
    """Does it ask for more whole GPUs than are free anywhere?"""
    return state.milli_of(job) == WHOLE_MILLI and job.gpus_total > state.capacity.free_gpus
