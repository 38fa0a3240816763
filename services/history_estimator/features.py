"""A job and the past of its kin as a row of numbers: what the learned model sees. Causal: each row is made at the submission, and kept.

Durations stand in the row as natural logarithms of seconds, and the most telling ones a second time relative to the running median of
the job's class (tenant, pool and GPU count): levels move from sweep to sweep, patterns around the level do not. NaN is unknown.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log1p, log2, nan
from typing import Final

from schedmate.services.history_estimator.groups import (
    DURATION_NAMES,
    SERIES_NAMES,
    SERIES_SHAPE_NAMES,
    SHAPE_NAMES,
    Group,
)
from schedmate.services.history_estimator.jobs import Ended, Job, plain_name
from schedmate.services.history_estimator.kept import Kept, Key
from schedmate.services.history_estimator.spread import RECENT_MAX, Numbers, recent, spread
from schedmate.services.history_estimator.work import kind_of, number_of

CLASS_DURATIONS: Final = (
    "ewma", "last", "last_2", "median_5", "median_20", "median_200", "p10_200", "p90_200", "p25_20", "p75_20", "recent",
    "recent_2", "recent_mean",
)  # fmt: skip
CLASS_SHAPE: Final = (
    "since_submission", "in_60", "in_600", "running", "running_age", "recent_age", "recent_2_age", "recent_ended",
)  # fmt: skip
POOL_DURATIONS: Final = ("ewma", "last", "median_20", "median_200", "recent", "recent_mean")
POOL_SHAPE: Final = ("since_submission", "in_60", "in_600", "in_3600", "running", "running_age")
KIN_DURATIONS: Final = ("ewma", "last", "median_5", "median_200", "recent")
KIN: Final = ("user", "name", "model", "task")
RELATIVE: Final = ("ewma", "last", "median_5", "median_20", "recent", "period_600", "burst_median")
NUMBERS: Final = (
    "total_steps",
    "max_steps",
    "epochs",
    "model_params",
    "batch_size_per_device",
    "global_batch_size",
    "grad_accum",
)
WORDS: Final = ("framework", "task", "model_family", "optimizer", "precision", "strategy", "dataset")
CODES_MAX: Final = 200
GROUPS_MAX: Final = 100_000
UNKNOWN_LOG_S: Final = log(3600.0)
OF_KIND_MIN: Final = 5

COLUMNS: Final = (
    "pool", "gpus", "time_limit", *(f"workload:{n}" for n in NUMBERS), *(f"workload:{n}" for n in WORDS),
    *(f"class:{n}" for n in (*CLASS_DURATIONS, *CLASS_SHAPE, *SERIES_NAMES, *SERIES_SHAPE_NAMES)),
    *(f"pool:{n}" for n in (*POOL_DURATIONS, *POOL_SHAPE)),
    *(f"{kin}:{n}" for kin in KIN for n in KIN_DURATIONS), *(f"relative:{n}" for n in RELATIVE), "kind",
)  # fmt: skip

_DURATION_AT: Final = {name: place for place, name in enumerate(DURATION_NAMES)}
_SHAPE_AT: Final = {name: place for place, name in enumerate(SHAPE_NAMES)}
_CLASS_DURATIONS_AT: Final = [_DURATION_AT[n] for n in CLASS_DURATIONS]
_CLASS_SHAPE_AT: Final = [_SHAPE_AT[n] for n in CLASS_SHAPE]
_POOL_DURATIONS_AT: Final = [_DURATION_AT[n] for n in POOL_DURATIONS]
_POOL_SHAPE_AT: Final = [_SHAPE_AT[n] for n in POOL_SHAPE]
_KIN_DURATIONS_AT: Final = [_DURATION_AT[n] for n in KIN_DURATIONS]
_RELATIVE_AT: Final = [_DURATION_AT[n] for n in RELATIVE[:5]]


@dataclass(frozen=True, slots=True)
class Row:
    """A job's features at its submission. `level` is the running median of its class, the logarithm of seconds."""

    values: Sequence[float]
    level: float
    at: float


