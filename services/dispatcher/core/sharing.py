"""Two jobs on the same GPUs: what may be packed, and with whom.

Hu et al., "Lucid: A Non-Intrusive, Scalable and Interpretable Scheduler for Deep Learning Training Jobs", ASPLOS'23, section 3.3: a job is
Tiny, Medium or Jumbo by what a profiler has seen of it, the classes count 0, 1 and 2, and two jobs share when together they count at
most 2 (the GPU sharing capacity). Never more than two, always with the same number of GPUs, never over several nodes, and only where
both fit into the GPU's memory. The thresholds of the classes are ours (schemas/sharing.py).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from schedmate.schemas.sharing import (
    CLASS_NAMES,
    JUMBO,
    MEDIUM,
    MEDIUM_MEMORY_UTILISATION_MAX,
    TINY,
    TINY_MEMORY_UTILISATION_MAX,
    sharing_class,
)
from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core.advice import ordered_s
from schedmate.services.dispatcher.core.capacity import GpuClass, suits
from schedmate.services.dispatcher.core.profiling import is_profiled
from schedmate.services.dispatcher.core.queue import Key, Kind
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.state import Job, PoolState

__all__ = (
    "APATHETIC", "CAPACITY", "DEFAULT", "EAGER", "JUMBO", "MEDIUM", "TINY", "Hosts", "Profile", "Tenancy", "class_of", "gpu_time_s",
    "host_for", "memory_of", "mode", "objection", "parted", "profile_of", "recalled", "tenancy",
)  # fmt: skip

LONGER_MAX: Final = 2.0  # a job joins one that is expected to need at least half of its GPU time
APATHETIC_BELOW: Final = 0.7
EAGER_FROM: Final = 1.5

APATHETIC, DEFAULT, EAGER = "apathetic", "default", "eager"
"""Nobody is packed; who does not fit alone is packed where both are light; whoever can be packed is."""
CAPACITY: Final = {APATHETIC: 0, DEFAULT: 1, EAGER: 2}
"""What the classes of a pair may come to: Lucid sets its GPU sharing capacity by the load (section 3.3)."""


_Group = tuple[int, int, int, int, GpuClass]
"""Nodes, class, memory used and memory of a GPU in MiB, GPU class."""
Avoided = Callable[["PoolState", "Job"], frozenset[str]]
"""Tells the nodes that a job keeps away from."""
_Entry = tuple[float, int, str]
"""Expected GPU time (negative: the most first), order, job."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profiler saw of a job: mean shares of a GPU's time and of its memory's time, and the memory used, per GPU."""

    utilisation: float
    memory_utilisation: float
    memory_mib: int


_MOST: Final = dict(zip(CLASS_NAMES, (TINY_MEMORY_UTILISATION_MAX, MEDIUM_MEMORY_UTILISATION_MAX, 1.0), strict=True))
"""By the name of a sharing class: the most that a job of it may ask of its GPU's memory."""


def recalled(utilisation: float | None, memory_mib: int | None, of_class: str) -> tuple[float, float, int] | None:
    """Return the profile of a job that is known from the past of the same job, None where something is missing or makes no sense.

    History does not tell how its memory was used, but the class that it came to: the most that the class allows is taken for it.
    """
    most = _MOST.get(of_class)
    if most is None or utilisation is None or memory_mib is None or not 0 <= utilisation <= 1 or memory_mib < 0:
        return None
    return (utilisation, most, memory_mib)


@dataclass(frozen=True, slots=True)
class Tenancy:
    """One side of a pair. `gpu_time_s` is what it is expected to need, in GPU seconds; `alone`: nobody is packed with it yet."""

    gpus: int
    nodes: int
    profile: Profile | None
    gpu_time_s: float = 0.0
    alone: bool = True


def class_of(profile: Profile | None, gpu_memory_mib: int) -> int:
    """Return the sharing class; whoever was not profiled is Jumbo."""
    if profile is None:
        return JUMBO
    return sharing_class(profile.utilisation, profile.memory_utilisation, profile.memory_mib, gpu_memory_mib)


