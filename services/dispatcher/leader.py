"""Leading one pool: read → fold and decide → append → publish (protocol §1).

Invariants: nothing is published that is not in the log; entries are published in the order of seq, unchanged; what the core
decided counts only once the append returned. Whatever goes wrong ends in recovery from the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from schedmate.infra.bus.port import BusUnavailableError, EventBus, OffsetOutOfRangeError, Partition, Reader
from schedmate.infra.clock import Clock
from schedmate.infra.deadletters import dead_letter
from schedmate.infra.store.port import Store, StoreUnavailableError
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.tracing import format_traceparent, span, span_from
from schedmate.schemas.codec import UndecodableError, encode
from schedmate.schemas.events import NodeReported
from schedmate.schemas.states import JobEvent
from schedmate.schemas.wire import Delivery, Record
from schedmate.services.dispatcher import intake
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.decisions import Moved, Placed
from schedmate.services.dispatcher.core.fold import says_something_new
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import CorePoisonedError, Step, canonical, step
from schedmate.services.dispatcher.figures import Figures
from schedmate.services.dispatcher.leases import Held, PoolLease
from schedmate.services.dispatcher.liveness import NodeLiveness
from schedmate.services.dispatcher.log import AppendCollisionError, DeposedError, Entry, PoolLog, Snapshot
from schedmate.services.dispatcher.publication import SERVICE, encode_entry, refusal
from schedmate.services.dispatcher.reasoning import ReasonTeller
from schedmate.services.dispatcher.recovery import Recovered, missing_jobs, recover_pool
from schedmate.services.dispatcher.settings import DispatcherSettings

_POLL_IDLE_S: Final = 0.2
_PUBLISH_QUEUE_MAX: Final = 16
_NODES_CHECK_S: Final = 1.0
_PUBLISHED_EVERY_S: Final = 0.5
_RETRY_S: Final = 0.5
_ENDS: Final = frozenset({JobEvent.COMPLETE, JobEvent.FAIL, JobEvent.CANCEL, JobEvent.REJECT})

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class LeadershipLostError(Exception):
    """Somebody else leads the pool now."""


@dataclass(slots=True)
class Gathered:
    """What one poll brought: inputs, where each came from, and records that are no events of ours."""

    inputs: list[i.Input] = field(default_factory=list)
    sources: dict[int, Delivery] = field(default_factory=dict)  # id(input) -> delivery
    traces: list[str] = field(default_factory=list)
    poison: list[tuple[Delivery, UndecodableError]] = field(default_factory=list)


class PoolLeader:
    """Leads one pool from taking its lease until it is lost, or until told to stop."""

    def __init__(
        self,
        pool: str,
        held: Held,
        lease: PoolLease,
        *,
        bus: EventBus,
        store: Store,
        clock: Clock,
        settings: DispatcherSettings,
        instance: str,
        metrics: Metrics,
    ) -> None:
        self.pool = pool
        self.held = held
        self.state: PoolState | None = None
        self._lease = lease
        self._bus = bus
        self._log = PoolLog(store, pool)
        self._store = store
        self._clock = clock
        self._settings = settings
        self._instance = instance
        self._figures = Figures(metrics, pool)
        self._reader: Reader | None = None
        self._next: dict[Partition, int] = {}
        self._identity = ""
        self._liveness = NodeLiveness(settings.lease_margin_s, 2 * _NODES_CHECK_S)
        self._reasons = ReasonTeller(pool, settings.reasons_every_s, settings.reasons_max)
        self._to_publish: asyncio.Queue[tuple[int, list[Record]]] = asyncio.Queue(_PUBLISH_QUEUE_MAX)
        self._published = -1
        self._published_stored = -1
        self._caught_up = False
        self._nodes_checked_at = float("-inf")
        self._appended_at = clock.monotonic()
        self._lost = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Recovered, connected, and once at the end of what was there."""
        return self._caught_up

    async def run(self, stop: asyncio.Event) -> None:
        """Lead until `stop`, or until the pool is lost to another dispatcher.

        Raises:
            LeadershipLostError: another dispatcher leads now.
            StoreUnavailableError, BusUnavailableError: lead again once they answer.
        """
        self._identity = await self._bus.identity()
        recovered = await recover_pool(self._log)
        tasks = [asyncio.create_task(self._keep_lease()), asyncio.create_task(self._publish_entries())]
        lost = asyncio.create_task(self._lost.wait())
        work = asyncio.create_task(self._lead(recovered, stop))
        try:
            done, _ = await asyncio.wait({work, lost, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if work not in done:
                work.cancel()
                for task in done - {lost}:
                    task.result()
                raise LeadershipLostError(f"the lease of {self.pool} was taken over")
            work.result()
            await self._drain()
        finally:
            self._caught_up = False
            for task in (*tasks, lost, work):
                task.cancel()
            await asyncio.gather(*tasks, lost, work, return_exceptions=True)
            if self._reader is not None:
                await self._reader.stop()

    async def _drain(self) -> None:
        """Publish what was appended, remember it, and hand the pool over at once."""
        with contextlib.suppress(TimeoutError, StoreUnavailableError):
            async with asyncio.timeout(self._settings.drain_timeout_s / 2):
                await self._to_publish.join()
                await self._store_published()
                await self._lease.release(self.held)

    # --- the loop ---

    async def _lead(self, recovered: Recovered, stop: asyncio.Event) -> None:
        self.state = recovered.state
        await self._republish(recovered)
        offsets, notes = await self._starting_offsets(recovered)
        self._next = dict(offsets)
        self._reader = self._bus.reader(offsets)
        await self._reader.start()
        opening: list[i.Input] = [i.Tick()]
        configured = await self._configured(recovered.state)
        if configured is not None:
            opening.append(configured)
        opening.extend(notes)
        await self._enter(Gathered(opening))
        for node in recovered.state.nodes.values():
            if node.alive:
                self._liveness.expect(node.name, node.session, node.lease_s)
        while not stop.is_set():
            await self._turn()

    async def _turn(self) -> None:
        assert self._reader is not None
        assert self.state is not None
        try:
            deliveries = await self._reader.poll(self._settings.batch_max, self._patience())
            silent = await self._watch_nodes() if not deliveries or self._nodes_overdue() else []
        except BusUnavailableError as error:
            log.warning(
                "the bus does not answer", action="dispatcher.bus-unavailable", pool=self.pool, error=str(error)
            )
            self._liveness.interrupted()
            self._caught_up = False
            await self._clock.sleep(_RETRY_S)
            return
        except OffsetOutOfRangeError as error:
            log.exception("records were lost", action="dispatcher.offset-lost", pool=self.pool, error=str(error))
            self._caught_up = False
            raise
        for piece in slices(deliveries, self._settings.batch_bytes_max):
            gathered = self._gather(piece)
            await self._bury_poison(gathered)
            if gathered.inputs:
                await self._enter(gathered)
        if silent or self._overdue():
            await self._enter(Gathered([*silent, i.Tick()]))
        await self._tell_reasons()

    def _overdue(self) -> bool:
        """A timer is due, the last entry stopped at its bound, or the pool has been quiet for too long."""
        assert self.state is not None
        due = self.state.next_timer()
        quiet_for = self._clock.monotonic() - self._appended_at
        timer_is_due = due is not None and due <= self._clock.now()
        return self.state.more or timer_is_due or quiet_for >= self._settings.checkpoint_every_s

    def _nodes_overdue(self) -> bool:
        return self._clock.monotonic() - self._nodes_checked_at >= _NODES_CHECK_S

    def _patience(self) -> float:
        assert self.state is not None
        if self.state.more:
            return 0.0
        due = self.state.next_timer()
        left = due - self._clock.now() if due is not None else _POLL_IDLE_S
        return min(max(left, 0.0), _POLL_IDLE_S)

    def _gather(self, deliveries: Sequence[Delivery]) -> Gathered:
        assert self.state is not None
        gathered = Gathered()
        for delivery in deliveries:
            self._next[Partition(delivery.topic, delivery.partition)] = delivery.offset + 1
            try:
                envelope = intake.read(delivery, self.pool)
            except UndecodableError as error:
                gathered.poison.append((delivery, error))
                continue
            if envelope is None:
                continue
            value = intake.to_input(envelope)
            if value is None:
                continue
            if isinstance(envelope.event, NodeReported):
                self._liveness.reported(envelope.event.node, envelope.event.session, envelope.event.lease_s)
                assert isinstance(value, i.NodeReported)
                if not says_something_new(self.state, value):
                    continue
            gathered.inputs.append(value)
            gathered.sources[id(value)] = delivery
            if envelope.traceparent is not None:
                gathered.traces.append(envelope.traceparent)
        return gathered

    async def _watch_nodes(self) -> list[i.Input]:
        """Return the nodes whose lease has run out, if the end of `nodes` has been reached."""
        assert self._reader is not None
        if not self._nodes_overdue():
            return []
        position = {p: offset for p, offset in self._reader.position().items() if p.topic == NodeReported.TOPIC}
        bounds = await self._bus.bounds(position)
        now = self._clock.monotonic()
        self._nodes_checked_at = now
        if any(offset < bounds[p].end for p, offset in position.items()):
            return []
        if not self._caught_up:
            self._caught_up = await self._reader.at_end()
        return [i.NodeSilent(node, session) for node, session in self._liveness.at_end(now)]

    async def _bury_poison(self, gathered: Gathered) -> None:
        if not gathered.poison:
            return
        letters = [
            encode(dead_letter(delivery, SERVICE, error, 1, self._clock.now())) for delivery, error in gathered.poison
        ]
        self._figures.poisoned(len(letters))
        await self._publish(letters)

    # --- one entry ---

    async def _enter(self, gathered: Gathered) -> None:
        """Decide a batch, append it, and hand it to the publisher."""
        assert self.state is not None
        poisoned: dict[int, str] = {}
        with span_from(None, names.DECIDE_BATCH, links=gathered.traces, pool=self.pool) as batch:
            began = self._clock.monotonic()
            done, poisoned = await self._step(gathered)
            refused = {
                place: refusal(error, gathered.sources.get(id(done.inputs[place])))
                for place, error in {**done.refused, **poisoned}.items()
            }
            entry = Entry(
                pool=self.pool,
                seq=self.state.seq,
                term=self.held.term,
                at=self.state.at,
                writer=self._instance,
                inputs=done.inputs,
                refused=refused,
                offsets=vector(self._next),
                bus=self._identity,
                decisions=done.decisions,
                config={"policy": self.state.config.policy},
            )
            self._figures.decided(entry, self.state, self._clock.monotonic() - began)
            batch.set_attribute(names.DECISIONS, len(done.decisions))
            records = self._records(entry, format_traceparent(batch.get_span_context()))
            began = self._clock.monotonic()
            with span(names.APPEND, pool=self.pool):
                await self._append(entry)
            self._figures.appended(entry, self._clock.monotonic() - began)
        self._appended_at = self._clock.monotonic()
        await self._to_publish.put((entry.seq, records))
        if entry.seq % self._settings.snapshot_every == 0:
            await self._log.save(Snapshot(entry.seq, entry.term, entry.offsets, entry.bus, self.state.to_json()))
        self._reasons.changed()

    async def _step(self, gathered: Gathered) -> tuple[Step, dict[int, str]]:
        """Step the core; an input that breaks it is refused after the state has been recovered from the log."""
        assert self.state is not None
        now = self._clock.now()
        try:
            return step(self.state, gathered.inputs, now), {}
        except CorePoisonedError as error:
            log.exception(
                "an input broke the core", action="dispatcher.core-poisoned", pool=self.pool, error=str(error)
            )
            place = error.index
        found = await self._find_poison(gathered.inputs, now) if place is None else None
        culprit = found if found is not None else canonical(gathered.inputs)[place or 0]
        kept = [value for value in gathered.inputs if value is not culprit]
        self.state = (await recover_pool(self._log)).state
        done = step(self.state, kept, now)
        inputs = (*done.inputs, culprit)
        return Step(inputs, done.refused, done.decisions), {len(inputs) - 1: "the input broke the core"}

    async def _find_poison(self, inputs: Sequence[i.Input], now: float) -> i.Input | None:
        """Return the input without which the batch goes through."""
        for suspect in inputs:
            state = (await recover_pool(self._log)).state
            try:
                step(state, [value for value in inputs if value is not suspect], now)
            except CorePoisonedError:
                continue
            return suspect
        raise LeadershipLostError(f"{self.pool}: no single input explains why the core breaks; the log is as it was")

    async def _append(self, entry: Entry) -> None:
        try:
            await self._log.append(entry)
        except DeposedError as error:
            raise LeadershipLostError(str(error)) from error
        except AppendCollisionError as error:
            log.warning("an entry stands in our place", action="dispatcher.collision", pool=self.pool, error=str(error))
            raise

    def _records(self, entry: Entry, batch_trace: str) -> list[Record]:
        """Return the records of an entry. Assignments and ends get a span in the job's trace: one a decision, never two."""
        assert self.state is not None
        spans = {
            index: decision
            for index, decision in enumerate(entry.decisions)
            if isinstance(decision, Placed) or (isinstance(decision, Moved) and decision.event in _ENDS)
        }
        return encode_entry(entry, self.state, set(spans), batch_trace)

    # --- publishing ---

    async def _publish_entries(self) -> None:
        """Publish entries in the order of seq; remember how far now and then."""
        while True:
            try:
                seq, records = await asyncio.wait_for(self._to_publish.get(), _PUBLISHED_EVERY_S)
            except TimeoutError:
                await self._store_published()
                continue
            await self._publish(records)
            self._published = seq
            self._to_publish.task_done()
            if seq - self._published_stored >= _PUBLISH_QUEUE_MAX:
                await self._store_published()

    async def _publish(self, records: Sequence[Record]) -> None:
        """Publish until acknowledged; nothing else may overtake it."""
        while records:
            try:
                await self._bus.publish(records)
                return
            except BusUnavailableError as error:
                log.warning(
                    "publishing is tried again", action="dispatcher.publish-retry", pool=self.pool, error=str(error)
                )
                self._liveness.interrupted()
                await self._clock.sleep(_RETRY_S)

    async def _store_published(self) -> None:
        if self._published > self._published_stored:
            await self._log.set_published(self._published)
            self._published_stored = self._published

    async def _republish(self, recovered: Recovered) -> None:
        """What the log holds beyond the last published seq is published, unchanged, before anything new."""
        for seq, records in recovered.unpublished:
            await self._publish(records)
            self._published = seq
        await self._store_published()

    # --- starting ---

    async def _starting_offsets(self, recovered: Recovered) -> tuple[dict[Partition, int], list[i.Input]]:
        """Return where to read on, and what reconciliation adds where records were lost (protocol §1)."""
        partitions = [
            Partition(topic, number) for topic in intake.TOPICS for number in range(await self._bus.partitions(topic))
        ]
        bounds = await self._bus.bounds(partitions)
        known = {
            Partition(topic, number): offset
            for topic, nexts in recovered.offsets.items()
            for number, offset in enumerate(nexts)
        }
        if recovered.bus and recovered.bus != self._identity:
            log.error("this is another bus than the log's", action="dispatcher.other-bus", pool=self.pool)
            known = {}
        offsets: dict[Partition, int] = {}
        lost = bool(recovered.bus) and not known
        for partition in partitions:
            wanted, bound = known.get(partition), bounds[partition]
            if wanted is not None and bound.earliest <= wanted <= bound.end:
                offsets[partition] = wanted
                continue
            offsets[partition] = bound.earliest
            lost = lost or wanted is not None
        notes = await missing_jobs(self._store, recovered.state) if lost else []
        if lost:
            log.error(
                "records were lost; reconciled from the job documents and the nodes' reports",
                action="dispatcher.reconciled",
                pool=self.pool,
                jobs=len(notes),
            )
        return offsets, notes

    async def _configured(self, state: PoolState) -> i.Input | None:
        """A pool's configuration document, where it differs from what the log knows, becomes an input."""
        found = await self._store.get("pool_config", self.pool)
        default = PoolConfig(policy=self._settings.policy, preemption=self._settings.preemption)
        given = {**default.to_json(), **(dict(found.body) if found is not None else {})}
        try:
            wanted = PoolConfig.from_json(given)
            policy_named(wanted.policy)
        except (TypeError, ValueError) as error:
            log.exception(
                "the pool's configuration is wrong", action="dispatcher.config-wrong", pool=self.pool, error=str(error)
            )
            return None
        return i.ConfigChanged(wanted.to_json()) if wanted != state.config else None

    # --- beside the loop ---

    async def _keep_lease(self) -> None:
        while True:
            await self._clock.sleep(self._settings.lease_s / 3)
            try:
                held = await self._lease.renew(self.held)
            except StoreUnavailableError:
                self._liveness.interrupted()
                continue
            if held is None:
                self._lost.set()
                return
            self.held = held

    async def _tell_reasons(self) -> None:
        assert self.state is not None
        told = self._reasons.due(self.state, self._clock.now(), self._clock.monotonic())
        if told:
            with contextlib.suppress(BusUnavailableError):
                await self._bus.publish([encode(envelope) for envelope in told])

    def measure(self) -> None:
        """Bring the gauges up to date."""
        if self.state is not None:
            self._figures.pool(self.state)


def slices(deliveries: Sequence[Delivery], bytes_max: int) -> list[list[Delivery]]:
    """Cut a batch so that no piece has more than so many bytes (or it is one record)."""
    out: list[list[Delivery]] = []
    size = 0
    for delivery in deliveries:
        length = len(delivery.record.value)
        if not out or size + length > bytes_max:
            out.append([])
            size = 0
        out[-1].append(delivery)
        size += length
    return out


def vector(offsets: Mapping[Partition, int]) -> dict[str, list[int]]:
    """Return offsets as lists by topic."""
    out: dict[str, list[int]] = {}
    for partition in sorted(offsets):
        out.setdefault(partition.topic, []).append(offsets[partition])
    return out
