"""Builds log-monitor: the only place that makes its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from schedmate.infra.adapters import kafka_access, make_bus, make_llm, make_store
from schedmate.infra.bus.keyed_state import KeyedState, StoreState
from schedmate.infra.bus.port import EventBus
from schedmate.infra.clock import Clock, Random, SystemClock, SystemRandom
from schedmate.infra.group_service import Adapter, GroupService, Stream
from schedmate.infra.llm.queue import ModelQueue, Urgency
from schedmate.infra.runner import GroupRunner
from schedmate.infra.settings import SettingsError
from schedmate.infra.store.port import Store
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.redaction import redact
from schedmate.infra.work_pool import WorkPool
from schedmate.schemas.codec import encode
from schedmate.schemas.events import Event
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Envelope
from schedmate.services.log_monitor.closings import Closings
from schedmate.services.log_monitor.failures.rules import load_rules
from schedmate.services.log_monitor.handlers import JobLocks, StreamHandler
from schedmate.services.log_monitor.node_watch import NodeWatch
from schedmate.services.log_monitor.opinions import Opinions
from schedmate.services.log_monitor.past import PastFailures
from schedmate.services.log_monitor.proposals import Proposals
from schedmate.services.log_monitor.settings import LogMonitorSettings
from schedmate.services.log_monitor.tracker import Tuning

NAME: Final = "log-monitor"
GROUP: Final = "schedmate.log-monitor"
TOPICS: Final = ("schedmate.jobs", "schedmate.analyses", "schedmate.runs", "schedmate.logs")
PUBLISHES: Final = ("schedmate.progress", "schedmate.diagnoses", "schedmate.dead-letters")
TABLE: Final = "tracker"
CHANGELOG: Final = f"{GROUP}-{TABLE}-changelog"
COLLECTION: Final = "trackers"
PROPOSAL_CHECK_TIMEOUT_S: Final = 5.0


def build(
    settings: LogMonitorSettings,
    *,
    bus: EventBus | None = None,
    store: Store | None = None,
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
    pool = work_pool or WorkPool(settings.work_processes)
    queue = llm or ModelQueue(make_llm(settings), clock)
    parts = _Parts(settings, bus, store, clock, pool, queue, asks=settings.llm != "none")
    random = random or SystemRandom()
    stream = parts.faust(random) if _is_faust(settings) else parts.runner(random)

    async def close_own() -> None:
        if work_pool is None:
            await pool.close()
        if llm is None:
            await queue.stop()

    return GroupService(
        NAME,
        group=GROUP,
        topics=(*TOPICS, "schedmate.nodes"),
        publishes=PUBLISHES,
        bus=bus,
        store=store,
        owned=owned,
        stream=stream,
        clock=clock,
        metrics=parts.metrics,
        beside=(parts.watch.run, parts.close_runs, parts.opinions.run, parts.propose),
        on_close=close_own,
    )


def _is_faust(settings: LogMonitorSettings) -> bool:
    on_kafka = settings.bus.startswith("kafka://")
    if settings.stream == "faust" and not on_kafka:
        raise SettingsError("SCHEDMATE_STREAM: faust runs on Kafka only; set SCHEDMATE_BUS=kafka://… or stream=runner")
    return on_kafka and settings.stream != "runner"


class _Parts:
    """The parts of the service and how they hang together."""

    def __init__(
        self,
        settings: LogMonitorSettings,
        bus: EventBus,
        store: Store,
        clock: Clock,
        pool: WorkPool,
        queue: ModelQueue,
        *,
        asks: bool,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._bus = bus
        self._store = store
        self._clock = clock
        self._pool = pool
        self._locks = JobLocks()
        self._tuning = Tuning(
            progress_interval_s=settings.progress_interval_s,
            progress_fraction=settings.progress_fraction,
            tail_wait_s=settings.tail_wait_s,
            two_tenants_within_s=settings.two_tenants_within_s,
            propose=asks,
        )
        self._queue = queue
        self._proposals: Proposals | None = None
        self.opinions = Opinions(
            queue.at(Urgency.FAILED_RUN),
            self._publish,
            clock,
            load_rules(),
            redact,
            timeout_s=settings.opinion_timeout_s,
        )
        self.closings: Closings | None = None
        self.watch = NodeWatch(
            bus,
            clock,
            lambda fault: self._the_closings().node_fault(fault),
            history_records=settings.node_history_records,
            publish=self._publish,
            service=NAME,
        )

    def runner(self, random: Random) -> Stream:
        """Return the stream on any bus, with its state in the store."""
        return GroupRunner(
            self._bus,
            group=GROUP,
            topics=TOPICS,
            handler=self.handler(StoreState(self._store, COLLECTION)),
            service=NAME,
            clock=self._clock,
            random=random,
            concurrency=self.settings.concurrency,
        )

    def faust(self, random: Random) -> Stream:
        """Return the stream as a Faust application, with its state in Faust's table."""
        from schedmate.infra.bus.faust_stream import FaustState, FaustStream  # noqa: PLC0415 - only Kafka needs Faust

        partitions = topology().topics[CHANGELOG].partitions
        state = FaustState(partitions)
        handler = self.handler(state)
        return FaustStream(
            self.settings.bus.removeprefix("kafka://").rstrip("/"),
            self._bus,
            app_id=GROUP,
            table=TABLE,
            topics=TOPICS,
            partitions=partitions,
            handler=handler,
            state=state,
            service=NAME,
            clock=self._clock,
            random=random,
            directory=self.settings.state_dir / "faust",
            on_recovered=self._the_closings().resume,
            security=kafka_access(self.settings).client_arguments(),
            concurrency=self.settings.concurrency,
        )

    def handler(self, state: KeyedState) -> StreamHandler:
        """Return the handler of the stream over this state, and make the closings over it."""
        self.closings = Closings(
            state,
            self._locks,
            self._store,
            self._publish,
            self._tuning,
            self._clock,
            self.metrics,
            track_age_max_s=self.settings.track_age_max_s,
            on_said=self.opinions.guessed,
            past=PastFailures(self._store, load_rules(), redact),
        )
        self._proposals = Proposals(
            self._queue.at(Urgency.BACKGROUND, waits_max_s=self.settings.proposal_timeout_s),
            state,
            self._locks,
            self._pool,
            self._clock,
            redact,
            self.metrics,
            timeout_s=self.settings.proposal_timeout_s,
            check_timeout_s=PROPOSAL_CHECK_TIMEOUT_S,
        )
        return StreamHandler(
            state,
            self._locks,
            self._tuning,
            self._clock,
            self._pool,
            self.metrics,
            inline_bytes_max=self.settings.work_inline_bytes,
            work_timeout_s=self.settings.work_timeout_s,
            on_closing=self.closings.closing,
            on_unread=self._proposals.offer,
        )

    async def propose(self, stop: asyncio.Event) -> None:
        """Ask for patterns, until `stop`."""
        assert self._proposals is not None, "the handler is made first"
        await self._proposals.run(stop)

    async def close_runs(self, stop: asyncio.Event) -> None:
        """Close what is due, until `stop`."""
        await self._the_closings().run(stop)

    def _the_closings(self) -> Closings:
        assert self.closings is not None, "the handler is made first"
        return self.closings

    async def _publish(self, envelopes: Sequence[Envelope[Event]]) -> None:
        await self._bus.publish([encode(envelope) for envelope in envelopes])
