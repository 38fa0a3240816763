"""Who holds which GPUs and ports of a pool's nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedmate.services.dispatcher.core.job import RUNS, Job, Member
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import PoolState


def holders_of_gpus(state: PoolState) -> set[str]:
    """Return the jobs that hold GPUs, alone, beside another or in part."""
    names: set[str] = set()
    for node in state.nodes.values():
        names.update(node.owner.values())
        names.update(node.guests.values())
        for held in node.shares.values():
            names.update(held)
    return names


def lease(state: PoolState, job: Job) -> None:
    """The job's members hold their GPUs (and the first one its master port)."""
    host = state.jobs[job.beside] if job.beside is not None else None
    whole = job.holds_whole
    for member in job.members:
        node = state.nodes[member.node]
        if host is not None and host.place < job.place:
            node.guests.update(dict.fromkeys(member.gpus, job.id))
            continue
        owner, shares = node.owner, node.shares
        for gpu in member.gpus:
            assert gpu not in owner, f"GPU {gpu} of {node.name} has an owner"
            if whole:
                assert gpu not in shares, f"GPU {gpu} of {node.name} is held in part"
                owner[gpu] = job.id
            else:
                held = shares.setdefault(gpu, {})
                held[job.id] = job.held_milli
                assert sum(held.values()) <= WHOLE_MILLI, f"GPU {gpu} of {node.name} is given out more than once"
                if len(held) > 1:
                    for neighbour in held:
                        state.jobs[neighbour].neighbours = True
    state.nodes[job.members[0].node].ports[job.master_port] = job.id
    state.tenant_gpus[job.tenant] = state.tenant_gpus.get(job.tenant, 0) + job.gpus_total


def unlease(state: PoolState, job: Job) -> None:
    """The gang's last member has ended: all of its GPUs are free, or those of the job that shares them alone."""
    if job.beside is not None:
        _leave_to(state, state.jobs[job.beside], job)
    else:
        for member in job.members:
            _give_back(state, job, member)
    state.nodes[job.members[0].node].ports.pop(job.master_port, None)
    left = state.tenant_gpus[job.tenant] - job.gpus_total
    if left:
        state.tenant_gpus[job.tenant] = left
    else:
        del state.tenant_gpus[job.tenant]
    state.capacity.epoch += 1


def _give_back(state: PoolState, job: Job, member: Member) -> None:
    node, gpus = state.nodes[member.node], member.gpus
    if not job.holds_whole:
        del node.shares[gpus[0]][job.id]
        if not node.shares[gpus[0]]:
            del node.shares[gpus[0]]
        if node.schedulable:
            state.capacity.give_share(node.name, gpus[0], job.held_milli)
        return
    owner = node.owner
    for gpu in gpus:
        del owner[gpu]
    if node.schedulable:
        state.capacity.give(node.name, gpus)


def _leave_to(state: PoolState, partner: Job, job: Job) -> None:
    """The job's GPUs are those of the other job alone."""
    for member in job.members:
        node = state.nodes[member.node]
        for gpu in member.gpus:
            node.owner[gpu] = partner.id
            del node.guests[gpu]
    job.beside = partner.beside = None
    if state.policy.packs and partner.state in RUNS:
        state.hosts.note(partner, state)
