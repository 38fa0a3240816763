"""Seams of the scheduler: a `Policy` orders the waiting jobs, a `Placer` chooses the GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from schedmate.services.dispatcher.core.capacity import Capacity, Group
from schedmate.services.dispatcher.core.queue import Key

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import Job, PoolState


class Policy(Protocol):
    """Orders the queue. Its memory, where it has any, lives in the pool's state."""

    name: str
    head_blocks: bool
    """Does a job that does not fit now hold back those behind it? (One that never fits, or is at a limit, never does.)"""
    uses_estimates: bool
    """Does an estimate move a waiting job?"""

    def key(self, job: Job, state: PoolState) -> Key:
        """Return the job's place in the order, lowest first. The last part is the arrival number: keys are unique."""
        ...


class Placer(Protocol):
    """Chooses groups for the members of a gang, all or none."""

    def place(self, capacity: Capacity, job: Job, avoid: frozenset[str]) -> list[Group] | None:
        """Return one group a member, in the order of members, or None when the gang does not fit now."""
        ...


class Fifo:
    """First in, first out within a priority class; the head of the queue blocks."""

    name = "fifo"
    head_blocks = True
    uses_estimates = False

    def key(self, job: Job, state: PoolState) -> Key:  # noqa: ARG002 - the protocol's signature
        """Priority class first, then the time of submission, then the arrival."""
        return (-job.priority, job.submitted_at, job.order)


class FifoSkip(Fifo):
    """First in, first out, but a job that does not fit now holds nobody back."""

    name = "fifo-skip"
    head_blocks = False


class BestFit:
    """Each member goes to the node with the fewest free GPUs that are enough, the first in order on a tie.

    A gang stays within one GPU type. With several memory sizes the smallest sufficient class is tried first only through
    the number of free GPUs: least left over wins.
    """

    def place(self, capacity: Capacity, job: Job, avoid: frozenset[str]) -> list[Group] | None:
        """Return one group a member, or None."""
        classes = capacity.classes_for(job.gpu_type, job.gpu_memory_mib)
        if job.nodes == 1 and not avoid:
            best: Group | None = None
            for gpu_class in classes:
                group = capacity.best(gpu_class, job.gpus)
                if group is not None and (
                    best is None or (len(group.free), group.order) < (len(best.free), best.order)
                ):
                    best = group
            return [best] if best is not None else None
        for kind in sorted({c[0] for c in classes}):
            candidates = [
                group
                for gpu_class in classes
                if gpu_class[0] == kind
                for group in capacity.groups_with(gpu_class, job.gpus)
                if group.node not in avoid
            ]
            candidates.sort(key=lambda g: (len(g.free), g.order))
            chosen: dict[str, Group] = {}
            for group in candidates:
                chosen.setdefault(group.node, group)
                if len(chosen) == job.nodes:
                    return sorted(chosen.values(), key=lambda g: g.order)
        return None


POLICIES: Final[dict[str, Callable[[], Policy]]] = {"fifo": Fifo, "fifo-skip": FifoSkip}


class UnknownPolicyError(ValueError):
    """No policy has this name."""


def policy_named(name: str) -> Policy:
    """Return a policy by its name.

    Raises:
        UnknownPolicyError: there is none of this name.
    """
    try:
        return POLICIES[name]()
    except KeyError:
        raise UnknownPolicyError(f"no policy is called {name!r}; there are {', '.join(sorted(POLICIES))}") from None
