"""Pacing: who gets the limited means of finding out, when there are more who could be asked about than means. Pure.

A probe (an hour's worth of them is the budget) is spent on a job so that what is known of its cluster, jobs like it, gets sharper. The expected
gain of one is

    uncertainty x learnability x jobs of the cluster lately / (1 + its probes in this period)

where learnability is how much of the uncertainty earlier probes of the cluster took away, from a prior that gives a new one the benefit of
the doubt. The budget goes to the highest gains among those that have come lately (greedy; the price of a probe is the gain of the last one
that the budget pays). After a reset all clusters are new again: each is owed one probe before it is judged, so none starves, and one that
was hopeless is looked at again. In no window of a period's length are more probes given than the budget.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import Final, TypeVar

K = TypeVar("K")
Cluster = tuple[str, ...]
"""A cluster's name; its first part is the tenant."""

PRIOR: Final = 0.5
PRIOR_PROBES: Final = 2.0
LEARNABLE_LEAST: Final = 0.1
"""Whoever has shown less is hopeless until the reset: nine probes that told nothing."""
OF_TENANT_MAX: Final = 512
PRICED_EVERY: Final = 16


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be spent: `probes` in any `period_s`. Uncertainty below `least` is none; state of `clusters_max` clusters is kept."""

    probes: int
    period_s: float = 3_600.0
    reset_s: float = 86_400.0
    least: float = 0.0
    clusters_max: int = 4_096


@dataclass(slots=True)
class _Known:
    """What is known of a cluster. `jobs` fades by half a period."""

    epoch: int
    owed: bool = True
    uncertainty: float = 0.0
    jobs: float = 0.0
    seen_at: float = -inf
    narrowed: float = 0.0
    probes: int = 0

    @property
    def learnability(self) -> float:
        return (PRIOR * PRIOR_PROBES + self.narrowed) / (PRIOR_PROBES + self.probes)


class Pacing:
    """Decides for one job after another. Times are seconds of one clock; a step back is none."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._now = -inf
        self._known: OrderedDict[Cluster, _Known] = OrderedDict()
        self._of_tenant: Counter[str] = Counter()
        self._tenants: OrderedDict[str, float] = OrderedDict()  # when a tenant's job was last seen, the latest last
        self._spent: deque[tuple[float, Cluster]] = deque()
        self._spent_on: Counter[Cluster] = Counter()
        self._spent_by: Counter[str] = Counter()
        self._refused: OrderedDict[Cluster, float] = OrderedDict()  # owed a probe, not given it; by when they came last
        self._refused_of: Counter[str] = Counter()
        self._price = 0.0
        self._asked = 0

    def ask(self, cluster: Cluster, uncertainty: float, at: float) -> bool:
        """A job of a cluster has come: tell whether a probe is spent on it."""
        known = self._see(cluster, uncertainty, at)
        if uncertainty <= self._budget.least:
            return False
        if not self._affords(cluster, spare_owed=not known.owed):
            if known.owed:
                self._owe(cluster)
            return False
        gain = self._gain(cluster, known)
        if not known.owed and (gain <= 0.0 or gain < self._price):
            return False
        known.owed = False
        self._settle(cluster)
        self._spend(cluster, self._now)
        return True

    def rank(self, cluster: Cluster, uncertainty: float, at: float) -> tuple[bool, float]:
        """Return what orders jobs that wait for a probe, the highest first: is its cluster owed one, and its gain. Nothing is spent."""
        known = self._known.get(cluster)
        if known is None or known.epoch != self._epoch(at):
            return (uncertainty > self._budget.least, uncertainty * PRIOR)
        return (known.owed and uncertainty > self._budget.least, self._gain(cluster, known))

    def learned(self, cluster: Cluster, narrowed: float, at: float) -> None:
        """A probe has told what it could: this share of the uncertainty is gone, from 0 to 1. Of a cluster that was forgotten, nothing is."""
        self._pass(at)
        known = self._known.get(cluster)
        if known is not None and known.epoch == self._epoch(self._now):
            known.narrowed += min(max(narrowed, 0.0), 1.0)
            known.probes += 1

    def restore(self, cluster: Cluster, at: float) -> None:
        """A probe was spent before this start; in the order of time."""
        self._pass(at)
        if len(self._spent) < self._budget.probes:
            self._spend(cluster, self._now)

    # --- what was seen ---

    def _epoch(self, at: float) -> int:
        return floor(max(at, self._now) / self._budget.reset_s)

    def _pass(self, at: float) -> None:
        """Let time go on, and forget what is over."""
        self._now = max(self._now, at)
        begin = self._now - self._budget.period_s
        while self._spent and self._spent[0][0] <= begin:
            _, cluster = self._spent.popleft()
            _less(self._spent_on, cluster)
            _less(self._spent_by, cluster[0])
        while self._refused and next(iter(self._refused.values())) <= begin:
            self._settle(next(iter(self._refused)))
        while self._tenants and next(iter(self._tenants.values())) <= begin:
            self._tenants.popitem(last=False)

    def _see(self, cluster: Cluster, uncertainty: float, at: float) -> _Known:
        self._pass(at)
        self._tenants[cluster[0]] = self._now
        self._tenants.move_to_end(cluster[0])
        epoch = self._epoch(self._now)
        known = self._known.get(cluster)
        if known is None:
            known = self._known[cluster] = _Known(epoch, uncertainty=uncertainty)
            self._of_tenant[cluster[0]] += 1
            self._bound(cluster[0])
        elif known.epoch != epoch:
            known.epoch, known.owed, known.narrowed, known.probes = epoch, True, 0.0, 0
        self._known.move_to_end(cluster)
        known.jobs = 1.0 + known.jobs * 0.5 ** ((self._now - known.seen_at) / self._budget.period_s)
        known.uncertainty += (uncertainty - known.uncertainty) / min(known.jobs, 4.0)
        known.seen_at = self._now
        self._asked += 1
        if self._asked % PRICED_EVERY == 1:
            self._price = self._priced()
        return known

    def _bound(self, tenant: str) -> None:
        """Forget a cluster where there are too many: the tenant's oldest where the tenant has many, else the oldest of all."""
        if self._of_tenant[tenant] > OF_TENANT_MAX:
            self._forget(next(c for c in self._known if c[0] == tenant))
        elif len(self._known) > self._budget.clusters_max:
            self._forget(next(iter(self._known)))

    def _forget(self, cluster: Cluster) -> None:
        del self._known[cluster]
        self._settle(cluster)
        _less(self._of_tenant, cluster[0])

    # --- what it is worth ---

    def _affords(self, cluster: Cluster, *, spare_owed: bool) -> bool:
        """Is there budget left, and for this tenant? None has more than half while others come too.

        `spare_owed`: up to half of either is left to clusters that are owed a probe and came in vain lately.
        """
        every, tenant = self._budget.probes, cluster[0]
        own = ceil(every / 2) if len(self._tenants) > 1 else every
        for limit, spent, waiting in (
            (every, len(self._spent), len(self._refused)),
            (own, self._spent_by[tenant], self._refused_of[tenant]),
        ):
            kept_back = min(waiting, ceil(limit / 2)) if spare_owed else 0
            if spent + kept_back >= limit:
                return False
        return True

    def _owe(self, cluster: Cluster) -> None:
        if cluster not in self._refused:
            self._refused_of[cluster[0]] += 1
        self._refused[cluster] = self._now
        self._refused.move_to_end(cluster)

    def _settle(self, cluster: Cluster) -> None:
        if self._refused.pop(cluster, None) is not None:
            _less(self._refused_of, cluster[0])

    def _spend(self, cluster: Cluster, at: float) -> None:
        self._spent.append((at, cluster))
        self._spent_on[cluster] += 1
        self._spent_by[cluster[0]] += 1

    def _gain(self, cluster: Cluster, known: _Known, more: int = 0) -> float:
        """Return the expected gain of one probe, after so many more in this period."""
        if known.uncertainty <= self._budget.least or known.learnability < LEARNABLE_LEAST:
            return 0.0
        return known.uncertainty * known.learnability * known.jobs / (1 + self._spent_on[cluster] + more)

    def _priced(self) -> float:
        """Return the gain of the last probe that the budget pays, were the jobs of the last period to come again; 0 where it pays all."""
        begin = self._now - self._budget.period_s
        offers = [(-self._gain(c, k, -self._spent_on[c]), c, 0) for c, k in self._known.items() if k.seen_at > begin]
        heapq.heapify(offers)
        left = self._budget.probes
        while offers and left:
            gain, cluster, more = offers[0]
            if not gain:
                return 0.0
            left -= 1
            if not left:
                return -gain
            known = self._known[cluster]
            if more + 1 < known.jobs:
                again = -self._gain(cluster, known, more + 1 - self._spent_on[cluster])
                heapq.heapreplace(offers, (again, cluster, more + 1))
            else:
                heapq.heappop(offers)
        return 0.0


def _less(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
