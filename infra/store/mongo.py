"""The store in MongoDB, through Motor or PyMongo's async client.

A document at rest:

    {_id, version, body, escaped, created: <write id>, writes: [<the last 8 write ids>]}

Each write bears an id of its own. When an acknowledgement is lost the write is tried again, and the ids tell whether the
first try had happened: an insert that meets its own document has succeeded, and so has a compare-and-set whose id is
among the last eight. A put whose id is there does nothing more. Where eight are not enough to know, the caller is told
that nobody knows (StoreUnavailableError), never a guess.

Scans give both bounds, which is what makes an index serve on any server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    CollectionInvalid,
    DocumentTooLarge,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)
from pymongo.errors import DuplicateKeyError as MongoDuplicateKeyError

from schedmate.infra.clock import Clock, Random
from schedmate.infra.mongodb import ClientClass, MongoConnection, MongoUnavailableError
from schedmate.infra.store import documents
from schedmate.infra.store.mongo_keys import escaped, has_marks, unescaped
from schedmate.infra.store.mongo_settings import weaknesses
from schedmate.infra.store.port import (
    Document,
    DocumentTooLargeError,
    DuplicateKeyError,
    Json,
    StoreError,
    StoreUnavailableError,
    UnknownCollectionError,
)
from schedmate.schemas.topology import Collection, Index

T = TypeVar("T")

_WRITES_KEPT: Final = 8
_IDS_PER_QUERY: Final = 500
_PUTS_PER_COMMAND: Final = 200
_CONTESTED_ROUNDS_MAX: Final = 20
_DUPLICATE_KEY: Final = 11000
_TOO_LARGE: Final = frozenset({10334, 17419, 17420})
_ANOTHER_PRIMARY: Final = frozenset({91, 189, 10107, 11600, 11602, 13435, 13436})
_NAMESPACE_EXISTS: Final = 48
_PLAIN, _UNIQUE = "index__", "unique__"


class MongoStore:
    """Documents in collections of one database.

    Args:
        url: `mongodb://…`.
        database: its name.
        client: the client class, "motor" or "pymongo".
        retry_s: how long a call is tried again while the server is away.
        clock: what `retry_s` is measured on.
        random: jitter of the waits in between.
    """

    def __init__(
        self,
        url: str,
        database: str,
        client: ClientClass = "pymongo",
        *,
        retry_s: float = 20.0,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._connection = MongoConnection(url, database, client, retry_s=retry_s, clock=clock, random=random)
        self._known: dict[str, dict[str, Index]] = {}

    async def start(self) -> None:
        """Connect. Raises StoreUnavailableError when the server does not answer within the retry budget."""
        try:
            await self._connection.connect()
        except MongoUnavailableError as error:
            raise StoreUnavailableError(str(error)) from error
        except (PyMongoError, ValueError) as error:
            raise StoreError(f"MongoDB refuses the connection: {error}") from error

    async def stop(self) -> None:
        """Disconnect."""
        await self._connection.disconnect()

    async def setup(self, collections: Iterable[Collection]) -> None:
        """Create collections and indexes; idempotent. Refuses a server whose settings are too weak for durable writes."""
        wanted = [documents.checked_collection(collection) for collection in collections]
        weak = await self._run("setup", lambda _: weaknesses(self._connection.admin))
        if weak:
            raise StoreError("MongoDB is set up too weakly for writes that must last: " + "; ".join(weak))
        for collection in wanted:
            await self._run("setup", partial(self._create, collection))
            self._known.pop(collection.name, None)

    async def ping(self) -> None:
        """Raise StoreUnavailableError when the server does not answer within a second."""
        try:
            await self._connection.ping()
        except MongoUnavailableError as error:
            raise StoreUnavailableError(str(error)) from error

    async def insert(self, collection: str, doc_id: str, body: Mapping[str, Json]) -> None:
        """Add a document as version 1."""
        fields = await self._fields(collection, doc_id, body)
        write = ObjectId()
        document = {"_id": doc_id, "version": 1, **fields, "created": write, "writes": [write]}

        async def attempt(_: int) -> None:
            rows = self._rows(collection)
            try:
                await rows.insert_one(document)
            except MongoDuplicateKeyError:
                found = await rows.find_one({"_id": doc_id}, {"created": 1})
                if found is None or found.get("created") != write:
                    raise

        await self._run("insert", attempt)

    async def get(self, collection: str, doc_id: str) -> Document | None:
        """Return a document, or None."""
        await self._indexes(collection)
        found = await self._run("get", lambda _: self._rows(collection).find_one({"_id": doc_id}))
        return None if found is None else _document(found)

    async def get_many(self, collection: str, doc_ids: Sequence[str]) -> Mapping[str, Document]:
        """Return those that exist."""
        await self._indexes(collection)
        found: dict[str, Document] = {}
        for begin in range(0, len(doc_ids), _IDS_PER_QUERY):
            some = list(doc_ids[begin : begin + _IDS_PER_QUERY])
            rows = await self._page(collection, {"_id": {"$in": some}}, [], len(some))
            found.update((document.id, document) for document in rows)
        return {doc_id: found[doc_id] for doc_id in doc_ids if doc_id in found}

    async def replace(self, collection: str, doc_id: str, body: Mapping[str, Json], *, version: int) -> bool:
        """Compare-and-set, exact also over a lost acknowledgement."""
        change, write = _change(await self._fields(collection, doc_id, body))

        async def attempt(number: int) -> bool:
            rows = self._rows(collection)
            result = await rows.update_one({"_id": doc_id, "version": version}, change)
            if result.modified_count == 1:
                return True
            if number == 0:
                return False
            # The update that found nothing has waited for a majority too, so this read sees whatever it saw.
            found = await rows.find_one({"_id": doc_id}, {"version": 1, "writes": 1})
            if found is not None and write in found["writes"]:
                return True
            if found is not None and found["version"] <= version + _WRITES_KEPT:
                return False  # had ours happened, its id would still be there
            raise StoreUnavailableError(f"{collection}/{doc_id}: the acknowledgement of a compare-and-set is lost")

        return await self._run("replace", attempt)

    async def put(self, collection: str, doc_id: str, body: Mapping[str, Json]) -> None:
        """Insert, or replace with the next version."""
        await self.put_many(collection, {doc_id: body})

    async def put_many(self, collection: str, bodies: Mapping[str, Mapping[str, Json]]) -> None:
        """`put` of several documents; those that break no unique index are written whatever happens to the others."""
        write = ObjectId()
        puts = [
            (doc_id, _upsert(doc_id, await self._fields(collection, doc_id, body), write))
            for doc_id, body in bodies.items()
        ]
        refused: list[str] = []
        for begin in range(0, len(puts), _PUTS_PER_COMMAND):
            refused += await self._put_some(collection, dict(puts[begin : begin + _PUTS_PER_COMMAND]), write)
        if refused:
            raise DuplicateKeyError(f"{collection}: a value that must be unique exists: {refused[0]}")

    async def _put_some(self, collection: str, waiting: dict[str, UpdateOne], write: ObjectId) -> Sequence[str]:
        """Write until each is written or breaks a unique index; return the messages of the broken ones."""
        refused: list[str] = []
        for _ in range(_CONTESTED_ROUNDS_MAX):
            if not waiting:
                break
            contested, broken = await self._run("put_many", partial(self._upserts, collection, waiting))
            refused += broken
            mine = await self._written(collection, contested, write)
            waiting = {doc_id: waiting[doc_id] for doc_id in contested if doc_id not in mine}
        if waiting:
            raise StoreUnavailableError(f"{collection}: others keep writing {min(waiting)!r}")
        return refused

    async def delete(self, collection: str, doc_id: str, *, version: int | None = None) -> bool:
        """Remove a document (at `version`, when given).

        After a lost acknowledgement a document that is gone counts as removed; with a version nobody knows by whom, and
        StoreUnavailableError says so.
        """
        await self._indexes(collection)
        condition = {"_id": doc_id} if version is None else {"_id": doc_id, "version": version}

        async def attempt(number: int) -> bool:
            rows = self._rows(collection)
            result = await rows.delete_one(condition)
            if result.deleted_count == 1 or number == 0:
                return bool(result.deleted_count)
            if version is None:
                return True
            if await rows.find_one({"_id": doc_id}, {"_id": 1}) is not None:
                return False
            raise StoreUnavailableError(f"{collection}/{doc_id}: the acknowledgement of its removal is lost")

        return await self._run("delete", attempt)

    async def scan(
        self, collection: str, *, low: str, high: str, limit: int, reverse: bool = False
    ) -> Sequence[Document]:
        """Return documents with low <= id < high in the order of ids."""
        documents.checked_page(low, high, limit)
        await self._indexes(collection)
        direction = -1 if reverse else 1
        return await self._page(collection, {"_id": {"$gte": low, "$lt": high}}, [("_id", direction)], limit)

    async def find(
        self, collection: str, field: str, *, low: Json, high: Json, limit: int, reverse: bool = False
    ) -> Sequence[Document]:
        """Return documents with low <= body[field] < high in the order of (field, id)."""
        documents.checked_find(await self._indexes(collection, field), collection, field, low, high, limit)
        direction = -1 if reverse else 1
        path = f"body.{field}"
        order = [(path, direction), ("_id", direction)]
        return await self._page(collection, {path: {"$gte": low, "$lt": high}}, order, limit)

    async def count(self, collection: str) -> int:
        """Return the number of documents; the server walks the whole index for it."""
        await self._indexes(collection)
        return int(await self._run("count", lambda _: self._rows(collection).count_documents({})))

    async def drop(self, collection: str) -> None:
        """Remove every document of a collection; its indexes stay."""
        await self._indexes(collection)
        await self._run("drop", lambda _: self._rows(collection).delete_many({}))

    def _rows(self, collection: str) -> Any:
        return self._connection.database[collection]

    async def _run(self, operation: str, attempt: Callable[[int], Awaitable[T]]) -> T:
        """Run an operation with retries, and say what went wrong in the port's words."""
        try:
            return await self._connection.retried(operation, attempt)
        except MongoUnavailableError as error:
            raise StoreUnavailableError(str(error)) from error
        except MongoDuplicateKeyError as error:
            raise DuplicateKeyError(f"{operation}: a value that must be unique exists: {error.details}") from error
        except WriteConcernError as error:
            raise StoreUnavailableError(f"{operation}: written, but not yet on a majority: {error}") from error
        except DocumentTooLarge as error:
            raise DocumentTooLargeError(f"{operation}: {error}") from error
        except OperationFailure as error:
            if error.code in _TOO_LARGE:
                raise DocumentTooLargeError(f"{operation}: {error}") from error
            raise StoreError(f"{operation}: MongoDB refuses: {error}") from error
        except PyMongoError as error:
            raise StoreError(f"{operation}: {error}") from error

    async def _page(
        self, collection: str, condition: Mapping[str, Any], order: Sequence[tuple[str, int]], limit: int
    ) -> list[Document]:
        async def attempt(_: int) -> list[Any]:
            cursor = self._rows(collection).find(condition).limit(limit)
            if order:
                cursor = cursor.sort(order)
            rows: list[Any] = await cursor.to_list(limit)
            return rows

        return [_document(row) for row in await self._run("read", attempt)]

    async def _fields(self, collection: str, doc_id: str, body: Mapping[str, Json]) -> dict[str, Any]:
        """Return what a write sets of a document."""
        documents.checked_id(doc_id)
        plain = documents.checked_body(body)
        documents.index_values((await self._indexes(collection)).values(), plain)
        marked = has_marks(plain)
        return {"body": escaped(plain) if marked else plain, "escaped": marked}

    async def _upserts(
        self, collection: str, waiting: Mapping[str, UpdateOne], _attempt: int
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Write what waits; return the ids that somebody else was writing, and the messages of broken unique indexes."""
        ids = list(waiting)
        try:
            await self._rows(collection).bulk_write(list(waiting.values()), ordered=False)
        except BulkWriteError as error:
            details: Any = error.details
            if details.get("writeConcernErrors"):
                raise StoreUnavailableError(f"put_many: written, but not yet on a majority: {details}") from error
            contested: list[str] = []
            broken: list[str] = []
            for failure in details["writeErrors"]:
                if failure["code"] in _ANOTHER_PRIMARY:
                    raise AutoReconnect(failure["errmsg"]) from error
                if failure["code"] in _TOO_LARGE:
                    raise DocumentTooLargeError(f"{collection}/{ids[failure['index']]}: {failure['errmsg']}") from error
                if failure["code"] != _DUPLICATE_KEY:
                    raise StoreError(f"{collection}/{ids[failure['index']]}: {failure['errmsg']}") from error
                if _is_about_the_id(failure):
                    contested.append(ids[failure["index"]])
                else:
                    broken.append(failure["errmsg"])
            return contested, broken
        return [], []

    async def _written(self, collection: str, ids: Sequence[str], write: ObjectId) -> set[str]:
        """Return those of `ids` that this write has reached."""
        if not ids:
            return set()
        condition = {"_id": {"$in": list(ids)}, "writes": write}

        async def attempt(_: int) -> list[Any]:
            rows: list[Any] = await self._rows(collection).find(condition, {"_id": 1}).to_list(len(ids))
            return rows

        return {row["_id"] for row in await self._run("put_many", attempt)}

    async def _indexes(self, collection: str, field: str | None = None) -> Mapping[str, Index]:
        """Return a collection's indexes, looking again for what is not known yet."""
        known = self._known.get(collection)
        if known is None or (field is not None and field not in known):
            if not collection:
                raise UnknownCollectionError(f"{collection!r} names no collection")
            found = await self._run("indexes", lambda _: self._rows(collection).index_information())
            if found:
                self._known[collection] = _indexes_of(found)
        return documents.known(self._known, collection)

    async def _create(self, collection: Collection, _attempt: int) -> None:
        """Create what is missing of one collection."""
        try:
            await self._connection.database.create_collection(collection.name)
        except CollectionInvalid:
            pass  # it exists
        except OperationFailure as error:
            if error.code != _NAMESPACE_EXISTS:
                raise
        rows = self._rows(collection.name)
        existing = await rows.index_information()
        present = _indexes_of(existing)
        for index in collection.indexes:
            if present.get(index.field) == index:
                continue
            for name in (f"{_PLAIN}{index.field}", f"{_UNIQUE}{index.field}"):
                if name in existing:
                    await rows.drop_index(name)
            path = f"body.{index.field}"
            if index.unique:  # sparse alone: a compound index would hold documents without the field
                await rows.create_index([(path, 1)], name=f"{_UNIQUE}{index.field}", unique=True, sparse=True)
            else:
                await rows.create_index([(path, 1), ("_id", 1)], name=f"{_PLAIN}{index.field}")


def _change(fields: Mapping[str, Any], write: ObjectId | None = None) -> tuple[dict[str, Any], ObjectId]:
    """Return the update that makes the next version of a document, and the id of this write."""
    write = ObjectId() if write is None else write
    remember = {"writes": {"$each": [write], "$slice": -_WRITES_KEPT}}
    return {"$set": dict(fields), "$inc": {"version": 1}, "$push": remember}, write


def _upsert(doc_id: str, fields: Mapping[str, Any], write: ObjectId) -> UpdateOne:
    """Return a put that does nothing (but meets its own id) when it is done a second time."""
    change, _ = _change(fields, write)
    change["$setOnInsert"] = {"created": write}
    return UpdateOne({"_id": doc_id, "writes": {"$ne": write}}, change, upsert=True)


def _document(row: Mapping[str, Any]) -> Document:
    return Document(row["_id"], row["version"], unescaped(row["body"]) if row["escaped"] else row["body"])


def _is_about_the_id(failure: Mapping[str, Any]) -> bool:
    pattern = failure.get("keyPattern")
    return dict(pattern) == {"_id": 1} if pattern is not None else "index: _id_" in failure["errmsg"]


def _indexes_of(information: Mapping[str, Any]) -> dict[str, Index]:
    """Read our indexes from the server's list of them; others' are left alone."""
    found = {}
    for name in information:
        for prefix in (_PLAIN, _UNIQUE):
            if name.startswith(prefix):
                field = name.removeprefix(prefix)
                found[field] = Index(field, unique=prefix == _UNIQUE)
    return found
