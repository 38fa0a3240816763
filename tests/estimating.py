"""The estimator under test: its domain with the past of a test's making, and its service, called one event after the other."""

from __future__ import annotations

from typing import Any, Final

from schedmate.infra.clock import Clock, SystemClock
from schedmate.infra.embeddings.hashed import HashedEmbedder
from schedmate.infra.embeddings.port import Embedder
from schedmate.infra.store.port import Store
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.schemas.events import (
    Event,
    JobAnalyzed,
    JobCancelled,
    JobFailed,
    JobSucceeded,
    ProgressObserved,
    RunTimeEstimated,
)
from schedmate.services.history_estimator import jobs
from schedmate.services.history_estimator.estimator import Estimator, Rules
from schedmate.services.history_estimator.handlers import Estimator as Handler
from schedmate.services.history_estimator.memory import Memory
from schedmate.services.history_estimator.settings import HistoryEstimatorSettings
from schedmate.services.history_estimator.wiring import probes_of, rules_of
from tests.advice import START, Job, envelope

HASH = "a" * 64
HASHED: Final = HashedEmbedder()


class Exact:
    """The simplest index: all inner products."""

    places_max = 1_000_000

    def __init__(self):
        self.vectors = []

    def add(self, place, vector):
        assert place == len(self.vectors)
        self.vectors.append(vector)

    def nearest(self, vector, count):
        told = [(n, sum(a * b for a, b in zip(v, vector, strict=True))) for n, v in enumerate(self.vectors)]
        return sorted(told, key=lambda t: -t[1])[:count]


def ran(estimator: Estimator, job: jobs.Job, run_s: float, outcome="succeeded", **more) -> None:
    """Let a job start when it is submitted, and end."""
    estimator.submitted(job)
    estimator.started(job.id, job.submitted_at)
    estimator.finished(jobs.Ended(job, run_s, job.submitted_at + run_s, outcome, **more))


def decided(job: Job, kind=JobSucceeded, at: float = START + 100):
    states = {
        JobSucceeded: ("SUCCEEDED", "ALL_MEMBERS_EXITED_ZERO"),
        JobFailed: ("FAILED", "RETRY_BUDGET_SPENT"),
        JobCancelled: ("CANCELLED", "CANCELLED_BY_REQUEST"),
    }
    state, reason = states[kind]
    return kind(
        pool="default", seq=1, index=0, decided_at=at, job_id=job.id, attempt=job.attempt, state=state, reason=reason
    )


def analyzed(job: Job, content_hash: str = HASH):
    return JobAnalyzed(job_id=job.id, pool="default", content_hash=content_hash, fields={})


def progress(job: Job, *, eta_s: float, fraction: float, offset: int = 10):
    return ProgressObserved(
        job_id=job.id,
        pool="default",
        run_id=job.run_id,
        attempt=job.attempt,
        member=0,
        log_offset=offset,
        fraction=fraction,
        eta_s=eta_s,
    )


def life(job: Job, duration_s: float, kind=JobSucceeded, content_hash: str | None = None):
    """All events of a job that runs at once, with its analysis where a content is named."""
    end = START + duration_s
    told = [
        job.submitted(),
        job.started(),
        job.exited(0 if kind is JobSucceeded else 1, at=end),
        decided(job, kind, end + 1),
    ]
    return told if content_hash is None else [told[0], analyzed(job, content_hash), *told[1:]]


class Service:
    """The handler over a store. `given` are settings; `rules` in place of those that they give."""

    def __init__(
        self,
        store: Store,
        embedder: Embedder | None = HASHED,
        clock: Clock | None = None,
        rules: Rules | None = None,
        **given: Any,
    ) -> None:
        settings = HistoryEstimatorSettings(**given)
        probes = probes_of(settings, embedder)
        self.memory = Memory(store, embedder, rules or rules_of(settings), clock or SystemClock(), probes=probes)
        self.handler = Handler(store, self.memory, settings, Metrics())

    async def tell(self, *events: Event, at: float = START) -> list[RunTimeEstimated]:
        said: list[Any] = []
        for event in events:
            said += await self.handler(envelope(event, at))
        return [e.event for e in said]
