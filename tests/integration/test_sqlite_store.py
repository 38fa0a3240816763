"""One SQLite file under several processes: kill -9, locks held by others, writers that share a commit."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from schedmate.infra.store.port import DuplicateKeyError, StoreError, StoreUnavailableError
from schedmate.infra.store.sqlite import SqliteStore
from schedmate.schemas.topology import Collection, Index
from tests.waiting import eventually

THINGS = Collection("things", (Index("rank", unique=False), Index("name", unique=True)))
ROOT = Path(__file__).parents[2]

WRITER = """
import asyncio, sys
from schedmate.infra.store.sqlite import SqliteStore

async def main(path, name):
    store = SqliteStore(path)
    await store.start()
    async def write(task):
        for n in range(100_000):
            doc_id = f"{name}/{task}/{n:06}"
            await store.insert("things", doc_id, {"rank": n, "x": "y" * 300})
            print(doc_id, flush=True)
    await asyncio.gather(*(write(task) for task in range(4)))

asyncio.run(main(*sys.argv[1:]))
"""

COUNTER = """
import asyncio, sys
from schedmate.infra.store.sqlite import SqliteStore

async def main(path, rounds):
    store = SqliteStore(path)
    await store.start()
    wins = 0
    while wins < int(rounds):
        document = await store.get("things", "counter")
        if await store.replace("things", "counter", {"n": document.body["n"] + 1}, version=document.version):
            wins += 1
    await store.stop()

asyncio.run(main(*sys.argv[1:]))
"""


def process(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "store.db", busy_s=5.0)
    await store.start()
    await store.setup([THINGS])
    yield store
    await store.stop()


async def test_nothing_acknowledged_is_lost_when_a_writer_is_killed(store, tmp_path):
    acknowledged: list[str] = []
    for attempt in range(3):
        with process(WRITER, tmp_path / "store.db", f"w{attempt}") as writer:
            lines = [await asyncio.to_thread(writer.stdout.readline) for _ in range(60 + 40 * attempt)]
            acknowledged += [line.strip() for line in lines]
            await store.put("things", "mine", {"attempt": attempt})  # two processes write at once
            writer.send_signal(signal.SIGKILL)
            acknowledged += writer.stdout.read().splitlines()[:-1]  # the last line may be cut
    found = await store.get_many("things", acknowledged)
    assert set(found) == set(acknowledged)
    assert await store.count("things") >= len(acknowledged) + 1
    check = sqlite3.connect(tmp_path / "store.db")
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


async def test_compare_and_set_is_exact_over_processes(store, tmp_path):
    await store.insert("things", "counter", {"n": 0})
    processes = [process(COUNTER, tmp_path / "store.db", 40) for _ in range(4)]
    for each in processes:
        with each:
            assert await asyncio.to_thread(each.wait, 60) == 0
    document = await store.get("things", "counter")
    assert (document.version, document.body) == (161, {"n": 160})


async def test_a_lock_that_another_process_holds_is_waited_for_within_a_bound(tmp_path):
    store = SqliteStore(tmp_path / "store.db", busy_s=0.3)
    await store.start()
    await store.setup([THINGS])
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked"):
        await store.insert("things", "a", {})
    assert await store.get("things", "a") is None  # readers are not held up
    waiting = asyncio.create_task(store.insert("things", "b", {}))
    await asyncio.sleep(0)
    other.execute("COMMIT")
    other.close()
    await waiting
    await store.stop()


async def test_one_write_that_is_refused_leaves_the_others_of_its_commit_alone(store):
    await store.insert("things", "taken", {"name": "x"})
    writes = [store.insert("things", f"{n}", {"name": "x"} if n % 3 == 0 else {"name": f"n{n}"}) for n in range(60)]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [isinstance(outcome, DuplicateKeyError) for outcome in outcomes] == [n % 3 == 0 for n in range(60)]
    assert await store.count("things") == 41


async def test_a_caller_that_gives_up_leaves_the_store_working(store):
    write = asyncio.create_task(store.insert("things", "a", {}))
    await asyncio.sleep(0)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    await store.put("things", "b", {})
    assert await store.get("things", "b") is not None


async def test_a_full_disk_is_said_and_outlived(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "store.db")
    connect = store._connect
    await store.start()
    await store.setup([THINGS])

    def small() -> sqlite3.Connection:
        connection = connect()
        connection.execute("PRAGMA max_page_count = 60")
        return connection

    await store.stop()
    monkeypatch.setattr(store, "_connect", small)
    await store.start()
    await store.insert("things", "a", {"x": "y" * 10_000})
    with pytest.raises(StoreUnavailableError, match="full"):
        await store.insert("things", "b", {"x": "y" * 1_000_000})
    await store.insert("things", "c", {"x": "y" * 10_000})
    assert await store.delete("things", "a")
    assert await store.get("things", "b") is None
    await store.stop()


async def test_a_version_that_no_document_can_have_is_the_callers_error_alone(store):
    await store.insert("things", "a", {})
    with pytest.raises((StoreError, OverflowError)):
        await store.replace("things", "a", {}, version=2**70)
    await store.put("things", "a", {})


async def test_a_file_that_is_no_database_is_said_at_the_start(tmp_path):
    (tmp_path / "store.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreUnavailableError, match="not a database"):
        await SqliteStore(tmp_path / "store.db").start()


async def test_the_file_is_its_owners_alone(store, tmp_path):
    await store.put("things", "a", {})
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


async def test_writes_are_flushed_before_they_are_acknowledged(store):
    def settings(connection: sqlite3.Connection) -> tuple[object, ...]:
        return (*connection.execute("PRAGMA journal_mode").fetchone(),)

    assert await store._read(settings) == ("wal",)
    full = 2
    synchronous = await store._read(lambda connection: connection.execute("PRAGMA synchronous").fetchone()[0])
    assert synchronous == full


async def test_setups_at_once_from_several_stores_agree(tmp_path):
    stores = [SqliteStore(tmp_path / "new.db") for _ in range(6)]
    await asyncio.gather(*(store.start() for store in stores))
    await asyncio.gather(*(store.setup([THINGS]) for store in stores))
    await asyncio.gather(*(store.insert("things", f"{n}", {"rank": n}) for n, store in enumerate(stores)))
    assert await stores[0].count("things") == 6
    for store in stores:
        await store.stop()


async def test_a_stop_waits_for_the_writes_that_were_given(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.start()
    await store.setup([THINGS])
    writes = [asyncio.create_task(store.insert("things", f"{n}", {})) for n in range(100)]
    await eventually(lambda: any(write.done() for write in writes))
    await store.stop()
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    await store.start()
    assert await store.count("things") == outcomes.count(None)
    await store.stop()
