"""Builds ingest: adapters, domain, API, consumers. The only place that makes clients."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import structlog

from schedmate.infra.adapters import make_blobs, make_bus, make_store
from schedmate.infra.blobs.port import Blobs, BlobsUnavailableError
from schedmate.infra.bundles import BundleLimits
from schedmate.infra.bus.port import BusError, EventBus
from schedmate.infra.clock import Clock, Ids, Random, SystemClock, SystemIds, SystemRandom
from schedmate.infra.health import StartError
from schedmate.infra.runner import GroupRunner, Handler, current_delivery
from schedmate.infra.store.port import Store, StoreError
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.schemas.wire import Delivery
from schedmate.services.ingest import bundles as bundle_space
from schedmate.services.ingest import log_extents, tokens
from schedmate.services.ingest.access import DEFAULT_TENANT, Scope, is_loopback
from schedmate.services.ingest.api.app import create_app
from schedmate.services.ingest.api.context import Context
from schedmate.services.ingest.bundles import Bundles
from schedmate.services.ingest.decision_stream import DecisionStream
from schedmate.services.ingest.following import Follower
from schedmate.services.ingest.gate import Gate
from schedmate.services.ingest.handlers import PROJECTED, REQUESTS, SERVICE, ProjectionHandler, RequestsHandler, lane_of
from schedmate.services.ingest.leader import Leaders
from schedmate.services.ingest.limits import RateLimiter
from schedmate.services.ingest.log_store import LogStore
from schedmate.services.ingest.outbox import Outbox
from schedmate.services.ingest.read_model import Coalescer, ReadModel
from schedmate.services.ingest.server import ApiServer
from schedmate.services.ingest.settings import IngestSettings
from schedmate.services.ingest.streams import Streams

VIEW_GROUP: Final = "ingest-view"
REQUESTS_GROUP: Final = "ingest-requests"
_WATCH_EVERY_S: Final = 2.0
_EXPIRE_EVERY_S: Final = 3600.0
_SPACES: Final = (log_extents.SPACE, bundle_space.SPACE, bundle_space.OWNERS)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def build(
    settings: IngestSettings,
    *,
    bus: EventBus | None = None,
    store: Store | None = None,
    blobs: Blobs | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    random: Random | None = None,
) -> Ingest:
    """Return ingest over the settings' adapters; those handed in are used instead, and started and stopped by whoever made them."""
    clock = clock or SystemClock()
    return Ingest(
        settings,
        bus=bus or make_bus(settings, clock),
        store=store or make_store(settings),
        blobs=blobs or make_blobs(settings, clock),
        owns=(bus is None, store is None, blobs is None),
        clock=clock,
        ids=ids or SystemIds(),
        random=random or SystemRandom(),
    )


