"""Past jobs with a like workload, by the embedding of the workload among those that match in what must match.

GPU type, the class of the GPU count and the framework must be equal. How like is like enough is learned: each ended job is compared with
its nearest neighbour before it, and the threshold is the least similarity from which on the mean of |log(run time / neighbour's run
time)| stays within the target. A neighbour of another kind (model and data set) has a threshold of its own, learned from what the nearest of other kinds
were worth: until that is known, a job of a kind that never ran here has no likeness. Other tenants' jobs count only where a tenant's own are too few, one voice a tenant, whatever they hold.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import Final, Protocol

from schedmate.services.history_estimator.groups import median
from schedmate.services.history_estimator.jobs import Job, count_class
from schedmate.services.history_estimator.work import kind_of

NEIGHBOURS_MAX: Final = 10
OWN_MIN: Final = 3
PAIRS_MAX: Final = 500
PAIRS_MIN: Final = 30
TARGET_ERROR: Final = log(1.5)
THRESHOLD: Final = 0.92
THRESHOLD_LEAST: Final = 0.5
NEVER: Final = 2.0

Match = tuple[str, str, str]
Known = tuple[str, str, float, str | None]
"""A past job: its id, tenant, logarithm of the run time, and kind."""


class VectorIndex(Protocol):
    """Finds the nearest of many vectors. Vectors are of unit length; similarity is their inner product."""

    @property
    def places_max(self) -> int:
        """How many of the newest places can be found."""
        ...

    def add(self, place: int, vector: Sequence[float]) -> None:
        """Take in a vector under a number; places come in order, without a gap."""
        ...

    def nearest(self, vector: Sequence[float], count: int) -> list[tuple[int, float]]:
        """Return the places of the nearest with their similarity, nearest first."""
        ...


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A past job that is alike."""

    job: str
    tenant: str
    log_s: float
    kind: str | None
    similarity: float


@dataclass(slots=True)
class _Cell:
    """The past jobs that match in what must match."""

    index: VectorIndex
    jobs: dict[int, Known] = field(default_factory=dict)  # by place
    count: int = 0

    def add(self, vector: Sequence[float], job: Known) -> None:
        """Take in a job, and forget the one whose place can be found no more."""
        self.index.add(self.count, vector)
        self.jobs[self.count] = job
        self.jobs.pop(self.count - self.index.places_max, None)
        self.count += 1


class Threshold:
    """How like is like enough, by what nearest neighbours were worth."""

    def __init__(self, value: float = THRESHOLD) -> None:
        self._pairs: deque[tuple[float, float]] = deque()
        self._ordered: list[tuple[float, float]] = []
        self.value = value
        self._beyond = max(value, 1.0)  # where no similarity is enough

    def learn(self, similarity: float, error: float) -> None:
        """A job has ended whose nearest neighbour was so like and so wrong."""
        if len(self._pairs) == PAIRS_MAX:
            self._ordered.remove(self._pairs.popleft())
        self._pairs.append((similarity, error))
        insort(self._ordered, (similarity, error))
        if len(self._pairs) >= PAIRS_MIN:
            self.value = self._least()

    def _least(self) -> float:
        """Return the least similarity from which on the mean error stays within the target."""
        total, found = 0.0, self._beyond
        for count, (similarity, error) in enumerate(reversed(self._ordered), 1):
            total += min(error, 4.0)
            if count >= PAIRS_MIN // 3 and total / count <= TARGET_ERROR:
                found = similarity
        return max(found, THRESHOLD_LEAST)


class SimilarJobs:
    """The embedded past. `new_index` makes an empty index for one cell of what must match.

    A tenant's own jobs and its threshold are kept apart from the others': nobody can crowd out another's neighbours.
    """

    def __init__(self, new_index: NewIndex) -> None:
        self._new_index = new_index
        self._own: dict[tuple[str, Match], _Cell] = {}
        self._all: dict[Match, _Cell] = {}
        self._thresholds: dict[str, Threshold] = {}
        self._of_other_kinds: dict[str, Threshold] = {}

    def threshold(self, tenant: str, *, same_kind: bool = True) -> float:
        """Return the similarity from which on a tenant's jobs, of the same kind or of another, count as alike."""
        known = (self._thresholds if same_kind else self._of_other_kinds).get(tenant)
        return known.value if known is not None else THRESHOLD if same_kind else NEVER

    def find(self, job: Job, *, across_tenants: bool) -> list[Neighbour]:
        """Return the past jobs that are like enough, the likest first: the tenant's own, or where those are too few, all tenants'."""
        if job.vector is None:
            return []
        kind, match = kind_of(job.workload), match_of(job)
        least = {same: self.threshold(job.tenant, same_kind=same) for same in (True, False)}
        own = [n for n in _near(self._own.get((job.tenant, match)), job) if n.similarity >= least[n.kind == kind]]
        if len(own) >= OWN_MIN or not across_tenants:
            return own[:NEIGHBOURS_MAX]
        others = [
            n
            for n in _near(self._all.get(match), job)
            if n.tenant != job.tenant and n.similarity >= least[n.kind == kind]
        ]
        return [*own, *_one_voice_each(others)][:NEIGHBOURS_MAX]

    def learn(self, job: Job, log_s: float) -> None:
        """A job has ended after so long: judge its nearest neighbour, then remember it."""
        if job.vector is None:
            return
        kind, match = kind_of(job.workload), match_of(job)
        nearest = _near(self._own.get((job.tenant, match)), job)
        for thresholds, value, same in ((self._thresholds, THRESHOLD, True), (self._of_other_kinds, NEVER, False)):
            found = next((n for n in nearest if (n.kind == kind) == same), None)
            if found is not None:
                learned = thresholds.setdefault(job.tenant, Threshold(value))
                learned.learn(found.similarity, abs(found.log_s - log_s))
        own = self._own.get((job.tenant, match))
        if own is None:
            own = self._own[job.tenant, match] = _Cell(self._new_index())
        every = self._all.get(match)
        if every is None:
            every = self._all[match] = _Cell(self._new_index())
        for cell in (own, every):
            cell.add(job.vector, (job.id, job.tenant, log_s, kind))


def _near(cell: _Cell | None, job: Job) -> list[Neighbour]:
    if cell is None or job.vector is None:
        return []
    found = cell.index.nearest(job.vector, 4 * NEIGHBOURS_MAX)
    return [Neighbour(*cell.jobs[place], similarity) for place, similarity in found if cell.jobs[place][0] != job.id]


class NewIndex(Protocol):
    """Makes an index."""

    def __call__(self) -> VectorIndex:
        """Return an empty one."""
        ...


def _one_voice_each(others: Sequence[Neighbour]) -> list[Neighbour]:
    """Return one neighbour for each tenant: its likest, with the median of the run times that it brings."""
    by_tenant: dict[str, list[Neighbour]] = {}
    for neighbour in others:
        by_tenant.setdefault(neighbour.tenant, []).append(neighbour)
    return [
        Neighbour(jobs[0].job, tenant, median(sorted(n.log_s for n in jobs)), jobs[0].kind, jobs[0].similarity)
        for tenant, jobs in by_tenant.items()
    ]


def match_of(job: Job) -> Match:
    """Return what must be equal of two jobs that are alike."""
    return (job.gpu_type or "", str(count_class(job.gpus)), job.framework or "")
