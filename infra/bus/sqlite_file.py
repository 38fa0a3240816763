"""One SQLite file as several processes share it: one thread that writes, one that reads, and a wake-up when it changed.

Durability: WAL with synchronous=FULL, so that a commit has reached the disk when it returns and kill -9 loses nothing of it.
Writes that wait at the same time share one transaction (a group commit), each still whole or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from schedmate.infra.bus.port import BusError, BusUnavailableError
from schedmate.infra.private_file import make_private_file

BUSY_TIMEOUT_S: Final = 5.0
OTHER_PROCESSES_EVERY_S: Final = 0.05
_WRITES_PER_COMMIT_MAX: Final = 64
_WRITES_WAITING_MAX: Final = 1024
_JOURNAL_KEPT_BYTES: Final = 64 * 1024 * 1024
_FORMAT: Final = 1
_ANY: Final = ""  # no topic's name

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS topics (
  name TEXT PRIMARY KEY, partitions INTEGER NOT NULL, retention_s INTEGER NOT NULL, cleanup TEXT NOT NULL,
  record_bytes_max INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS partitions (
  id INTEGER PRIMARY KEY, topic TEXT NOT NULL, number INTEGER NOT NULL, earliest INTEGER NOT NULL DEFAULT 0,
  next INTEGER NOT NULL DEFAULT 0, UNIQUE (topic, number)) STRICT;
-- id = partition id << 40 | offset: one partition is one range of the tree, read and written at its end
CREATE TABLE IF NOT EXISTS records (
  id INTEGER PRIMARY KEY, at REAL NOT NULL, key BLOB NOT NULL, headers BLOB NOT NULL, value BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, beat_at REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS members (
  name TEXT PRIMARY KEY, grp TEXT NOT NULL, session TEXT NOT NULL, topics TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS owners (
  grp TEXT NOT NULL, partition INTEGER NOT NULL, member TEXT NOT NULL, PRIMARY KEY (grp, partition)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS offsets (
  grp TEXT NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (grp, partition)) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO meta VALUES ('identity', lower(hex(randomblob(16))));
"""

T = TypeVar("T")
_Write = Callable[[sqlite3.Connection], Any]