class Ingest:
    """The component: serves the API, folds the read model, reads requests, sweeps the outbox."""

    def __init__(
        self,
        settings: IngestSettings,
        *,
        bus: EventBus,
        store: Store,
        blobs: Blobs,
        owns: tuple[bool, bool, bool],
        clock: Clock,
        ids: Ids,
        random: Random,
    ) -> None:
        self.name = SERVICE
        self.metrics = Metrics()
        self._settings = settings
        self._clock = clock
        self._random = random
        parts: tuple[EventBus | Store | Blobs, ...] = (bus, store, blobs)
        self._owned = [part for part, own in zip(parts, owns, strict=True) if own]
        self._opened = AsyncExitStack()
        self._open_loopback = is_loopback(settings.api_host) and not settings.api_tokens_required
        self.context = _context(settings, bus, store, blobs, clock, ids, random, self.metrics, self._open_loopback)
        self.app = create_app(self.context, check_host=is_loopback(settings.api_host))
        self._server = ApiServer(
            self.app,
            host=settings.api_host,
            port=settings.api_port,
            connections_max=settings.connections_max,
            drain_timeout_s=settings.drain_timeout_s / 2,
        )
        self.address: tuple[str, int] | None = None
        self._requests = self._runner(
            REQUESTS_GROUP,
            (REQUESTS,),
            RequestsHandler(self.context.outbox, self.context.gate, clock, self.metrics, current_delivery).handle,
            32,
        )
        self._view: GroupRunner | None = None
        self._store_answers = False

    async def start(self) -> None:
        """Connect, check that topics are there and that who must bring a token can, and take the port.

        Raises:
            StartError, MissingTopicError, StoreError, BusError, BlobError
        """
        async with AsyncExitStack() as opening:
            for part in self._owned:
                await part.start()
                opening.push_async_callback(part.stop)
            await self.context.bus.check_topics((*PROJECTED, REQUESTS))
            await self.context.store.ping()
            self._store_answers = True
            await self._check_tokens()
            self.address = self._server.listen()
            opening.callback(self._server.close)
            self._opened = opening.pop_all()
        log.info("the API listens", action="ingest.listening", host=self.address[0], port=self.address[1])

    async def _check_tokens(self) -> None:
        """On the loopback make the first operator's token; elsewhere insist that there is one."""
        path = self._settings.token_file()
        if is_loopback(self._settings.api_host):
            await _keep_token(self.context.store, self._clock, path)
            return
        if not await tokens.list_tokens(self.context.store):
            raise StartError(
                f"SCHEDMATE_API_HOST={self._settings.api_host} is not the loopback and there are no tokens: make one first "
                "(schedmate tokens create), or listen on 127.0.0.1"
            )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain."""
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._server.run(stop, self.context.streams.close), name="api")
            parts.create_task(self._requests.run(stop), name="requests")
            parts.create_task(self._project(stop), name="projection")
            parts.create_task(self._sweep(stop), name="outbox")
            parts.create_task(self._watch(stop), name="store watch")
            parts.create_task(self._expire(stop), name="blob expiry")

    async def close(self) -> None:
        """Let go of everything."""
        await self.context.decisions.close()
        await self.context.leaders.close()
        await self._opened.aclose()

    def ready(self) -> Mapping[str, bool]:
        """Return the checks of readiness."""
        view = self._view is not None and self._view.ready()
        return {
            "serving": self._server.is_serving,
            "joined": self._requests.ready(),
            "caught_up": view,
            "store": self._store_answers,
        }

    async def measure(self) -> None:
        """Bring the gauges up to date."""
        lags: dict[tuple[str, ...], float] = {(REQUESTS, REQUESTS_GROUP): float(await self._requests.lag())}
        if self._view is not None:
            lags["all", VIEW_GROUP] = float(await self._view.lag())
            self.metrics.set(names.RUNNER_IN_FLIGHT, self._view.in_flight, group=VIEW_GROUP)
        self.metrics.replace(names.BUS_LAG, lags)
        self.metrics.set(names.OUTBOX_JOBS, await self.context.outbox.waiting())

    async def rebuild(self) -> int:
        """Drop the read model and fold it anew, here and in every other instance; return its generation."""
        return await self.context.read_model.rebuild()

    def _runner(
        self,
        group: str,
        topics: tuple[str, ...],
        handler: Handler,
        concurrency: int,
        lane_of: Callable[[Delivery], bytes] | None = None,
    ) -> GroupRunner:
        return GroupRunner(
            self.context.bus,
            group=group,
            topics=topics,
            handler=handler,
            service=SERVICE,
            clock=self._clock,
            random=self._random,
            concurrency=concurrency,
            lane_of=lane_of,
        )

    # --- what runs beside the API -------------------------------------------------------------------------------------

    async def _project(self, stop: asyncio.Event) -> None:
        """Run the read model's consumer, of the generation that the store names: a rebuild begins a new one."""
        coalescer = Coalescer(self.context.read_model.apply)
        handler = ProjectionHandler(coalescer, self.context.logs, self.context.streams)
        while not stop.is_set():
            generation = await self._generation(stop)
            ending = asyncio.Event()
            self._view = self._runner(
                f"{VIEW_GROUP}-{generation}", PROJECTED, handler.handle, self._settings.projection_concurrency, lane_of
            )
            async with asyncio.TaskGroup() as both:
                both.create_task(self._view.run(ending), name="read model")
                both.create_task(self._until_other_generation(generation, stop, ending), name="generation")

    async def _until_other_generation(self, generation: int, stop: asyncio.Event, ending: asyncio.Event) -> None:
        while not stop.is_set() and generation == await self._generation(stop, generation):
            await self._pause(stop, _WATCH_EVERY_S)
        ending.set()

    async def _generation(self, stop: asyncio.Event, known: int = 1) -> int:
        while not stop.is_set():
            try:
                return await self.context.read_model.generation()
            except StoreError as error:
                log.warning("waiting for the store", action="ingest.generation", error=str(error))
                await self._pause(stop, _WATCH_EVERY_S)
        return known

    async def _sweep(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._pause(stop, self._settings.sweep_every_s)
            try:
                if count := await self.context.outbox.sweep():
                    log.info("the outbox was swept", action="ingest.swept", jobs=count)
            except (StoreError, BusError) as error:
                log.warning("the outbox could not be swept", action="ingest.sweep", error=str(error))

    async def _watch(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self.context.store.ping()
                self._store_answers = True
            except StoreError:
                self._store_answers = False
            await self._pause(stop, _WATCH_EVERY_S)

    async def _expire(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            before = self._clock.now() - self._settings.blobs_keep_s
            try:
                for space in _SPACES:
                    await self.context.blobs.expire(space, older_than=before)
            except BlobsUnavailableError as error:
                log.warning("old blobs could not be removed", action="ingest.expire", error=str(error))
            await self._pause(stop, _EXPIRE_EVERY_S)

    async def _pause(self, stop: asyncio.Event, seconds: float) -> None:
        """Wait, but not past the stop."""
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({sleeping, stopped}, return_when=asyncio.FIRST_COMPLETED)
        sleeping.cancel()
        stopped.cancel()


def _context(
    settings: IngestSettings,
    bus: EventBus,
    store: Store,
    blobs: Blobs,
    clock: Clock,
    ids: Ids,
    random: Random,
    metrics: Metrics,
    open_loopback: bool,
) -> Context:
    read_model = ReadModel(store, clock, random)
    logs = LogStore(blobs, clock, member_bytes_max=settings.log_bytes_max)
    streams = Streams(settings.streams_max)
    bundles = Bundles(blobs, size_max_bytes=settings.bundle_bytes_max, limits=BundleLimits())
    return Context(
        settings=settings,
        bus=bus,
        store=store,
        blobs=blobs,
        clock=clock,
        ids=ids,
        metrics=metrics,
        gate=Gate(
            store,
            clock,
            RateLimiter(settings.rate_per_s, settings.rate_burst),
            tokens_required=not open_loopback,
            cache_s=settings.token_cache_s,
        ),
        outbox=Outbox(
            bus=bus,
            store=store,
            bundles=bundles,
            read_model=read_model,
            clock=clock,
            pool_default=settings.default_pool,
            publish_timeout_s=settings.publish_timeout_s,
            sweep_after_s=settings.sweep_after_s,
        ),
        read_model=read_model,
        bundles=bundles,
        logs=logs,
        streams=streams,
        follower=Follower(
            read_model, logs, streams, clock, poll_s=settings.stream_poll_s, keep_alive_s=settings.stream_keep_alive_s
        ),
        decisions=DecisionStream(bus, clock),
        leaders=Leaders(store, timeout_s=settings.why_timeout_s),
    )


async def _keep_token(store: Store, clock: Clock, path: Path) -> None:
    """See that the token file holds an operator's token that the store knows; make both where there are none."""
    written = await asyncio.to_thread(_read_private, path)
    if written is not None:
        if await tokens.find_token(store, written) is None:  # another store than the one that it was made for
            await tokens.keep_token(store, clock, written, DEFAULT_TENANT, "local-operator", frozenset(Scope))
        return
    made = await tokens.create_token(
        store, clock, tenant=DEFAULT_TENANT, subject="local-operator", scopes=frozenset(Scope)
    )
    await asyncio.to_thread(_write_private, path, made.text + "\n")
    log.info("an operator's token was made", action="ingest.token_file", path=str(path), token=made.token.id)


def _read_private(path: Path) -> str | None:
    """Return the token of a token file; None when there is no file."""
    try:
        text = path.read_text("ascii").strip()
    except FileNotFoundError:
        return None
    if not tokens.looks_like_a_token(text) or path.stat().st_mode & 0o077:
        raise StartError(f"{path} is no token file that only its owner can read; remove it, and a new one is made")
    return text


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return  # another instance on this machine was faster
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
