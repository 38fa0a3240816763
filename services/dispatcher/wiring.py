"""Builds a dispatcher: adapters that are not handed in are made from the settings, and then ours to start and stop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping

import structlog

from schedmate.infra.adapters import make_bus, make_store
from schedmate.infra.bus.port import BusError, EventBus
from schedmate.infra.clock import Clock, SystemClock
from schedmate.infra.health import bind
from schedmate.infra.store.port import Store, StoreError, StoreUnavailableError
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.schemas.topology import topology
from schedmate.services.dispatcher.answering import AnswerServer
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.figures import Figures
from schedmate.services.dispatcher.leader import LeadershipLostError, PoolLeader
from schedmate.services.dispatcher.leases import Held, PoolLease
from schedmate.services.dispatcher.log import AppendCollisionError
from schedmate.services.dispatcher.settings import DispatcherSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Dispatcher:
    """Leads the pools whose lease it can get, and stands by for the others."""

    name = "dispatcher"

    def __init__(
        self,
        settings: DispatcherSettings,
        bus: EventBus,
        store: Store,
        clock: Clock,
        *,
        owns_bus: bool,
        owns_store: bool,
    ) -> None:
        self.metrics = Metrics()
        self.leaders: dict[str, PoolLeader] = {}
        self._settings = settings
        self._bus = bus
        self._store = store
        self._clock = clock
        self._owns_bus = owns_bus
        self._owns_store = owns_store
        self._instance = settings.instance or f"{socket.gethostname()}-{os.getpid()}"
        self._answers = AnswerServer(self.leaders, clock)
        self._store_answers = False

    async def start(self) -> None:
        """Connect and check that the topics are there."""
        policy_named(self._settings.policy)
        if self._owns_store:
            await self._store.start()
        if self._owns_bus:
            await self._bus.start()
        await self._store.ping()
        await self._bus.check_topics(topology().topics)
        self._store_answers = True
        self._answers.listen(bind(self._settings.api_host, self._settings.api_port))

    async def run(self, stop: asyncio.Event) -> None:
        """Lead and stand by until `stop`."""
        async with self._answers.serving():
            await asyncio.gather(
                *(self._serve_pool(pool, stop) for pool in self._settings.pools), self._watch_store(stop)
            )

    async def close(self) -> None:
        """Let go of the adapters that are ours."""
        self._answers.close()
        if self._owns_bus:
            await self._bus.stop()
        if self._owns_store:
            await self._store.stop()

    def ready(self) -> Mapping[str, bool]:
        """Leading instances are ready once caught up; one that stands by is ready as it is."""
        return {"store": self._store_answers, "caught_up": all(leader.ready for leader in self.leaders.values())}

    async def measure(self) -> None:
        """Bring the gauges up to date."""
        for leader in list(self.leaders.values()):
            leader.measure()
        used: dict[tuple[str, ...], float] = {
            (pool,): share for pool, leader in self.leaders.items() if (share := leader.utilisation) is not None
        }
        self.metrics.replace(names.POOL_UTILISATION, used)

    async def _serve_pool(self, pool: str, stop: asyncio.Event) -> None:
        address = self._settings.api_advertise or self._answers.address
        lease = PoolLease(self._store, pool, self._instance, address, self._settings.lease_s, self._clock)
        figures = Figures(self.metrics, pool)
        while not stop.is_set():
            figures.leading(value=False)
            held = await self._take(lease, pool)
            if held is None:
                await self._pause(stop, min(self._settings.lease_s / 5, 1.0))
                continue
            figures.leading(value=True)
            await self._lead(pool, held, lease, stop)

    async def _take(self, lease: PoolLease, pool: str) -> Held | None:
        try:
            return await lease.try_take()
        except StoreUnavailableError as error:
            log.warning("the store does not answer", action="dispatcher.store-unavailable", pool=pool, error=str(error))
            return None

    async def _lead(self, pool: str, held: Held, lease: PoolLease, stop: asyncio.Event) -> None:
        leader = PoolLeader(
            pool,
            held,
            lease,
            bus=self._bus,
            store=self._store,
            clock=self._clock,
            settings=self._settings,
            instance=self._instance,
            metrics=self.metrics,
        )
        self.leaders[pool] = leader
        log.info("leading", action="dispatcher.leading", pool=pool, term=held.term, instance=self._instance)
        try:
            await leader.run(stop)
        except LeadershipLostError as error:
            log.warning("leads no more", action="dispatcher.deposed", pool=pool, error=str(error))
        except (BusError, StoreError, AppendCollisionError) as error:
            log.warning("leading is tried again", action="dispatcher.lead-retry", pool=pool, error=str(error))
            await self._give_back(lease, leader.held)
            await self._pause(stop, 0.5)
        finally:
            del self.leaders[pool]

    async def _give_back(self, lease: PoolLease, held: Held) -> None:
        try:
            await lease.release(held)
        except StoreError as error:
            log.warning("the lease runs out by itself", action="dispatcher.lease-kept", error=str(error))

    async def _watch_store(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._store.ping()
                self._store_answers = True
            except StoreError:
                self._store_answers = False
            await self._pause(stop, 2.0)

    async def _pause(self, stop: asyncio.Event, seconds: float) -> None:
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({sleeping, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (sleeping, stopped):
            task.cancel()


def build(
    settings: DispatcherSettings,
    *,
    bus: EventBus | None = None,
    store: Store | None = None,
    clock: Clock | None = None,
) -> Dispatcher:
    """Return a dispatcher; see the module."""
    clock = clock or SystemClock()
    return Dispatcher(
        settings,
        bus if bus is not None else make_bus(settings, clock),
        store if store is not None else make_store(settings),
        clock,
        owns_bus=bus is None,
        owns_store=store is None,
    )
