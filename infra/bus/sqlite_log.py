"""The log inside the file, as plain functions of a connection: topics, records, groups. Each runs inside a transaction."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schedmate.infra.bus.partitioner import partition_of
from schedmate.infra.bus.port import Bounds, MissingTopicError, Partition, TopologyMismatchError, Written
from schedmate.schemas.topology import Topic
from schedmate.schemas.wire import Delivery, Record

OFFSET_BITS: Final = 40
_POLL_BYTES_MAX: Final = 8 * 1024 * 1024
_EXPIRED_PER_PASS_MAX: Final = 2000
_FREED_PAGES_PER_PASS: Final = 500


@dataclass(frozen=True, slots=True)
class Layout:
    """The topics as they are in the file, and the row id of each partition."""

    topics: Mapping[str, Topic]
    ids: Mapping[Partition, int]
    partitions: Mapping[int, Partition]

    def topic(self, name: str) -> Topic:
        """Return a topic that must exist."""
        if name not in self.topics:
            raise MissingTopicError(f"topic {name} does not exist; `schedmate setup` creates all topics")
        return self.topics[name]

    def id(self, partition: Partition) -> int:
        """Return the row id of a partition that must exist."""
        if partition not in self.ids:
            raise MissingTopicError(
                f"{partition.topic}/{partition.number} does not exist; `schedmate setup` creates all"
            )
        return self.ids[partition]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a fetch found: deliveries, and the bounds of the partitions asked for as they were then."""

    deliveries: list[Delivery]
    bounds: dict[Partition, Bounds]


@dataclass(frozen=True, slots=True)
class GroupView:
    """Who is in a group, and who holds what."""

    members: dict[str, list[str]]
    owners: dict[Partition, str]


def layout(db: sqlite3.Connection) -> Layout:
    """Return what the file holds."""
    topics = {
        row[0]: Topic(name=row[0], partitions=row[1], retention_s=row[2], cleanup=row[3], record_bytes_max=row[4])
        for row in db.execute("SELECT name, partitions, retention_s, cleanup, record_bytes_max FROM topics")
    }
    by_id = {row[0]: Partition(row[1], row[2]) for row in db.execute("SELECT id, topic, number FROM partitions")}
    return Layout(topics, {p: i for i, p in by_id.items()}, by_id)


def identity(db: sqlite3.Connection) -> str:
    """Return the file's id, made with the file."""
    return str(db.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()[0])


def create_topics(db: sqlite3.Connection, topics: Iterable[Topic]) -> None:
    """Create what is missing and take over settings."""
    for topic in topics:
        row = db.execute("SELECT partitions FROM topics WHERE name = ?", (topic.name,)).fetchone()
        if row is not None and row[0] != topic.partitions:
            raise TopologyMismatchError(f"{topic.name} has {row[0]} partitions, the topology says {topic.partitions}")
        db.execute(
            "INSERT OR REPLACE INTO topics VALUES (?, ?, ?, ?, ?)",
            (topic.name, topic.partitions, topic.retention_s, topic.cleanup, topic.record_bytes_max),
        )
        db.executemany(
            "INSERT OR IGNORE INTO partitions (topic, number) VALUES (?, ?)",
            [(topic.name, number) for number in range(topic.partitions)],
        )


def append(db: sqlite3.Connection, known: Layout, records: Sequence[Record], at: float) -> list[Written]:
    """Write records to the end of their partitions."""
    ends: dict[int, int] = {}
    written: list[Written] = []
    rows: list[tuple[int, float, bytes, bytes, bytes]] = []
    for record in records:
        partition = Partition(record.topic, partition_of(record.key, known.topic(record.topic).partitions))
        number = known.id(partition)
        if number not in ends:
            ends[number] = db.execute("SELECT next FROM partitions WHERE id = ?", (number,)).fetchone()[0]
        offset = ends[number]
        ends[number] = offset + 1
        rows.append((number << OFFSET_BITS | offset, at, record.key, _pack(record.headers), record.value))
        written.append(Written(partition, offset))
    db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
    db.executemany("UPDATE partitions SET next = ? WHERE id = ?", [(end, number) for number, end in ends.items()])
    return written


