"""The port `Store`: documents with compare-and-set, unique keys and ordered scans. Writes are durable when they return."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from schedmate.schemas.topology import Collection

Json = Any
"""A JSON value: None, bool, int, float, str, list, dict with string keys."""


class StoreError(Exception):
    """The store could not do what was asked."""


class StoreUnavailableError(StoreError):
    """The store did not answer within the retry budget. A write may or may not have happened: read it back."""


class DuplicateKeyError(StoreError):
    """A document with this id, or with this value of a unique field, exists.

    After a retried write this may be the writer's own document: read it back before calling it a conflict.
    """


class DocumentTooLargeError(StoreError):
    """The document is larger than the store takes."""


class InvalidDocumentError(StoreError):
    """The id, body or bound is nothing that a store can keep or compare: the message names the place and the rule."""


class UnknownCollectionError(StoreError):
    """The collection was never set up, or the field is not indexed in it."""


@dataclass(frozen=True, slots=True)
class Document:
    """A stored document. `version` starts at 1 and grows by one a change."""

    id: str
    version: int
    body: Mapping[str, Json]


class Store(Protocol):
    """Collections of documents. Ids order as strings by code point."""

    async def start(self) -> None:
        """Connect. Raises StoreUnavailableError when the store does not answer in time."""
        ...

    async def stop(self) -> None:
        """Disconnect."""
        ...

    async def setup(self, collections: Iterable[Collection]) -> None:
        """Create collections and indexes; idempotent. Refuses a server whose settings are too weak for durable writes."""
        ...

    async def ping(self) -> None:
        """Raise StoreUnavailableError when the store does not answer within a second."""
        ...

    async def insert(self, collection: str, doc_id: str, body: Mapping[str, Json]) -> None:
        """Add a document as version 1. Raises DuplicateKeyError, DocumentTooLargeError, StoreUnavailableError."""
        ...

    async def get(self, collection: str, doc_id: str) -> Document | None:
        """Return a document, or None."""
        ...

    async def get_many(self, collection: str, doc_ids: Sequence[str]) -> Mapping[str, Document]:
        """Return those that exist."""
        ...

    async def replace(self, collection: str, doc_id: str, body: Mapping[str, Json], *, version: int) -> bool:
        """Compare-and-set: replace the body if the document stands at `version`; False when it does not (or is gone)."""
        ...

    async def put(self, collection: str, doc_id: str, body: Mapping[str, Json]) -> None:
        """Write whatever was there before: insert, or replace with the next version."""
        ...

    async def put_many(self, collection: str, bodies: Mapping[str, Mapping[str, Json]]) -> None:
        """`put` of several documents in one round trip; each for itself, in no common transaction."""
        ...

    async def delete(self, collection: str, doc_id: str, *, version: int | None = None) -> bool:
        """Remove a document (at `version`, when given); False when there was none to remove."""
        ...

    async def scan(
        self, collection: str, *, low: str, high: str, limit: int, reverse: bool = False
    ) -> Sequence[Document]:
        """Return documents with low <= id < high in the order of ids, at most `limit`."""
        ...

    async def find(
        self, collection: str, field: str, *, low: Json, high: Json, limit: int, reverse: bool = False
    ) -> Sequence[Document]:
        """Return documents with low <= body[field] < high in the order of (that field, id), at most `limit`.

        The field must be indexed (topology). Bounds and values are all strings or all numbers (infinite bounds are fine); documents
        without the field, or with null in it, are left out. Other values of an indexed field are refused when they are written.
        """
        ...

    async def count(self, collection: str) -> int:
        """Return the number of documents (exact)."""
        ...

    async def drop(self, collection: str) -> None:
        """Remove every document of a collection."""
        ...


async def scan_all(store: Store, collection: str, *, low: str, high: str, page: int = 500) -> AsyncIterator[Document]:
    """Yield every document with low <= id < high in the order of ids, page by page."""
    while True:
        documents = await store.scan(collection, low=low, high=high, limit=page)
        for document in documents:
            yield document
        if len(documents) < page:
            return
        low = documents[-1].id + "\x00"
