"""Builds history-estimator: the only place that makes its clients."""

from __future__ import annotations

from typing import Final

from schedmate.infra.adapters import make_bus, make_embedder, make_store
from schedmate.infra.bus.port import EventBus
from schedmate.infra.clock import Clock, Random, SystemClock, SystemRandom
from schedmate.infra.embeddings.nearest import ExactIndex
from schedmate.infra.embeddings.port import Embedder
from schedmate.infra.group_service import Adapter, GroupService
from schedmate.infra.pacing import Budget
from schedmate.infra.runner import GroupRunner
from schedmate.infra.store.port import Store
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.services.history_estimator.estimator import Rules
from schedmate.services.history_estimator.handlers import Estimator
from schedmate.services.history_estimator.memory import Memory
from schedmate.services.history_estimator.probing import WIDTH_KNOWN, Probes
from schedmate.services.history_estimator.settings import HistoryEstimatorSettings

NAME: Final = "history-estimator"
GROUP: Final = "schedmate.history-estimator"
TOPICS: Final = (
    "schedmate.jobs", "schedmate.analyses", "schedmate.decisions", "schedmate.runs", "schedmate.progress",
)  # fmt: skip
LEADERS_MAX: Final = 512  # of one tenant, among those that match in what must match
PUBLISHES: Final = ("schedmate.estimates", "schedmate.dead-letters")


def build(
    settings: HistoryEstimatorSettings,
    *,
    bus: EventBus | None = None,
    store: Store | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
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
    metrics = Metrics()
    embedder = make_embedder(settings.embeddings, settings.state_dir)
    memory = Memory(
        store, embedder, rules_of(settings), clock, catch_up_s=settings.history_catch_up_s,
        probes=probes_of(settings, embedder), rebuilt_max=settings.history_rebuilt_max,
    )  # fmt: skip
    runner = GroupRunner(
        bus,
        group=GROUP,
        topics=TOPICS,
        handler=Estimator(store, memory, settings, metrics),
        service=NAME,
        clock=clock,
        random=random or SystemRandom(),
        concurrency=settings.concurrency,
    )
    return GroupService(
        NAME, group=GROUP, topics=TOPICS, publishes=PUBLISHES, bus=bus, store=store, owned=owned, stream=runner, clock=clock, metrics=metrics,
        beside=(memory.fit_beside,), on_close=embedder.stop if embedder is not None else None,
    )  # fmt: skip


def probes_of(settings: HistoryEstimatorSettings, embedder: Embedder | None) -> Probes | None:
    """Return what paces probes, None where the settings give it no budget."""
    if not settings.probes_per_hour:
        return None
    budget = Budget(settings.probes_per_hour, reset_s=settings.probes_reset_s, least=WIDTH_KNOWN)
    return Probes(budget, (lambda: ExactIndex(LEADERS_MAX)) if embedder is not None else None)


def rules_of(settings: HistoryEstimatorSettings) -> Rules:
    """Return the estimator's rules as the settings say them."""
    return Rules(
        learned_jobs_min=settings.learned_jobs_min,
        pool_jobs_min=settings.pool_jobs_min,
        user_jobs_min=settings.user_jobs_min,
        across_tenants=settings.learn_across_tenants,
        closed_pools=frozenset(p for name in settings.closed_pools.split(",") if (p := name.strip())),
    )
