"""Builds code-analyzer: the only place that makes its clients."""

from __future__ import annotations

from typing import Final

import httpx

from schedmate.infra.adapters import make_blobs, make_bus, make_store
from schedmate.infra.blobs.port import Blobs
from schedmate.infra.bus.port import EventBus
from schedmate.infra.clock import Clock, Random, SystemClock, SystemRandom
from schedmate.infra.group_service import Adapter, GroupService
from schedmate.infra.runner import GroupRunner
from schedmate.infra.store.port import Store
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.work_pool import WorkPool
from schedmate.services.code_analyzer.bundles import BundlesFromBlobs, BundlesFromIngest, BundleSource
from schedmate.services.code_analyzer.handlers import Analyzer
from schedmate.services.code_analyzer.settings import CodeAnalyzerSettings

NAME: Final = "code-analyzer"
GROUP: Final = "schedmate.code-analyzer"
TOPICS: Final = ("schedmate.jobs",)
PUBLISHES: Final = ("schedmate.analyses", "schedmate.dead-letters")
CONNECT_TIMEOUT_S: Final = 5.0


def build(
    settings: CodeAnalyzerSettings,
    *,
    bus: EventBus | None = None,
    store: Store | None = None,
    blobs: Blobs | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
    work_pool: WorkPool | None = None,
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
    http: httpx.AsyncClient | None = None
    if settings.bundles_from == "ingest":
        http = _client(settings)
        source: BundleSource = BundlesFromIngest(http)
    else:
        if blobs is None:
            blobs = make_blobs(settings, clock)
            owned.append(blobs)
        source = BundlesFromBlobs(blobs)
    pool = work_pool or WorkPool(settings.work_processes, memory_bytes_max=settings.work_memory_bytes_max)

    async def close() -> None:
        if work_pool is None:
            await pool.close()
        if http is not None:
            await http.aclose()

    metrics = Metrics()
    runner = GroupRunner(
        bus,
        group=GROUP,
        topics=TOPICS,
        handler=Analyzer(store, source, pool, settings, clock, metrics),
        service=NAME,
        clock=clock,
        random=random or SystemRandom(),
        concurrency=settings.concurrency,
        handler_timeout_s=settings.fetch_timeout_s + 4 * settings.analysis_timeout_s + 60,
    )
    return GroupService(
        NAME, group=GROUP, topics=TOPICS, publishes=PUBLISHES, bus=bus, store=store, owned=owned, stream=runner, clock=clock,
        metrics=metrics, on_close=close,
    )  # fmt: skip


def _client(settings: CodeAnalyzerSettings) -> httpx.AsyncClient:
    headers = {}
    if settings.api_token is not None:
        headers["Authorization"] = f"Bearer {settings.api_token.get_secret_value()}"
    return httpx.AsyncClient(
        base_url=settings.api,
        headers=headers,
        timeout=httpx.Timeout(settings.fetch_timeout_s, connect=CONNECT_TIMEOUT_S),
    )
