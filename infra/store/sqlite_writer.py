"""The one thread that writes to a SQLite file: takes what is waiting, commits it together, answers each caller.

A commit costs one flush of the disk however many writes it holds, so callers that wait at the same time share it. A write
is answered after the commit that holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schedmate.infra.store.port import DuplicateKeyError, StoreError, StoreUnavailableError

Write = Callable[[sqlite3.Connection], Any]

BATCH_WRITES_MAX: Final = 256
WAITING_WRITES_MAX: Final = 1024


@dataclass(slots=True)
class _Request:
    """A write that waits for its turn, and who waits for its answer."""

    write: Write
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    result: Any = None
    error: Exception | None = None


class SqliteWriter:
    """Runs writes on a thread of its own, inside `BEGIN IMMEDIATE` … `COMMIT`.

    Args:
        connect: opens the connection, on the thread that will use it.
        began: called inside each transaction, before its writes.
        answer_s: longest wait for one write, the wait for other processes' locks included.
    """

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], began: Callable[[sqlite3.Connection], None], answer_s: float
    ) -> None:
        self._connect = connect
        self._began = began
        self._answer_s = answer_s
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(WAITING_WRITES_MAX)
        self._thread = threading.Thread(target=self._run, name="sqlite-writer", daemon=True)
        self._stopped = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Finish what is waiting, close the connection and end the thread."""
        self._stopped = True
        self._requests.put(None)
        await asyncio.to_thread(self._thread.join, self._answer_s)

    async def run(self, write: Write) -> Any:
        """Return what `write` returned, once it is on the disk."""
        if self._stopped:
            raise StoreUnavailableError("the store has been stopped")
        try:
            async with asyncio.timeout(self._answer_s), self._room:
                loop = asyncio.get_running_loop()
                request = _Request(write, loop.create_future(), loop)
                self._requests.put(request)
                return await request.answer
        except TimeoutError as error:
            raise StoreUnavailableError(f"SQLite did not answer within {self._answer_s} s") from error

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while (request := self._requests.get()) is not None:
            batch = [request]
            ending = False
            while len(batch) < BATCH_WRITES_MAX and not self._requests.empty():
                following = self._requests.get()
                if following is None:
                    ending = True
                    break
                batch.append(following)
            try:
                connection = connection or self._connect()
                self._commit(connection, batch)
            except Exception as error:  # noqa: BLE001 - goes to the callers; this thread must live
                _fail(batch, error)
                if connection is not None:
                    connection.close()  # the next batch begins with a fresh one
                    connection = None
            for done in batch:
                _answer(done)
            if ending:
                break
        if connection is not None:
            connection.close()

    def _commit(self, connection: sqlite3.Connection, batch: Sequence[_Request]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._began(connection)
            for request in batch:
                try:
                    request.result = request.write(connection)
                except sqlite3.IntegrityError as error:
                    request.error = _caused(DuplicateKeyError(f"a value that must be unique exists: {error}"), error)
                except sqlite3.OperationalError:
                    raise  # the file's trouble, not this write's
                except Exception as error:  # noqa: BLE001 - goes to its caller, the others go on
                    request.error = error
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _fail(batch: Sequence[_Request], error: Exception) -> None:
    """Tell every caller of a batch that was not committed (or of which nobody knows)."""
    for request in batch:
        request.error = _caused(StoreUnavailableError(f"SQLite: {error}"), error)


def _caused(error: StoreError, cause: BaseException) -> StoreError:
    error.__cause__ = cause
    return error


def _answer(request: _Request) -> None:
    def deliver() -> None:
        if request.answer.done():
            return  # the caller has given up
        if request.error is not None:
            request.answer.set_exception(request.error)
        else:
            request.answer.set_result(request.result)

    with contextlib.suppress(RuntimeError):  # the caller's loop is closed: nobody is left to tell
        request.loop.call_soon_threadsafe(deliver)
