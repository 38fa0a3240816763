"""The store in memory: for tests and simulations, with fault injection. Nothing survives the process."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from schedmate.infra.store import documents
from schedmate.infra.store.faults import Faults
from schedmate.infra.store.port import Document, DuplicateKeyError, Json
from schedmate.schemas.topology import Collection, Index

_T = TypeVar("_T")
_Rank = tuple[int, str | float, str]
"""Place in an index: numbers before strings, then the value, then the id."""


@dataclass(slots=True)
class _Stored:
    """A document at rest: its body is text, so that nobody who read it can change it."""

    version: int
    text: str
    values: Mapping[str, str | float | None]


@dataclass(slots=True)
class _Table:
    """One collection: documents by id, the ids in order, and each index in order."""

    indexes: dict[str, Index] = field(default_factory=dict)
    documents: dict[str, _Stored] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    ranks: dict[str, list[_Rank]] = field(default_factory=dict)


class MemoryStore:
    """Documents in dictionaries. Every operation lets other tasks run once before it happens, then happens at once."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self._tables: dict[str, _Table] = {}

    async def start(self) -> None:
        """Nothing to connect to; refused during an injected outage."""
        await self.ping()

    async def stop(self) -> None:
        """Nothing to disconnect from; the documents stay for the next start of the same object."""

    async def setup(self, collections: Iterable[Collection]) -> None:
        """Create collections and indexes; idempotent."""
        async with self._operation("setup"):
            for collection in map(documents.checked_collection, collections):
                table = self._tables.setdefault(collection.name, _Table())
                for index in collection.indexes:
                    if table.indexes.get(index.field) != index:
                        self._add_index(table, index)

    async def ping(self) -> None:
        """Raise StoreUnavailableError during an injected outage."""
        async with self._operation("ping"):
            pass

    async def insert(self, collection: str, doc_id: str, body: Mapping[str, Json]) -> None:
        """Add a document as version 1."""
        plain = _checked(doc_id, body)
        async with self._operation("insert"):
            table = self._table(collection)
            if doc_id in table.documents:
                raise DuplicateKeyError(f"{collection} has a document {doc_id!r}")
            self._write(collection, table, doc_id, plain)

    async def get(self, collection: str, doc_id: str) -> Document | None:
        """Return a document, or None."""
        async with self._operation("get"):
            return _document(self._table(collection), doc_id)

    async def get_many(self, collection: str, doc_ids: Sequence[str]) -> Mapping[str, Document]:
        """Return those that exist."""
        async with self._operation("get_many"):
            table = self._table(collection)
            return {i: d for i in doc_ids if (d := _document(table, i)) is not None}

    async def replace(self, collection: str, doc_id: str, body: Mapping[str, Json], *, version: int) -> bool:
        """Compare-and-set."""
        plain = _checked(doc_id, body)
        async with self._operation("replace"):
            table = self._table(collection)
            stored = table.documents.get(doc_id)
            if stored is None or stored.version != version:
                return False
            self._write(collection, table, doc_id, plain)
            return True

    async def put(self, collection: str, doc_id: str, body: Mapping[str, Json]) -> None:
        """Insert, or replace with the next version."""
        plain = _checked(doc_id, body)
        async with self._operation("put"):
            self._write(collection, self._table(collection), doc_id, plain)

    async def put_many(self, collection: str, bodies: Mapping[str, Mapping[str, Json]]) -> None:
        """`put` of several documents; those that break no unique index are written whatever happens to the others."""
        plain = {doc_id: _checked(doc_id, body) for doc_id, body in bodies.items()}
        async with self._operation("put_many"):
            table = self._table(collection)
            refused: DuplicateKeyError | None = None
            for doc_id, body in plain.items():
                try:
                    self._write(collection, table, doc_id, body)
                except DuplicateKeyError as error:
                    refused = refused or error
            if refused is not None:
                raise refused

    async def delete(self, collection: str, doc_id: str, *, version: int | None = None) -> bool:
        """Remove a document (at `version`, when given)."""
        async with self._operation("delete"):
            table = self._table(collection)
            stored = table.documents.get(doc_id)
            if stored is None or version not in (None, stored.version):
                return False
            self._unrank(table, doc_id, stored)
            del table.documents[doc_id]
            del table.ids[bisect_left(table.ids, doc_id)]
            return True

    async def scan(
        self, collection: str, *, low: str, high: str, limit: int, reverse: bool = False
    ) -> Sequence[Document]:
        """Return documents with low <= id < high in the order of ids."""
        documents.checked_page(low, high, limit)
        async with self._operation("scan"):
            table = self._table(collection)
            begin, end = bisect_left(table.ids, low), bisect_left(table.ids, high)
            ids = _page(table.ids, begin, end, limit, reverse=reverse)
            return [d for i in ids if (d := _document(table, i)) is not None]

    async def find(
        self, collection: str, field: str, *, low: Json, high: Json, limit: int, reverse: bool = False
    ) -> Sequence[Document]:
        """Return documents with low <= body[field] < high in the order of (field, id)."""
        async with self._operation("find"):
            table = self._table(collection)
            documents.checked_find(table.indexes, collection, field, low, high, limit)
            ranks = table.ranks[field]
            begin, end = bisect_left(ranks, _rank(low, "")), bisect_left(ranks, _rank(high, ""))
            page = _page(ranks, begin, end, limit, reverse=reverse)
            return [d for rank in page if (d := _document(table, rank[2])) is not None]

    async def count(self, collection: str) -> int:
        """Return the number of documents."""
        async with self._operation("count"):
            return len(self._table(collection).documents)

    async def drop(self, collection: str) -> None:
        """Remove every document of a collection."""
        async with self._operation("drop"):
            table = self._table(collection)
            table.documents.clear()
            table.ids.clear()
            for ranks in table.ranks.values():
                ranks.clear()

    @asynccontextmanager
    async def _operation(self, name: str) -> AsyncIterator[None]:
        lost = await self.faults.before(name)
        await asyncio.sleep(0)  # a real store is never this quick: let races happen
        yield
        if lost:
            self.faults.lose(name)

    def _table(self, collection: str) -> _Table:
        return documents.known(self._tables, collection)

    def _add_index(self, table: _Table, index: Index) -> None:
        """Fill an index from the documents at rest, then let it hold."""
        ranks: list[_Rank] = []
        for doc_id, stored in table.documents.items():
            values = documents.index_values([index], json.loads(stored.text))
            stored.values = {**stored.values, **values}
            value = values[index.field]
            if value is not None:
                ranks.append(_rank(value, doc_id))
        ranks.sort()
        if index.unique and len({rank[:2] for rank in ranks}) < len(ranks):
            raise DuplicateKeyError(f"{index.field!r} cannot be unique: documents share a value of it")
        table.ranks[index.field] = ranks
        table.indexes[index.field] = index

    def _write(self, collection: str, table: _Table, doc_id: str, body: Mapping[str, Json]) -> None:
        values = documents.index_values(table.indexes.values(), body)
        for name, value in values.items():
            if table.indexes[name].unique and value is not None:
                ranks = table.ranks[name]
                place = bisect_left(ranks, _rank(value, ""))
                if place < len(ranks) and ranks[place][1] == value and ranks[place][2] != doc_id:
                    raise DuplicateKeyError(f"{collection} has a document with {name} = {value!r}")
        stored = table.documents.get(doc_id)
        if stored is None:
            insort(table.ids, doc_id)
        else:
            self._unrank(table, doc_id, stored)
        for name, value in values.items():
            if value is not None:
                insort(table.ranks[name], _rank(value, doc_id))
        version = 1 if stored is None else stored.version + 1
        table.documents[doc_id] = _Stored(version, json.dumps(body, ensure_ascii=False), values)

    @staticmethod
    def _unrank(table: _Table, doc_id: str, stored: _Stored) -> None:
        for name, value in stored.values.items():
            if value is not None:
                ranks = table.ranks[name]
                del ranks[bisect_left(ranks, _rank(value, doc_id))]


def _checked(doc_id: str, body: Mapping[str, Json]) -> dict[str, Json]:
    documents.checked_id(doc_id)
    return documents.checked_body(body)


def _document(table: _Table, doc_id: str) -> Document | None:
    stored = table.documents.get(doc_id)
    return None if stored is None else Document(doc_id, stored.version, json.loads(stored.text))


def _rank(value: str | float, doc_id: str) -> _Rank:
    return (1 if isinstance(value, str) else 0, value, doc_id)


def _page(ordered: Sequence[_T], begin: int, end: int, limit: int, *, reverse: bool) -> Sequence[_T]:
    if end <= begin:
        return []
    if reverse:
        return ordered[max(begin, end - limit) : end][::-1]
    return ordered[begin : min(end, begin + limit)]
