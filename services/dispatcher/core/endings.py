"""How a member's end is taken down, and what it says of the node that it ran on."""

from __future__ import annotations

from typing import Final

from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core.beliefs import watch
from schedmate.services.dispatcher.core.state import ENDED, Job, Member, Node, PoolState

SUSPECTS_MAX: Final = 8


def end_member(
    state: PoolState,
    job: Job,
    member: Member,
    *,
    cause: str,
    exit_code: int | None = None,
    signal: int | None = None,
    started_at: float | None = None,
    ended_at: float | None = None,
    detail: str = "",
) -> None:
    """The member has ended: what is known of its end is taken down, and what it says of its node."""
    member.state = ENDED
    member.cause = cause
    member.exit_code = exit_code
    member.signal = signal
    member.started_at = started_at if started_at is not None else member.started_at
    member.ended_at = ended_at if ended_at is not None else state.at
    member.detail = detail
    watch(state, job)
    state.touch(job)
    _judge_node(state, job, member)


def _judge_node(state: PoolState, job: Job, member: Member) -> None:
    """Keep the node's record: a node on which jobs fail fast that do well elsewhere is a black hole (scenario BR-42)."""
    node, began = state.nodes[member.node], member.started_at
    if member.done or (began is not None and (member.ended_at or 0.0) - began > state.config.fast_failure_s):
        if node.strikes:
            node.strikes = ()
        if job.suspects:
            for name in job.suspects:
                if name != node.name:
                    _strike(state, state.nodes[name], job.id)
            job.suspects = ()
    elif member.cause == "launch_failed" or (member.cause == "exited" and not job.neighbours):
        suspect(
            state, job, node
        )  # one that ran beside others may have failed by what they took of the GPU (docs/adr/0018)


def suspect(state: PoolState, job: Job, node: Node) -> None:
    """The job failed on the node before it did anything. Whose fault it was shows when it does well elsewhere, or never.

    Jobs that have done well elsewhere for long enough by now confirm what they suspect: nobody waits for their end.
    """
    if node.name not in job.suspects:
        job.suspects = (*job.suspects, node.name)[-SUSPECTS_MAX:]
    state.suspecting[job.id] = None
    known = [state.jobs[job_id] for job_id in state.suspecting if job_id in state.jobs]
    suspecting = sorted((other for other in known if other.suspects), key=lambda one: one.order)
    state.suspecting = dict.fromkeys(other.id for other in suspecting)
    for other in suspecting:
        well_for = state.at - other.started_at if other.started_at is not None else 0.0
        does_well = other.state is JobState.RUNNING and well_for > state.config.fast_failure_s
        if does_well and node.name in other.suspects:
            for name in other.suspects:
                _strike(state, state.nodes[name], other.id)
            other.suspects = ()


def _strike(state: PoolState, node: Node, job_id: str) -> None:
    if job_id in node.strikes:
        return
    node.strikes = (*node.strikes, job_id)[-state.config.strikes_max :]
    if len(node.strikes) >= state.config.strikes_max and node.cordoned is None:
        node.cordon_wanted = f"{len(node.strikes)} jobs in a row failed fast here and not elsewhere"
        state.dirty_nodes[node.name] = None
