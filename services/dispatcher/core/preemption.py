"""Preemption by priority class: a job of a higher class may take the GPUs of lower ones, evicting least.

Bounded by construction: only strictly lower classes give way, only after a minimum run, and only when the preemptor then fits;
so two jobs never take turns and nobody is stopped in vain (scenarios BR-01, BR-02). Where the pool has quotas, what is within another
tenant's quota gives way to no class.
"""

from __future__ import annotations

from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core.lifecycle import Emit, preempt
from schedmate.services.dispatcher.core.quota import come_back_first, given_way_by, spared
from schedmate.services.dispatcher.core.state import Job, PoolState
from schedmate.services.dispatcher.core.victims import least


def make_way(state: PoolState, job: Job, emit: Emit) -> bool:
    """Stop the least set of victims that lets `job` fit; False (and nothing touched) when there is none.

    True without a victim where those that are on their way out are enough: then the job waits for them.
    """
    borrowers = given_way_by(state)
    since_max = state.at - state.config.preemption_min_run_s

    def may_go(victim: Job) -> bool:
        return (
            victim.state in (JobState.ASSIGNED, JobState.RUNNING)
            and victim.priority < job.priority
            and victim.since <= since_max
            and not spared(job, victim, borrowers)
        )

    victims = least(state, job, may_go)
    if victims is None or come_back_first(state, job, victims):
        return False
    for victim in victims:
        preempt(state, victim, emit, f"gives way to job {job.id} of a higher priority class")
    return True