def objection(
    job: Tenancy, host: Tenancy, gpu_memory_mib: int, *, score_max: int = 2, several_nodes: bool = False
) -> str | None:
    """Return why the two may not share their GPUs, None where they may."""
    mine, other = job.profile, host.profile
    if mine is None or other is None:
        return "one of them was not profiled"
    score = class_of(mine, gpu_memory_mib) + class_of(other, gpu_memory_mib)
    rules = (
        (not host.alone, "two jobs are on these GPUs already"),
        ((job.gpus, job.nodes) != (host.gpus, host.nodes), "they ask for different numbers of GPUs"),
        (job.nodes != 1 and not several_nodes, "they take several nodes"),
        (mine.memory_mib + other.memory_mib > gpu_memory_mib, "they do not fit into the GPU's memory together"),
        (score > score_max, "together they would use too much of the GPU"),
        (job.gpu_time_s > LONGER_MAX * host.gpu_time_s, "the other one is expected to be gone long before"),
    )
    return next((why for broken, why in rules if broken), None)


def gpu_time_s(job: Job, state: PoolState) -> float:
    """Return the GPU time that a job is expected to need."""
    return ordered_s(job, state) * job.gpus_total


def tenancy(job: Job, state: PoolState) -> Tenancy:
    """Return a job of a pool as one side of a pair."""
    return Tenancy(job.gpus, job.nodes, profile_of(job), gpu_time_s(job, state), alone=job.beside is None)


def profile_of(job: Job) -> Profile | None:
    """Return what is known of the job's use of a GPU."""
    return Profile(*job.profile) if job.profile is not None else None


def memory_of(state: PoolState, job: Job) -> int:
    """Return the memory of the smallest GPU that the job holds, in MiB; of one that does not tell its own, what the pool says."""
    known = (state.nodes[m.node].gpus.get(gpu, ("", 0))[1] for m in job.members for gpu in m.gpus)
    return min((memory or state.config.gpu_memory_mib for memory in known), default=state.config.gpu_memory_mib)


def parted(state: PoolState, job: Job) -> tuple[Job, str] | None:
    """Return who of a pair that should not share goes, and why: the one that came later, if it can resume, else the other one.

    Lucid's binder takes a pair apart when one of the two turns out to be another than it was profiled as.
    """
    partner = state.jobs[job.beside] if job.beside is not None else None
    if partner is None or not state.policy.packs:
        return None
    mine, other = (Tenancy(one.gpus, one.nodes, profile_of(one)) for one in (job, partner))
    why = objection(
        mine,
        other,
        memory_of(state, job),
        score_max=state.config.sharing_score_max,
        several_nodes=state.config.packs_several_nodes,
    )
    if why is None:
        return None
    first, later = sorted((job, partner), key=lambda one: one.place)
    return next(
        ((one, why) for one in (later, first) if one.resumable and one.state in (JobState.ASSIGNED, JobState.RUNNING)),
        None,
    )


def host_for(state: PoolState, job: Job, avoided: Avoided, packing: str) -> Job | None:
    """Return the job whose GPUs a waiting one may share now, when so eagerly is packed."""
    if (
        job.profile is None
        or job.nodes == 0
        or job.alone
        or state.milli_of(job) != WHOLE_MILLI
        or is_profiled(state, job)
    ):
        return None
    return state.hosts.best_for(state, job, avoided, min(CAPACITY[packing], state.config.sharing_score_max))


