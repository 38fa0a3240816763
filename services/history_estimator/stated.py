"""A job's run time from the steps that its source states: by the step times of its kin, or by its kind's published work.

Kin are jobs of the same model, batch and GPU count on that GPU type; of the kind alone (model and data set) the published work carries the step time
from one batch or GPU count to another. A program that ends before all its steps are done (at a target, out of patience) does so again: what jobs
of the same user, name and kind took of what their steps had said, the median of the last, moves what is said of the next, more the more there are.
All of it is the tenant's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from schedmate.schemas.events import EstimateBasis
from schedmate.services.history_estimator.groups import median
from schedmate.services.history_estimator.jobs import Job, plain_name
from schedmate.services.history_estimator.kept import Kept, Key
from schedmate.services.history_estimator.kin_steps import KinSteps
from schedmate.services.history_estimator.paces import Clusters
from schedmate.services.history_estimator.told import Told, of_logs
from schedmate.services.history_estimator.work import kind_of

KIN, KIND = "kin", "kind"
"""The two ways, the nearer one first."""
NAMES_MAX: Final = 200_000
RUNS_MAX: Final = 10


class Stated:
    """What stated steps tell, and how far the jobs of a name keep to it."""

    def __init__(self, clusters: Clusters) -> None:
        self._kin_steps = KinSteps()
        self._clusters = clusters
        self._departures: Kept[deque[float]] = Kept(lambda: deque(maxlen=RUNS_MAX), NAMES_MAX)

    def learn(self, job: Job, log_s: float, steps: float | None) -> None:
        """A job has ended after so long (logarithm of seconds), and so many steps; `clusters` learns of it after this."""
        key = _name_key(job)
        if key is not None:
            for way, told in self._plain(job):
                self._departures.at(job.tenant, (*key, way)).append(log_s - told.middle)
        self._kin_steps.learn(job, log_s, steps)

    def told(self, job: Job) -> dict[str, Told]:
        """Return what each way says of a job, of those that can."""
        key = _name_key(job)
        return {
            way: told if key is None else self._moved(told, self._departures.get(job.tenant, (*key, way)))
            for way, told in self._plain(job)
        }

    def _plain(self, job: Job) -> Iterator[tuple[str, Told]]:
        told = self._kin_steps.told(job)
        if told is not None:
            yield KIN, of_logs(EstimateBasis.STEPS, *told)
        logs = self._clusters.of_kind(job)
        if logs is not None:
            yield KIND, replace(of_logs(EstimateBasis.STEPS, logs, ()), judged=KIND)

    def _moved(self, told: Told, known: deque[float] | None) -> Told:
        if known is None:
            return told
        by = median(sorted(known)) * len(known) / (len(known) + 1.0)
        return replace(told, low=told.low + by, middle=told.middle + by, high=told.high + by)


def _name_key(job: Job) -> Key | None:
    """Return what jobs of one program of a tenant have in common, None where the job does not say."""
    kind = kind_of(job.workload)
    if job.user is None or job.name is None or kind is None:
        return None
    return (job.user, plain_name(job.name), kind)
