"""EASY backfilling: the first job that does not fit gets a reservation, and others go before it where they do not delay it.

The reservation is the nodes on which the job will fit first if every job that holds GPUs ends when it is expected to, and that time.
A later job is started when it is expected to end before that time, or fits outside the reserved nodes. Who is already over its
expected time is expected to end now. Where nothing is known every job carries the same estimate: whoever starts now ends after all
that run, and nothing is started on reserved nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from schedmate.services.dispatcher.core.advice import expected_s
from schedmate.services.dispatcher.core.capacity import Group
from schedmate.services.dispatcher.core.fitting import at_limit, avoided, place_avoiding
from schedmate.services.dispatcher.core.lifecycle import Emit
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.state import Job, PoolState

Place = Callable[[PoolState, Job, list[Group], int, Emit], None]

DEPTH_MAX = 64
"""How many waiting jobs of one kind are looked at in a pass."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Where and when the first job that does not fit will start."""

    at: float
    nodes: frozenset[str]


def reserve(state: PoolState, job: Job) -> Reservation:
    """Return the reservation of a job that does not fit now."""
    avoid = avoided(state, job)
    need, members = job.gpus, job.nodes or 1
    free = {
        g.node: len(g.free)
        for c in state.capacity.classes_for(job.gpu_type, job.gpu_memory_mib)
        for g in state.capacity.groups_with(c, 0)
        if g.node not in avoid
    }
    if job.nodes == 0:  # packed: as if every member took a whole node
        largest = max((n for n in (len(state.nodes[name].gpus) for name in free)), default=1)
        need, members = min(job.gpus, largest), -(-job.gpus // largest)
    roomy = {name for name, count in free.items() if count >= need}
    for key, job_id in state.holders:
        if not state.jobs[job_id].holds_whole:
            continue  # its GPU is free only when the others on it have ended too
        ends = max(float(key[0]), state.at)
        for member in state.jobs[job_id].members:
            if member.node in free:
                free[member.node] += len(member.gpus)
                if free[member.node] >= need:
                    roomy.add(member.node)
        together = _together(state, job, roomy, members)
        if together is not None:
            chosen = sorted(together, key=lambda name: (free[name], state.nodes[name].order))[:members]
            return Reservation(ends, frozenset(chosen))
    return Reservation(inf, frozenset(free))


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
    """Start later jobs where they do not delay the first one."""
    reserved = reserve(state, first)
    for kind in state.queue.kinds():
        for job_id in state.queue.first_of(kind, DEPTH_MAX):
            job = state.jobs[job_id]
            if job is first:
                continue
            if full():
                state.more = True
                return
            if at_limit(state, job) or (
                state.milli_of(job) == WHOLE_MILLI and job.gpus_total > state.capacity.free_gpus
            ):
                break
            ends = state.at + expected_s(job, state)
            groups = place_avoiding(state, job, frozenset() if ends < reserved.at < inf else reserved.nodes)
            if groups is not None:
                place(state, job, groups, 1, emit)
