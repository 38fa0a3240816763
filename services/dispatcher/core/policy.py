"""The seam of the scheduler: a `Policy` orders the waiting jobs, and names the `Placer` that chooses their GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Protocol

from schedmate.services.dispatcher.core import policies as policy_modules
from schedmate.services.dispatcher.core.placement import Placer
from schedmate.services.dispatcher.core.queue import Key
from schedmate.services.dispatcher.core.shares import SharePlacer

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import Job, PoolState


class Policy(Protocol):
    """Orders the queue. Its memory, where it has any, lives in the pool's state."""

    name: str
    head_blocks: bool
    """Does a job that does not fit now hold back those behind it? (One that never fits, or is at a limit, never does.)"""
    uses_estimates: bool
    """Does an estimate move a waiting job?"""
    rounds_s: float | None
    """Decides only so often (core/rounds.py), None for at once."""
    level_gpu_s: float | None
    """Where a policy of rounds has two levels: the attained GPU time above which a job is of the second one."""
    backfills: bool
    """May later jobs go before the first one that does not fit, where they do not delay it (core/backfill.py)?"""
    preempts: bool
    """Does a waiting job take the GPUs of those that the policy ranks behind it (core/margin.py)?"""
    work_conserving: bool
    """Does it promise that no waiting job that fits waits, but for GPUs that are being vacated, or for one that is overdue?"""
    packs: bool
    """May two jobs share their GPUs, where the pool allows it (core/sharing.py)? Then the profiler's nodes are looked after too."""
    placer: Placer
    """Where jobs go (core/placement.py)."""
    share_placer: SharePlacer
    """Where shares of a GPU go (core/shares.py)."""
    counts_demand: bool
    """Does it look at what jobs have asked for so far (core/fragmentation.py)?"""
    counts_service: bool
    """Does it look at how much GPU time the finished jobs took (core/attained.py)?"""

    def key(self, job: Job, state: PoolState) -> Key:
        """Return the job's place in the order, lowest first. The last part is the arrival number: keys are unique."""
        ...

    def held_key(self, job: Job, state: PoolState) -> Key:
        """Return the rank of a job that holds GPUs, from the job's facts alone, whatever the time: the highest gives way first."""
        ...

    def next_level(self, gpu_s: float, state: PoolState) -> float | None:
        """Return the attained GPU time above which a job that has had so much is ranked anew, None where it never is."""
        ...

    def turns_at(self, job: Job, state: PoolState) -> float | None:
        """Return when a running job is to be ranked anew for what it has run by then, None where it is not before it is outlasted."""
        ...

    def outlasted(self, held_key: Key, state: PoolState) -> bool:
        """Tell whether a holder has outlasted what its rank rests on, and is to be ranked anew; they stand first."""
        ...

    def giving_way(self, job: Job, state: PoolState) -> Callable[[Key], bool]:
        """Return what tells of a holder's rank whether it gives way to the waiting job now; who does, does so with every higher rank."""
        ...


class UnknownPolicyError(ValueError):
    """No policy has this name."""


@cache
def policies() -> dict[str, Callable[[], Policy]]:
    """Return the policies by name: every class of a module in `policies/` that has a name of its own."""
    found: dict[str, Callable[[], Policy]] = {}
    for module in iter_modules(policy_modules.__path__):
        for value in vars(import_module(f"{policy_modules.__name__}.{module.name}")).values():
            if isinstance(value, type) and isinstance(vars(value).get("name"), str):
                found[vars(value)["name"]] = value
    return dict(sorted(found.items()))


def policy_named(name: str) -> Policy:
    """Return a policy by its name.

    Raises:
        UnknownPolicyError: there is none of this name.
    """
    try:
        return policies()[name]()
    except KeyError:
        raise UnknownPolicyError(f"no policy is called {name!r}; there are {', '.join(policies())}") from None
