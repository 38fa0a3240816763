"""Builds code-analyzer: the only place that makes its clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httpx

from schedmate.infra.adapters import make_blobs, make_bus, make_llm, make_store
from schedmate.infra.blobs.port import Blobs
from schedmate.infra.bus.port import EventBus
from schedmate.infra.clock import Clock, Random, SystemClock, SystemRandom
from schedmate.infra.group_service import Adapter, GroupService
from schedmate.infra.llm.queue import ModelQueue, Urgency
from schedmate.infra.pacing import Budget, Pacing
from schedmate.infra.runner import GroupRunner
from schedmate.infra.store.port import Store
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.work_pool import WorkPool
from schedmate.schemas.codec import encode
from schedmate.schemas.events import Event, WorkloadField
from schedmate.schemas.wire import Envelope
from schedmate.services.code_analyzer.agent import Agent, Bounds
from schedmate.services.code_analyzer.bundles import BundlesFromBlobs, BundlesFromIngest, BundleSource
from schedmate.services.code_analyzer.handlers import Analyzer
from schedmate.services.code_analyzer.settings import CodeAnalyzerSettings
from schedmate.services.code_analyzer.suggesting import Pending, Suggester

NAME: Final = "code-analyzer"
GROUP: Final = "schedmate.code-analyzer"
TOPICS: Final = ("schedmate.jobs",)
PUBLISHES: Final = ("schedmate.analyses", "schedmate.dead-letters")
CONNECT_TIMEOUT_S: Final = 5.0
UNLIMITED: Final = 1_000_000  # questions an hour: more than any model has time for


def build(
    settings: CodeAnalyzerSettings,
    *,
    bus: EventBus | None = None,
    store: Store | None = None,
    blobs: Blobs | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
    work_pool: WorkPool | None = None,
    llm: ModelQueue | None = None,
) -> GroupService:
    """Return the component. Adapters that are not handed in are made, started and stopped by it."""
    clock = clock or SystemClock()
    owned: list[Adapter] = []
    if bus is None:
        bus = make_bus(settings, clock)
        owned.append(bus)
    if store is None:
        store = make_store(settings)
        owned.append(store)
    http = _client(settings) if settings.bundles_from == "ingest" else None
    if http is None and blobs is None:
        blobs = make_blobs(settings, clock)
        owned.append(blobs)
    pool = work_pool or WorkPool(settings.work_processes, memory_bytes_max=settings.work_memory_bytes_max)

    async def close() -> None:
        if work_pool is None:
            await pool.close()
        if llm is None:
            await queue.stop()
        if http is not None:
            await http.aclose()

    metrics = Metrics()
    queue = llm or ModelQueue(make_llm(settings), clock)

    async def publish(envelope: Envelope[Event]) -> None:
        await bus.publish([encode(envelope)])

    async def keep(pending: Pending, fields: Mapping[str, WorkloadField]) -> None:
        await analyzer.keep(pending, fields)

    pacing = Pacing(Budget(settings.model_jobs_per_hour or UNLIMITED, reset_s=settings.model_reset_s))
    suggester = Suggester(_agent(settings, queue, clock), keep, publish, metrics, pacing, clock)
    analyzer = Analyzer(store, _source(http, blobs), pool, settings, clock, metrics, suggester)
    runner = GroupRunner(
        bus,
        group=GROUP,
        topics=TOPICS,
        handler=analyzer,
        service=NAME,
        clock=clock,
        random=random or SystemRandom(),
        concurrency=settings.concurrency,
        handler_timeout_s=settings.fetch_timeout_s + 4 * settings.analysis_timeout_s + 60,
    )
    return GroupService(
        NAME, group=GROUP, topics=TOPICS, publishes=PUBLISHES, bus=bus, store=store, owned=owned, stream=runner, clock=clock,
        metrics=metrics, beside=(suggester.run,), on_close=close,
    )  # fmt: skip


def _agent(settings: CodeAnalyzerSettings, queue: ModelQueue, clock: Clock) -> Agent:
    bounds = Bounds(
        settings.model_votes,
        settings.model_steps_max,
        settings.model_tokens_max,
        seconds_max=settings.model_seconds_max,
    )
    return Agent(queue.at(Urgency.WAITING_JOB, waits_max_s=settings.model_seconds_max), clock, bounds)


def _source(http: httpx.AsyncClient | None, blobs: Blobs | None) -> BundleSource:
    if http is not None:
        return BundlesFromIngest(http)
    assert blobs is not None, "one of the two is there"
    return BundlesFromBlobs(blobs)


def _client(settings: CodeAnalyzerSettings) -> httpx.AsyncClient:
    headers = {}
    if settings.api_token is not None:
        headers["Authorization"] = f"Bearer {settings.api_token.get_secret_value()}"
    return httpx.AsyncClient(
        base_url=settings.api,
        headers=headers,
        timeout=httpx.Timeout(settings.fetch_timeout_s, connect=CONNECT_TIMEOUT_S),
    )
