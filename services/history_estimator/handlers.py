"""Event in, estimates out: merge the event into the job's document, and estimate anew where it changes something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schedmate.infra.store.port import Store
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.tracing import span
from schedmate.schemas import ids
from schedmate.schemas.events import (
    EstimateBasis,
    Event,
    JobAnalyzed,
    JobDecision,
    JobSubmitted,
    ProgressObserved,
    RunExited,
    RunStarted,
    RunTimeEstimated,
)
from schedmate.schemas.wire import Envelope
from schedmate.services.history_estimator import record as records
from schedmate.services.history_estimator.estimate import Estimate, from_progress
from schedmate.services.history_estimator.memory import COLLECTION, Memory
from schedmate.services.history_estimator.record import JobRecord, Said
from schedmate.services.history_estimator.settings import HistoryEstimatorSettings

SOURCE: Final = "schedmate/history-estimator"


class Estimator:
    """Handles the events of jobs, analyses, decisions, runs and progress."""

    def __init__(self, store: Store, memory: Memory, settings: HistoryEstimatorSettings, metrics: Metrics) -> None:
        self._store = store
        self._memory = memory
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, envelope: Envelope[Event]) -> Sequence[Envelope[Event]]:
        """Take in one event."""
        event = envelope.event
        if not isinstance(event, JobSubmitted | JobAnalyzed | JobDecision | RunStarted | RunExited | ProgressObserved):
            return ()
        await self._memory.ready()
        before = await self._load(event.job_id)
        job = before.model_copy(deep=True) if before is not None else JobRecord(job_id=event.job_id, pool=event.pool)
        said = await self._take(job, event, envelope.time)
        if job != before:
            await self._store.put(COLLECTION, job.job_id, job.body())
        await self._memory.ended(job)
        if said is None:
            return ()
        return [_envelope(job, said)]

    async def _take(self, job: JobRecord, event: Event, at: float) -> Said | None:
        match event:
            case JobSubmitted():
                if job.submitted_at is None:
                    records.take_submission(job, event.spec, event.submitted_at)
                return await self._estimate(job, "submitted", at)
            case JobAnalyzed():
                records.take_analysis(job, event.content_hash, event.fields)
                return await self._estimate(job, f"analyzed {event.content_hash}", at)
            case RunStarted():
                records.take_start(job, event)
                self._memory.started(job)
            case RunExited():
                records.take_exit(job, event)
            case JobDecision():
                records.take_decision(job, event)
            case ProgressObserved():
                return self._refine(job, event, at)
        return None

    async def _estimate(self, job: JobRecord, cause: str, at: float) -> Said | None:
        """Estimate from history, once a cause; what is said last is said again for its own cause."""
        if job.submitted_at is None:
            return None  # the analysis came before its job; the job's own event will use it
        if cause in job.causes:
            return job.said if job.said is not None and job.said.cause == cause else None
        with span(names.ESTIMATE, job_id=job.job_id):
            await self._memory.submitted(job)
            estimate = await self._memory.estimate(job, at)
            worth = await self._memory.worth_probing(job, estimate, at)
        records.note_cause(job, cause)
        if job.said is not None and (_same(job.said, estimate, worth) or job.said.basis == EstimateBasis.PROGRESS):
            return None
        return self._say(job, estimate, cause, at, worth)

    def _refine(self, job: JobRecord, event: ProgressObserved, at: float) -> Said | None:
        cause = f"progress {event.attempt} {event.member} {event.log_offset}"
        if job.said is not None and job.said.cause == cause:
            return job.said
        elapsed = records.elapsed_s(job, event, at)
        if job.submitted_at is None or job.outcome is not None or event.eta_s is None or elapsed is None:
            return None
        if event.fraction is not None and event.fraction < self._settings.progress_fraction_min:
            return None
        before = _estimate_of(job.said) if job.said is not None else None
        estimate = from_progress(before, elapsed_s=elapsed, eta_s=event.eta_s, fraction=event.fraction)
        if not self._moved_enough(job.said, estimate, at):
            return None
        return self._say(job, estimate, cause, at)

    def _moved_enough(self, said: Said | None, estimate: Estimate, at: float) -> bool:
        if said is None or said.p50_s is None or said.basis != EstimateBasis.PROGRESS:
            return True
        if abs(at - said.at) < self._settings.progress_interval_s or estimate.p50_s is None:
            return False
        return abs(estimate.p50_s - said.p50_s) > self._settings.progress_change * max(said.p50_s, 1.0)

    def _say(self, job: JobRecord, estimate: Estimate, cause: str, at: float, worth: bool | None = None) -> Said:
        event = RunTimeEstimated(
            job_id=job.job_id,
            pool=job.pool,
            revision=(job.said.revision if job.said is not None else 0) + 1,
            p10_s=estimate.p10_s,
            p50_s=estimate.p50_s,
            p90_s=estimate.p90_s,
            early_end_risk=estimate.early_end_risk,
            gpu_utilisation=estimate.gpu_utilisation,
            gpu_memory_bytes=estimate.gpu_memory_bytes,
            sharing_class=estimate.sharing_class,
            basis=estimate.basis,
            similar=estimate.similar,
            similar_elsewhere=estimate.similar_elsewhere,
            worth_probing=worth,
        )
        job.said = Said(
            revision=event.revision,
            cause=cause,
            p50_s=event.p50_s,
            basis=event.basis,
            at=at,
            event=event.model_dump(mode="json"),
        )
        self._metrics.count(names.ESTIMATES, basis=event.basis.value)
        return job.said

    async def _load(self, job_id: str) -> JobRecord | None:
        document = await self._store.get(COLLECTION, job_id)
        return JobRecord.read(document.body) if document is not None else None


def _envelope(job: JobRecord, said: Said) -> Envelope[Event]:
    event = RunTimeEstimated.model_validate(said.event)
    return Envelope(id=ids.derived("estimate", job.job_id, said.revision), source=SOURCE, time=said.at, event=event)


def _estimate_of(said: Said) -> Estimate:
    event = RunTimeEstimated.model_validate(said.event)
    return Estimate(
        event.basis, event.p10_s, event.p50_s, event.p90_s, event.early_end_risk, event.similar, event.similar_elsewhere,
        event.gpu_utilisation, event.gpu_memory_bytes, event.sharing_class,
    )  # fmt: skip


def _same(said: Said, estimate: Estimate, worth: bool | None) -> bool:
    return _estimate_of(said) == estimate and said.event.get("worth_probing") == worth
