"""Preemption for order, at the margin: a waiting job takes the GPUs of those that the policy ranks behind it, the last of them first.

The jobs that hold GPUs stand in one sorted list (`PoolState.holders`); a pass looks at its end, and only as far as it needs. Only
resumable jobs give way for order (others only by priority class), nobody of a higher class does, and nobody is stopped in vain: a
set of victims is taken only when the job then fits, and whoever need not go stays. A job whose tenant is at its limit takes the GPUs of its
own tenant's jobs, as many as keep the tenant within the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet

from schedmate.schemas.reasons import Reason
from schedmate.services.dispatcher.core.fitting import avoided, over_limit
from schedmate.services.dispatcher.core.job import PINNED_FIRST
from schedmate.services.dispatcher.core.lifecycle import Emit, preempt
from schedmate.services.dispatcher.core.quota import come_back_first, given_way_by, spared
from schedmate.services.dispatcher.core.ranking import nothing_gives_way, rank_outlasted
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.state import Job, PoolState


class _Room:
    """What would be free for a job, node by node, as its victims go."""

    def __init__(self, state: PoolState, job: Job) -> None:
        self._state, self._job = state, job
        self._avoid = avoided(state, job)
        # node → how many of its GPUs that suit the job are free; and which suit it, None where all that are held do
        self._seen: dict[str, tuple[int, AbstractSet[int] | None]] = {}
        self._extra: dict[str, int] = {}
        self._over = over_limit(state, job) if state.limits_tenants else 0  # so many GPUs its tenant must give back
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
        if victim.tenant == self._job.tenant:
            self._over -= sign * victim.gpus_total
        for member in victim.members:
            name = member.node
            known = self._seen.get(name)
            if known is None:
                known = self._seen[name] = self._look(name)
            free, suited = known
            count = len(member.gpus) if suited is None else len(suited & set(member.gpus))
            self._extra[name] = extra = self._extra.get(name, 0) + sign * count
            if free < self._gpus <= free + extra:
                self._roomy.add(name)
            else:
                self._roomy.discard(name)

    def _look(self, node: str) -> tuple[int, AbstractSet[int] | None]:
        if node in self._avoid:
            return 0, frozenset()
        free, suited = self._state.capacity.suited(node, self._classes)
        return free, None if self._state.nodes[node].owner.keys() <= suited else suited

    def needs(self, victim: Job) -> bool:
        """Does the job fit on one of the victim's nodes, or within its tenant's limit, only with what is given back? Else the victim may stay."""
        if victim.tenant == self._job.tenant and self._over + victim.gpus_total > 0:
            return True
        return any(member.node in self._roomy for member in victim.members)

    def enough(self) -> bool:
        """Would the job fit, and its tenant be within its limit?"""
        if self._over > 0:
            return False
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
    rank_outlasted(state)
    if nothing_gives_way(state, job) or state.milli_of(job) < WHOLE_MILLI:
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
    gives_way, jobs = state.policy.giving_way(job, state), state.jobs
    since_max = state.at - state.config.preemption_min_run_s
    bounds_wait, priority, give, enough = state.bounds_wait, job.priority, room.give, room.enough
    for key, job_id in reversed(state.holders):
        if not gives_way(key):
            return []
        victim = jobs[job_id]
        if (
            not (victim.resumable and victim.holds_alone)
            or victim.priority > priority
            or victim.since > since_max
            or (borrowers is not None and spared(job, victim, borrowers))
            or (bounds_wait and state.waited_enough(victim))
            or victim.pin == PINNED_FIRST
        ):
            continue
        give(victim)
        victims.append(victim)
        if enough():
            break
    else:
        return []
    needed = []
    for victim in victims:  # whoever need not go stays
        if room.needs(victim):
            room.give(victim, -1)
            if not room.enough():
                room.give(victim)
                needed.append(victim)
    return [] if come_back_first(state, job, needed) else needed
