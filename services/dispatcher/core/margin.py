"""Preemption for order, at the margin: a waiting job takes the GPUs of those that the policy ranks behind it, the last of them first.

The jobs that hold GPUs stand in one sorted list (`PoolState.holders`); a pass looks at its end, and only as far as it needs. Only
resumable jobs give way for order (others only by priority class), nobody of a higher class does, and nobody is stopped in vain: a
set of victims is taken only when the job then fits, and whoever need not go stays.
"""

from __future__ import annotations

from collections import Counter

from schedmate.schemas.reasons import Reason
from schedmate.services.dispatcher.core.fitting import avoided
from schedmate.services.dispatcher.core.lifecycle import Emit, preempt
from schedmate.services.dispatcher.core.quota import given_way_by, spared
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.state import Job, PoolState


class _Room:
    """What would be free for a job, node by node, as its victims go."""

    def __init__(self, state: PoolState, job: Job) -> None:
        self._state, self._job = state, job
        self._avoid = avoided(state, job)
        self._extra: dict[str, int] = {}
        self._roomy: set[str] = set()  # nodes that could hold a member only with what is given back
        classes = state.capacity.classes_for(job.gpu_type, job.gpu_memory_mib)
        self._classes = set(classes)
        self._gpus, self._nodes = job.gpus, job.nodes or 1
        if job.nodes == 0:  # packed: as if every member took a whole node, which is never too little
            largest = max((g.usable for c in classes for g in state.capacity.groups_with(c, 0)), default=1)
            self._gpus, self._nodes = min(job.gpus, largest), -(-job.gpus // largest)
        self._now = [
            g.node for c in classes for g in state.capacity.groups_with(c, self._gpus) if g.node not in self._avoid
        ]

    def give(self, victim: Job, sign: int = 1) -> None:
        """The victim's GPUs are free, or not (sign -1)."""
        for member in victim.members:
            node = self._state.nodes[member.node]
            if member.node in self._avoid or not node.schedulable:
                continue
            suitable = sum(1 for gpu in member.gpus if node.gpus.get(gpu) in self._classes)
            self._extra[member.node] = extra = self._extra.get(member.node, 0) + sign * suitable
            free = self._state.capacity.free_on(member.node, self._classes)
            if free < self._gpus <= free + extra:
                self._roomy.add(member.node)
            else:
                self._roomy.discard(member.node)

    def enough(self) -> bool:
        """Would the job fit?"""
        within = self._job.within
        if within is None:
            return len(self._now) + len(self._roomy) >= self._nodes
        domain = self._state.topology.domain
        shared = Counter(domain(node, within) for node in (*self._now, *self._roomy))
        return any(count >= self._nodes for name, count in shared.items() if name is not None)


def make_room(state: PoolState, job: Job, emit: Emit) -> bool:
    """Stop the jobs at the margin that let `job` fit; False (and nothing touched) when there are none.

    Jobs that are on their way out already count as gone: then nobody else is stopped, and the job waits for them.
    """
    state.rank_outlasted()
    if state.nothing_gives_way(job) or state.milli_of(job) < WHOLE_MILLI:
        return False
    room = _Room(state, job)
    for job_id in state.leaving:
        if state.jobs[job_id].reason != Reason.STOP_TIMEOUT:
            room.give(state.jobs[job_id])
    if state.leaving and room.enough():
        return True
    victims = _victims(state, job, room)
    for victim in victims:
        preempt(state, victim, emit, f"gives way to job {job.id}, which the policy puts first")
    return bool(victims)


def _victims(state: PoolState, job: Job, room: _Room) -> list[Job]:
    """Return the jobs at the margin that let the job fit, none that need not go; nobody where it would not fit."""
    victims: list[Job] = []
    borrowers = given_way_by(state)
    for key, job_id in reversed(state.holders):
        if not state.policy.gives_way(key, job, state):
            return []
        victim = state.jobs[job_id]
        ran_s = state.at - victim.since
        if (
            not (victim.resumable and victim.holds_alone)
            or victim.priority > job.priority
            or ran_s < state.config.preemption_min_run_s
        ):
            continue
        if spared(job, victim, borrowers):
            continue
        if state.waited_enough(victim):
            continue
        room.give(victim)
        victims.append(victim)
        if room.enough():
            break
    else:
        return []
    for victim in list(victims):  # whoever need not go stays
        room.give(victim, -1)
        if room.enough():
            victims.remove(victim)
        else:
            room.give(victim)
    return victims
