"""What is SQLite's own in the bus: sessions, retention, shared commits, a file that cannot be used."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schedmate.infra.bus import sqlite_file
from schedmate.infra.bus.port import BusError, BusUnavailableError, MissingTopicError, Partition
from schedmate.infra.bus.sqlite import EXPIRE_EVERY_S, SESSION_S, SqliteBus
from schedmate.infra.bus.sqlite_file import BusFile
from schedmate.infra.clock import SystemClock, VirtualClock
from schedmate.schemas.topology import Topic
from schedmate.schemas.wire import Record
from tests.waiting import eventually

TOPIC = Topic("t", 4, 100, "delete", 100_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "bus.db"


@pytest.fixture
async def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def bus(path: Path, clock: VirtualClock) -> AsyncIterator[SqliteBus]:
    made = SqliteBus(path, clock)
    await made.start()
    await made.create_topics([TOPIC])
    yield made
    await made.stop()


def some(count: int, start: int = 0) -> list[Record]:
    return [Record("t", b"%d" % n, b"%d" % n) for n in range(start, start + count)]


async def total(bus: SqliteBus) -> tuple[int, int]:
    """How many records there are, and how many there have ever been."""
    bounds = (await bus.bounds([Partition("t", n) for n in range(4)])).values()
    return sum(b.end - b.earliest for b in bounds), sum(b.end for b in bounds)


async def test_a_file_keeps_its_identity_and_its_records(path: Path, bus: SqliteBus, tmp_path: Path) -> None:
    await bus.publish(some(10))
    again, other = SqliteBus(path, SystemClock()), SqliteBus(tmp_path / "other.db", SystemClock())
    for one in (again, other):
        await one.start()
    assert await again.identity() == await bus.identity() != await other.identity()
    assert await total(again) == (10, 10)
    for one in (again, other):
        await one.stop()


async def test_records_are_kept_for_their_topic_s_time_and_no_longer(bus: SqliteBus, clock: VirtualClock) -> None:
    await bus.publish(some(10))
    clock.advance(90)
    await bus.publish(some(5, 10))
    clock.advance(9)
    await asyncio.sleep(0)
    assert await total(bus) == (15, 15)
    for _ in range(2):
        clock.advance(EXPIRE_EVERY_S)

        async def expired() -> bool:
            return (await total(bus))[0] == 5

    await eventually(expired)
    assert await total(bus) == (5, 15)


async def test_a_compacted_topic_is_kept_whatever_its_age(bus: SqliteBus, clock: VirtualClock) -> None:
    await bus.create_topics([Topic("t", 4, 100, "compact", 100_000)])
    await bus.publish(some(10))
    clock.advance(1000)
    await bus._expire()
    assert await total(bus) == (10, 10)


async def test_a_member_whose_process_is_silent_loses_its_partitions_to_the_others(
    path: Path, bus: SqliteBus, clock: VirtualClock
) -> None:
    silent_clock = VirtualClock()  # this process' heart no longer beats
    silent_bus = SqliteBus(path, silent_clock)
    await silent_bus.start()
    silent = silent_bus.group("g", ["t"])
    await silent.start()
    assert len(silent.assignment()) == 4
    await bus.publish(some(20))
    got = await silent.poll(100, 0)
    assert len(got) == 20

    living = bus.group("g", ["t"])
    await living.start()
    assert not await living.poll(100, 0)
    assert not living.assignment()
    clock.advance(SESSION_S + 1)

    found = []

    async def taken_over() -> bool:
        found.extend(await living.poll(100, 0))
        return len(living.assignment()) == 4 and len(found) == 20

    await eventually(taken_over)
    await living.commit({Partition("t", n): 1 for n in range(4)})

    revoked = []

    async def on_revoked(partitions: frozenset[Partition]) -> None:
        revoked.append(partitions)
        await silent.commit({Partition(d.topic, d.partition): d.offset + 1 for d in got})

    silent._on_revoked = on_revoked
    silent_clock.advance(clock.monotonic())
    assert not await silent.poll(100, 0)
    assert revoked == [frozenset(Partition("t", n) for n in range(4))], "it learns of it, and its commit counts no more"
    assert sum((await living.lag()).values()) == 20 - 4
    await silent.stop()
    await silent_bus.stop()
    await living.stop()


async def test_a_heartbeat_from_before_a_reboot_is_no_life(path: Path, bus: SqliteBus, clock: VirtualClock) -> None:
    late_clock = VirtualClock()
    late_clock.advance(1_000_000)  # up for days, then the machine was restarted and its clock began again
    before = SqliteBus(path, late_clock)
    await before.start()
    member = before.group("g", ["t"])
    await member.start()
    assert len(member.assignment()) == 4
    after = bus.group("g", ["t"])
    await after.start()
    assert len(after.assignment()) == 4
    await after.stop()
    await before.stop()


async def test_publishes_that_wait_together_share_a_commit_and_each_is_whole_or_not_at_all(bus: SqliteBus) -> None:
    commits = 0

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    connection = bus.file._write_connection
    assert connection is not None
    connection.set_trace_callback(count)
    good = [bus.publish(some(2, n)) for n in range(0, 200, 2)]

    def bad(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO records VALUES (1, 0, x'', x'', x'')")
        raise ValueError("this change only")

    results = await asyncio.gather(*good[:50], bus.file.write(bad), *good[50:], return_exceptions=True)
    connection.set_trace_callback(None)
    assert [type(r) for r in results if isinstance(r, Exception)] == [ValueError]
    assert await total(bus) == (200, 200)
    assert commits < 80, "100 publishes did not share their commits"


async def test_a_locked_file_is_told_as_unavailable_and_used_again_later(
    path: Path, bus: SqliteBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = bus.file._write_connection
    assert connection is not None
    connection.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BusUnavailableError, match="locked"):
        await bus.publish(some(1))
    other.execute("COMMIT")
    other.close()
    await bus.publish(some(1))
    assert await total(bus) == (1, 1)


async def test_a_file_that_is_no_bus_or_of_another_format_is_refused(
    path: Path, bus: SqliteBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rubbish = tmp_path / "rubbish.db"
    rubbish.write_bytes(b"this is no database" * 1000)
    with pytest.raises(BusUnavailableError, match="rubbish"):
        await SqliteBus(rubbish, SystemClock()).start()
    monkeypatch.setattr(sqlite_file, "_FORMAT", 2)
    with pytest.raises(BusUnavailableError, match="format 1"):
        await BusFile(path).open()


async def test_what_is_not_started_or_stopped_says_so(path: Path) -> None:
    bus = SqliteBus(path, SystemClock())
    with pytest.raises(BusUnavailableError, match="not started"):
        await bus.identity()
    await bus.start()
    await bus.create_topics([TOPIC])
    consumer = bus.group("g", ["t"])
    await consumer.start()
    polling = asyncio.ensure_future(consumer.poll(1, 30))
    await eventually(lambda: bus.file._waiters)
    await bus.stop()
    with pytest.raises(BusError):
        await asyncio.wait_for(polling, 5)
    await consumer.stop()
    await bus.stop()


async def test_topics_that_another_process_made_are_seen(path: Path, bus: SqliteBus) -> None:
    other = SqliteBus(path, SystemClock())
    await other.start()
    await other.check_topics(["t"])
    with pytest.raises(MissingTopicError):
        await other.publish([Record("later", b"k", b"v")])
    await bus.create_topics([Topic("later", 1, 100, "delete", 1000)])
    await other.publish([Record("later", b"k", b"v")])
    await other.stop()


async def test_a_poll_is_bounded_in_bytes(bus: SqliteBus) -> None:
    await bus.create_topics([Topic("big", 1, 100, "delete", 2_000_000)])
    for _ in range(12):
        await bus.publish([Record("big", b"k", b"x" * 1_000_000)])
    reader = bus.reader({Partition("big", 0): 0})
    await reader.start()
    batches = []
    while not await reader.at_end():
        batches.append(len(await reader.poll(1000, 0)))
    assert batches == [9, 3]


async def test_expired_records_give_their_space_back(path: Path, bus: SqliteBus, clock: VirtualClock) -> None:
    for n in range(40):
        await bus.publish([Record("t", b"%d" % n, b"x" * 90_000)])
    clock.advance(1000)

    def pages(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA page_count").fetchone()[0])

    before = await bus.file.read(pages)
    for _ in range(3):
        await bus._expire()
    assert await total(bus) == (0, 40)
    assert await bus.file.read(pages) < before / 4


async def test_only_its_owner_reads_the_file(tmp_path):
    bus = SqliteBus(tmp_path / "bus.db", SystemClock())
    await bus.start()
    try:
        await bus.identity()
        for path in tmp_path.iterdir():
            assert path.stat().st_mode & 0o077 == 0, path
    finally:
        await bus.stop()
