"""History-estimator as a source of advice: the very estimator of the service, told of what happens in the simulation and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from schedmate.services.history_estimator.estimate import Estimate
from schedmate.services.history_estimator.estimator import Estimator, Rules
from schedmate.services.history_estimator.jobs import Ended, Job
from schedmate.simulator.trace import TraceJob


class Estimated:
    """Estimates of jobs of a trace, in the order in which they are simulated."""

    basis = "history"

    def __init__(self, jobs: Sequence[TraceJob], rules: Rules | None = None) -> None:
        self._estimator = Estimator(rules)
        self._jobs = jobs
        self._open: dict[int, Job] = {}
        self._said: dict[int, Estimate] = {}
        self._now = 0.0

    def estimate_s(self, number: int, pool: str) -> float | None:
        """Return the median of the estimate, None where nothing is known."""
        row = self._jobs[number]
        self._now = max(self._now, row.submit_s)
        gpu_type = "|".join(row.gpu_types) or None
        job = Job(row.id, row.submit_s, pool, row.tenant, row.gpus, gpu_type=gpu_type)
        self._open[number] = job
        self._estimator.refit(self._now)
        self._estimator.submitted(job)
        said = self._said[number] = self._estimator.estimate(job, self._now)
        return said.p50_s

    def quantiles(self, number: int) -> tuple[float | None, float | None, str]:
        """Return the outer quantiles of the estimate, and what it rests on."""
        said = self._said.pop(number)
        return said.p10_s, said.p90_s, said.basis.value

    def started(self, number: int, at: float) -> None:
        """The job runs: evidence that it takes so long at least."""
        self._now = max(self._now, at)
        self._estimator.started(self._jobs[number].id, at)

    def finished(self, number: int, pool: str, at: float) -> None:  # noqa: ARG002 - the protocol's signature
        """The job is history from now on."""
        self._now = max(self._now, at)
        job = self._open.pop(number, None)
        if job is not None:
            self._estimator.finished(Ended(job, self._jobs[number].duration_s, at))
