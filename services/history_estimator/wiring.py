"""Builds history-estimator: the only place that makes its clients."""

from __future__ import annotations

from typing import Final

from schedmate.infra.adapters import make_bus, make_store
from schedmate.infra.bus.port import EventBus
from schedmate.infra.clock import Clock, Random, SystemClock, SystemRandom
from schedmate.infra.group_service import Adapter, GroupService
from schedmate.infra.runner import GroupRunner
from schedmate.infra.store.port import Store
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.services.history_estimator.handlers import Estimator
from schedmate.services.history_estimator.settings import HistoryEstimatorSettings

NAME: Final = "history-estimator"
GROUP: Final = "schedmate.history-estimator"
TOPICS: Final = (
    "schedmate.jobs", "schedmate.analyses", "schedmate.decisions", "schedmate.runs", "schedmate.progress",
)  # fmt: skip
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
    runner = GroupRunner(
        bus,
        group=GROUP,
        topics=TOPICS,
        handler=Estimator(store, settings, metrics),
        service=NAME,
        clock=clock,
        random=random or SystemRandom(),
        concurrency=settings.concurrency,
    )
    return GroupService(
        NAME, group=GROUP, topics=TOPICS, publishes=PUBLISHES, bus=bus, store=store, owned=owned, stream=runner, clock=clock, metrics=metrics,
    )  # fmt: skip
