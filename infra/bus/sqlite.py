"""The bus in one SQLite file: the embedded default. Several processes of one machine may share it.

Groups hand partitions over one by one: a member claims only what nobody alive holds, and lets go only after `on_revoked`.
A process says every BEAT_EVERY_S that it lives; one silent for SESSION_S has died, and its partitions are claimed by others.
Heartbeats use the clock that runs through suspend and is the same for all processes of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from schedmate.infra.bus import sqlite_log as rows
from schedmate.infra.bus.limits import check_sizes
from schedmate.infra.bus.measured import measured
from schedmate.infra.bus.partitioner import ranges
from schedmate.infra.bus.port import (
    Bounds,
    BusError,
    BusUnavailableError,
    OffsetOutOfRangeError,
    Partition,
    RevokedHandler,
    Written,
)
from schedmate.infra.bus.sqlite_file import BusFile
from schedmate.infra.clock import Clock, Ids, SystemIds
from schedmate.schemas.topology import Topic
from schedmate.schemas.wire import Delivery, Record

SESSION_S: Final = 6.0
BEAT_EVERY_S: Final = 1.0
EXPIRE_EVERY_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.5  # a member may die without writing anything, and a clock be moved

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class SqliteBus:
    """`EventBus` in one SQLite file."""

    def __init__(self, path: Path, clock: Clock, *, ids: Ids | None = None) -> None:
        self._path = path
        self._clock = clock
        self._ids = ids if ids is not None else SystemIds()
        self._file: BusFile | None = None
        self._layout: rows.Layout | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.session = ""

    async def start(self) -> None:
        """Open the file, and create it when there is none."""
        file = BusFile(Path(self._path))
        await file.open()
        self._file = file
        self.session = self._ids.new()
        self._tasks = [
            asyncio.ensure_future(self._every(BEAT_EVERY_S, self._beat)),
            asyncio.ensure_future(self._every(EXPIRE_EVERY_S, self._expire)),
        ]

    async def stop(self) -> None:
        """Finish what was begun, leave all groups, close the file."""
        file = self._file
        if file is None:
            return
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with contextlib.suppress(BusUnavailableError):  # the others notice within SESSION_S
            await file.write(lambda db: rows.end_session(db, self.session))
        self._file = None
        await file.close()

    async def identity(self) -> str:
        """Return the file's own id."""
        return await self.file.read(rows.identity)

    async def create_topics(self, topics: Iterable[Topic]) -> None:
        """Create what is missing; take over new settings."""
        wanted = list(topics)
        await self.file.write(lambda db: rows.create_topics(db, wanted))
        self._layout = await self.file.read(rows.layout)

    async def check_topics(self, names: Iterable[str]) -> None:
        """Raise MissingTopicError when one does not exist."""
        wanted = list(names)
        known = await self.layout(wanted)
        for name in wanted:
            known.topic(name)

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        return (await self.layout([topic])).topic(topic).partitions

    async def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        """Return the offsets that each partition holds."""
        wanted = list(partitions)
        known = await self.layout([p.topic for p in wanted])
        return await self.file.read(lambda db: rows.bounds_of(db, known, wanted))

    @measured
    async def publish(self, records: Sequence[Record]) -> Sequence[Written]:
        """Append in one transaction, on disk when it returns."""
        if not records:
            return []
        known = await self.layout([r.topic for r in records])
        check_sizes(records, {r.topic: known.topic(r.topic).record_bytes_max for r in records})
        at = self._clock.now()
        return await self.file.write(
            lambda db: rows.append(db, known, records, at), wakes={record.topic for record in records}
        )

    def group(
        self, group: str, topics: Sequence[str], *, on_revoked: RevokedHandler | None = None
    ) -> SqliteGroupConsumer:
        """Return a new member of a consumer group."""
        return SqliteGroupConsumer(self, self._clock, group, tuple(topics), on_revoked, self._ids.new())

    def reader(self, offsets: Mapping[Partition, int]) -> SqliteReader:
        """Return a reader of these partitions from these offsets."""
        return SqliteReader(self, self._clock, offsets)

    # --- for the consumers of this module -------------------------------------------------------------------------------

    @property
    def file(self) -> BusFile:
        """The open file."""
        if self._file is None:
            raise BusUnavailableError(f"the bus {self._path} is not started")
        return self._file

    async def layout(self, topics: Iterable[str]) -> rows.Layout:
        """Return what is known of the file, looking again when one of these topics is not."""
        known = self._layout
        if known is None or any(topic not in known.topics for topic in topics):
            known = self._layout = await self.file.read(rows.layout)
        return known

    def alive(self) -> tuple[float, float]:
        """Return between which two times a living session's last beat lies; what lies ahead is from before a reboot."""
        now = self._clock.monotonic()
        return now - SESSION_S, now + SESSION_S

    async def _beat(self) -> None:
        now = self._clock.monotonic()
        await self.file.write(lambda db: rows.beat(db, self.session, now), wakes=())

    async def _expire(self) -> None:
        now = self._clock.now()
        await self.file.write(lambda db: rows.expire(db, now), wakes=())

    async def _every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            try:
                await step()
            except BusError as error:
                log.warning("housekeeping of the bus file failed", action="bus.housekeeping", error=str(error))