class Past:
    """The groups of a history, told of what happens in the order of time."""

    def __init__(self) -> None:
        self._groups = Kept(Group, GROUPS_MAX)
        self._open: dict[str, tuple[Group, ...]] = {}  # of jobs that have not ended
        self._codes: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}

    def submit(self, job: Job) -> None:
        """A job has been submitted; told again, it changes nothing."""
        if job.id in self._open:
            return
        told = (*_kin_keys(job), _kind_key(job))
        keys = (_class_key(job), _pool_key(job), *_size_keys(job), *(k for k in told if k is not None))
        groups = self._open[job.id] = tuple(self._groups.at(job.tenant, key) for key in keys)
        for group in groups:
            group.submit(job.id, job.submitted_at)

    def start(self, job: str, at: float) -> None:
        """A job runs from then on."""
        for group in self._open.get(job, ()):
            group.start(job, at)

    def end(self, ended: Ended) -> None:
        """A job has ended; with the run time of a whole run it is history from now on."""
        for group in self._open.pop(ended.job.id, ()):
            if ended.run_s is None:
                group.stop(ended.job.id)
            else:
                group.end(ended.job.id, ended.ended_at, log(max(ended.run_s, 1.0)))

    def of_class(self, job: Job) -> Group | None:
        """Return the jobs of the same tenant, pool and GPU count, None before the first."""
        return self._groups.get(job.tenant, _class_key(job))

    def of_pool(self, job: Job) -> Group | None:
        """Return the jobs of the same tenant and pool, None before the first."""
        return self._groups.get(job.tenant, _pool_key(job))

    def of_user(self, job: Job) -> list[Group]:
        """Return the jobs of the same user of the same tenant: those of the same size, then all."""
        keys = (*_size_keys(job), _kin_keys(job)[0])
        return [group for key in keys if key is not None and (group := self._groups.get(job.tenant, key)) is not None]

    def recent(self, job: Job, at: float) -> Numbers | None:
        """Return the spread of the runs of the job's class that were submitted last, None before the first has ended.

        Of a job whose source tells its kind, those of its kind in the class, None before `OF_KIND_MIN` have ended: other kinds' runs say
        nothing of it. What outlasts them is spread as their last runs, or while those are few, as those of the pool.
        """
        kind = _kind_key(job)
        peers, pool = self._groups.get(job.tenant, kind or _class_key(job)), self.of_pool(job)
        if peers is None or pool is None or len(peers.ordered) < (1 if kind is None else OF_KIND_MIN):
            return None
        logs, ended = peers.runs(at, RECENT_MAX)
        long_run = spread(peers.ordered) + 0.5 / max(len(pool.ordered), 1) * spread(pool.ordered)
        return recent(logs, ended, long_run) if logs else long_run / long_run.sum()

    def row(self, job: Job, at: float) -> Row:
        """Return the job's features at an instant; the job itself is not yet submitted, or does not count."""
        peers, pool = self.of_class(job) or _NONE, self.of_pool(job) or _NONE
        durations, shape = peers.durations(at), peers.shape(at)
        pool_durations, pool_shape = pool.durations(at), pool.shape(at)
        series, series_shape = peers.series(at)
        level = durations[_DURATION_AT["median_200"]]
        if level != level:  # noqa: PLR0124 - NaN is not itself
            level = pool_durations[_DURATION_AT["median_200"]]
        if level != level:  # noqa: PLR0124
            level = UNKNOWN_LOG_S
        values = [
            self._code("pool", job.pool), log2(max(job.gpus, 1)), log(job.time_limit_s) if job.time_limit_s else nan,
            *(_number(job.workload.get(name)) for name in NUMBERS), *(self._code(name, job.workload.get(name)) for name in WORDS),
            *(durations[n] for n in _CLASS_DURATIONS_AT), *(shape[n] for n in _CLASS_SHAPE_AT), *series, *series_shape,
            *(pool_durations[n] for n in _POOL_DURATIONS_AT), *(pool_shape[n] for n in _POOL_SHAPE_AT),
        ]  # fmt: skip
        for key in _kin_keys(job):
            kin = self._groups.get(job.tenant, key) if key is not None else None
            told = kin.durations(at) if kin is not None else _NO_DURATIONS
            values.extend(told[n] for n in _KIN_DURATIONS_AT)
        values.extend(durations[n] - level for n in _RELATIVE_AT)
        values.extend((series[0] - level, series[3] - level, self._code("kind", kind_of(job.workload))))
        return Row(array("d", values), level, at)

    def _code(self, column: str, value: object) -> float:
        """Return a number for a word, by the order of first appearance; NaN for none, one number for all that come too late."""
        if value is None:
            return nan
        key = (column, str(value))
        code = self._codes.get(key)
        if code is None:
            count = self._counts.get(column, 0)
            if count >= CODES_MAX:
                return float(CODES_MAX)
            code = self._codes[key] = count
            self._counts[column] = count + 1
        return float(code)


_NONE: Final = Group()
_NO_DURATIONS: Final = [nan] * len(DURATION_NAMES)


def _class_key(job: Job) -> Key:
    return ("class", job.tenant, job.pool, str(job.gpus), job.gpu_type or "")


def _pool_key(job: Job) -> Key:
    return ("pool", job.tenant, job.pool)


def _size_keys(job: Job) -> tuple[Key, ...]:
    return (("user", job.tenant, job.user, str(job.gpus)),) if job.user else ()


def _kin_keys(job: Job) -> tuple[Key | None, ...]:
    """Return the keys of `KIN`, None where the job does not say."""
    told = job.workload
    model, task = told.get("model_name") or told.get("model_family"), told.get("task")
    return (
        ("user", job.tenant, job.user) if job.user else None,
        ("name", job.tenant, job.user or "", plain_name(job.name)) if job.name else None,
        ("model", job.tenant, str(model), str(job.gpus)) if model else None,
        ("task", job.tenant, str(job.framework or ""), str(task)) if task else None,
    )


def _kind_key(job: Job) -> Key | None:
    """Return the key of the jobs of the same kind in the job's class, None where its source does not tell it."""
    kind = kind_of(job.workload) if job.workload else None
    return ("kind", *_class_key(job)[1:], kind) if kind is not None else None


def _number(value: object) -> float:
    number = number_of(value)
    return log1p(number) if number is not None else nan
