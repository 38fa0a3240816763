"""When a running job will have run long enough to be stopped for another one: until then it stays, and somebody must look again.

Kept as a heap beside the jobs: it follows from them and is rebuilt on loading. Empty where nobody is ever stopped, or at once.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from schedmate.schemas.states import JobState

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.config import PoolConfig
    from schedmate.services.dispatcher.core.policy import Policy
    from schedmate.services.dispatcher.core.state import Job, PoolState

_RUNS = (JobState.ASSIGNED, JobState.RUNNING)


def least_runs_s(config: PoolConfig, policy: Policy) -> tuple[float, ...]:
    """Return the minimum run times after which somebody may be stopped for another job."""
    for_order = config.preemption or policy.preempts or policy.rounds_s is not None
    spans = {
        config.preemption_min_run_s if for_order else 0.0,
        config.reclaim_min_run_s if config.tenant_quota else 0.0,
    }
    return tuple(sorted(s for s in spans if s > 0))


class Ripening:
    """(when, job, attempt), the earliest first."""

    def __init__(self, config: PoolConfig, policy: Policy) -> None:
        self._spans_s = least_runs_s(config, policy)
        self._heap: list[tuple[float, str, int]] = []

    def __bool__(self) -> bool:
        return bool(self._spans_s)

    def runs(self, job: Job, now: float) -> None:
        """The job has been given its GPUs, or has started."""
        for span_s in self._spans_s:
            if job.since + span_s > now:
                heappush(self._heap, (job.since + span_s, job.id, job.attempt))

    def take_due(self, state: PoolState) -> bool:
        """Forget what has come by now; tell whether there was anything."""
        due = False
        while (at := self.next_at(state)) is not None and at <= state.at:
            heappop(self._heap)
            due = True
        return due

    def next_at(self, state: PoolState) -> float | None:
        """Return when the next running job will have run long enough."""
        while self._heap:
            at, job_id, attempt = self._heap[0]
            job = state.jobs.get(job_id)
            if (
                job is not None
                and job.attempt == attempt
                and job.state in _RUNS
                and any(job.since + span_s == at for span_s in self._spans_s)
            ):
                return at
            heappop(self._heap)
        return None