class BusFile:
    """The file. `read` and `write` take functions of a connection and run them off the event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bus-write")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="bus-read")
        self._write_connection: sqlite3.Connection | None = None
        self._read_connection: sqlite3.Connection | None = None
        self._queue: deque[tuple[_Write, asyncio.Future[Any]]] = deque()
        self._room = asyncio.Semaphore(_WRITES_WAITING_MAX)
        self._writing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._waiters: dict[asyncio.Future[None], frozenset[str]] = {}
        self._seen_version = 0
        self._open = False
        self._changes: Counter[str] = Counter()

    async def open(self) -> None:
        """Create what is missing. Raises BusUnavailableError when the file cannot be opened or stays locked."""
        loop = asyncio.get_running_loop()
        try:
            self._write_connection = await loop.run_in_executor(self._writer, self._connect_writer)
            self._read_connection = await loop.run_in_executor(self._reader, self._connect)
        except (OSError, sqlite3.Error) as error:
            raise BusUnavailableError(f"the bus file {self.path} cannot be opened: {error}") from error
        self._open = True

    async def close(self) -> None:
        """Finish what was begun and let go of the file."""
        self._open = False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=BUSY_TIMEOUT_S)
        self.wake()
        loop = asyncio.get_running_loop()
        for executor, connection in ((self._reader, self._read_connection), (self._writer, self._write_connection)):
            if connection is not None:
                await loop.run_in_executor(executor, connection.close)
            executor.shutdown(wait=False)

    async def read(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Run `look` on one consistent state of the file."""

        def run() -> T:
            connection = self._opened(self._read_connection)
            try:
                connection.execute("BEGIN")
                try:
                    return look(connection)
                finally:
                    connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise _translated(error, self.path) from error

        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._reader, run)

    async def write(self, change: Callable[[sqlite3.Connection], T], *, wakes: Collection[str] | None = None) -> T:
        """Run `change` in a transaction and return once it is on disk; all of it holds, or (when it raises) nothing.

        It wakes this process' readers of the topics in `wakes`; None is all of them.
        """
        self._check_open()
        async with self._room:
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._queue.append((change, future))
            if self._writing is None:
                self._writing = asyncio.ensure_future(self._write_all())
            result = await future
        self.wake(wakes)
        return result

    def changes(self, topics: Collection[str]) -> int:
        """Return a number that grows when one of these topics, or the groups, were written to."""
        return self._changes[_ANY] + sum(self._changes[topic] for topic in topics)

    async def changed(self, topics: Collection[str], since: int, within_s: float) -> None:
        """Wait until somebody wrote to these topics after `changes` was `since`, at most `within_s`.

        Writes of this process wake at once, those of others within OTHER_PROCESSES_EVERY_S.
        """
        self._check_open()
        if self.changes(topics) != since:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = frozenset(topics)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({waiter}, timeout=within_s)
        finally:
            del self._waiters[waiter]

    def wake(self, topics: Collection[str] | None = None) -> None:
        """Wake whoever waits in `changed` for one of these topics; None wakes all."""
        self._changes.update([_ANY] if topics is None else topics)
        for waiter, wanted in self._waiters.items():
            if not waiter.done() and (topics is None or not wanted.isdisjoint(topics)):
                waiter.set_result(None)

    async def _watch(self) -> None:
        """Look for other processes' writes as long as somebody waits for them."""
        while self._waiters and self._open:
            await asyncio.sleep(OTHER_PROCESSES_EVERY_S)
            with contextlib.suppress(BusError):  # whoever is waiting will meet the same error, and tell it
                version = await self._version()
                if version != self._seen_version:
                    self._seen_version = version
                    self.wake()

    async def _version(self) -> int:
        def run() -> int:
            try:
                row = self._opened(self._read_connection).execute("PRAGMA data_version").fetchone()
            except sqlite3.Error as error:
                raise _translated(error, self.path) from error
            return int(row[0])

        return await asyncio.get_running_loop().run_in_executor(self._reader, run)

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), _WRITES_PER_COMMIT_MAX))]
                outcomes = await loop.run_in_executor(self._writer, self._commit_all, [change for change, _ in batch])
                for (_, future), (result, error) in zip(batch, outcomes, strict=True):
                    if future.done():  # its caller was cancelled
                        continue
                    if error is not None:
                        future.set_exception(error)
                    else:
                        future.set_result(result)
        finally:
            self._writing = None

    def _commit_all(self, changes: Sequence[_Write]) -> list[tuple[Any, Exception | None]]:
        """Make all changes in one transaction; when one fails, each in its own."""
        connection = self._opened(self._write_connection)
        try:
            connection.execute("BEGIN IMMEDIATE")
            results: list[tuple[Any, Exception | None]] = [(change(connection), None) for change in changes]
            connection.execute("COMMIT")
            return results
        except Exception as error:  # noqa: BLE001 - handed to whoever asked for the change
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            if len(changes) > 1:
                return [self._commit_all([change])[0] for change in changes]
            return [(None, _translated(error, self.path) if isinstance(error, sqlite3.Error) else error)]

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        connection.execute("PRAGMA foreign_keys=OFF")
        return connection

    def _connect_writer(self) -> sqlite3.Connection:
        make_private_file(self.path)  # jobs' environments are in it
        connection = self._connect()
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:  # changing the journal's mode does not wait for locks by itself
            try:
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={_JOURNAL_KEPT_BYTES}")
        connection.execute("BEGIN IMMEDIATE")
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in {0, _FORMAT}:
            connection.execute("ROLLBACK")
            raise sqlite3.DatabaseError(f"it has format {found}, this program knows {_FORMAT}")
        for statement in _TABLES.split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={_FORMAT}")
        connection.execute("COMMIT")
        return connection

    def _check_open(self) -> None:
        if not self._open:
            raise BusUnavailableError(f"the bus file {self.path} is not open")

    @staticmethod
    def _opened(connection: sqlite3.Connection | None) -> sqlite3.Connection:
        if connection is None:
            raise BusUnavailableError("the bus file is not open")
        return connection


def _translated(error: sqlite3.Error, path: Path) -> BusError:
    translated: BusError
    if isinstance(
        error, sqlite3.OperationalError | sqlite3.ProgrammingError
    ):  # locked, disk full, I/O; closed meanwhile
        translated = BusUnavailableError(f"the bus file {path} cannot be used now: {error}")
    else:
        translated = BusError(f"the bus file {path} cannot be used: {error}")
    translated.__cause__ = error
    return translated
