"""Whether a member may have its GPUs beside those that hold them: the worker's own rule, whoever asks (protocol §2, ADR 18). Pure.

A GPU is one whole: it has one member that holds it whole, or shares that come to no more than `GPU_MILLI_WHOLE`, or two members that
hold it together because the first let somebody in (`packable`) and the second names the first (`packed_with`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schedmate.schemas.events import MemberAssigned, MemberAssignedV2
from schedmate.schemas.job import GPU_MILLI_WHOLE

Holders = Mapping[int, Sequence[MemberAssignedV2]]
"""Who holds each GPU: the orders of the members that have not ended."""


def is_share(order: MemberAssignedV2) -> bool:
    """Tell whether the member holds a part of a GPU."""
    return order.gpu_milli < GPU_MILLI_WHOLE


def objection(order: MemberAssigned, holders: Holders) -> str | None:
    """Return why the member may not have its GPUs, None where it may."""
    wanted = MemberAssignedV2.of(order)
    if is_share(wanted) and (len(wanted.gpus) != 1 or wanted.packable or wanted.packed_with is not None):
        return "a share is of one GPU, and nobody is packed with it"
    taken = [why for gpu in wanted.gpus if (why := _taken(wanted, gpu, holders.get(gpu, ()))) is not None]
    return "held: " + ", ".join(taken) if taken else None


def _taken(wanted: MemberAssignedV2, gpu: int, there: Sequence[MemberAssignedV2]) -> str | None:
    if not there:
        return None
    whose = " and ".join(f"{one.run_id}.{one.member}" for one in there)
    if is_share(wanted) and all(is_share(one) for one in there):
        left = GPU_MILLI_WHOLE - sum(one.gpu_milli for one in there)
        return None if wanted.gpu_milli <= left else f"GPU {gpu} by {whose}, which leave {left} of {wanted.gpu_milli}"
    if len(there) == 1 and _are_a_pair(there[0], wanted):
        return None
    return f"GPU {gpu} by {whose}"


def _are_a_pair(first: MemberAssignedV2, second: MemberAssignedV2) -> bool:
    """Did the dispatcher pack the two? Both say so, and they hold the very same GPUs."""
    return (
        first.packable
        and second.packable
        and second.packed_with == first.run_id
        and second.job_id != first.job_id
        and set(first.gpus) == set(second.gpus)
    )
