"""The estimator over the store: rebuilt from the history when the service starts, kept up with what others write, fitted beside the work."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import structlog

from schedmate.infra.clock import Clock
from schedmate.infra.embeddings.approximate import new_index
from schedmate.infra.embeddings.port import Embedder
from schedmate.infra.store.port import Store, StoreError
from schedmate.services.history_estimator.describing import described
from schedmate.services.history_estimator.estimate import Estimate
from schedmate.services.history_estimator.estimator import Estimator, Rules
from schedmate.services.history_estimator.jobs import Job
from schedmate.services.history_estimator.probing import WIDTH_KNOWN, Probes, width
from schedmate.services.history_estimator.record import JobRecord, Probe, moment_key
from schedmate.services.history_estimator.vectors import Vectors

COLLECTION: Final = "history"
REBUILT_MAX: Final = 20_000
OPEN_MAX: Final = 20_000
PAGE: Final = 1_000
OVERLAP_S: Final = 600.0
TOLD_MAX: Final = 200_000
FIT_EVERY_S: Final = 1.0
REBUILT_WITHIN_S: Final = 20.0  # that the vectors of the past may take at a start: a job's event waits for it, once
_LAST: Final = "\x7f"
_ENDED, _SUBMITTED, _STARTED = 0, 1, 2  # in this order at one instant

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Memory:
    """What an instance of the service knows of the past. `catch_up_s`: how old what others have written may be."""

    def __init__(
        self, store: Store, embedder: Embedder | None, rules: Rules, clock: Clock, *, catch_up_s: float = 5.0,
        probes: Probes | None = None, rebuilt_max: int = REBUILT_MAX,
    ) -> None:  # fmt: skip
        self._store, self._clock = store, clock
        self._vectors = Vectors(embedder, clock)
        self._estimator = Estimator(rules, new_index if embedder is not None else None)
        self._catch_up_s = catch_up_s
        self._probes, self._rebuilt_max = probes, rebuilt_max
        self._caught_up_at: float | None = None
        self._newest = ""
        self._told: OrderedDict[str, None] = OrderedDict()
        self._lock = asyncio.Lock()

    async def ready(self) -> None:
        """Rebuild at first, then take in what others have written since, where that is due. The store may be away: it is tried again."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._caught_up_at is not None and now - self._caught_up_at < self._catch_up_s:
                return
            if self._caught_up_at is None:
                await self._rebuild()
            else:
                await self._catch_up()
            self._caught_up_at = now

    async def submitted(self, record: JobRecord) -> None:
        """A job has been submitted, or analysed."""
        if (job := record.job(await self._vector(record))) is not None and record.outcome is None:
            self._estimator.analyzed(job)

    def started(self, record: JobRecord) -> None:
        """A job runs."""
        if record.started_at is not None and record.outcome is None:
            self._estimator.started(record.job_id, record.started_at)

    async def ended(self, record: JobRecord) -> None:
        """A job has ended; told again, it changes nothing."""
        if not record.complete or record.job_id in self._told:
            return
        self._mark(record.job_id)
        self._tell_end(record, record.job(await self._vector(record)))

    async def estimate(self, record: JobRecord, at: float) -> Estimate:
        """Return the estimate of a job at an instant."""
        job = record.job(await self._vector(record))
        if job is None:
            raise ValueError("a job that has not been submitted has no estimate")
        return self._estimator.estimate(job, at)

    async def worth_probing(self, record: JobRecord, estimate: Estimate, at: float) -> bool | None:
        """Tell whether measuring a job would sharpen the estimates of its kind; None: nothing is said (yet).

        Whose interval is narrow and whose use of a GPU is known needs no measuring, and that is told at once; where only the time is known, nothing
        is said: a profiler would still see the use. Else it is decided once, when the job's source has been read and before it runs.
        """
        if self._probes is None:
            return None
        if record.probe is not None:
            return record.probe.worth
        if width(estimate) <= WIDTH_KNOWN:
            return False if estimate.sharing_class is not None else None
        job = record.job(await self._vector(record))
        if job is None or record.content_hash is None or record.attempts or record.outcome is not None:
            return None
        cluster, worth = self._probes.ask(job, estimate, at)
        record.probe = Probe(cluster=cluster, worth=worth, at=at)
        return worth

    async def fit_beside(self, ending: asyncio.Event) -> None:
        """Fit what is due until the end, each fit in a thread: estimates go on with the model before."""
        while not ending.is_set():
            await self.fit_due()
            pause = asyncio.ensure_future(self._clock.sleep(FIT_EVERY_S))
            ended = asyncio.ensure_future(ending.wait())
            try:
                await asyncio.wait({pause, ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
                ended.cancel()

    async def fit_due(self) -> None:
        """Fit what is due now."""
        while (name := self._estimator.due()) is not None:
            sample = self._estimator.sample(name, self._clock.now())
            try:
                model = await asyncio.to_thread(self._estimator.fit, name, sample)
            except (ValueError, ArithmeticError, MemoryError, ImportError) as error:
                log.warning("a model could not be fitted", action="history.fit_failed", error=repr(error))
                model = None  # estimates rest on the next best thing until the next fit
            self._estimator.install(name, model, len(sample.rows))

    async def _rebuild(self) -> None:
        """Tell the estimator the newest of the history and what is under way, in the order in which it happened."""
        ended = await self._page("ended_key", self._rebuilt_max)
        under_way = await self._page("open_key", OPEN_MAX)
        jobs = await self._jobs([*under_way, *ended], within_s=REBUILT_WITHIN_S)
        await asyncio.to_thread(self._replay, jobs)
        self._newest = max((moment_key(r.outcome_at or 0.0, r.job_id) for r in ended), default="")
        if self._probes is not None:
            spent = [r.probe for r in (*under_way, *ended) if r.probe is not None and r.probe.worth]
            for probe in sorted(spent, key=lambda p: p.at):
                self._probes.restore(probe.cluster, probe.at)
        log.info("the history was read", action="history.rebuilt", ended=len(ended), under_way=len(under_way))

    def _replay(self, jobs: Sequence[tuple[JobRecord, Job]]) -> None:
        """Live through the history as it went: estimates are made again, so that they are judged and the models fitted as they were."""
        moments: list[tuple[float, int, JobRecord, Job]] = []
        for record, job in jobs:
            moments.append((job.submitted_at, _SUBMITTED, record, job))
            if record.started_at is not None:
                moments.append((record.started_at, _STARTED, record, job))
            if record.complete and record.outcome_at is not None:
                moments.append((record.outcome_at, _ENDED, record, job))
        moments.sort(key=lambda m: (m[0], m[1], m[3].id))
        for at, kind, record, job in moments:
            if kind == _ENDED:
                self._mark(job.id)
                self._tell_end(record, job)
            elif job.id in self._told:
                continue  # its clock went back: it ended before it was submitted
            elif kind == _SUBMITTED:
                self._estimator.refit(at)
                self._estimator.submitted(job)
                self._estimator.estimate(job, at)
            else:
                self._estimator.started(job.id, at)

    async def _catch_up(self) -> None:
        low = moment_key(max(float(self._newest.partition("/")[0] or 0.0) - OVERLAP_S, 0.0))
        try:
            documents = await self._store.find(COLLECTION, "ended_key", low=low, high=_LAST, limit=PAGE)
        except StoreError as error:
            log.warning("the history could not be read", action="history.away", error=str(error))
            return
        records = [r for d in documents if (r := JobRecord.read(d.body)).job_id not in self._told]
        for record, job in await self._jobs(records):
            self._mark(record.job_id)
            self._tell_end(record, job)
        if documents:
            self._newest = max(self._newest, str(documents[-1].body["ended_key"]))

    def _tell_end(self, record: JobRecord, job: Job | None) -> None:
        if self._probes is not None and record.probe is not None and record.probe.worth:
            self._probes.ended(record.probe.cluster)
        ended = record.ended(job) if job is not None else None
        if job is not None and ended is not None:
            self._estimator.submitted(job)  # of a job that another instance had, only its end is known
            self._estimator.finished(ended)

    async def _page(self, field: str, most: int) -> list[JobRecord]:
        """Return the newest records by a key."""
        out: list[JobRecord] = []
        high = _LAST
        while len(out) < most:
            documents = await self._store.find(COLLECTION, field, low="", high=high, limit=PAGE, reverse=True)
            out += [JobRecord.read(d.body) for d in documents]
            if len(documents) < PAGE:
                break
            high = str(documents[-1].body[field])
        return out

    async def _jobs(self, records: Sequence[JobRecord], within_s: float | None = None) -> list[tuple[JobRecord, Job]]:
        vectors = await self._vectors.of([described(r.workload) for r in records], within_s=within_s)
        told = ((record, record.job(vector)) for record, vector in zip(records, vectors, strict=True))
        return [(record, job) for record, job in told if job is not None]

    async def _vector(self, record: JobRecord) -> Sequence[float] | None:
        return (await self._vectors.of([described(record.workload)]))[0]

    def _mark(self, job_id: str) -> None:
        self._told[job_id] = None
        while len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)
