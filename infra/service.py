"""The host of every service: start with patience, serve health and metrics, drain on SIGTERM, end with an honest exit code.

A process hosts one component (`python -m schedmate.services.X`) or several (the single process). The components start
side by side; when one ends or fails, the others are stopped and the process ends with 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from schedmate.infra.blobs.port import BlobsUnavailableError
from schedmate.infra.bus.port import BusUnavailableError
from schedmate.infra.clock import Clock, Random, SystemClock, SystemRandom
from schedmate.infra.component import Component, Host, Hosted, Measured, words_of
from schedmate.infra.health import HealthServer, StartError, bind
from schedmate.infra.settings import ServiceSettings, SettingsError, from_command_line, masked
from schedmate.infra.store.port import StoreUnavailableError
from schedmate.infra.telemetry.logs import setup_logging
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.redaction import redact
from schedmate.infra.telemetry.tracing import Tracing, tracing_from_environment

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["EXIT_FAILED", "EXIT_OK", "EXIT_USAGE", "TRANSIENT", "Component", "StartError", "run_service", "serve"]

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

TRANSIENT: Final = (BusUnavailableError, StoreUnavailableError, BlobsUnavailableError)
"""Start errors that time may heal: the bus or a store is not there yet."""

RETRY_FIRST_S: Final = 0.2
RETRY_MAX_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 5.0
CANCEL_TIMEOUT_S: Final = 2.0
AT_ONCE_TIMEOUT_S: Final = 1.0
SAME_SIGNAL_S: Final = 0.25
"""Signals closer than this are one: `timeout` and some shells send theirs to the process and to its group."""
FLUSH_TIMEOUT_S: Final = 4.0

S = TypeVar("S", bound=ServiceSettings)

_log = structlog.get_logger()


async def serve(
    components: Sequence[Component],
    settings: ServiceSettings,
    *,
    health_port: int | None = None,
    stop: asyncio.Event | None = None,
    handle_signals: bool = True,
    clock: Clock | None = None,
    random: Random | None = None,
    span_exporter: SpanExporter | None = None,
    on_listening: Callable[[str, int], None] | None = None,
) -> int:
    """Run components until SIGTERM, SIGINT or `stop`, and return the process's exit code.

    0: stopped as asked and drained. 1: a component failed to start, failed, ended unasked, or did not drain in time.
    128 + signal: a second signal ended it at once. `on_listening` is told the health server's address. `span_exporter` takes
    the place of the one that OTEL_* names.
    """
    assert components, "nothing to serve"
    run = _Run(settings, clock or SystemClock(), random or SystemRandom(), stop or asyncio.Event())
    host = Host(_hosted(components, span_exporter))
    try:
        listening = bind(settings.health_host, settings.health_port if health_port is None else health_port)
    except StartError as error:
        _complain(str(error))
        return EXIT_FAILED
    if handle_signals:
        run.take_signals()
    try:
        async with HealthServer(host, listening) as (address, port):
            _log.info(
                "started", action="host.started", address=address, port=port, components=[c.name for c in components]
            )
            if on_listening is not None:
                on_listening(address, port)
            return await run.all(host)
    finally:
        run.release_signals()
        await _flush(host)


def run_service(
    settings_class: type[S],
    build: Callable[[S], Component | Awaitable[Component]],
    argv: Sequence[str] | None = None,
) -> int:
    """Load settings, build, serve: the whole of a service's `__main__`. Returns the exit code."""
    try:
        settings = from_command_line(settings_class, argv)
    except SettingsError as error:
        _complain(str(error))
        return EXIT_USAGE
    setup_logging(settings.log_level, settings.log_format)
    return asyncio.run(_build_and_serve(settings, build))


async def _build_and_serve(settings: S, build: Callable[[S], Component | Awaitable[Component]]) -> int:
    Tracing(settings.service_name()).activate()  # so that the host's own lines name the service of the process
    _log.info("settings", action="host.settings", **masked(settings))
    try:
        built = build(settings)
        component = await built if isinstance(built, Awaitable) else built
    except (SettingsError, StartError) as error:
        _complain(str(error))
        return EXIT_USAGE
    return await serve([component], settings)


