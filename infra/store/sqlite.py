"""The store in a SQLite file: one table a collection, one column an indexed field; shared by the processes of one machine.

WAL with `synchronous=FULL`: what was acknowledged survives kill -9 and a power cut. Blocking calls run on two threads of
the store's own, one that writes (`sqlite_writer`) and one that reads; bodies are JSON text.
"""

# ruff: noqa: S608 - the only names in statements are those that setup has checked

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from schedmate.infra.local_disk import network_file_system
from schedmate.infra.private_file import make_private_file
from schedmate.infra.store import documents
from schedmate.infra.store.port import (
    Document,
    DuplicateKeyError,
    Json,
    StoreError,
    StoreUnavailableError,
)
from schedmate.infra.store.sqlite_writer import SqliteWriter
from schedmate.schemas.topology import Collection, Index

T = TypeVar("T")
Tables = Mapping[str, Mapping[str, Index]]

_PING_S: Final = 1.0
_IDS_PER_QUERY: Final = 500
_TABLE: Final = "documents_"
_COLUMN: Final = "field_"
_INDEX_NAME: Final = re.compile(r"(index|unique)__(?P<collection>[a-z0-9_]+?)__(?P<field>[a-z][a-z0-9_]*)")


class SqliteStore:
    """Documents in one SQLite file on a local disk.

    Args:
        path: the file; it and its folder are made when they are missing, readable by their owner only.
        busy_s: longest wait for another process that writes.
    """

    def __init__(self, path: Path | str, *, busy_s: float = 10.0) -> None:
        self._path = Path(path)
        self._busy_s = busy_s
        self._schema: tuple[int, Tables] = (-1, {})  # one value, because two threads set it
        self._writer: SqliteWriter | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._reading: sqlite3.Connection | None = None

    async def start(self) -> None:
        """Open the file. Raises StoreError on a network's file system, StoreUnavailableError when it stays locked."""
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="sqlite-reader")
        try:
            self._reading = await self._blocking(self._open)
            await self._read(self._refresh)
        except StoreError:
            await self.stop()
            raise
        self._writer = SqliteWriter(self._connect, self._refresh, answer_s=self._busy_s * 3)
        self._writer.start()

    async def stop(self) -> None:
        """Finish what is waiting and close the file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.stop()
        if self._reading is not None:
            await self._blocking(self._reading.close)
            self._reading = None
        if self._reader is not None:
            self._reader.shutdown(wait=False)
            self._reader = None

    async def setup(self, collections: Iterable[Collection]) -> None:
        """Create tables, columns and indexes; idempotent, also for several processes at once."""
        wanted = [documents.checked_collection(collection) for collection in collections]

        def create(connection: sqlite3.Connection) -> None:
            connection.execute("SAVEPOINT setup")
            try:
                for collection in wanted:
                    _create(connection, collection, self._tables.get(collection.name, {}))
            except BaseException:
                connection.execute("ROLLBACK TO setup")
                raise
            finally:
                connection.execute("RELEASE setup")

        await self._write(create)
        await self._read(self._refresh)

    async def ping(self) -> None:
        """Raise StoreUnavailableError when the file does not answer within a second."""
        try:
            async with asyncio.timeout(_PING_S):
                await self._read(lambda connection: connection.execute("SELECT 1").fetchone())
        except TimeoutError as error:
            raise StoreUnavailableError(f"SQLite did not answer within {_PING_S} s") from error

    async def insert(self, collection: str, doc_id: str, body: Mapping[str, Json]) -> None:
        """Add a document as version 1."""
        documents.checked_id(doc_id)
        plain = documents.checked_body(body)

        def insert(connection: sqlite3.Connection) -> None:
            columns, values = self._columns(collection, plain)
            marks = ", ?" * len(columns)
            connection.execute(
                f"INSERT INTO {_TABLE}{collection} ({', '.join(['id', 'version', *columns])}) VALUES (?, 1{marks})",
                [doc_id, *values],
            )

        await self._write(insert)

    async def get(self, collection: str, doc_id: str) -> Document | None:
        """Return a document, or None."""
        return (await self.get_many(collection, [doc_id])).get(doc_id)

    async def get_many(self, collection: str, doc_ids: Sequence[str]) -> Mapping[str, Document]:
        """Return those that exist."""
        ids = list(doc_ids)

        def select(connection: sqlite3.Connection) -> Mapping[str, Document]:
            self._indexes(connection, collection)
            found: dict[str, Document] = {}
            for begin in range(0, len(ids), _IDS_PER_QUERY):
                some = ids[begin : begin + _IDS_PER_QUERY]
                condition = f"WHERE id IN ({', '.join('?' * len(some))})"
                found.update((d.id, d) for d in _select(connection, collection, condition, some))
            return {i: found[i] for i in ids if i in found}

        return await self._read(select)

    async def replace(self, collection: str, doc_id: str, body: Mapping[str, Json], *, version: int) -> bool:
        """Compare-and-set."""
        documents.checked_id(doc_id)
        plain = documents.checked_body(body)

        def update(connection: sqlite3.Connection) -> bool:
            columns, values = self._columns(collection, plain)
            setting = ", ".join(f"{column} = ?" for column in columns)
            cursor = connection.execute(
                f"UPDATE {_TABLE}{collection} SET version = version + 1, {setting} WHERE id = ? AND version = ?",
                [*values, doc_id, version],
            )
            return cursor.rowcount == 1

        return bool(await self._write(update))

    async def put(self, collection: str, doc_id: str, body: Mapping[str, Json]) -> None:
        """Insert, or replace with the next version."""
        await self.put_many(collection, {doc_id: body})

    async def put_many(self, collection: str, bodies: Mapping[str, Mapping[str, Json]]) -> None:
        """`put` of several documents; those that break no unique index are written whatever happens to the others."""
        plain = {documents.checked_id(doc_id): documents.checked_body(body) for doc_id, body in bodies.items()}

        def upsert(connection: sqlite3.Connection) -> None:
            rows = [(doc_id, *self._columns(collection, body)) for doc_id, body in plain.items()]
            refused: sqlite3.IntegrityError | None = None
            for doc_id, columns, values in rows:
                setting = ", ".join(f"{column} = excluded.{column}" for column in columns)
                marks = ", ?" * len(columns)
                try:
                    connection.execute(
                        f"INSERT INTO {_TABLE}{collection} ({', '.join(['id', 'version', *columns])}) "
                        f"VALUES (?, 1{marks}) ON CONFLICT (id) DO UPDATE SET version = version + 1, {setting}",
                        [doc_id, *values],
                    )
                except sqlite3.IntegrityError as error:
                    refused = refused or error
            if refused is not None:
                raise refused

        await self._write(upsert)

    async def delete(self, collection: str, doc_id: str, *, version: int | None = None) -> bool:
        """Remove a document (at `version`, when given)."""

        def delete(connection: sqlite3.Connection) -> bool:
            documents.known(self._tables, collection)
            cursor = connection.execute(
                f"DELETE FROM {_TABLE}{collection} WHERE id = ? AND version = coalesce(?, version)", [doc_id, version]
            )
            return cursor.rowcount == 1

        return bool(await self._write(delete))

    async def scan(
        self, collection: str, *, low: str, high: str, limit: int, reverse: bool = False
    ) -> Sequence[Document]:
        """Return documents with low <= id < high in the order of ids."""
        documents.checked_page(low, high, limit)

        def select(connection: sqlite3.Connection) -> Sequence[Document]:
            self._indexes(connection, collection)
            order = "DESC" if reverse else "ASC"
            condition = f"WHERE id >= ? AND id < ? ORDER BY id {order} LIMIT ?"
            return _select(connection, collection, condition, [low, high, limit])

        return await self._read(select)

    async def find(
        self, collection: str, field: str, *, low: Json, high: Json, limit: int, reverse: bool = False
    ) -> Sequence[Document]:
        """Return documents with low <= body[field] < high in the order of (field, id)."""

        def select(connection: sqlite3.Connection) -> Sequence[Document]:
            indexes = self._indexes(connection, collection, field)
            documents.checked_find(indexes, collection, field, low, high, limit)
            column = f"{_COLUMN}{field}"
            order = "DESC" if reverse else "ASC"
            condition = f"WHERE {column} >= ? AND {column} < ? ORDER BY {column} {order}, id {order} LIMIT ?"
            return _select(connection, collection, condition, [low, high, limit])

        return await self._read(select)

    async def count(self, collection: str) -> int:
        """Return the number of documents."""

        def count(connection: sqlite3.Connection) -> int:
            self._indexes(connection, collection)
            return int(connection.execute(f"SELECT count(*) FROM {_TABLE}{collection}").fetchone()[0])

        return await self._read(count)

    async def drop(self, collection: str) -> None:
        """Remove every document of a collection."""

        def delete(connection: sqlite3.Connection) -> None:
            documents.known(self._tables, collection)
            connection.execute(f"DELETE FROM {_TABLE}{collection}")

        await self._write(delete)

    def _open(self) -> sqlite3.Connection:
        """Make the file, say that it is WAL, and return the reader's connection."""
        kind = network_file_system(self._path)
        if kind is not None:
            raise StoreError(
                f"{self._path} lies on a network's file system ({kind}), on which SQLite loses data: "
                "choose a state directory on a local disk"
            )
        make_private_file(self._path)
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        connection.execute("PRAGMA synchronous = FULL")
        if mode != "wal":
            connection.close()
            raise sqlite3.OperationalError(f"{self._path} cannot be kept in WAL mode (it is in mode {mode})")
        return connection

    async def _write(self, write: Callable[[sqlite3.Connection], T]) -> T:
        if self._writer is None:
            raise StoreUnavailableError("the store has not been started")
        result: T = await self._writer.run(write)
        return result

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._reading
        if connection is None:
            raise StoreUnavailableError("the store has not been started")
        return await self._blocking(lambda: read(connection))

    async def _blocking(self, call: Callable[[], T]) -> T:
        if self._reader is None:
            raise StoreUnavailableError("the store has not been started")
        try:
            async with asyncio.timeout(self._busy_s * 3):
                return await asyncio.get_running_loop().run_in_executor(self._reader, call)
        except TimeoutError as error:
            raise StoreUnavailableError(f"SQLite did not answer within {self._busy_s * 3} s") from error
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailableError(f"SQLite: {error}") from error

    def _refresh(self, connection: sqlite3.Connection) -> None:
        """Read which collections and indexes there are, if another process may have changed them."""
        version = int(connection.execute("PRAGMA schema_version").fetchone()[0])
        if version != self._schema[0]:
            self._schema = (version, _tables(connection))

    @property
    def _tables(self) -> Tables:
        return self._schema[1]

    def _indexes(
        self, connection: sqlite3.Connection, collection: str, field: str | None = None
    ) -> Mapping[str, Index]:
        """Return a collection's indexes for a reader, looking again for what is not known yet."""
        if field not in {None, *self._tables.get(collection, {})} or collection not in self._tables:
            self._refresh(connection)
        return documents.known(self._tables, collection)

    def _columns(self, collection: str, body: Mapping[str, Json]) -> tuple[list[str], list[Any]]:
        """Return the columns that hold a body, and their values."""
        values = documents.index_values(documents.known(self._tables, collection).values(), body)
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        return ["body", *(f"{_COLUMN}{field}" for field in values)], [text, *values.values()]


