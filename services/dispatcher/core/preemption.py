"""Preemption by priority class: a job of a higher class may take the GPUs of lower ones, evicting least.

Bounded by construction: only strictly lower classes give way, only after a minimum run, and only when the preemptor then fits;
so two jobs never take turns and nobody is stopped in vain (scenarios BR-01, BR-02).
"""

from __future__ import annotations

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core.capacity import GpuClass
from schedmate.services.dispatcher.core.fitting import avoided
from schedmate.services.dispatcher.core.lifecycle import Emit, preempt
from schedmate.services.dispatcher.core.state import Job, PoolState

FreeGpus = dict[tuple[str, GpuClass], int]
"""Free GPUs by node and class."""


def make_way(state: PoolState, job: Job, emit: Emit) -> bool:
    """Stop the least set of victims that lets `job` fit; False (and nothing touched) when there is none.

    Jobs that are already on their way out for a preemption count as gone: nobody else is stopped while they would do. One whose
    stop has outlasted its bound counts no more: nobody knows when its GPUs come back.
    """
    free = _free_for(state, job)
    for leaving in state.jobs.values():
        if (
            leaving.state is JobState.STOPPING
            and leaving.requeue_cause == "preempted"
            and leaving.reason != Reason.STOP_TIMEOUT
        ):
            _return_gpus(state, leaving, free, 1)
    if _fits(job, free):
        return True
    victims = _least(state, job, free)
    for victim in victims:
        preempt(state, victim, emit, f"gives way to job {job.id} of a higher priority class")
    return bool(victims)


def _free_for(state: PoolState, job: Job) -> FreeGpus:
    """Count where the placer would look: room on a node that the job avoids helps nobody."""
    avoid = avoided(state, job)
    return {
        (group.node, group.gpu_class): len(group.free)
        for group in state.capacity.groups()
        if job.gpu_type in (None, group.gpu_class[0])
        and group.gpu_class[1] >= job.gpu_memory_mib
        and group.node not in avoid
    }


def _least(state: PoolState, job: Job, free: FreeGpus) -> list[Job]:
    """Return the jobs whose GPUs would let `job` fit: lowest class first, the latest started first, none in vain."""
    candidates = sorted(
        (j for j in state.jobs.values() if _may_give_way(state, j, job)),
        key=lambda j: (j.priority, -(j.started_at or 0.0), j.order),
    )
    taken: list[Job] = []
    for victim in candidates:
        taken.append(victim)
        _return_gpus(state, victim, free, 1)
        if _fits(job, free):
            break
    else:
        return []
    for victim in list(taken):  # whoever need not go stays
        _return_gpus(state, victim, free, -1)
        if _fits(job, free):
            taken.remove(victim)
        else:
            _return_gpus(state, victim, free, 1)
    return taken


def _may_give_way(state: PoolState, victim: Job, job: Job) -> bool:
    ran_long_enough = (
        victim.started_at is not None and state.at - victim.started_at >= state.config.preemption_min_run_s
    )
    return victim.state is JobState.RUNNING and victim.priority < job.priority and ran_long_enough


def _return_gpus(state: PoolState, victim: Job, free: FreeGpus, sign: int) -> None:
    for member in victim.members:
        node = state.nodes[member.node]
        for gpu in member.gpus:
            gpu_class = node.gpus.get(gpu)
            if gpu_class is not None and (member.node, gpu_class) in free:
                free[member.node, gpu_class] += sign


def _fits(job: Job, free: FreeGpus) -> bool:
    if job.nodes == 0:
        return False  # nobody is stopped for a packed job: which nodes it would take is not known before they are empty
    nodes: dict[str, set[str]] = {}
    for (node, (kind, _)), count in free.items():
        if count >= job.gpus:
            nodes.setdefault(kind, set()).add(node)
    return any(len(names) >= job.nodes for names in nodes.values())
