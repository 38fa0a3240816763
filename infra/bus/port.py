"""The port `EventBus`: at-least-once, partitioned, ordered by key.

Two ways to read. A **group** shares a topic's partitions among its members and commits; the dispatcher and the workers use a
**reader** instead: partitions and offsets of their own choosing, no group, no commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from schedmate.schemas.topology import Topic
from schedmate.schemas.wire import Delivery, Record


class BusError(Exception):
    """The bus could not do what was asked."""


class BusUnavailableError(BusError):
    """The bus did not answer in time. Trying again may help."""


class MissingTopicError(BusError):
    """A topic does not exist; `schedmate setup` creates all of them."""


class TopologyMismatchError(BusError):
    """A topic exists with another number of partitions than the topology file says."""


class RecordTooLargeError(BusError):
    """The record is larger than its topic takes."""


class OffsetOutOfRangeError(BusError):
    """A reader's offset lies outside what the partition still holds. Readers never reset silently."""

    def __init__(self, partition: Partition, wanted: int, earliest: int, end: int) -> None:
        super().__init__(
            f"{partition.topic}/{partition.number}: offset {wanted} lies outside [{earliest}, {end}]; "
            "records were lost to retention or the topic was made anew"
        )
        self.partition = partition
        self.wanted = wanted
        self.earliest = earliest
        self.end = end


class Partition(NamedTuple):
    """One partition of one topic; a tuple, since it is hashed for every record."""

    topic: str
    number: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets of a partition: the first that can still be read, and the next to be written."""

    earliest: int
    end: int


@dataclass(frozen=True, slots=True)
class Written:
    """Where a published record came to stand."""

    partition: Partition
    offset: int


class GroupConsumer(Protocol):
    """A member of a consumer group. Not safe for concurrent use, except that callbacks run inside `poll`."""

    async def start(self) -> None:
        """Join the group.

        Raises:
            MissingTopicError: a topic does not exist (found out at once, never waited for).
            BusUnavailableError: the bus did not answer in time.
        """
        ...

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Delivery]:
        """Return what has arrived, in order per partition; empty after `timeout_s`."""
        ...

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Store the next offset to read for each partition. A partition no longer held is ignored."""
        ...

    async def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing from these partitions until resumed."""
        ...

    async def resume(self, partitions: Iterable[Partition]) -> None:
        """Deliver from these partitions again."""
        ...

    def assignment(self) -> frozenset[Partition]:
        """Return the partitions held now."""
        ...

    async def lag(self) -> Mapping[Partition, int]:
        """Return, for each partition held, how many records are not yet committed."""
        ...

    async def stop(self) -> None:
        """Leave the group at once."""
        ...


RevokedHandler = Callable[[frozenset[Partition]], Awaitable[None]]
"""Called before partitions are handed over: stop taking, drain, commit; returns when that is done."""


class Reader(Protocol):
    """Reads partitions from given offsets, in no group. Not safe for concurrent use."""

    async def start(self) -> None:
        """Check that topics exist and that each offset lies in its partition.

        Raises:
            MissingTopicError, OffsetOutOfRangeError, BusUnavailableError
        """
        ...

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Delivery]:
        """Return what has arrived; empty after `timeout_s`.

        Raises:
            OffsetOutOfRangeError: retention overtook the reader.
        """
        ...

    def position(self) -> Mapping[Partition, int]:
        """Return the next offset of each partition."""
        ...

    async def at_end(self) -> bool:
        """Tell whether every partition has been read to where it ended just now (asks the bus)."""
        ...

    async def stop(self) -> None:
        """Stop reading."""
        ...


class EventBus(Protocol):
    """Topics, publishing and both ways to read."""

    async def start(self) -> None:
        """Connect. Raises BusUnavailableError when the bus does not answer in time."""
        ...

    async def stop(self) -> None:
        """Flush and disconnect."""
        ...

    async def identity(self) -> str:
        """Return an id of this very bus (cluster id, file id): offsets are meaningless on another one."""
        ...

    async def create_topics(self, topics: Iterable[Topic]) -> None:
        """Create what is missing and set each topic's configuration; idempotent.

        Raises:
            TopologyMismatchError: a topic has another partition count.
        """
        ...

    async def check_topics(self, names: Iterable[str]) -> None:
        """Raise MissingTopicError when one does not exist."""
        ...

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises MissingTopicError."""
        ...

    async def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        """Return the offsets that each partition holds."""
        ...

    async def publish(self, records: Sequence[Record]) -> Sequence[Written]:
        """Publish in order per key and return when all are acknowledged (durable).

        An error leaves it open which of them were written: publish again, readers recognise repeats.

        Raises:
            RecordTooLargeError: one is larger than its topic takes; none of them was written.
            MissingTopicError, BusUnavailableError
        """
        ...

    def group(self, group: str, topics: Sequence[str], *, on_revoked: RevokedHandler | None = None) -> GroupConsumer:
        """Return a new member of a consumer group. A new group starts at the beginning of each topic."""
        ...

    def reader(self, offsets: Mapping[Partition, int]) -> Reader:
        """Return a reader of these partitions from these offsets."""
        ...
