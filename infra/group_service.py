"""A service whose work is one group's stream: owns its adapters, runs the stream and what goes on beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from schedmate.infra.bus.port import EventBus
from schedmate.infra.clock import Clock
from schedmate.infra.store.port import Store, StoreError
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics

PING_EVERY_S: Final = 2.0
BESIDE_TIMEOUT_S: Final = 5.0

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Beside = Callable[[asyncio.Event], Awaitable[None]]


class Adapter(Protocol):
    """What is started before the stream and stopped after it."""

    async def start(self) -> None:
        """Connect."""
        ...

    async def stop(self) -> None:
        """Disconnect."""
        ...


class Stream(Protocol):
    """The consumption of a group: `GroupRunner`, or the Faust stream."""

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set; then drain, commit and leave."""
        ...

    def ready(self) -> bool:
        """Tell whether it has joined and caught up."""
        ...

    async def lag(self) -> int:
        """Return how many records are not handled yet."""
        ...


class GroupService:
    """The component around a stream. Adapters that were handed in from outside are not in `owned`."""

    def __init__(
        self,
        name: str,
        *,
        group: str,
        topics: Sequence[str],
        publishes: Sequence[str],
        bus: EventBus,
        store: Store,
        owned: Sequence[Adapter],
        stream: Stream,
        clock: Clock,
        metrics: Metrics,
        beside: Sequence[Beside] = (),
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.metrics = metrics
        self._group = group
        self._topics = tuple(topics)
        self._publishes = tuple(publishes)
        self._bus = bus
        self._store = store
        self._owned = tuple(owned)
        self._stream = stream
        self._clock = clock
        self._beside = tuple(beside)
        self._on_close = on_close
        self._started: list[Adapter] = []
        self._store_answers = False

    async def start(self) -> None:
        """Connect, and check that every topic exists. Leaves nothing open when it fails."""
        try:
            for adapter in self._owned:
                self._started.append(adapter)
                await adapter.start()
            await self._bus.check_topics([*self._topics, *self._publishes])
            await self._store.ping()
            self._store_answers = True
        except BaseException:
            await self._stop_adapters()
            raise

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop`. What runs beside ends with it; whichever fails ends all of it."""
        ending = asyncio.Event()
        stream = asyncio.create_task(self._stream.run(ending), name=f"{self.name} stream")
        beside = [asyncio.create_task(self._run_beside(b, ending)) for b in (self._watch_store, *self._beside)]
        asked: asyncio.Task[object] = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({stream, asked, *beside}, return_when=asyncio.FIRST_COMPLETED)
            ending.set()
            await stream
            _, late = await asyncio.wait(beside, timeout=BESIDE_TIMEOUT_S)
            for task in late:
                task.cancel()
            for task in beside:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    await task
        finally:
            for left in (stream, asked, *beside):
                left.cancel()
            await asyncio.gather(stream, asked, *beside, return_exceptions=True)

    async def close(self) -> None:
        """Let go of everything."""
        if self._on_close is not None:
            await self._on_close()
        await self._stop_adapters()

    def ready(self) -> Mapping[str, bool]:
        """Return the checks of readiness."""
        joined = self._stream.ready()
        return {"joined": joined, "caught_up": joined, "store": self._store_answers}

    async def measure(self) -> None:
        """Bring the lag up to date."""
        self.metrics.set(names.BUS_LAG, await self._stream.lag(), topic="all", group=self._group)

    async def _run_beside(self, work: Beside, ending: asyncio.Event) -> None:
        try:
            await work(ending)
        except Exception:
            ending.set()
            raise

    async def _watch_store(self, ending: asyncio.Event) -> None:
        while not ending.is_set():
            try:
                await self._store.ping()
                self._store_answers = True
            except StoreError as error:
                if self._store_answers:
                    log.warning("the store does not answer", action="service.store_away", error=str(error))
                self._store_answers = False
            pause = asyncio.ensure_future(self._clock.sleep(PING_EVERY_S))
            ended = asyncio.ensure_future(ending.wait())
            try:
                await asyncio.wait({pause, ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
                ended.cancel()

    async def _stop_adapters(self) -> None:
        while self._started:
            await self._started.pop().stop()
