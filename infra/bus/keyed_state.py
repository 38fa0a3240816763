"""The port `KeyedState`: values by key beside a keyed stream, and its adapter on a document store.

On Kafka the state is a Faust table that follows its partition (`faust_stream`); elsewhere it lies in a collection. A key begins with
the key of the records that it belongs to, up to a `#`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, Protocol

from schedmate.infra.store.port import Store, StoreUnavailableError, scan_all

LAST: Final = "\U0010ffff"


class NotHeldError(StoreUnavailableError):
    """The key's partition belongs to another instance now, or its state has not been recovered yet."""


class KeyedState(Protocol):
    """Values by key. One writer a key at a time: whoever holds the partition of its record key."""

    async def load(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the values of those keys that have one. Raises NotHeldError."""
        ...

    async def save(self, puts: Mapping[str, bytes], removes: Sequence[str]) -> None:
        """Set and remove values; durable before the record that caused it counts as done. Raises NotHeldError."""
        ...

    def scan(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield all keys and values that this instance can see."""
        ...


class StoreState:
    """`KeyedState` in a collection of a document store. Saves that come together are written together."""

    def __init__(self, store: Store, collection: str) -> None:
        self._store = store
        self._collection = collection
        self._waiting: dict[str, bytes] = {}
        self._written: asyncio.Future[None] | None = None
        self._writing = asyncio.Lock()

    async def load(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the values of those keys that have one."""
        found = await self._store.get_many(self._collection, keys)
        return {key: base64.b64decode(document.body["value"]) for key, document in found.items()}

    async def save(self, puts: Mapping[str, bytes], removes: Sequence[str]) -> None:
        """Set and remove values; returns when they are durable."""
        if puts:
            await self._put(puts)
        for key in removes:
            await self._store.delete(self._collection, key)

    async def scan(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield everything in the collection."""
        async for document in scan_all(self._store, self._collection, low="", high=LAST):
            yield document.id, base64.b64decode(document.body["value"])

    async def _put(self, puts: Mapping[str, bytes]) -> None:
        self._waiting.update(puts)
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        written = self._written
        async with self._writing:
            if not written.done():  # nobody has written our values with theirs yet
                batch, self._waiting, self._written = self._waiting, {}, None
                try:
                    await self._store.put_many(
                        self._collection,
                        {key: {"value": base64.b64encode(value).decode()} for key, value in batch.items()},
                    )
                except BaseException as error:
                    written.set_exception(error if isinstance(error, Exception) else ConnectionError("interrupted"))
                    written.exception()  # it is raised below, and by whoever else waits
                    raise
                written.set_result(None)
        await written