def _hosted(components: Sequence[Component], exporter: SpanExporter | None) -> list[Hosted]:
    """Return the components in the host. Where several have one name (workers of one process) they are numbered from 1."""
    named: dict[str, list[Component]] = {}
    for component in components:
        named.setdefault(component.name, []).append(component)
    hosted = []
    for component in components:
        alike = named[component.name]
        replica = str(alike.index(component) + 1) if len(alike) > 1 else ""
        metrics = component.metrics if isinstance(component, Measured) else Metrics()
        hosted.append(Hosted(component, _tracing(component.name, exporter), metrics, replica))
    return hosted


def _tracing(service: str, exporter: SpanExporter | None) -> Tracing:
    return tracing_from_environment(service) if exporter is None else Tracing(service, exporter=exporter, batched=False)


def _complain(message: str) -> None:
    """Say in one line on standard error why the process does not start."""
    sys.stderr.write(f"schedmate: {redact(' '.join(message.split()))}\n")
    sys.stderr.flush()


async def _flush(host: Host) -> None:
    """Send the last spans, bounded: telemetry never holds up an end.

    On threads of its own that die with the process: the loop's own pool is waited for at the end, whatever hangs in it.
    """
    loop = asyncio.get_running_loop()
    flushed = [loop.create_future() for _ in host.hosted]
    for one, done in zip(host.hosted, flushed, strict=True):
        threading.Thread(target=_shut_down, args=(one.tracing, loop, done), name="last spans", daemon=True).start()
    _, late = await asyncio.wait(flushed, timeout=FLUSH_TIMEOUT_S)
    if late:
        _log.warning("spans were left unsent", action="host.spans-unsent", services=len(late))


def _shut_down(tracing: Tracing, loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> None:
    try:
        tracing.shutdown()
    finally:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, done)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


