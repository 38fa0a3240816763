"""Ageing: the longer a job waits, the higher the class in which the policy's order ranks it.

Every `ageing_s` of waiting (0, the default: no ageing) count as one priority class, up to `ageing_classes_max` of them and never above
the highest class. The wait is counted since the job last came to wait, as that of the bound on the longest wait (core/advice.py).

What ageing moves is the order alone. A job's class stays what it is: nobody is stopped for a job because it has waited, and who has
started is not spared because it had; so ageing makes nobody take turns, and what it moves is bounded.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from schedmate.schemas.job import PRIORITY_RANK

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.config import PoolConfig
    from schedmate.services.dispatcher.core.queue import Key
    from schedmate.services.dispatcher.core.state import Job, PoolState

HIGHEST_CLASS: Final = max(PRIORITY_RANK.values())


def classes_gained(job: Job, config: PoolConfig, now: float) -> int:
    """Return by how many classes a waiting job ranks higher for its wait."""
    gained, most = 0, _most(job, config)
    while gained < most and job.since + (gained + 1) * config.ageing_s <= now:
        gained += 1
    return gained


def _most(job: Job, config: PoolConfig) -> int:
    return max(0, min(config.ageing_classes_max, HIGHEST_CLASS - job.priority)) if config.ageing_s > 0 else 0


class Ageing:
    """When each waiting job rises next, the earliest first. It follows from the jobs and is rebuilt on loading."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []
        self._rises_at: dict[str, float] = {}

    def key(self, job: Job, key: Key, state: PoolState) -> Key:
        """Return the key that the job waits under: the policy's, whose first part is minus the class, raised by the wait."""
        config = state.config
        gained = classes_gained(job, config, state.at)
        if gained < _most(job, config):
            at = job.since + (gained + 1) * config.ageing_s
            if self._rises_at.get(job.id) != at:
                self._rises_at[job.id] = at
                heappush(self._heap, (at, job.order, job.id))
        else:
            self._rises_at.pop(job.id, None)
        return (key[0] - gained, *key[1:]) if gained else key

    def next_at(self, state: PoolState) -> float | None:
        """Return when the next waiting job rises."""
        while self._heap:
            at, _, job_id = self._heap[0]
            job = state.jobs.get(job_id)
            if job is not None and job.queue_key is not None and self._rises_at.get(job_id) == at > job.since:
                return at
            if self._rises_at.get(job_id) == at:
                del self._rises_at[job_id]
            heappop(self._heap)
        return None

    def raise_due(self, state: PoolState) -> None:
        """Whoever has waited long enough by now ranks higher."""
        while (at := self.next_at(state)) is not None and at <= state.at:
            job = state.jobs[heappop(self._heap)[2]]
            del self._rises_at[job.id]
            state.place_anew(job)
