"""The estimator: what is known of past jobs in, a distribution of the run time out. Pure, online; the same in production and simulator.

It is told of submissions, starts and ends in the order of time, and asked at any instant. Order of work: the same job before (`exact_prior`); the
steps that the source states, at the step times of kin, of the kind, or at its model's published work and the cluster's pace (`steps`); earlier forms
and jobs with a like workload (`similar_jobs`); the learned model where it has seen the kind of job (`learned`): of these the one that was nearer for
the last jobs of the sort. Then the learned model with its guard, the user's jobs (`user_median`), the pool's (`pool_prior`), `unknown`. A tenant's own
past decides; others' jobs serve a tenant that has too little of its own, each tenant with one voice or a bounded weight, and only where the pool allows it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, log
from typing import Final

import numpy as np

from schedmate.schemas.events import EstimateBasis
from schedmate.services.history_estimator import learned
from schedmate.services.history_estimator.calibration import POINTS, Choice, Tracker
from schedmate.services.history_estimator.estimate import UNKNOWN, Estimate, quantile
from schedmate.services.history_estimator.features import Past, Row
from schedmate.services.history_estimator.hazard import Hazard
from schedmate.services.history_estimator.jobs import Ended, Job
from schedmate.services.history_estimator.kept import Kept, Key
from schedmate.services.history_estimator.paces import Clusters
from schedmate.services.history_estimator.rivals import Rivals, Said
from schedmate.services.history_estimator.sampling import COMMON, Samples
from schedmate.services.history_estimator.similar import SimilarJobs, VectorIndex
from schedmate.services.history_estimator.spread import PLACES, Numbers, middles
from schedmate.services.history_estimator.stated import Stated
from schedmate.services.history_estimator.told import Told, of_logs
from schedmate.services.history_estimator.traits import Traits
from schedmate.services.history_estimator.work import kind_of

REPEATS_MAX: Final = 20
SIMILAR_SHOWN: Final = 20
KEYS_MAX: Final = 200_000
VOICES_MIN: Final = 3
PUBLISHED, ALIKE, LEARNED = "published", "alike", "learned"
"""The ways to know a job where no kin has done its stated steps, in the order in which they speak where none was nearer."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How the estimator works. Counts of ended jobs."""

    learn: bool = True
    learned_jobs_min: int = 300
    pool_jobs_min: int = 20
    user_jobs_min: int = 3
    across_tenants: bool = True
    closed_pools: frozenset[str] = frozenset()  # these forbid learning across tenants

    def across(self, pool: str) -> bool:
        """Tell whether an estimate in a pool may rest on other tenants' jobs."""
        return self.across_tenants and pool not in self.closed_pools


@dataclass(frozen=True, slots=True)
class _Given:
    """What a job was given, to be judged when it ends."""

    key: tuple[str, str, str]
    raw: tuple[float, float]
    given: tuple[float, float]
    points: tuple[float, ...]
    rivals: tuple[Said, ...] = ()


@dataclass(slots=True)
class _Open:
    """A job that has not ended."""

    job: Job
    row: Row
    started_at: float | None = None
    given: _Given | None = None