class _Run:
    """One run of the host: signals, the components' lives, and the exit code."""

    def __init__(self, settings: ServiceSettings, clock: Clock, random: Random, stop: asyncio.Event) -> None:
        self.settings = settings
        self.clock = clock
        self.random = random
        self.stop = stop
        self.at_once = asyncio.Event()
        self.signal_number = 0
        self._signalled_at = 0.0
        self._taken: list[signal.Signals] = []

    def take_signals(self) -> None:
        """SIGTERM and SIGINT ask to stop; a second one ends at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
            self._taken.append(number)

    def release_signals(self) -> None:
        """Give the signals back."""
        loop = asyncio.get_running_loop()
        for number in self._taken:
            loop.remove_signal_handler(number)
        self._taken.clear()

    def _signalled(self, number: signal.Signals) -> None:
        now = self.clock.monotonic()
        if self.signal_number and now - self._signalled_at < SAME_SIGNAL_S:
            return
        if self.signal_number:
            _log.warning("stopping at once", action="host.at-once", signal=number.name)
            self.at_once.set()
        else:
            _log.info("stopping", action="host.stopping", signal=number.name)
            self.stop.set()
        self.signal_number = int(number)
        self._signalled_at = now

    async def all(self, host: Host) -> int:
        """Live through all components; return the exit code."""
        lives = {asyncio.create_task(self._live(one), name=one.label): one for one in host.hosted}
        stopped = asyncio.create_task(self.stop.wait(), name="stop")
        await asyncio.wait({*lives, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        unasked = set() if self.stop.is_set() else {task for task in lives if task.done()}
        host.stopping = True
        self.stop.set()
        drained = await self._drain(set(lives))
        for task, one in lives.items():
            self._note_end(task, one, unasked=task in unasked)
        await self._close(host)
        if self.at_once.is_set():
            return 128 + self.signal_number
        return EXIT_OK if drained and host.alive() else EXIT_FAILED

    async def _live(self, one: Hosted) -> None:
        """Start a component, with patience for what may come up yet, and run it."""
        with one.active():
            if not await self._start(one):
                return
            one.started = True
            _log.info("component started", action="host.component-started", component=one.label)
            await one.component.run(self.stop)

    async def _start(self, one: Hosted) -> bool:
        deadline = self.clock.monotonic() + self.settings.start_timeout_s
        delay = RETRY_FIRST_S
        told = False
        while not self.stop.is_set():
            try:
                return await self._started_before_stop(one.component)
            except TRANSIENT as error:
                pause = delay * self.random.uniform(0.5, 1.0)
                if self.clock.monotonic() + pause >= deadline:
                    raise StartError(f"{words_of(error)} (tried for {self.settings.start_timeout_s:g} s)") from error
                if not told:
                    _log.warning(
                        "start is tried again",
                        action="host.start-retry",
                        component=one.label,
                        error=words_of(error),
                    )
                told = True
                delay = min(delay * 2, RETRY_MAX_S)
                await self._pause(pause)
        return False

    async def _started_before_stop(self, component: Component) -> bool:
        """Start it; False when the stop came first, which breaks the start off: nothing is in hand yet."""
        starting = asyncio.ensure_future(component.start())
        stopped = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return False
            starting.result()
            return True
        finally:
            stopped.cancel()
            if not starting.done():
                starting.cancel()
                await asyncio.wait({starting}, timeout=CANCEL_TIMEOUT_S)

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until the stop."""
        sleeping = asyncio.ensure_future(self.clock.sleep(seconds))
        stopped = asyncio.ensure_future(self.stop.wait())
        await asyncio.wait({sleeping, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (sleeping, stopped):
            task.cancel()

    async def _drain(self, lives: set[asyncio.Task[None]]) -> bool:
        """Wait for the components to finish what they have in hand; True when all did in time."""
        at_once = asyncio.create_task(self.at_once.wait(), name="at once")
        try:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + self.settings.drain_timeout_s
            left = {task for task in lives if not task.done()}
            while left and not self.at_once.is_set() and loop.time() < deadline:
                await asyncio.wait(
                    {*left, at_once}, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED
                )
                left = {task for task in left if not task.done()}
        finally:
            at_once.cancel()
        if not left:
            return True
        if not self.at_once.is_set():
            names = sorted(task.get_name() for task in left)
            _log.error(
                "not drained in time",
                action="host.drain-timeout",
                components=names,
                drain_timeout_s=self.settings.drain_timeout_s,
            )
        for task in left:
            task.cancel()
        _, stuck = await asyncio.wait(left, timeout=AT_ONCE_TIMEOUT_S if self.at_once.is_set() else CANCEL_TIMEOUT_S)
        if stuck and self.at_once.is_set():
            os._exit(128 + self.signal_number)  # it was asked for twice, and a task does not let go
        return False

    def _note_end(self, task: asyncio.Task[None], one: Hosted, *, unasked: bool) -> None:
        """Take down how a component ended; what was not asked for is a failure, and so is a cancellation that a library let escape."""
        if not task.done() or (task.cancelled() and not unasked):
            return
        error = None if task.cancelled() else task.exception()
        if error is None:
            if unasked:
                one.failure = RuntimeError("ended without being asked to")
                _log.error("component ended unasked", action="host.component-ended", component=one.label)
            return
        one.failure = error
        if one.started:
            _log.error("component failed", action="host.component-failed", component=one.label, exc_info=error)
        else:
            _complain(f"{one.label} cannot start: {words_of(error)}")
            _log.debug("start failed", action="host.start-failed", component=one.label, exc_info=error)

    async def _close(self, host: Host) -> None:
        """Close in reverse order, each bounded; an error in one keeps none of the others open."""
        for one in reversed(host.hosted):
            try:
                with one.active():
                    await asyncio.wait_for(
                        one.component.close(), AT_ONCE_TIMEOUT_S if self.at_once.is_set() else CLOSE_TIMEOUT_S
                    )
            except Exception as error:  # noqa: BLE001 - everything is closed, whatever one of them does
                _log.error("close failed", action="host.close-failed", component=one.label, error=words_of(error))