def bounds_of(db: sqlite3.Connection, known: Layout, partitions: Iterable[Partition]) -> dict[Partition, Bounds]:
    """Return the bounds of partitions."""
    found = {row[0]: row for row in db.execute("SELECT id, earliest, next FROM partitions")}
    return {p: Bounds(*found[known.id(p)][1:]) for p in partitions}


def fetch(
    db: sqlite3.Connection,
    known: Layout,
    positions: Mapping[Partition, int],
    paused: frozenset[Partition],
    max_records: int,
) -> Batch:
    """Read from `positions` in their order, bounded in records and bytes. What lies out of bounds is left to the caller."""
    bounds = bounds_of(db, known, positions)
    found: list[Delivery] = []
    room_bytes = _POLL_BYTES_MAX
    for partition, start in positions.items():
        room = max_records - len(found)
        if room <= 0 or room_bytes <= 0:
            break
        end = bounds[partition].end
        if partition in paused or not bounds[partition].earliest <= start < end:
            continue
        base = known.id(partition) << OFFSET_BITS
        rows = db.execute(
            "SELECT id, key, headers, value FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (base | start, base | end, room),
        )
        for row_id, key, headers, value in rows:
            record = Record(partition.topic, key, value, _unpack(headers))
            found.append(Delivery(record, partition.number, row_id - base))
            room_bytes -= len(value)
            if room_bytes <= 0:
                break
        rows.close()
    return Batch(found, bounds)


def expire(db: sqlite3.Connection, now: float) -> None:
    """Drop records older than their topic keeps them and give space back, a bounded amount of both a call."""
    for number, earliest, end, retention_s in db.execute(
        "SELECT p.id, p.earliest, p.next, t.retention_s FROM partitions p JOIN topics t ON t.name = p.topic "
        "WHERE t.cleanup = 'delete' AND p.earliest < p.next"
    ).fetchall():
        base, first_kept = number << OFFSET_BITS, earliest
        for row_id, at in db.execute(
            "SELECT id, at FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (base | earliest, base | end, _EXPIRED_PER_PASS_MAX),
        ):
            if at >= now - retention_s:
                break
            first_kept = row_id - base + 1
        if first_kept > earliest:
            db.execute("DELETE FROM records WHERE id >= ? AND id < ?", (base | earliest, base | first_kept))
            db.execute("UPDATE partitions SET earliest = ? WHERE id = ?", (first_kept, number))
    free = db.execute("PRAGMA freelist_count").fetchone()[0]
    for _ in range(min(free, _FREED_PAGES_PER_PASS)):  # asked for several at once, it stops after the first here
        db.execute("PRAGMA incremental_vacuum(1)")


# --- groups -------------------------------------------------------------------------------------------------------------


def beat(db: sqlite3.Connection, session: str, now: float) -> bool:
    """Say that a session is alive. False: the others took it for dead, and its members are no longer in their groups."""
    return db.execute("UPDATE sessions SET beat_at = ? WHERE id = ?", (now, session)).rowcount == 1


def join(db: sqlite3.Connection, group: str, member: str, topics: Sequence[str], session: str, now: float) -> None:
    """Enter a group."""
    db.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?)", (session, now))
    db.execute("INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?)", (member, group, session, json.dumps(list(topics))))


def leave(db: sqlite3.Connection, member: str) -> None:
    """Leave the group and let go of what the member holds."""
    db.execute("DELETE FROM members WHERE name = ?", (member,))
    db.execute("DELETE FROM owners WHERE member = ?", (member,))


def end_session(db: sqlite3.Connection, session: str) -> None:
    """All members of a session leave."""
    db.execute("DELETE FROM sessions WHERE id = ?", (session,))
    _bury(db)