class Estimator:
    """Estimates from the past it is told of. `new_index` makes the index of embedded jobs; without one, nothing is found by likeness."""

    def __init__(self, rules: Rules | None = None, new_index: Callable[[], VectorIndex] | None = None) -> None:
        self._rules = rules or Rules()
        self._past = Past()
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._repeats: Kept[deque[tuple[str, float, str | None]]] = Kept(lambda: deque(maxlen=REPEATS_MAX), KEYS_MAX)
        self._similar = SimilarJobs(new_index) if new_index is not None else None
        self._clusters = Clusters()
        self._stated = Stated(self._clusters)
        self._traits = Traits()
        self._hazards = Kept(Hazard, KEYS_MAX)
        self._pool_tenants: dict[str, OrderedDict[str, deque[float]]] = {}
        self._trackers: dict[tuple[str, str, str], Tracker] = {}
        self._choices = Kept(Choice, KEYS_MAX)
        self._rivals = Kept(Rivals, KEYS_MAX)
        self._samples = Samples(self._rules.learned_jobs_min)
        self._learns = self._rules.learn and learned.available()

    # --- the past ---

    def submitted(self, job: Job) -> None:
        """A job has been submitted; told again, it changes nothing."""
        if job.id in self._open or not isfinite(job.submitted_at):
            return
        self._open[job.id] = _Open(job, self._past.row(job, job.submitted_at))
        self._past.submit(job)

    def analyzed(self, job: Job) -> None:
        """More is known of a job that has been submitted: its content, its workload, its embedding."""
        known = self._open.get(job.id)
        if known is None:
            self.submitted(job)
            return
        row = self._past.row(job, known.row.at) if job.workload and not known.job.workload else known.row
        self._open[job.id] = _Open(job, row, known.started_at, known.given)

    def started(self, job: str, at: float) -> None:
        """A job runs from then on: evidence that it takes at least as long as it has run."""
        known = self._open.get(job)
        if known is not None and known.started_at is None:
            known.started_at = at
            self._past.start(job, at)

    def finished(self, ended: Ended) -> None:
        """A job has ended. One whose times make no sense is forgotten; of one that failed or was cancelled only the risk is learned."""
        known = self._open.pop(ended.job.id, None)
        if known is None:
            return
        whole = ended.usable and ended.run_s is not None and ended.outcome == "succeeded"
        run_s = ended.run_s if ended.usable else None
        self._past.end(Ended(ended.job, run_s if whole else None, ended.ended_at))
        if run_s is None:
            return
        for key in _risk_keys(ended.job):
            self._hazards.at(ended.job.tenant, key).learn(run_s, early=ended.outcome != "succeeded")
        if whole:
            self._learn(known, ended, log(max(run_s, 1.0)))

    def _learn(self, known: _Open, ended: Ended, log_s: float) -> None:
        job = ended.job
        if known.given is not None:
            self._trackers.setdefault(known.given.key, Tracker()).learn(known.given.raw, known.given.given, log_s)
            if known.given.points:
                self._choices.at(job.tenant, _class_of_kind(job)).learn(known.given.points, log_s)
            if known.given.rivals:
                self._rivals.at(job.tenant, _sort(job)).learn(known.given.rivals, log_s)
        if (key := job.exact_key) is not None:
            self._repeats.at(job.tenant, key).append((job.id, log_s, job.content_hash))
        if self._similar is not None:
            self._similar.learn(job, log_s)
        self._stated.learn(job, log_s, ended.steps)
        self._clusters.learn(job, log_s)
        tenants = self._pool_tenants.setdefault(job.pool, OrderedDict())
        tenants.setdefault(job.tenant, deque(maxlen=50)).append(log_s)
        self._traits.learn(ended)
        if self._learns:
            self._samples.learn(job.tenant, known.row.values, log_s)

    # --- the learned model ---

    def due(self) -> str | None:
        """Return the name of a model that is to be fitted anew, None for none. A fit takes about a second of CPU."""
        return self._samples.due() if self._learns else None

    def sample(self, name: str, at: float) -> learned.Sample:
        """Return what a fit of this model takes: plain values, so that it may be fitted elsewhere."""
        running = [
            (o.job.tenant, o.row.values, log(max(at - o.started_at, 1.0)))
            for o in self._open.values()
            if o.started_at is not None
        ]
        return self._samples.sample(name, running)

    def fit(self, name: str, sample: learned.Sample) -> learned.Model | None:
        """Fit a model. Reads nothing that changes: it may run in another thread."""
        return learned.fit(sample, self._samples.model(name))

    def install(self, name: str, model: learned.Model | None, jobs: int) -> None:
        """Take a model into use that was fitted on so many ended jobs."""
        self._samples.install(name, model, jobs)

    def refit(self, at: float) -> None:
        """Fit what is due, here and now."""
        while (name := self.due()) is not None:
            sample = self.sample(name, at)
            self.install(name, self.fit(name, sample), len(sample.rows))

    # --- the answer ---

    def estimate(self, job: Job, at: float) -> Estimate:
        """Return the estimate of a job at an instant; a job that has been submitted is judged by the last one it was given."""
        return self.estimate_many([job], at)[0]

    def estimate_many(self, jobs: Sequence[Job], at: float) -> list[Estimate]:
        """Return an estimate a job, the learned ones in one batch."""
        told = [self._exact(job) for job in jobs]
        asked = [job for job, known in zip(jobs, told, strict=True) if not _decided(job, known)]
        rows = [self._row(job, at) for job in asked]
        predicted = iter(self._predicted(asked, rows, at))
        return [
            self._calibrated(job, known if _decided(job, known) else self._nearest(job, known, next(predicted)))
            for job, known in zip(jobs, told, strict=True)
        ]

    def _nearest(self, job: Job, earlier: Told | None, learned: Told | None) -> Told | None:
        """Who speaks: of those who know the job's kind, its model or its likes the one that was nearest for the last jobs of its sort; else the others' level."""
        told = self._stated.told(job)
        published = self._published(job) if not told else None
        if published is not None:
            told[PUBLISHED] = published
        alike = earlier or self._alike(job)
        if alike is not None:
            told[ALIKE] = alike
        if learned is not None and not learned.judged:
            told[LEARNED] = learned
        if not told:
            return learned or self._of_user(job) or self._of_pool(job)
        rivals = self._rivals.get(job.tenant, _sort(job)) or Rivals()
        taken = told[rivals.nearest(told)]
        if len(told) == 1:
            return taken
        points = learned.points if learned is not None else ()
        return replace(taken, points=points, rivals=tuple((way, one.middle) for way, one in told.items()))

    def _row(self, job: Job, at: float) -> Row:
        known = self._open.get(job.id)
        return known.row if known is not None else self._past.row(job, at)

    def _exact(self, job: Job) -> Told | None:
        """The job ran before; where its source is known to have changed, its earlier forms are its likeness."""
        repeats = self._repeats.get(job.tenant, job.exact_key) if job.exact_key is not None else None
        if not repeats:
            return None
        same = [r for r in repeats if job.content_hash is None or r[2] in {None, job.content_hash}]
        basis = EstimateBasis.EXACT_PRIOR if same else EstimateBasis.SIMILAR_JOBS
        taken = same or list(repeats)
        return of_logs(basis, [r[1] for r in taken], tuple(r[0] for r in reversed(taken)))

    def _alike(self, job: Job) -> Told | None:
        if self._similar is None:
            return None
        near = self._similar.find(job, across_tenants=self._rules.across(job.pool))
        if not near:
            return None
        own = tuple(n.job for n in near if n.tenant == job.tenant)
        return of_logs(EstimateBasis.SIMILAR_JOBS, [n.log_s for n in near], own, len(near) - len(own))

    def _predicted(self, jobs: Sequence[Job], rows: Sequence[Row], at: float) -> list[Told | None]:
        """Return what the learned models say, None where there is none for the job."""
        out: list[Told | None] = [None] * len(jobs)
        if not self._learns:
            return out
        by_model: dict[str, list[int]] = {}
        for place, job in enumerate(jobs):
            name = self._samples.choose(job.tenant, across_tenants=self._rules.across(job.pool))
            if name is not None:
                by_model.setdefault(name, []).append(place)
        for name, places in by_model.items():
            model = self._samples.model(name)
            if model is None:
                continue
            taken = [rows[p].values for p in places]
            told = model.predict(taken)
            at_hand = self._points([jobs[p] for p in places], told[:, 1], model.spreads(taken), at).tolist()
            elsewhere = self._samples.jobs(name) if name == COMMON else 0
            for place, (low, mean, high), points in zip(places, told.tolist(), at_hand, strict=True):
                first = model.first_time(rows[place].values, rows[place].level, mean)
                if first is not None:
                    out[place] = Told(EstimateBasis.LEARNED, *first, elsewhere=elsewhere, judged="first time")
                    continue
                middle = self._choices.at(jobs[place].tenant, _class_of_kind(jobs[place])).pick(points)
                peers = self._past.of_class(jobs[place]) if name != COMMON else None
                newest = tuple(peers.newest(SIMILAR_SHOWN)) if peers is not None else ()
                out[place] = Told(EstimateBasis.LEARNED, low, middle, high, newest, elsewhere, tuple(points))
        return out

    def _points(self, jobs: Sequence[Job], boosted: Numbers, grown: Numbers | None, at: float) -> Numbers:
        """Return the points of which a class takes what was worth most: that of the spreads, and the mean. Shape (jobs, POINTS)."""
        if grown is None:
            return np.column_stack([boosted] * POINTS)
        keys = [(*_class_of_kind(job), job.gpu_type or "") for job in jobs]
        by_class = {key: self._past.recent(job, at) for key, job in dict(zip(keys, jobs, strict=True)).items()}
        recents = [by_class[key] for key in keys]
        recent = np.array([told if told is not None else own for told, own in zip(recents, grown, strict=True)])
        of_a_kind = np.array([kind_of(job.workload) is not None for job in jobs])
        means = np.where(of_a_kind, boosted, (boosted + grown @ PLACES + recent @ PLACES) / 3.0)
        return np.column_stack([middles([grown, recent], means), means])

    def _published(self, job: Job) -> Told | None:
        """The work that is published of the job's model, at the pace of the cluster."""
        told = self._clusters.told(job, across_tenants=self._rules.across(job.pool))
        if told is None:
            return None
        return Told(EstimateBasis.STEPS, told.low, told.middle, told.high, (), told.elsewhere, judged="published")

    def _of_user(self, job: Job) -> Told | None:
        for group in self._past.of_user(job):
            if len(group.ordered) >= self._rules.user_jobs_min:
                return of_logs(EstimateBasis.USER_MEDIAN, list(group.ordered), tuple(group.newest(SIMILAR_SHOWN)))
        return None

    def _of_pool(self, job: Job) -> Told | None:
        least = self._rules.pool_jobs_min
        for group in (self._past.of_class(job), self._past.of_pool(job)):
            if group is not None and len(group.ordered) >= least:
                return of_logs(EstimateBasis.POOL_PRIOR, list(group.ordered), tuple(group.newest(SIMILAR_SHOWN)))
        if not self._rules.across(job.pool):
            return None
        tenants: Mapping[str, deque[float]] = self._pool_tenants.get(job.pool, {})
        jobs = sum(len(logs) for logs in tenants.values())
        if jobs < least or len(tenants) < VOICES_MIN:
            return None
        voices = [quantile(sorted(logs), share) for logs in tenants.values() for share in (0.1, 0.3, 0.5, 0.7, 0.9)]
        own = len(tenants.get(job.tenant, ()))
        told = of_logs(EstimateBasis.POOL_PRIOR, voices, ())
        return Told(told.basis, told.low, told.middle, told.high, (), jobs - own)

    def _calibrated(self, job: Job, told: Told | None) -> Estimate:
        risk_of = next((h for k in _risk_keys(job) if (h := self._hazards.get(job.tenant, k)) is not None and h.risk(1.0) is not None), None)  # fmt: skip
        if told is None:
            risk = risk_of.risk(3600.0) if risk_of is not None else None
            return UNKNOWN if risk is None else Estimate(EstimateBasis.UNKNOWN, early_end_risk=round(risk, 4))
        key = (job.tenant, job.pool, f"{told.basis.value} {told.judged}".strip())
        low, high = self._trackers.setdefault(key, Tracker()).widened(told.low, told.middle, told.high)
        known = self._open.get(job.id)
        if known is not None and known.started_at is None:
            known.given = _Given(key, (told.low, told.high), (low, high), told.points, told.rivals)
        most = job.time_limit_s if job.time_limit_s is not None else exp(50.0)
        p10_s, p50_s, p90_s = (round(min(exp(min(v, 50.0)), most), 3) for v in (low, told.middle, high))
        risk = risk_of.risk(p50_s) if risk_of is not None else None
        return Estimate(
            told.basis, p10_s, p50_s, p90_s, round(risk, 4) if risk is not None else None,
            similar=told.similar[:SIMILAR_SHOWN], similar_elsewhere=told.elsewhere, **self._traits.of(told.basis, told.similar[:SIMILAR_SHOWN]),
        )  # fmt: skip


def _decided(job: Job, known: Told | None) -> bool:
    """Tell whether the job's own past is all that is asked: it ran as it is, or it is known by earlier forms and its source does not tell its kind."""
    return known is not None and (known.basis is EstimateBasis.EXACT_PRIOR or kind_of(job.workload) is None)


def _class(job: Job) -> Key:
    return (job.tenant, job.pool, str(job.gpus))


def _class_of_kind(job: Job) -> Key:
    return (*_class(job), kind_of(job.workload) or "")


def _sort(job: Job) -> Key:
    """Return the jobs that judge who is to speak of this one: those of its kind, where the source tells it, else of its class."""
    kind = kind_of(job.workload)
    return ("kind", job.tenant, kind) if kind is not None else _class(job)


def _risk_keys(job: Job) -> tuple[Key, ...]:
    """Return the groups whose early ends tell of this job, the nearest first; all of its own tenant."""
    keys: list[Key] = [("pool", job.tenant, job.pool)]
    if job.user is not None:
        keys.insert(0, ("user", job.tenant, job.user))
    if job.exact_key is not None:
        keys.insert(0, ("exact", *job.exact_key))
    return tuple(keys)