def _select(connection: sqlite3.Connection, collection: str, condition: str, values: Sequence[Any]) -> list[Document]:
    query = f"SELECT id, version, body FROM {_TABLE}{collection} {condition}"
    return [Document(i, version, json.loads(body)) for i, version, body in connection.execute(query, values)]


def _tables(connection: sqlite3.Connection) -> Tables:
    """Read collections and indexes from the file's own schema."""
    tables: dict[str, dict[str, Index]] = {}
    rows = connection.execute("SELECT type, name FROM sqlite_schema ORDER BY type DESC").fetchall()  # tables first
    for kind, name in rows:
        if kind == "table" and name.startswith(_TABLE):
            tables[name.removeprefix(_TABLE)] = {}
        elif kind == "index" and (match := _INDEX_NAME.fullmatch(name)) is not None:
            tables[match["collection"]][match["field"]] = Index(match["field"], unique=match[1] == "unique")
    return tables


def _create(connection: sqlite3.Connection, collection: Collection, existing: Mapping[str, Index]) -> None:
    """Create what is missing of one collection; fill the column of a new index from the bodies at rest."""
    table = f"{_TABLE}{collection.name}"
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {table} (id TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL, body TEXT NOT NULL)"
    )
    columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    for index in collection.indexes:
        if existing.get(index.field) == index:
            continue
        column = f"{_COLUMN}{index.field}"
        if column not in columns:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
            _fill(connection, table, column, index)
        for kind in ("index", "unique"):
            connection.execute(f"DROP INDEX IF EXISTS {kind}__{collection.name}__{index.field}")
        kind, unique = ("unique", "UNIQUE ") if index.unique else ("index", "")
        rest = "" if index.unique else ", id"
        try:
            connection.execute(
                f"CREATE {unique}INDEX {kind}__{collection.name}__{index.field} ON {table} ({column}{rest})"
            )
        except sqlite3.IntegrityError as error:
            raise DuplicateKeyError(
                f"{collection.name}: {index.field!r} cannot be unique: documents share a value of it"
            ) from error


def _fill(connection: sqlite3.Connection, table: str, column: str, index: Index) -> None:
    last = ""
    while True:
        rows = connection.execute(
            f"SELECT id, body FROM {table} WHERE id > ? ORDER BY id LIMIT 1000",
            [last],
        ).fetchall()
        if not rows:
            return
        for doc_id, body in rows:
            value = documents.index_values([index], json.loads(body))[index.field]
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", [value, doc_id])
        last = rows[-1][0]