class SqliteGroupConsumer:
    """A member of a group."""

    def __init__(
        self,
        bus: SqliteBus,
        clock: Clock,
        group: str,
        topics: tuple[str, ...],
        on_revoked: RevokedHandler | None,
        name: str,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._group = group
        self._topics = topics
        self._on_revoked = on_revoked
        self._name = name
        self._positions: dict[Partition, int] = {}
        self._paused: set[Partition] = set()

    async def start(self) -> None:
        """Join the group and take what is free."""
        await self._bus.check_topics(self._topics)
        await self._join()
        view, _ = await self._look(1)
        await self._claim({p for p in await self._share(view) if view.owners.get(p) not in view.members})

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Delivery]:
        """Return what has arrived; hand partitions over when the group's membership changed."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            since = self._bus.file.changes(self._topics)
            view, batch = await self._look(max_records)
            if self._name not in view.members:  # this process was silent too long: what it held is others' now
                await self._hand_over(set(self._positions))
                await self._join()
                continue
            share = await self._share(view)
            if gone := set(self._positions) - share:
                await self._hand_over(gone)
                continue
            free = {p for p in share - set(self._positions) if view.owners.get(p) not in view.members}
            if free and await self._claim(free):
                continue
            if batch.deliveries:
                return _move_on(self._positions, batch)
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                return []
            await self._bus.file.changed(self._topics, since, min(left_s, _LOOK_EVERY_S))

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Store the next offset to read for each partition still held."""
        known = await self._bus.layout(())
        await self._bus.file.write(lambda db: rows.commit(db, known, self._group, self._name, offsets), wakes=())

    async def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing from these partitions until resumed."""
        self._paused.update(partitions)

    async def resume(self, partitions: Iterable[Partition]) -> None:
        """Deliver from these partitions again."""
        self._paused.difference_update(partitions)

    def assignment(self) -> frozenset[Partition]:
        """Return the partitions held now."""
        return frozenset(self._positions)

    async def lag(self) -> Mapping[Partition, int]:
        """Return, for each partition held, how many records are not yet committed."""
        known, held = await self._bus.layout(()), self.assignment()
        return await self._bus.file.read(lambda db: rows.lag(db, known, self._group, held))

    async def stop(self) -> None:
        """Leave the group at once."""
        self._positions.clear()
        self._paused.clear()
        with contextlib.suppress(BusUnavailableError):  # the others notice when this process' session ends
            await self._bus.file.write(lambda db: rows.leave(db, self._name))

    async def _join(self) -> None:
        now = self._clock.monotonic()
        await self._bus.file.write(
            lambda db: rows.join(db, self._group, self._name, self._topics, self._bus.session, now)
        )

    async def _look(self, max_records: int) -> tuple[rows.GroupView, rows.Batch]:
        known, alive = await self._bus.layout(self._topics), self._bus.alive()
        positions, paused = dict(self._positions), frozenset(self._paused)

        def both(db: sqlite3.Connection) -> tuple[rows.GroupView, rows.Batch]:
            view = rows.look(db, known, self._group, alive)
            return view, rows.fetch(db, known, positions, paused, max_records)

        view, batch = await self._bus.file.read(both)
        for (
            partition,
            position,
        ) in self._positions.items():  # retention overtook the group: it goes on with what is left
            earliest = batch.bounds[partition].earliest
            if position < earliest:
                log.warning(
                    "records were lost to retention before the group read them",
                    action="bus.overtaken",
                    group=self._group,
                    topic=partition.topic,
                    partition=partition.number,
                    records=earliest - position,
                )
                self._positions[partition] = earliest
        return view, batch

    async def _share(self, view: rows.GroupView) -> set[Partition]:
        topics = {topic for topics in view.members.values() for topic in topics}
        known = await self._bus.layout(topics)
        counts = {topic: known.topic(topic).partitions for topic in topics}
        return {p for p, name in ranges(view.members, counts).items() if name == self._name}

    async def _hand_over(self, gone: set[Partition]) -> None:
        if gone and self._on_revoked is not None:
            await self._on_revoked(frozenset(gone))
        for partition in gone:
            self._positions.pop(partition, None)
        self._paused -= gone
        known = await self._bus.layout(())
        await self._bus.file.write(lambda db: rows.release(db, known, self._group, self._name, gone))

    async def _claim(self, free: set[Partition]) -> bool:
        known, alive, wanted = await self._bus.layout(()), self._bus.alive(), sorted(free)
        taken = await self._bus.file.write(lambda db: rows.claim(db, known, self._group, self._name, wanted, alive))
        self._positions |= taken
        return bool(taken)


class SqliteReader:
    """A reader of given partitions from given offsets."""

    def __init__(self, bus: SqliteBus, clock: Clock, offsets: Mapping[Partition, int]) -> None:
        self._bus = bus
        self._clock = clock
        self._positions = dict(offsets)

    async def start(self) -> None:
        """Check topics and offsets."""
        self._check_range(await self._bus.bounds(self._positions))

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Delivery]:
        """Return what has arrived; empty after `timeout_s`."""
        deadline = self._clock.monotonic() + timeout_s
        topics = {partition.topic for partition in self._positions}
        known = await self._bus.layout(topics)
        while True:
            since = self._bus.file.changes(topics)
            batch = await self._bus.file.read(self._fetching(known, max_records))
            self._check_range(batch.bounds)
            if batch.deliveries:
                return _move_on(self._positions, batch)
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                return []
            await self._bus.file.changed(topics, since, min(left_s, _LOOK_EVERY_S))

    def position(self) -> Mapping[Partition, int]:
        """Return the next offset of each partition."""
        return dict(self._positions)

    async def at_end(self) -> bool:
        """Tell whether every partition has been read to where it ended just now."""
        bounds = await self._bus.bounds(self._positions)
        return all(offset >= bounds[p].end for p, offset in self._positions.items())

    async def stop(self) -> None:
        """Nothing to let go of."""

    def _fetching(self, known: rows.Layout, max_records: int) -> Callable[[sqlite3.Connection], rows.Batch]:
        positions = dict(self._positions)
        return lambda db: rows.fetch(db, known, positions, frozenset(), max_records)

    def _check_range(self, bounds: Mapping[Partition, Bounds]) -> None:
        for partition, offset in self._positions.items():
            found = bounds[partition]
            if not found.earliest <= offset <= found.end:
                raise OffsetOutOfRangeError(partition, offset, found.earliest, found.end)


def _move_on(positions: dict[Partition, int], batch: rows.Batch) -> list[Delivery]:
    """Move positions behind what is delivered; who has delivered goes to the end, so that others are read first."""
    for delivery in batch.deliveries:
        partition = Partition(delivery.topic, delivery.partition)
        positions.pop(partition)
        positions[partition] = delivery.offset + 1
    return batch.deliveries
