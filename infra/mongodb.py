"""One way to MongoDB for the store and the blobs: either client class, durable concerns, bounded waits, retries.

Two client classes serve, Motor and PyMongo's own async client, which superseded it. Where their calls differ, the
difference is in this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeVar, get_args

import pymongo
import structlog
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.int64 import Int64
from gridfs.asynchronous import AsyncGridFSBucket
from motor.motor_asyncio import AsyncIOMotorClient, AsyncIOMotorGridFSBucket
from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError, ConnectionFailure, InvalidURI, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from schedmate.infra.clock import Clock, Random, SystemClock, SystemRandom

ClientClass = Literal["motor", "pymongo"]
T = TypeVar("T")

PING_S: Final = 1.0
_SELECT_S: Final = 2.0
_CONNECT_S: Final = 2.0
_SOCKET_S: Final = 10.0
_MAJORITY_S: Final = 10.0
_AT_ONCE_MAX: Final = 64
_BACKOFF_S: Final = (0.05, 1.0)  # the first wait and the longest

_log = structlog.get_logger(__name__)


class MongoUnavailableError(Exception):
    """The server did not answer within the retry budget."""


class _PlainInteger(TypeDecoder):  # type: ignore[misc, unused-ignore]
    """Reads a 64-bit integer as the int that was written."""

    bson_type = Int64

    def transform_bson(self, value: Any) -> int:
        """Return an int that is nothing more."""
        return int(value)


class MongoConnection:
    """A client of one database, with writes `{w: majority, j: true}` and majority reads from the primary.

    Args:
        url: `mongodb://…` or `mongodb+srv://…`.
        database: its name.
        client: which client class serves.
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
        if client not in get_args(ClientClass):
            raise ValueError(f"client class {client!r} is unknown: choose one of {', '.join(get_args(ClientClass))}")
        self._url = url
        self._name = database
        self._class: ClientClass = client
        self._retry_s = retry_s
        self._clock = clock or SystemClock()
        self._random = random or SystemRandom()
        self._client: Any = None
        self._database: Any = None
        self._room = asyncio.Semaphore(_AT_ONCE_MAX)

    @property
    def database(self) -> Any:
        """The database object of the client class."""
        if self._database is None:
            raise MongoUnavailableError("not connected: start() has not been called, or stop() has")
        return self._database

    @property
    def admin(self) -> Any:
        """The server's `admin` database."""
        return self.database.client.admin

    def bucket(self, name: str) -> Any:
        """Return a GridFS bucket of this name."""
        if self._class == "motor":
            return AsyncIOMotorGridFSBucket(self.database, bucket_name=name)
        return AsyncGridFSBucket(self.database, bucket_name=name)

    async def connect(self) -> None:
        """Connect and wait for an answer. Raises MongoUnavailableError, or ValueError for an address that is none."""
        options = {
            "serverSelectionTimeoutMS": _SELECT_S * 1000,
            "connectTimeoutMS": _CONNECT_S * 1000,
            "socketTimeoutMS": _SOCKET_S * 1000,
            "waitQueueTimeoutMS": _SOCKET_S * 1000,
            "maxPoolSize": _AT_ONCE_MAX,
            "appname": "schedmate",
        }
        try:
            client_class: Any = AsyncIOMotorClient if self._class == "motor" else AsyncMongoClient
            self._client = client_class(self._url, **options)
        except (InvalidURI, ConfigurationError) as error:
            raise ValueError(f"the address of MongoDB is not valid: {error}") from error
        registry: Any = TypeRegistry([_PlainInteger()])
        self._database = self._client.get_database(
            self._name,
            codec_options=CodecOptions(type_registry=registry),
            write_concern=WriteConcern("majority", j=True, wtimeout=int(_MAJORITY_S * 1000)),
            read_concern=ReadConcern("majority"),
            read_preference=ReadPreference.PRIMARY,
        )
        try:
            await self.retried("connect", lambda _: self._client.admin.command("ping"))
        except BaseException:
            await self.disconnect()
            raise

    async def disconnect(self) -> None:
        """Close every connection."""
        client, self._client, self._database = self._client, None, None
        if client is None:
            return
        if self._class == "motor":
            await asyncio.to_thread(client.close)  # it says goodbye to the server, and blocks meanwhile
        else:
            await client.close()

    async def ping(self) -> None:
        """Raise MongoUnavailableError when the server does not answer within a second."""
        admin = self.admin
        try:
            with pymongo.timeout(
                PING_S
            ):  # not asyncio's: a client that is cancelled while it connects leaves a socket open
                await admin.command("ping")
        except PyMongoError as error:
            raise MongoUnavailableError(f"MongoDB did not answer within {PING_S} s: {error}") from error

    async def retried(self, operation: str, attempt: Callable[[int], Awaitable[T]]) -> T:
        """Return what `attempt(n)` returns, called again (n = 1, 2, …) while connections fail and the budget lasts.

        An attempt with n > 0 follows one whose outcome nobody knows: it may have happened. At most 64 calls run at once,
        the others wait, as long as the budget.
        """
        try:
            async with asyncio.timeout(self._retry_s):
                await self._room.acquire()
        except TimeoutError as error:
            raise MongoUnavailableError(f"{operation}: no connection was free for {self._retry_s} s") from error
        try:
            return await self._retried(operation, attempt)
        finally:
            self._room.release()

    async def _retried(self, operation: str, attempt: Callable[[int], Awaitable[T]]) -> T:
        end = self._clock.monotonic() + self._retry_s
        wait_s, longest_s = _BACKOFF_S
        number = 0
        while True:
            try:
                return await attempt(number)
            except ConnectionFailure as error:  # AutoReconnect, NotPrimaryError, NetworkTimeout, server selection
                pause_s = wait_s * self._random.uniform(0.5, 1.0)
                if self._clock.monotonic() + pause_s >= end:
                    raise MongoUnavailableError(
                        f"{operation}: MongoDB was away for {self._retry_s} s and {number + 1} attempts: {error}"
                    ) from error
                _log.warning(
                    "MongoDB is away, trying again", action="mongodb.retry", operation=operation, attempt=number + 1,
                    error=str(error)[:300],
                )  # fmt: skip
            await self._clock.sleep(pause_s)
            wait_s = min(wait_s * 2, longest_s)
            number += 1
