"""A store whose calls are counted and timed, and are spans of whatever recorded span they are made in."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TypeVar

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from schedmate.infra.store.port import Document, DuplicateKeyError, Json, Store
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import count, observe
from schedmate.infra.telemetry.tracing import span
from schedmate.schemas.topology import Collection

T = TypeVar("T")


class TracedStore:
    """The store `inner`, traced. `system` is `mongodb` or `sqlite`.

    A call outside of a recorded span (a lease that is polled, a sweep) opens none: it would be the root of a trace that
    nobody looks for.
    """

    def __init__(self, inner: Store, system: str) -> None:
        self.inner = inner
        self._system = system

    async def start(self) -> None:
        """Connect."""
        await self.inner.start()

    async def stop(self) -> None:
        """Disconnect."""
        await self.inner.stop()

    async def setup(self, collections: Iterable[Collection]) -> None:
        """Create collections and indexes."""
        await self.inner.setup(collections)

    async def ping(self) -> None:
        """Raise StoreUnavailableError when the store does not answer within a second."""
        await self.inner.ping()

    async def insert(self, collection: str, doc_id: str, body: Mapping[str, Json]) -> None:
        """Add a document as version 1."""
        await self._traced("insert", collection, self.inner.insert(collection, doc_id, body))

    async def get(self, collection: str, doc_id: str) -> Document | None:
        """Return a document, or None."""
        return await self._traced("get", collection, self.inner.get(collection, doc_id))

    async def get_many(self, collection: str, doc_ids: Sequence[str]) -> Mapping[str, Document]:
        """Return those that exist."""
        return await self._traced("get_many", collection, self.inner.get_many(collection, doc_ids))

    async def replace(self, collection: str, doc_id: str, body: Mapping[str, Json], *, version: int) -> bool:
        """Compare-and-set."""
        return await self._traced("replace", collection, self.inner.replace(collection, doc_id, body, version=version))

    async def put(self, collection: str, doc_id: str, body: Mapping[str, Json]) -> None:
        """Write whatever was there before."""
        await self._traced("put", collection, self.inner.put(collection, doc_id, body))

    async def put_many(self, collection: str, bodies: Mapping[str, Mapping[str, Json]]) -> None:
        """`put` of several documents."""
        await self._traced("put_many", collection, self.inner.put_many(collection, bodies))

    async def delete(self, collection: str, doc_id: str, *, version: int | None = None) -> bool:
        """Remove a document; False when there was none."""
        return await self._traced("delete", collection, self.inner.delete(collection, doc_id, version=version))

    async def scan(
        self, collection: str, *, low: str, high: str, limit: int, reverse: bool = False
    ) -> Sequence[Document]:
        """Return documents in the order of ids."""
        call = self.inner.scan(collection, low=low, high=high, limit=limit, reverse=reverse)
        return await self._traced("scan", collection, call)

    async def find(
        self, collection: str, field: str, *, low: Json, high: Json, limit: int, reverse: bool = False
    ) -> Sequence[Document]:
        """Return documents in the order of an indexed field."""
        call = self.inner.find(collection, field, low=low, high=high, limit=limit, reverse=reverse)
        return await self._traced("find", collection, call)

    async def count(self, collection: str) -> int:
        """Return the number of documents."""
        return await self._traced("count", collection, self.inner.count(collection))

    async def drop(self, collection: str) -> None:
        """Remove every document."""
        await self._traced("drop", collection, self.inner.drop(collection))

    async def _traced(self, operation: str, collection: str, call: Awaitable[T]) -> T:
        started = perf_counter()
        outcome = "failed"
        try:
            if not trace.get_current_span().is_recording():
                result = await call
            else:
                with span(
                    names.STORE_CALL,
                    kind=SpanKind.CLIENT,
                    db_system_name=self._system,
                    db_operation_name=operation,
                    db_collection_name=collection,
                ) as current:
                    current.update_name(f"{operation} {collection}")
                    result = await call
            outcome = "done"
            return result
        except DuplicateKeyError:
            outcome = "duplicate"
            raise
        finally:
            count(names.STORE_CALLS, operation=operation, outcome=outcome)
            observe(names.STORE_CALL_S, perf_counter() - started, operation=operation)
