"""A simulation whose source of advice knows jobs from their past and from their own output, as a live pool's does.

Beside the run time it tells of an arriving job how the same job used its GPUs before (who is known so is not profiled again), and of a
running one what its own progress shows, once a run of the job has done enough of its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from typing import Any

from schedmate.services.dispatcher.core.decisions import Placed
from schedmate.services.dispatcher.core.inputs import EstimateArrived
from schedmate.services.dispatcher.core.sharing import class_of
from schedmate.simulator.cluster import Cluster
from schedmate.simulator.engine import Simulation
from schedmate.simulator.outcome import Informant
from schedmate.simulator.pools import Pool
from schedmate.simulator.running import Run
from schedmate.simulator.trace import TraceJob

NEAR_S = 1e-6  # work is counted in floats


class Informed(Simulation):
    """The same event loop with such a source; the arguments are those of `Simulation`."""

    def __init__(
        self, jobs: Sequence[TraceJob], cluster: Cluster, policy: str, advisor: Informant, **settings: Any
    ) -> None:
        super().__init__(jobs, cluster, policy, advisor, **settings)
        self._informant = advisor
        self._readings: list[tuple[float, int]] = []  # when a running job has done enough to be read, if it runs on
        self._read: set[int] = set()

    def _next_instant(self) -> float:
        return min(super()._next_instant(), self._readings[0][0] if self._readings else inf)

    def _take(self, now: float, *, idle: bool) -> tuple[list[Pool], int]:
        touched, ended = super()._take(now, idle=idle)
        while self._readings and self._readings[0][0] <= now:
            number = heappop(self._readings)[1]
            run, reads_at_s = self._runs.get(number), self._informant.reads_at_s(number)
            if run is None or number in self._read or reads_at_s is None:
                continue
            done_s = self._done_s(number, run, now)
            if done_s + NEAR_S < reads_at_s:  # it was stopped in between, or runs more slowly beside another
                heappush(self._readings, (now + (reads_at_s - done_s) / run.speed, number))
                continue
            pool = self._pool_of[number]
            if pool not in touched:
                touched.append(pool)
            self._read.add(number)
            low, middle, high, basis = self._informant.read(number, done_s)
            pool.inputs.append(EstimateArrived(self._jobs[number].id, 2, low, middle, high, basis))
        return touched, ended

    def _done_s(self, number: int, run: Run, now: float) -> float:
        """Return how much of its run the job has done; a restart is none of it."""
        return max(self._jobs[number].duration_s - self._left[number] + (now - run.at) * run.speed, 0.0)

    def _start(self, pool: Pool, placed: Placed, now: float) -> None:
        super()._start(pool, placed, now)
        number = self._number[placed.job]
        reads_at_s = self._informant.reads_at_s(number) if number not in self._read else None
        if reads_at_s is not None:
            run = self._runs[number]
            heappush(self._readings, (now + max(reads_at_s - self._done_s(number, run, now), 0.0), number))

    def _end(self, pool: Pool, number: int, run: Run, now: float, cause: str) -> None:
        if run.placed.profiling and self._residents is not None:
            self._informant.seen(number, self._residents.profiles[number])
        super()._end(pool, number, run, now, cause)

    def _arrive(self, pool: Pool, number: int) -> None:
        super()._arrive(pool, number)
        told = pool.inputs[-1]
        utilisation, memory_mib, sharing_class = self._informant.traits(number)
        if sharing_class is None or type(told) is not EstimateArrived:
            return
        pool.inputs[-1] = replace(
            told, gpu_utilisation=utilisation, gpu_memory_mib=memory_mib, sharing_class=sharing_class
        )
        if self._residents is not None:
            memory = pool.state.config.gpu_memory_mib
            self._residents.known(sharing_class, class_of(self._residents.profiles[number], memory))
