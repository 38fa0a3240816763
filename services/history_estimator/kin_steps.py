"""The step times of a job's kin: the same model, else its family on the same data, with the same batch and GPU count on that GPU type."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import Final

from schedmate.services.history_estimator.jobs import Job
from schedmate.services.history_estimator.kept import Kept, Key
from schedmate.services.history_estimator.published import known_data
from schedmate.services.history_estimator.work import steps_of

TIMES_MAX: Final = 50
SHOWN: Final = 20
KEYS_MAX: Final = 200_000


@dataclass(slots=True)
class _Times:
    """Step times of one kind of model on one GPU type and count, newest last."""

    logs: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_MAX))
    jobs: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN))


class KinSteps:
    """Step times by kin; of each tenant its own."""

    def __init__(self) -> None:
        self._times = Kept(_Times, KEYS_MAX)

    def learn(self, job: Job, log_s: float, steps: float | None) -> None:
        """A job has ended after so long (logarithm of seconds), and so many steps; what it states where that is None."""
        done = steps or steps_of(job.workload)
        for key in _keys(job) if done else ():
            times = self._times.at(job.tenant, key)
            times.logs.append(log_s - log(done or 1.0))
            times.jobs.append(job.id)

    def told(self, job: Job) -> tuple[Sequence[float], tuple[str, ...]] | None:
        """Return the logarithms of the run times that the stated steps take at its kin's step times, and the kin, newest first."""
        steps = steps_of(job.workload)
        for key in _keys(job) if steps else ():
            times = self._times.get(job.tenant, key)
            if times is not None:
                return [one + log(steps or 1.0) for one in times.logs], tuple(reversed(times.jobs))
        return None


def _keys(job: Job) -> tuple[Key, ...]:
    """Return the kinds of jobs whose step time is the job's, the nearest first."""
    told = job.workload
    where = (job.tenant, job.gpu_type or "", str(job.gpus))
    batch = str(told.get("global_batch_size") or told.get("batch_size_per_device") or "")
    keys: list[Key] = [("model", *where, str(told["model_name"]), batch)] if told.get("model_name") else []
    if told.get("model_family"):
        data = known_data(str(told.get("dataset") or "")) or ""
        keys.append(("family", *where, str(told["model_family"]), batch, data))
    return tuple(keys)
