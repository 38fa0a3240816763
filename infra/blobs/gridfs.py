"""Blobs in MongoDB's GridFS, for several machines without shared storage.

GridFS keeps contents by file id. Which content stands at an address is one document of the collection `blob_addresses`
({_id: address, space, file, size, stored_at}), switched from one whole file to the next; readers never see half a blob.
`blob_uploads` remembers each upload until it is finished, so that `expire` can remove what a dead process left behind.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from bson import ObjectId
from gridfs.errors import CorruptGridFile, NoFile
from pymongo.errors import ConnectionFailure, DuplicateKeyError, PyMongoError

from schedmate.infra.blobs.address import checked_address, checked_prefix, checked_sha256, checked_space
from schedmate.infra.blobs.port import (
    BlobError,
    BlobHashMismatchError,
    BlobInfo,
    BlobsUnavailableError,
    BlobTooLargeError,
)
from schedmate.infra.clock import Clock
from schedmate.infra.mongodb import ClientClass, MongoConnection, MongoUnavailableError

T = TypeVar("T")
Row = dict[str, Any]

_BUCKET: Final = "blob"
_PAGE: Final = 500
_READS_MAX: Final = 5
_SWITCHES_MAX: Final = 20
_LEFT_BEHIND_S: Final = 86400.0
"""Age at which an unfinished upload belongs to a process that died."""

_log = structlog.get_logger(__name__)


class GridFsBlobs:
    """Blobs in GridFS.

    Args:
        url: `mongodb://…`.
        database: its name.
        clock: gives blobs their time.
        client: the client class, "motor" or "pymongo".
        retry_s: how long a call is tried again while the server is away; `put_stream` cannot be, its stream is gone.
    """

    def __init__(
        self, url: str, database: str, clock: Clock, client: ClientClass = "pymongo", *, retry_s: float = 20.0
    ) -> None:
        self._connection = MongoConnection(url, database, client, retry_s=retry_s)
        self._clock = clock

    async def start(self) -> None:
        """Connect, and create the indexes."""
        try:
            await self._connection.connect()
        except MongoUnavailableError as error:
            raise BlobsUnavailableError(str(error)) from error
        except (PyMongoError, ValueError) as error:
            raise BlobError(f"MongoDB refuses the connection: {error}") from error

        async def index(_: int) -> None:
            await self._addresses.create_index([("space", 1), ("stored_at", 1)], name="index__age")
            await self._addresses.create_index([("file", 1)], name="unique__file", unique=True)
            await self._uploads.create_index([("began_at", 1)], name="index__age")

        await self._run(index)

    async def stop(self) -> None:
        """Disconnect."""
        await self._connection.disconnect()

    async def put(self, address: str, content: bytes) -> None:
        """Store content at an address."""
        checked_address(address)

        async def attempt(_: int) -> None:
            file = await self._begin()
            upload = self._connection.bucket(_BUCKET).open_upload_stream_with_id(file, address)
            await upload.write(bytes(content))
            await upload.close()
            await self._switch(address, file, len(content))

        await self._run(attempt)

    async def put_stream(
        self, space: str, content: AsyncIterable[bytes], *, size_max_bytes: int, expected_sha256: str | None = None
    ) -> BlobInfo:
        """Store a stream under `space/<its sha256>`; whole or not at all."""
        checked_space(space)
        checked_sha256(expected_sha256)
        file = await self._run(lambda _: self._begin())
        try:
            digest, size = await self._upload(space, file, content, size_max_bytes)
            if expected_sha256 is not None and digest != expected_sha256:
                raise BlobHashMismatchError(f"the content has the hash {digest}, announced was {expected_sha256}")  # noqa: TRY301
            address = f"{space}/{digest}"
            kept = await self._run(lambda _: self._renewed(address, size))
            if kept is None:
                return await self._run(lambda _: self._switch(address, file, size))
            await self._abandon(file)
            return kept
        except BaseException:
            await self._abandon(file)
            raise

    async def get(self, address: str) -> bytes | None:
        """Return the content, or None."""
        checked_address(address)

        async def attempt(_: int) -> bytes | None:
            for _read in range(_READS_MAX):
                found = await self._addresses.find_one({"_id": address})
                if found is None:
                    return None
                try:
                    download = await self._connection.bucket(_BUCKET).open_download_stream(found["file"])
                    return bytes(await download.read())
                except (NoFile, CorruptGridFile):
                    continue  # it was replaced meanwhile: read what stands there now
            raise BlobError(f"{address} is named but cannot be read")

        return await self._run(attempt)

    async def stream(self, address: str, chunk_bytes: int = 262144) -> AsyncIterator[bytes]:
        """Yield the content in chunks. A blob that is replaced meanwhile ends the stream with BlobError."""
        checked_address(address)
        found = await self._run(lambda _: self._addresses.find_one({"_id": address}))
        if found is None:
            raise KeyError(address)
        with _in_our_words():
            download = await self._connection.bucket(_BUCKET).open_download_stream(found["file"])
        while True:
            with _in_our_words():
                chunk = await download.read(chunk_bytes)
            if not chunk:
                return
            yield bytes(chunk)

    async def info(self, address: str) -> BlobInfo | None:
        """Return size and time, or None."""
        checked_address(address)
        found = await self._run(lambda _: self._addresses.find_one({"_id": address}))
        return None if found is None else _info(found)

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """Yield what is stored under an address prefix, in the order of addresses."""
        checked_prefix(prefix)
        low, high = prefix, prefix[:-1] + chr(ord("/") + 1)
        while True:
            page = await self._page(self._addresses, {"_id": {"$gte": low, "$lt": high}}, "_id")
            for found in page:
                yield _info(found)
            if len(page) < _PAGE:
                return
            low = page[-1]["_id"] + "\0"

    async def delete(self, address: str) -> bool:
        """Remove it; False when there was none. After a lost acknowledgement a blob that is gone counts as removed."""
        checked_address(address)

        async def attempt(number: int) -> bool:
            found = await self._addresses.find_one({"_id": address})
            return number > 0 if found is None else await self._remove(found)

        return await self._run(attempt)

    async def expire(self, space: str, *, older_than: float) -> int:
        """Remove what was stored in a space before this time, and what dead processes left in any."""
        checked_space(space)
        removed = 0
        condition = {"space": space, "stored_at": {"$gte": float("-inf"), "$lt": older_than}}
        while page := await self._page(self._addresses, condition, "stored_at"):
            for found in page:
                removed += await self._run(partial(self._remove, found))
        left = {"began_at": {"$gte": float("-inf"), "$lt": min(older_than, self._clock.now() - _LEFT_BEHIND_S)}}
        while page := await self._page(self._uploads, left, "began_at"):
            for upload in page:
                await self._run(partial(self._clear, upload))
        return removed

    @property
    def _addresses(self) -> Any:
        return self._connection.database["blob_addresses"]

    @property
    def _uploads(self) -> Any:
        return self._connection.database["blob_uploads"]

    async def _begin(self) -> ObjectId:
        """Remember an upload before its first byte; return the id of its file."""
        file = ObjectId()
        await self._uploads.insert_one({"_id": file, "began_at": self._clock.now(), "replaces": None})
        return file

    async def _upload(
        self, space: str, file: ObjectId, content: AsyncIterable[bytes], size_max_bytes: int
    ) -> tuple[str, int]:
        """Write a stream to a file of GridFS; return its hash and size."""
        with _in_our_words():
            upload = self._connection.bucket(_BUCKET).open_upload_stream_with_id(file, f"{space}/incoming")
        digest, size = hashlib.sha256(), 0
        async for chunk in content:
            size += len(chunk)
            if size > size_max_bytes:
                raise BlobTooLargeError(f"the content is larger than {size_max_bytes} bytes")
            digest.update(chunk)
            with _in_our_words():
                await upload.write(bytes(chunk))
        with _in_our_words():
            await upload.close()
        return digest.hexdigest(), size

    async def _switch(self, address: str, file: ObjectId, size: int) -> BlobInfo:
        """Let an address name this file, and remove the file that it named."""
        stored_at = self._clock.now()
        fields = {"space": address.partition("/")[0], "file": file, "size": size, "stored_at": stored_at}
        for _ in range(_SWITCHES_MAX):
            before = await self._addresses.find_one({"_id": address})
            if before is not None and before["file"] == file:  # by an earlier try whose acknowledgement was lost
                upload = await self._uploads.find_one({"_id": file})
                if upload is not None:
                    await self._clear(upload)
                return _info(before)
            if before is None:
                try:
                    await self._addresses.insert_one({"_id": address, **fields})
                except DuplicateKeyError:
                    continue  # somebody else was quicker, or an earlier try of ours
                await self._uploads.delete_one({"_id": file})
                return BlobInfo(address, size, stored_at)
            await self._uploads.update_one({"_id": file}, {"$set": {"replaces": before["file"]}})
            changed = await self._addresses.update_one({"_id": address, "file": before["file"]}, {"$set": fields})
            if changed.modified_count == 1:
                await self._erase(before["file"])
                await self._uploads.delete_one({"_id": file})
                return BlobInfo(address, size, stored_at)
        raise BlobsUnavailableError(f"others keep replacing {address}")

    async def _renewed(self, address: str, size: int) -> BlobInfo | None:
        """Give the same content a new time instead of replacing it under its readers; None when it is not there."""
        stored_at = self._clock.now()
        found = await self._addresses.find_one({"_id": address, "size": size})
        if found is None:
            return None
        same = {"_id": address, "file": found["file"]}
        changed = await self._addresses.update_one(same, {"$set": {"stored_at": stored_at}})
        return BlobInfo(address, size, stored_at) if changed.matched_count == 1 else None

    async def _remove(self, found: Row, _attempt: int = 0) -> bool:
        """Remove an address if it still is what was found, and its file."""
        upload = {"_id": ObjectId(), "began_at": self._clock.now(), "replaces": found["file"]}
        await self._uploads.insert_one(upload)
        same = {"_id": found["_id"], "file": found["file"], "stored_at": found["stored_at"]}
        removed = (await self._addresses.delete_one(same)).deleted_count == 1
        await self._clear(upload)
        return bool(removed)

    async def _clear(self, upload: Row, _attempt: int = 0) -> None:
        """Remove those files of an upload that no address names, then forget the upload."""
        for file in (upload["_id"], upload["replaces"]):
            if file is not None and await self._addresses.find_one({"file": file}, {"_id": 1}) is None:
                await self._erase(file)
        await self._uploads.delete_one({"_id": upload["_id"]})

    async def _erase(self, file: ObjectId) -> None:
        """Remove a file of GridFS, whole or in part."""
        await self._connection.database[f"{_BUCKET}.files"].delete_one({"_id": file})
        await self._connection.database[f"{_BUCKET}.chunks"].delete_many({"files_id": file})

    async def _abandon(self, file: ObjectId) -> None:
        """Remove an upload that came to nothing; what cannot be removed now is left to `expire`."""
        try:
            await self._clear({"_id": file, "replaces": None})
        except (PyMongoError, MongoUnavailableError) as error:
            _log.warning(
                "an unfinished upload stays until it expires", action="blobs.upload_left", error=str(error)[:300]
            )

    async def _page(self, collection: Any, condition: dict[str, Any], order: str) -> Sequence[Row]:
        async def attempt(_: int) -> Sequence[Row]:
            page: Sequence[Row] = await collection.find(condition).sort([(order, 1)]).limit(_PAGE).to_list(_PAGE)
            return page

        return await self._run(attempt)

    async def _run(self, attempt: Callable[[int], Awaitable[T]]) -> T:
        with _in_our_words():
            return await self._connection.retried("blobs", attempt)


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Say what went wrong in the port's words."""
    try:
        yield
    except (MongoUnavailableError, ConnectionFailure) as error:
        raise BlobsUnavailableError(str(error)) from error
    except (NoFile, CorruptGridFile) as error:
        raise BlobError(f"the content was replaced or removed while it was read: {error}") from error
    except PyMongoError as error:
        raise BlobError(f"MongoDB refuses: {error}") from error


def _info(found: Row) -> BlobInfo:
    return BlobInfo(found["_id"], found["size"], found["stored_at"])
