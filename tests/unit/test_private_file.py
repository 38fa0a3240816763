"""Databases of this process while other processes, and other parts of this one, come and go."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

from schedmate.infra.bus.port import Partition
from schedmate.infra.bus.sqlite import SqliteBus
from schedmate.infra.clock import SystemClock
from schedmate.infra.private_file import make_private_file
from schedmate.infra.store.sqlite import SqliteStore
from schedmate.schemas.topology import Collection, Topic
from schedmate.schemas.wire import Record

TOPIC = Topic("t", 1, 100, "delete", 100_000)
ANOTHER_PROCESS = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute('SELECT * FROM sqlite_schema').fetchall(); d.close()"


def open_and_close_elsewhere(path: Path) -> None:
    subprocess.run([sys.executable, "-c", ANOTHER_PROCESS, str(path)], check=True, timeout=30)


def test_a_made_file_is_its_owners_and_one_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    make_private_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("kept")
    make_private_file(path)
    assert path.read_text() == "kept"


async def test_a_bus_outlives_a_second_one_of_this_process_and_another_process(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    first, second = SqliteBus(path, SystemClock()), SqliteBus(path, SystemClock())
    await first.start()
    await first.create_topics([TOPIC])
    await second.start()
    journal = path.with_name("bus.db-wal").stat().st_ino
    open_and_close_elsewhere(path)
    assert path.with_name("bus.db-wal").stat().st_ino == journal
    await first.publish([Record("t", b"k", b"v")])
    assert (await second.bounds([Partition("t", 0)]))[Partition("t", 0)].end == 1
    await second.stop()
    await first.stop()


async def test_a_store_outlives_a_second_one_of_this_process_and_another_process(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    first, second = SqliteStore(path), SqliteStore(path)
    await first.start()
    await first.setup([Collection("jobs", ())])
    await second.start()
    journal = path.with_name("store.db-wal").stat().st_ino
    open_and_close_elsewhere(path)
    assert path.with_name("store.db-wal").stat().st_ino == journal
    await first.put("jobs", "1", {"a": 1})
    found = await second.get("jobs", "1")
    assert found is not None
    assert found.body == {"a": 1}
    await second.stop()
    await first.stop()
