"""Reports that renew the node's lease, on a thread and a loop of their own: nothing else in the process costs a lease (protocol §7)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

import structlog

from schedmate.infra.bus.port import BusError, EventBus
from schedmate.infra.clock import Clock
from schedmate.infra.processes.port import Processes
from schedmate.schemas.codec import encode
from schedmate.services.worker.announcements import Snapshot, node_reported
from schedmate.services.worker.lease import Lease

PUBLISH_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.5
EDGE_PAUSE_S: Final = 0.02  # edges that come together go out together
STOP_TIMEOUT_S: Final = 5.0

_log = structlog.get_logger()


class Renewals:
    """Publishes node reports and moves the supervisors' deadline on at each acknowledgement, and only then.

    At a lapse it falls silent, tells `on_lapse`, and goes on when `resume` gives it the next epoch: by then nothing of the
    last one lives. `edge` and `resume` may be called from any thread; the callbacks are called on this one's.
    """

    def __init__(
        self,
        clock: Clock,
        processes: Processes,
        *,
        interval_s: float,
        lease: Lease,
        snapshot: Callable[[], Snapshot],
        on_acknowledged: Callable[[Snapshot], None],
        on_lapse: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._processes = processes
        self._interval_s = interval_s
        self._lease = lease
        self._snapshot = snapshot
        self._on_acknowledged = on_acknowledged
        self._on_lapse = on_lapse
        self._loop: asyncio.AbstractEventLoop | None = None
        self._edge = asyncio.Event()
        self._resumed = asyncio.Event()
        self._session = 0
        self._report_no = 0

    @property
    def lease(self) -> Lease:
        """The lease now."""
        return self._lease

    async def run(self, bus: EventBus) -> None:
        """Report until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            if self._lease.has_lapsed(self._clock.monotonic()):
                await self._lapse()
            self._edge.clear()
            pause_s = self._interval_s if await self._report(bus) else min(RETRY_S, self._interval_s)
            await self._wait(pause_s)

    def edge(self) -> None:
        """Report soon: something has changed."""
        self._call(self._edge.set)

    def resume(self, lease: Lease) -> None:
        """Go on after a lapse."""

        def go_on() -> None:
            self._lease = lease
            self._resumed.set()

        self._call(go_on)

    def _call(self, callback: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    async def _report(self, bus: EventBus) -> bool:
        """Send one report; True when it was acknowledged. What it says was true before it was sent."""
        sent_at = self._clock.monotonic()
        snapshot = self._snapshot()
        if snapshot.session != self._session:
            self._session, self._report_no = snapshot.session, 0
        self._report_no += 1
        record = encode(node_reported(snapshot, report_no=self._report_no, at=self._clock.now()))
        left_s = PUBLISH_TIMEOUT_S if self._lease.deadline is None else self._lease.deadline - sent_at
        try:
            async with asyncio.timeout(max(0.0, min(PUBLISH_TIMEOUT_S, left_s))):
                await bus.publish([record])
        except (BusError, TimeoutError) as error:
            _log.warning("report not acknowledged", action="worker.report-failed", error=str(error) or "in time")
            return False
        if self._lease.has_lapsed(self._clock.monotonic()):
            return True  # too late: its supervisors have begun to end the runs
        renewed = self._lease.acknowledged(sent_at)
        assert renewed.deadline is not None
        try:
            await asyncio.to_thread(self._processes.renew, epoch=renewed.epoch, deadline=renewed.deadline)
        except OSError as error:
            _log.error("the deadline cannot be written", action="worker.renewal-failed", error=str(error))
            return False
        self._lease = renewed
        self._on_acknowledged(snapshot)
        return True

    async def _lapse(self) -> None:
        _log.error("the lease has lapsed: the runs are ended", action="worker.lease-lapsed", epoch=self._lease.epoch)
        self._resumed.clear()
        self._on_lapse()
        await self._resumed.wait()

    async def _wait(self, pause_s: float) -> None:
        """Wait for an edge, at most `pause_s`, and never past the deadline."""
        if self._lease.deadline is not None:
            pause_s = min(pause_s, max(0.0, self._lease.deadline - self._clock.monotonic()))
        timer = asyncio.ensure_future(self._clock.sleep(pause_s))
        edge = asyncio.ensure_future(self._edge.wait())
        try:
            await asyncio.wait({timer, edge}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            edge.cancel()
        if self._edge.is_set():
            await self._clock.sleep(EDGE_PAUSE_S)


class RenewalThread:
    """Runs renewals on a thread of their own, with a bus of their own: a bus belongs to one event loop."""

    def __init__(self, renewals: Renewals, make_bus: Callable[[], EventBus]) -> None:
        self._renewals = renewals
        self._make_bus = make_bus
        self._thread = threading.Thread(target=self._main, name="schedmate-renewals", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._has_begun = threading.Event()

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self._has_begun.wait(STOP_TIMEOUT_S)

    def check(self) -> None:
        """Raise what ended the thread, if something did."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End, within a bound; blocks."""
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(STOP_TIMEOUT_S)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the component, which fails with it
            _log.error("reports have ended", action="worker.renewals-failed", exc_info=error)
            self._failure = error

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._has_begun.set()
        bus = self._make_bus()
        await self._connect(bus)
        try:
            await self._renewals.run(bus)
        finally:
            await bus.stop()

    @staticmethod
    async def _connect(bus: EventBus) -> None:
        while True:
            try:
                await bus.start()
                return
            except BusError as error:
                _log.warning("no bus for reports yet", action="worker.renewals-wait", error=str(error))
                await asyncio.sleep(RETRY_S)
