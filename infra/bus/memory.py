"""The bus in memory, with fault injection: for tests of services in one event loop and for simulations on a seed.

The object is server and client in one: consumers made from the same bus share its topics and groups. Nothing is durable.
All waiting goes through the injected clock, so a virtual clock drives timeouts too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from schedmate.infra.bus.faults import Faults
from schedmate.infra.bus.limits import check_sizes
from schedmate.infra.bus.measured import measured
from schedmate.infra.bus.partitioner import partition_of, ranges
from schedmate.infra.bus.port import (
    Bounds,
    BusUnavailableError,
    MissingTopicError,
    OffsetOutOfRangeError,
    Partition,
    RevokedHandler,
    TopologyMismatchError,
    Written,
)
from schedmate.infra.clock import Clock
from schedmate.schemas.topology import Topic
from schedmate.schemas.wire import Delivery, Record

__all__ = ["SESSION_S", "Faults", "MemoryBus", "MemoryGroupConsumer", "MemoryReader"]

SESSION_S: Final = 10.0


@dataclass(slots=True)
class _Log:
    """One partition: `records[i]` has offset `earliest + i`."""

    earliest: int = 0
    records: list[Record] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.earliest + len(self.records)


@dataclass(slots=True)
class _Group:
    """A consumer group: its members, who holds what, and how far each partition is done."""

    members: dict[str, MemoryGroupConsumer] = field(default_factory=dict)
    owners: dict[Partition, str] = field(default_factory=dict)
    committed: dict[Partition, int] = field(default_factory=dict)
    joined: int = 0


class MemoryBus:
    """`EventBus` in memory. `faults` says what goes wrong."""

    def __init__(self, clock: Clock, faults: Faults | None = None, *, name: str = "memory") -> None:
        self._clock = clock
        self.faults = faults if faults is not None else Faults()
        self._name = name
        self._topics: dict[str, Topic] = {}
        self._logs: dict[Partition, _Log] = {}
        self._groups: dict[str, _Group] = {}
        self._waiters: dict[asyncio.Future[None], None] = {}  # in the order of arrival: a seed gives one run

    async def start(self) -> None:
        """Nothing to connect to."""
        self.check_available()

    async def stop(self) -> None:
        """Nothing to flush; other users of the same bus go on."""

    async def identity(self) -> str:
        """Return the name that the bus was made with."""
        self.check_available()
        return self._name

    async def create_topics(self, topics: Iterable[Topic]) -> None:
        """Create what is missing; take over new limits."""
        self.check_available()
        wanted = list(topics)
        for topic in wanted:
            known = self._topics.get(topic.name)
            if known is not None and known.partitions != topic.partitions:
                raise TopologyMismatchError(
                    f"{topic.name} has {known.partitions} partitions, the topology says {topic.partitions}"
                )
        for topic in wanted:
            self._topics[topic.name] = topic
            for number in range(topic.partitions):
                self._logs.setdefault(Partition(topic.name, number), _Log())

    async def check_topics(self, names: Iterable[str]) -> None:
        """Raise MissingTopicError when one does not exist."""
        self.check_available()
        for name in names:
            self.topic(name)

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        self.check_available()
        return self.topic(topic).partitions

    async def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        """Return the offsets that each partition holds."""
        self.check_available()
        return {p: Bounds(self.log(p).earliest, self.log(p).end) for p in partitions}

    @measured
    async def publish(self, records: Sequence[Record]) -> Sequence[Written]:
        """Append to the partitions; see `Faults` for what may go wrong."""
        self.check_available()
        check_sizes(records, {r.topic: self.topic(r.topic).record_bytes_max for r in records})
        fate = self._fate()
        await asyncio.sleep(0)  # a real bus answers later: others get a turn
        if fate == "before":
            raise BusUnavailableError("injected: the bus did not answer, and had written nothing")
        written = [self._append(record) for record in records]
        if self.faults.strikes(self.faults.write_twice):
            for record in records:
                self._append(record)
        self.notify()
        if fate == "after":
            raise BusUnavailableError("injected: the acknowledgement was lost, all had been written")
        return written

    def group(
        self, group: str, topics: Sequence[str], *, on_revoked: RevokedHandler | None = None
    ) -> MemoryGroupConsumer:
        """Return a new member of a consumer group."""
        return MemoryGroupConsumer(self, self._clock, group, tuple(topics), on_revoked)

    def reader(self, offsets: Mapping[Partition, int]) -> MemoryReader:
        """Return a reader of these partitions from these offsets."""
        return MemoryReader(self, self._clock, offsets)

    def truncate(self, partition: Partition, before: int) -> None:
        """Drop what lies before an offset, as retention does: `earliest` moves up."""
        log = self.log(partition)
        dropped = min(max(before - log.earliest, 0), len(log.records))
        del log.records[:dropped]
        log.earliest += dropped

    def recreate(self, topic: str) -> None:
        """Empty a topic and count its offsets from 0 again, as deleting and creating it does."""
        for number in range(self.topic(topic).partitions):
            self._logs[Partition(topic, number)] = _Log()

    def records(self, topic: str) -> list[Record]:
        """Return all that a topic holds, partition by partition: for a test's assertions."""
        return [r for n in range(self.topic(topic).partitions) for r in self.log(Partition(topic, n)).records]

    # --- for the consumers of this module -------------------------------------------------------------------------------

    def check_available(self) -> None:
        """Raise when an outage is injected."""
        if self.faults.unavailable:
            raise BusUnavailableError("injected: the bus does not answer")

    def topic(self, name: str) -> Topic:
        """Return a topic that must exist."""
        if name not in self._topics:
            raise MissingTopicError(f"topic {name} does not exist; `schedmate setup` creates all topics")
        return self._topics[name]

    def log(self, partition: Partition) -> _Log:
        """Return the log of a partition that must exist."""
        if partition not in self._logs:
            raise MissingTopicError(
                f"{partition.topic}/{partition.number} does not exist; `schedmate setup` creates all"
            )
        return self._logs[partition]

    def group_state(self, group: str) -> _Group:
        """Return the state of a group."""
        return self._groups.setdefault(group, _Group())

    def notify(self) -> None:
        """Wake whoever waits in a poll."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self, within_s: float) -> None:
        """Wait until something happens, at most `within_s`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = asyncio.ensure_future(self._clock.sleep(within_s))
        self._waiters[waiter] = None
        try:
            await asyncio.wait({waiter, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiters.pop(waiter, None)
            timer.cancel()

    def take(self, positions: dict[Partition, int], paused: frozenset[Partition], max_records: int) -> list[Delivery]:
        """Read from `positions` and move them on. Partitions take turns in going first."""
        order = [p for p in positions if p not in paused]
        if self.faults.strikes(self.faults.reorder):
            order = sorted((p for p in order if self.faults.draw() < 0.5), key=lambda _: self.faults.draw())  # noqa: PLR2004
        batch: list[Delivery] = []
        for partition in order:
            room = max_records - len(batch)
            if room <= 0:
                break
            log, start = self.log(partition), positions[partition]
            records = log.records[start - log.earliest : start - log.earliest + room]
            if records:
                batch += [Delivery(r, partition.number, start + i) for i, r in enumerate(records)]
                positions[partition] = positions.pop(partition) + len(records)  # to the end: others go first next time
        return batch

    def _fate(self) -> str:
        faults = self.faults
        if faults.next_publishes:
            return faults.next_publishes.popleft()
        if faults.strikes(faults.fail_before_write):
            return "before"
        return "after" if faults.strikes(faults.fail_after_write) else "ok"

    def _append(self, record: Record) -> Written:
        partition = Partition(record.topic, partition_of(record.key, self.topic(record.topic).partitions))
        log = self._logs[partition]
        log.records.append(record)
        return Written(partition, log.end - 1)


class MemoryGroupConsumer:
    """A member of a group. One that is neither stopped nor polled for `SESSION_S` counts as dead, as on Kafka."""

    def __init__(
        self, bus: MemoryBus, clock: Clock, group: str, topics: tuple[str, ...], on_revoked: RevokedHandler | None
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._group = bus.group_state(group)
        self.topics = topics
        self._on_revoked = on_revoked
        self._name = ""
        self._positions: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._polling = False
        self._polled_at = 0.0
        self._commits_are_lost = False

    async def start(self) -> None:
        """Join the group."""
        await self._bus.check_topics(self.topics)
        self._group.joined += 1
        self._name = f"member-{self._group.joined:06d}"
        self._polled_at = self._clock.monotonic()
        self._group.members[self._name] = self
        self._claim(self._shares())
        self._bus.notify()

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Delivery]:
        """Return what has arrived; hand partitions over when the group's membership changed."""
        deadline = self._clock.monotonic() + timeout_s
        self._polling = True
        try:
            while True:
                self._bus.check_available()
                await self._rebalance()
                batch = self._bus.take(self._positions, frozenset(self._paused), max_records)
                left_s = deadline - self._clock.monotonic()
                if batch or left_s <= 0:
                    await asyncio.sleep(0)
                    return batch
                await self._bus.changed(left_s)
        finally:
            self._polling = False
            self._polled_at = self._clock.monotonic()

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Store the next offset to read for each partition still held."""
        self._bus.check_available()
        if self._commits_are_lost:
            return
        self._group.committed |= {p: o for p, o in offsets.items() if self._group.owners.get(p) == self._name}

    async def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing from these partitions until resumed."""
        self._paused.update(partitions)

    async def resume(self, partitions: Iterable[Partition]) -> None:
        """Deliver from these partitions again."""
        self._paused.difference_update(partitions)
        self._bus.notify()

    def assignment(self) -> frozenset[Partition]:
        """Return the partitions held now."""
        return frozenset(self._positions)

    async def lag(self) -> Mapping[Partition, int]:
        """Return, for each partition held, how many records are not yet committed."""
        self._bus.check_available()
        return {p: self._bus.log(p).end - self._committed(p) for p in self._positions}

    async def stop(self) -> None:
        """Leave the group at once."""
        self._leave()

    def alive(self) -> bool:
        """Tell whether the group still counts on this member."""
        return self._polling or self._clock.monotonic() - self._polled_at < SESSION_S

    def _leave(self) -> None:
        self._group.members.pop(self._name, None)
        for partition in [p for p, owner in self._group.owners.items() if owner == self._name]:
            del self._group.owners[partition]
        self._positions.clear()
        self._paused.clear()
        self._bus.notify()

    def _committed(self, partition: Partition) -> int:
        return max(self._group.committed.get(partition, 0), self._bus.log(partition).earliest)

    def _shares(self) -> set[Partition]:
        """Return what falls to this member, once the dead are gone."""
        for dead in [m for m in self._group.members.values() if not m.alive() and m is not self]:
            dead._leave()  # noqa: SLF001 - its own class
        members = {name: member.topics for name, member in self._group.members.items()}
        counts = {topic: self._bus.topic(topic).partitions for topics in members.values() for topic in topics}
        return {p for p, name in ranges(members, counts).items() if name == self._name}

    async def _rebalance(self) -> None:
        if self._name not in self._group.members:  # it was taken for dead: what it held is others' now
            await self._hand_over(set(self._positions))
            self._polled_at = self._clock.monotonic()
            self._group.members[self._name] = self
        mine = self._shares()
        if self._positions and self._bus.faults.strikes(self._bus.faults.redeliver):
            self._commits_are_lost = True
            try:
                await self._hand_over(set(self._positions))
            finally:
                self._commits_are_lost = False
        if gone := set(self._positions) - mine:
            await self._hand_over(gone)
        self._claim(mine)

    async def _hand_over(self, gone: set[Partition]) -> None:
        if gone and self._on_revoked is not None:
            await self._on_revoked(frozenset(gone))
        for partition in gone:
            if self._group.owners.get(partition) == self._name:
                del self._group.owners[partition]
            self._positions.pop(partition, None)
        self._paused -= gone
        self._bus.notify()

    def _claim(self, mine: set[Partition]) -> None:
        for partition in sorted(mine - set(self._positions)):
            if partition not in self._group.owners:
                self._group.owners[partition] = self._name
                self._positions[partition] = self._committed(partition)
        for partition in self._positions:  # retention may have overtaken a group: it goes on with what is left
            self._positions[partition] = max(self._positions[partition], self._bus.log(partition).earliest)


class MemoryReader:
    """A reader of given partitions from given offsets."""

    def __init__(self, bus: MemoryBus, clock: Clock, offsets: Mapping[Partition, int]) -> None:
        self._bus = bus
        self._clock = clock
        self._positions = dict(offsets)

    async def start(self) -> None:
        """Check topics and offsets."""
        self._bus.check_available()
        self._check_range()

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Delivery]:
        """Return what has arrived; empty after `timeout_s`."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            self._bus.check_available()
            self._check_range()
            batch = self._bus.take(self._positions, frozenset(), max_records)
            left_s = deadline - self._clock.monotonic()
            if batch or left_s <= 0:
                await asyncio.sleep(0)
                return batch
            await self._bus.changed(left_s)

    def position(self) -> Mapping[Partition, int]:
        """Return the next offset of each partition."""
        return dict(self._positions)

    async def at_end(self) -> bool:
        """Tell whether every partition has been read to where it ended just now."""
        bounds = await self._bus.bounds(self._positions)
        return all(offset >= bounds[p].end for p, offset in self._positions.items())

    async def stop(self) -> None:
        """Nothing to let go of."""

    def _check_range(self) -> None:
        for partition, offset in self._positions.items():
            log = self._bus.log(partition)
            if not log.earliest <= offset <= log.end:
                raise OffsetOutOfRangeError(partition, offset, log.earliest, log.end)