def look(db: sqlite3.Connection, known: Layout, group: str, alive: tuple[float, float]) -> GroupView:
    """Return the group's living members (those whose session's last beat lies between the two times) and the holders."""
    members = {
        name: json.loads(topics)
        for name, topics in db.execute(
            "SELECT m.name, m.topics FROM members m JOIN sessions s ON s.id = m.session "
            "WHERE m.grp = ? AND s.beat_at BETWEEN ? AND ?",
            (group, *alive),
        )
    }
    owners = {
        known.partitions[number]: member
        for number, member in db.execute("SELECT partition, member FROM owners WHERE grp = ?", (group,))
        if number in known.partitions
    }
    return GroupView(members, owners)


def claim(
    db: sqlite3.Connection,
    known: Layout,
    group: str,
    member: str,
    wanted: Iterable[Partition],
    alive: tuple[float, float],
) -> dict[Partition, int]:
    """Take what nobody alive holds; return it with the offsets to go on from."""
    db.execute("DELETE FROM sessions WHERE beat_at NOT BETWEEN ? AND ?", alive)
    _bury(db)
    if db.execute("SELECT 1 FROM members WHERE name = ?", (member,)).fetchone() is None:
        return {}
    taken: dict[Partition, int] = {}
    for partition in wanted:
        number = known.id(partition)
        if db.execute("INSERT OR IGNORE INTO owners VALUES (?, ?, ?)", (group, number, member)).rowcount == 1:
            taken[partition] = _go_on_from(db, group, number)
    return taken


def release(db: sqlite3.Connection, known: Layout, group: str, member: str, partitions: Iterable[Partition]) -> None:
    """Let go of partitions."""
    db.executemany(
        "DELETE FROM owners WHERE grp = ? AND partition = ? AND member = ?",
        [(group, known.id(p), member) for p in partitions],
    )


def commit(db: sqlite3.Connection, known: Layout, group: str, member: str, offsets: Mapping[Partition, int]) -> None:
    """Store offsets of the partitions that the member still holds."""
    db.executemany(
        "INSERT OR REPLACE INTO offsets SELECT grp, partition, ? FROM owners WHERE grp = ? AND partition = ? AND member = ?",
        [(offset, group, known.id(partition), member) for partition, offset in offsets.items()],
    )


def lag(db: sqlite3.Connection, known: Layout, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return how many records of each partition the group has not committed."""
    bounds = bounds_of(db, known, partitions)
    return {p: bounds[p].end - _go_on_from(db, group, known.id(p)) for p in bounds}


def _bury(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM members WHERE session NOT IN (SELECT id FROM sessions)")
    db.execute("DELETE FROM owners WHERE member NOT IN (SELECT name FROM members)")


def _go_on_from(db: sqlite3.Connection, group: str, number: int) -> int:
    earliest = db.execute("SELECT earliest FROM partitions WHERE id = ?", (number,)).fetchone()[0]
    row = db.execute("SELECT next FROM offsets WHERE grp = ? AND partition = ?", (group, number)).fetchone()
    return int(earliest) if row is None else max(int(row[0]), int(earliest))


def _pack(headers: Sequence[tuple[str, bytes]]) -> bytes:
    """Headers as bytes: for each the two lengths, the name in UTF-8, the value."""
    parts: list[bytes] = []
    for name, value in headers:
        encoded = name.encode()
        parts += [struct.pack(">HI", len(encoded), len(value)), encoded, value]
    return b"".join(parts)


def _unpack(packed: bytes) -> tuple[tuple[str, bytes], ...]:
    headers: list[tuple[str, bytes]] = []
    at = 0
    while at < len(packed):
        name_bytes, value_bytes = struct.unpack_from(">HI", packed, at)
        at += 6
        headers.append((packed[at : at + name_bytes].decode(), packed[at + name_bytes : at + name_bytes + value_bytes]))
        at += name_bytes + value_bytes
    return tuple(headers)
