"""Leading one pool: read → fold and decide → append → publish (protocol §1).

Invariants: nothing is published that is not in the log; entries are published in the order of seq, unchanged; what the core
decided counts only once the append returned. Whatever goes wrong ends in recovery from the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

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
from schedmate.services.dispatcher.batches import by_partition, poison_among, slices, vector
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.decisions import Moved, Placed
from schedmate.services.dispatcher.core.fold import remaining_says_something_new
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.reports import says_something_new
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import CorePoisonedError, Step, canonical, step
from schedmate.services.dispatcher.figures import Figures
from schedmate.services.dispatcher.leases import Held, PoolLease
from schedmate.services.dispatcher.liveness import NodeLiveness
from schedmate.services.dispatcher.log import AppendCollisionError, DeposedError, Entry, PoolLog, Snapshot
from schedmate.services.dispatcher.profiles import profiles_of
from schedmate.services.dispatcher.publication import SERVICE, encode_entry, refusal
from schedmate.services.dispatcher.publisher import EntryPublisher
from schedmate.services.dispatcher.reasoning import ReasonTeller
from schedmate.services.dispatcher.recovery import Recovered, missing_jobs, recover_pool
from schedmate.services.dispatcher.settings import DispatcherSettings

_POLL_IDLE_S: Final = 0.2
_NODES_CHECK_S: Final = 1.0
_RETRY_S: Final = 0.5
_ENDS: Final = frozenset({JobEvent.COMPLETE, JobEvent.FAIL, JobEvent.CANCEL, JobEvent.REJECT})

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def _told_of(config: PoolConfig) -> dict[str, Any]:
    """Return the settings that an entry's events are made with."""
    return {"policy": config.policy, **({"gpu_sharing": True} if config.gpu_sharing else {})}


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
        self._publisher = EntryPublisher(self._log, bus, clock, self._interrupted)
        self._ahead_s = 0.0
        self._caught_up = False
        self._nodes_checked_at = float("-inf")
        self._configured_at = clock.monotonic()
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
        tasks = [asyncio.create_task(self._keep_lease()), asyncio.create_task(self._publisher.run())]
        lost = asyncio.create_task(self._lost.wait())
        work = asyncio.create_task(self._lead(stop))
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
                await self._publisher.drain()
                await self._lease.release(self.held)

    # --- the loop ---

    async def _lead(self, stop: asyncio.Event) -> None:
        recovered = await recover_pool(self._log)
        self.state = recovered.state
        opening = await self._open_term(recovered)
        for seq, records in recovered.unpublished:  # unchanged, before anything new
            await self._publisher.put(seq, records)
        await self._publisher.put(*opening)
        notes = await self._connect(recovered)
        if self._identity != recovered.bus:
            await self._enter(Gathered([i.Tick()]))  # from now on the log's offsets are those of this bus
        for start in range(0, len(notes), self._settings.batch_max):
            await self._enter(Gathered(notes[start : start + self._settings.batch_max]))
        for node in self.state.nodes.values():
            if node.alive:
                self._liveness.expect(node.name, node.session, node.lease_s)
        while not stop.is_set():
            await self._turn()

    async def _connect(self, recovered: Recovered) -> list[i.Input]:
        """Read on from where the log stands, as soon as the bus answers; return what reconciliation adds."""
        while True:
            try:
                self._identity = await self._bus.identity()
                offsets, notes = await self._starting_offsets(recovered)
                self._reader = self._bus.reader(offsets)
                await self._reader.start()
            except BusUnavailableError as error:
                await self._without_bus(error)
                continue
            self._next = dict(offsets)
            return notes

    async def _open_term(self, recovered: Recovered) -> tuple[int, list[Record]]:
        """Append an entry before anything else: from now on a deposed leader's next append collides."""
        self._next = by_partition(recovered.offsets)
        self._identity = recovered.bus
        configured = await self._configured(recovered.state)
        return await self._decide(Gathered([i.Tick()] if configured is None else [i.Tick(), configured]))

    async def _turn(self) -> None:
        assert self._reader is not None
        assert self.state is not None
        try:
            deliveries = await self._reader.poll(self._settings.batch_max, self._patience())
        except BusUnavailableError as error:
            await self._without_bus(error)
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
        # Only now: what was just read may be the very report of a node that would else be called silent.
        try:
            silent = await self._watch_nodes()
        except BusUnavailableError as error:
            await self._without_bus(error)
            return
        changed = await self._reconfigured()
        if silent or changed or self._overdue():
            await self._enter(Gathered([*silent, *changed, i.Tick()]))
        await self._tell_reasons()

    async def _reconfigured(self) -> list[i.Input]:
        """Look now and then whether an operator has changed the pool's settings."""
        assert self.state is not None
        now = self._clock.monotonic()
        if now - self._configured_at < self._settings.config_every_s:
            return []
        self._configured_at = now
        with contextlib.suppress(StoreUnavailableError):  # the next append says so if it lasts
            wanted = await self._configured(self.state)
            return [wanted] if wanted is not None else []
        return []

    async def _without_bus(self, error: BusUnavailableError) -> None:
        """Nobody is watched while the bus does not answer; what was read before is folded already."""
        log.warning("the bus does not answer", action="dispatcher.bus-unavailable", pool=self.pool, error=str(error))
        self._interrupted()
        await self._clock.sleep(_RETRY_S)

    def _interrupted(self) -> None:
        """The bus did not answer: nobody was watched, and what it holds is not known."""
        self._liveness.interrupted()
        self._caught_up = False

    def _overdue(self) -> bool:
        """A timer is due, the last entry stopped at its bound, or the pool has been quiet for too long."""
        assert self.state is not None
        due = self.state.next_timer()
        quiet_for = self._clock.monotonic() - self._appended_at
        timer_is_due = due is not None and due <= self._now()
        return self.state.more or timer_is_due or quiet_for >= self._settings.checkpoint_every_s

    def _nodes_overdue(self) -> bool:
        return self._clock.monotonic() - self._nodes_checked_at >= _NODES_CHECK_S

    def _patience(self) -> float:
        assert self.state is not None
        if self.state.more:
            return 0.0
        due = self.state.next_timer()
        left = due - self._now() if due is not None else _POLL_IDLE_S
        return min(max(left, 0.0), _POLL_IDLE_S)

    def _now(self) -> float:
        """Return the pool's time: the wall clock's, and its pace where an earlier leader's clock stood later than ours."""
        assert self.state is not None
        now = self._clock.now() + self._ahead_s
        if now < self.state.at:
            self._ahead_s += self.state.at - now
        return max(now, self.state.at)

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
                self._figures.reported(envelope.event)
                for profile in profiles_of(self.state, envelope.event, self._settings.profile_after_s):
                    gathered.inputs.append(profile)
                    gathered.sources[id(profile)] = delivery
                if not says_something_new(self.state, value):
                    continue
            elif isinstance(value, i.ProgressArrived) and not remaining_says_something_new(
                self.state, value, self._now()
            ):
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
        await self._publisher.publish(letters)

    # --- one entry ---

    async def _enter(self, gathered: Gathered) -> None:
        """Decide a batch, append it, and hand it to the publisher."""
        await self._publisher.put(*await self._decide(gathered))

    async def _decide(self, gathered: Gathered) -> tuple[int, list[Record]]:
        """Decide a batch and append it; return its seq and records, which may be published from now on."""
        assert self.state is not None
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
                config=_told_of(self.state.config),
                trust=done.trust,
            )
            self._figures.decided(entry, self.state, self._clock.monotonic() - began)
            batch.set_attribute(names.DECISIONS, len(done.decisions))
            records = self._records(entry, format_traceparent(batch.get_span_context()))
            began = self._clock.monotonic()
            with span(names.APPEND, pool=self.pool):
                await self._append(entry)
            self._figures.appended(entry, self._clock.monotonic() - began)
        self._appended_at = self._clock.monotonic()
        if entry.seq % self._settings.snapshot_every == 0:
            await self._log.save(Snapshot(entry.seq, entry.term, entry.offsets, entry.bus, self.state.to_json()))
        self._reasons.changed()
        return entry.seq, records

    async def _step(self, gathered: Gathered) -> tuple[Step, dict[int, str]]:
        """Step the core; whatever breaks it is refused, after the state has been recovered from the log."""
        assert self.state is not None
        now = self._now()
        kept = canonical(gathered.inputs)
        culprits: list[i.Input] = []
        while True:
            try:
                done = step(self.state, kept, now)
                break
            except CorePoisonedError as error:
                log.exception(
                    "an input broke the core", action="dispatcher.core-poisoned", pool=self.pool, error=str(error)
                )
                self.state = (await recover_pool(self._log)).state
                found = [kept[error.index]] if error.index is not None else poison_among(self.state, kept, now)
                if not found:
                    raise LeadershipLostError(
                        f"{self.pool}: the core breaks on no input; the log is as it was"
                    ) from error
            culprits.extend(found)
            kept = [value for value in kept if not any(value is one for one in found)]
        inputs = (*done.inputs, *culprits)
        broke = {len(done.inputs) + n: "the input broke the core" for n in range(len(culprits))}
        return Step(inputs, done.refused, done.decisions, done.trust), broke

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

    # --- starting ---

    async def _starting_offsets(self, recovered: Recovered) -> tuple[dict[Partition, int], list[i.Input]]:
        """Return where to read on, and what reconciliation adds where records were lost (protocol §1)."""
        partitions = [
            Partition(topic, number) for topic in intake.TOPICS for number in range(await self._bus.partitions(topic))
        ]
        bounds = await self._bus.bounds(partitions)
        known = by_partition(recovered.offsets)
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
        told = self._reasons.due(self.state, self._now(), self._clock.monotonic())
        if told:
            with contextlib.suppress(BusUnavailableError):
                await self._bus.publish([encode(envelope) for envelope in told])

    @property
    def utilisation(self) -> float | None:
        """Mean busy share of the leased GPUs that are measured, None without any."""
        return self._figures.utilisation(self.state) if self.state is not None else None

    def measure(self) -> None:
        """Bring the gauges up to date."""
        if self.state is not None:
            self._figures.pool(self.state)
