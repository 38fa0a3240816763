"""The least set of jobs whose GPUs let another one fit: nobody is stopped in vain, and nobody whose GPUs are not needed.

Least means, in this order: the fewest GPUs taken from the highest priority class among the candidates, then from the next one, and
so on; then the fewest jobs; then the least work (GPU seconds since the start) at stake. On one node the set is the least there is; a gang takes its nodes
one by one, the cheapest first, and then everybody who need not go stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core.capacity import GpuClass, suits
from schedmate.services.dispatcher.core.fitting import avoided
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.state import Job, PoolState

Cost = tuple[float, ...]
Place = tuple[str, GpuClass]
"""GPUs of one class on one node."""


def least(state: PoolState, job: Job, may_go: Callable[[Job], bool]) -> list[Job] | None:
    """Return the jobs to stop so that `job` fits; empty where those on their way out are enough, None where nothing helps.

    Jobs that are being stopped count as gone, for whatever reason, unless a stop has outlasted its bound: nobody knows when their
    GPUs come back. Shares of a GPU neither stop anybody nor are stopped, and nobody is who shares its GPUs. A job that fits as it is is refused by something that stopping others does not change: nothing helps.

    Args:
        state: the pool.
        job: a waiting job.
        may_go: which of the jobs that hold GPUs may be stopped for it.
    """
    if state.milli_of(job) < WHOLE_MILLI:
        return None
    room = _Room(state, job)
    if room.fits():
        return None
    candidates = []
    for holder in _holders(state):
        if holder.state is JobState.STOPPING:
            if holder.reason != Reason.STOP_TIMEOUT:
                room.give(holder)
        elif may_go(holder):
            candidates.append(holder)
    if room.fits():
        return []
    price = _prices(state, candidates)
    found = [(_sum(price[v.id] for v in victims), kind, victims) for kind, victims in room.ways(candidates, price)]
    return min(found, key=lambda way: way[:2])[2] if found else None


def _holders(state: PoolState) -> Iterator[Job]:
    """Yield the jobs that hold GPUs alone, in the order in which they arrived."""
    names = {owner for node in state.nodes.values() for owner in node.owner.values()}
    yield from sorted((job for name in names if (job := state.jobs[name]).holds_alone), key=lambda job: job.order)


def _prices(state: PoolState, candidates: Sequence[Job]) -> dict[str, Cost]:
    classes = sorted({job.priority for job in candidates}, reverse=True)
    return {
        job.id: (
            *(float(job.gpus_total if job.priority == one else 0) for one in classes),
            1.0,
            (state.at - job.since) * job.gpus_total,
        )
        for job in candidates
    }


def _sum(costs: Iterator[Cost]) -> Cost:
    return tuple(sum(parts) for parts in zip(*costs, strict=True))


class _Room:
    """What is free for a job, place by place, as others go."""

    def __init__(self, state: PoolState, job: Job) -> None:
        avoid = avoided(state, job)
        self._nodes = state.nodes
        self._free: dict[Place, int] = {}
        self._kinds: dict[str, list[Place]] = {}  # by GPU type, and by what the members must share
        self._kind_of: dict[Place, str] = {}
        largest: dict[str, int] = {}
        for group in state.capacity.groups():
            kind = group.gpu_class[0]
            domain = state.topology.domain(group.node, job.within)
            suitable = suits(group.gpu_class, job.gpu_type, job.gpu_memory_mib) and group.node not in avoid
            if suitable and domain is not None:
                place = (group.node, group.gpu_class)
                kind = f"{kind} {domain}" if domain else kind
                self._kind_of[place] = kind
                self._free[place] = len(group.free)
                self._kinds.setdefault(kind, []).append(place)
                largest[kind] = max(largest.get(kind, 1), group.usable)
        self._need = dict.fromkeys(self._kinds, (job.gpus, job.nodes))
        if job.nodes == 0:  # packed: as if every member took a whole node, which is never too little
            self._need = {
                kind: (min(job.gpus, most), -(-job.gpus // most))
                for kind, most in largest.items()
                if kind in self._kinds
            }

    def give(self, job: Job, sign: int = 1) -> None:
        """The job's GPUs are free, or not (sign -1)."""
        for place, count in self._held(job).items():
            self._free[place] += sign * count

    def fits(self, kind: str | None = None) -> bool:
        """Would the job fit, on GPUs of this kind or on any?"""
        return any(len(self._roomy(one)) >= self._need[one][1] for one in ([kind] if kind is not None else self._kinds))

    def ways(self, candidates: Sequence[Job], price: dict[str, Cost]) -> Iterator[tuple[str, list[Job]]]:
        """Yield a least set of victims for every kind of GPU on which the job could be made to fit."""
        for kind in sorted(self._kinds):
            at: dict[Place, list[tuple[Job, int]]] = {}
            for candidate in candidates:
                for place, count in self._held(candidate).items():
                    if self._kind_of[place] == kind:
                        at.setdefault(place, []).append((candidate, count))
            victims = self._clear(kind, at, price)
            if victims:
                yield kind, victims

    def _clear(self, kind: str, at: dict[Place, list[tuple[Job, int]]], price: dict[str, Cost]) -> list[Job]:
        """Make nodes roomy one by one, the cheapest first; leave everything as it was."""
        gpus, nodes = self._need[kind]
        gone: dict[str, Job] = {}
        while len(roomy := self._roomy(kind)) < nodes:
            best: tuple[Cost, tuple[Job, ...]] | None = None
            for place, there in at.items():
                if place[0] not in roomy:
                    options = [(job, count) for job, count in there if job.id not in gone]
                    found = _cover(gpus - self._free[place], options, price)
                    if found is not None and (best is None or found[0] < best[0]):
                        best = found
            if best is None:
                break
            for job in best[1]:
                gone[job.id] = job
                self.give(job)
        victims = []
        helped = self.fits(kind)
        for job in sorted(gone.values(), key=lambda one: price[one.id], reverse=True):
            self.give(job, -1)
            if helped and not self.fits(kind):  # whoever need not go stays
                self.give(job)
                victims.append(job)
        for job in victims:
            self.give(job, -1)
        return victims

    def _roomy(self, kind: str) -> set[str]:
        gpus = self._need[kind][0]
        return {place[0] for place in self._kinds[kind] if self._free[place] >= gpus}

    def _held(self, job: Job) -> dict[Place, int]:
        held: dict[Place, int] = {}
        for member in job.members:
            gpus = self._nodes[member.node].gpus
            for gpu in member.gpus:
                gpu_class = gpus.get(gpu)
                if gpu_class is not None and (member.node, gpu_class) in self._free:
                    held[member.node, gpu_class] = held.get((member.node, gpu_class), 0) + 1
        return held


def _cover(
    deficit: int, options: Sequence[tuple[Job, int]], price: dict[str, Cost]
) -> tuple[Cost, tuple[Job, ...]] | None:
    """Return the cheapest of the options that together free so many GPUs, with their cost; None where all are too few."""
    if sum(count for _, count in options) < deficit:
        return None
    nothing = tuple(0.0 for _ in price[options[0][0].id])
    best: dict[int, tuple[Cost, tuple[Job, ...]]] = {0: (nothing, ())}
    for job, count in options:
        for freed, (cost, jobs) in list(best.items()):
            if freed < deficit:
                more = tuple(a + b for a, b in zip(cost, price[job.id], strict=True))
                known = best.get(min(freed + count, deficit))
                if known is None or more < known[0]:
                    best[min(freed + count, deficit)] = (more, (*jobs, job))
    return best[deficit]
