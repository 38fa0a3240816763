"""Which jobs are worth measuring: those of a cluster whose estimates are uncertain and whose probes have told something (infra/pacing.py).

A cluster is a tenant's jobs with a like workload: whoever is near enough to its first job by the embedding (the leader algorithm, Hartigan
1975, "Clustering algorithms", chapter 3), among those that match in GPU type, class of GPU count and framework; without an embedding, a
user's jobs of one plain name and class of size. How uncertain is the width of the interval, log(p90 / p10). A probe has told something
where the next estimate of its cluster after its end is narrower than that at its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Final

from schedmate.infra.pacing import OF_TENANT_MAX, Budget, Cluster, Pacing
from schedmate.services.history_estimator.estimate import Estimate
from schedmate.services.history_estimator.jobs import Job, count_class, plain_name
from schedmate.services.history_estimator.similar import VectorIndex, match_of

RADIUS: Final = 0.92
CELLS_MAX: Final = 1_024
WIDTH_UNKNOWN: Final = log(1000.0)
WIDTH_KNOWN: Final = log(2.0)
"""An interval whose ends are within a factor of two leaves nothing to find out."""


def width(estimate: Estimate) -> float:
    """Return how wide an estimate's interval is, in logarithms."""
    if estimate.p10_s is None or estimate.p90_s is None:
        return WIDTH_UNKNOWN
    return min(log(max(estimate.p90_s, 1.0) / max(estimate.p10_s, 1.0)), WIDTH_UNKNOWN)


class Clusters:
    """Puts jobs into clusters. Bounded: the oldest cells are forgotten, and in a cell its oldest leaders (`new_index` sees to that)."""

    def __init__(self, new_index: Callable[[], VectorIndex] | None) -> None:
        self._new_index = new_index
        self._cells: OrderedDict[Cluster, _Cell] = OrderedDict()

    def of(self, job: Job) -> Cluster:
        """Return the cluster of a job; a job that is near none begins one."""
        if self._new_index is None or job.vector is None or not any(job.vector):
            name = plain_name(job.name) if job.name is not None else ""
            return (job.tenant, "named", job.user or "", name, str(count_class(job.gpus)))
        key = (job.tenant, "like", *match_of(job))
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell(self._new_index())
            if len(self._cells) > CELLS_MAX:
                self._cells.popitem(last=False)
        self._cells.move_to_end(key)
        near = cell.leaders.nearest(job.vector, 1)
        if near and near[0][1] >= RADIUS:
            return (*key, str(near[0][0]))
        cell.leaders.add(cell.count, job.vector)
        cell.count += 1
        return (*key, str(cell.count - 1))


@dataclass(slots=True)
class _Cell:
    leaders: VectorIndex
    count: int = 0


class Probes:
    """Says of each job whether it is worth measuring, within a budget."""

    def __init__(self, budget: Budget, new_index: Callable[[], VectorIndex] | None = None) -> None:
        self._clusters = Clusters(new_index)
        self._pacing = Pacing(budget)
        self._before: OrderedDict[Cluster, float] = OrderedDict()  # the width when a probe began that has not ended
        self._ended: OrderedDict[Cluster, float] = OrderedDict()  # the same, of one that has: the next estimate tells

    def ask(self, job: Job, estimate: Estimate, at: float) -> tuple[Cluster, bool]:
        """A job is about to run: return its cluster, and whether it is worth measuring."""
        cluster, wide = self._clusters.of(job), width(estimate)
        before = self._ended.pop(cluster, None)
        if before is not None:
            self._pacing.learned(cluster, 1.0 - wide / before, at)
        worth = self._pacing.ask(cluster, wide, at)
        if worth:
            self._before.setdefault(cluster, wide)
            _bound(self._before)
        return cluster, worth

    def ended(self, cluster: Cluster) -> None:
        """A job that was worth measuring has ended."""
        before = self._before.pop(cluster, None)
        if before is not None:
            self._ended[cluster] = before
            _bound(self._ended)

    def restore(self, cluster: Cluster, at: float) -> None:
        """A probe was spent before this start; in the order of time."""
        self._pacing.restore(cluster, at)


def _bound(kept: OrderedDict[Cluster, float]) -> None:
    if len(kept) > 8 * OF_TENANT_MAX:
        kept.popitem(last=False)