class Hosts:
    """The jobs that run alone on their GPUs and may be joined, by what decides whether another one may.

    `added` counts how often there was one more; who found none to join finds none until then (or until the nodes change).
    """

    def __init__(self) -> None:
        self.added = 0
        self._groups: dict[int, dict[_Group, list[_Entry]]] = {}
        self._seat: dict[str, tuple[int, _Group, _Entry]] = {}
        self._added: dict[int, int] = {}  # by GPUs
        self._in_vain: dict[Kind, tuple[int, int, int, Key | None, float]] = {}

    def __contains__(self, job_id: object) -> bool:
        """Tell whether a job may be joined."""
        return job_id in self._seat

    def note(self, job: Job, state: PoolState) -> None:
        """The job runs, or what is known of it has changed."""
        self.forget(job.id)
        profile = profile_of(job)
        several = job.nodes != 1 and not state.config.packs_several_nodes
        if profile is None or several or job.nodes == 0 or not _opens(job):
            return
        if any(gpu not in state.nodes[m.node].gpus for m in job.members for gpu in m.gpus):
            return  # a GPU that its node calls unusable takes nobody else
        member = job.members[0]
        memory_mib = memory_of(state, job)
        gpu_class = state.nodes[member.node].gpus[member.gpus[0]]
        group = (job.nodes, class_of(profile, memory_mib), profile.memory_mib, memory_mib, gpu_class)
        entry = (-gpu_time_s(job, state), job.order, job.id)
        insort(self._groups.setdefault(job.gpus, {}).setdefault(group, []), entry)
        self._seat[job.id] = (job.gpus, group, entry)
        self._added[job.gpus] = self._added.get(job.gpus, 0) + 1
        self.added += 1

    def forget(self, job_id: str) -> None:
        """The job may not be joined any more."""
        seat = self._seat.pop(job_id, None)
        if seat is not None:
            gpus, group, entry = seat
            entries = self._groups[gpus][group]
            del entries[bisect_left(entries, entry)]
            if not entries:
                del self._groups[gpus][group]

    def best_for(self, state: PoolState, job: Job, avoided: Avoided, score_max: int) -> Job | None:
        """Return the job to join: the least class first, then the one expected to need most GPU time, then the first."""
        kind = job.queue_kind
        if job.profile is None or kind is None:
            return None
        nodes_as_of = state.capacity.topology_epoch + state.profiler.changes
        time_s = gpu_time_s(job, state)  # the key of one that is pinned, or overdue, does not tell it
        looked = (self._added.get(job.gpus, 0), nodes_as_of, score_max, job.queue_key, time_s)
        if self._in_vain.get(kind) == looked and not state.reservations:
            return None
        profile = Profile(*job.profile)
        avoid = avoided(state, job)
        best: tuple[int, float, int, str] | None = None
        scores: dict[int, int] = {}  # by the memory of a GPU: the job's class on it
        for (nodes, score, used_mib, memory_mib, gpu_class), entries in self._groups.get(job.gpus, {}).items():
            mine = scores.get(memory_mib)
            if mine is None:
                mine = scores[memory_mib] = class_of(profile, memory_mib)
            if score + mine > score_max or used_mib + profile.memory_mib > memory_mib or nodes != job.nodes:
                continue
            if time_s > -LONGER_MAX * entries[0][0] or (best is not None and score > best[0]):
                continue
            if suits(gpu_class, job.gpu_type, job.gpu_memory_mib):
                found = next(
                    (e for e in entries if time_s <= -LONGER_MAX * e[0] and _may_go_to(state, e[2], avoid)), None
                )
                if found is not None and (best is None or (score, *found) < best):
                    best = (score, *found)
        if best is None:
            self._in_vain[kind] = looked
            return None
        host = state.jobs[best[3]]
        several = state.config.packs_several_nodes
        why = objection(
            tenancy(job, state),
            tenancy(host, state),
            memory_of(state, host),
            score_max=score_max,
            several_nodes=several,
        )
        assert why is None, f"{job.id} was to join {host.id}, but {why}"
        return host


def _opens(job: Job) -> bool:
    """May another one come onto the running job's GPUs?"""
    return job.holds_alone and not (job.profiling or job.sole or job.alone)


def _may_go_to(state: PoolState, job_id: str, avoid: frozenset[str]) -> bool:
    members = state.jobs[job_id].members
    return all(member.node not in avoid and state.nodes[member.node].schedulable for member in members)


def _gpus_waiting(state: PoolState) -> int:
    return sum(gpus * (nodes or 1) * jobs for (gpus, nodes, *_), jobs in state.queue.counts())


def mode(state: PoolState) -> str:
    """Return how eagerly jobs are packed: by the GPUs that are held and asked for, of those that there are.

    Lucid's dynamic strategy (section 3.3) goes by a forecast of the cluster's load; here the load of the moment stands for it.
    """
    if not state.packs_now:
        return APATHETIC
    usable = state.capacity.usable_gpus
    wanted = usable - state.capacity.free_gpus + _gpus_waiting(state)
    if wanted < APATHETIC_BELOW * usable:
        return APATHETIC
    return EAGER if wanted >= EAGER_FROM * usable else DEFAULT
