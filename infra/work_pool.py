"""A bounded pool of processes for pure work on untrusted input: its own interpreter, limits and a timeout (protocol §7).

Work is a module-level function and picklable arguments. A call that takes too long costs its process, never the caller's loop.
Processes are spawned, not forked: nothing of the parent's threads, sockets or secrets is inherited.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pickle
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

START_TIMEOUT_S: Final = 60.0


class WorkError(Exception):
    """The work could not be done: it raised, took too long, or its process died."""


class WorkTimeoutError(WorkError):
    """The work took longer than it may; its process was killed."""


class WorkPool:
    """Runs functions in at most `processes` processes; further calls wait for one, at most `waiting_max` of them."""

    def __init__(self, processes: int = 1, *, memory_bytes_max: int = 2 << 30, waiting_max: int = 1000) -> None:
        self._idle: asyncio.Queue[_Worker | None] = asyncio.Queue()
        for _ in range(processes):
            self._idle.put_nowait(None)  # a place without a process yet: made when it is first needed
        self._memory_bytes_max = memory_bytes_max
        self._waiting_max = waiting_max
        self._waiting = 0
        self._workers: set[_Worker] = set()
        self._closed = False

    async def run(self, timeout_s: float, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the work returns.

        Raises:
            WorkTimeoutError: it took longer than `timeout_s`, not counting the wait for a process and the start of one.
            WorkError: it raised, its process died, the pool is closed, or too many calls wait.
        """
        if self._closed:
            raise WorkError("the pool is closed")
        if self._waiting >= self._waiting_max:
            raise WorkError(f"{self._waiting} calls wait already")
        self._waiting += 1
        try:
            worker = await self._idle.get()
        finally:
            self._waiting -= 1
        try:
            if worker is None or not worker.alive():
                worker = await self._hire()
            return await worker.call(timeout_s, work, args, kwargs)
        finally:
            if worker is not None and not worker.alive():
                self._workers.discard(worker)
                worker = None
            self._idle.put_nowait(worker)

    async def close(self) -> None:
        """End all processes; what runs in them is lost."""
        self._closed = True
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    async def _hire(self) -> _Worker:
        worker = await asyncio.to_thread(_Worker, self._memory_bytes_max)
        self._workers.add(worker)
        if self._closed:
            worker.kill()
            raise WorkError("the pool is closed")
        await worker.started()
        return worker


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, memory_bytes_max: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(theirs, memory_bytes_max), name="schedmate-work", daemon=True
        )
        self._process.start()
        theirs.close()

    def alive(self) -> bool:
        return not self._pipe.closed and self._process.is_alive()

    async def started(self) -> None:
        await self._receive(START_TIMEOUT_S)

    async def call(self, timeout_s: float, work: Callable[..., T], args: Any, kwargs: Any) -> T:
        try:
            self._pipe.send_bytes(pickle.dumps((work, args, kwargs)))
            done, result = await self._receive(timeout_s)
        except (OSError, EOFError) as error:
            self.kill()
            raise WorkError(f"the process of {work.__name__} died") from error
        except BaseException:  # cancelled in the middle, or too late: what the pipe says next belongs to nobody
            self.kill()
            raise
        if not done:
            raise WorkError(str(result))
        answer: T = result
        return answer

    async def _receive(self, timeout_s: float) -> tuple[bool, Any]:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._pipe.fileno(), readable.set)
        try:
            async with asyncio.timeout(timeout_s):
                await readable.wait()
        except TimeoutError as error:
            raise WorkTimeoutError(f"took longer than {timeout_s:g} s") from error
        finally:
            loop.remove_reader(self._pipe.fileno())
        answer: tuple[bool, Any] = await asyncio.to_thread(self._pipe.recv)
        return answer

    def kill(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._process.kill()
        self._process.join(timeout=1.0)
        self._pipe.close()


def _serve(pipe: Connection, memory_bytes_max: int) -> None:
    """Life of a process: one call after the other until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes_max, memory_bytes_max))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe.send((True, None))
    while True:
        try:
            work, args, kwargs = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own parent
        except (EOFError, OSError):
            return
        try:
            answer = (True, work(*args, **kwargs))
        except MemoryError:
            answer = (False, f"{work.__name__} needs more memory than it may")
        except RecursionError:
            answer = (False, f"{work.__name__}: nested too deeply")
        except Exception as error:  # noqa: BLE001 - told to the caller
            answer = (False, f"{type(error).__name__}: {error}"[:1000])
        try:
            pipe.send(answer)
        except (OSError, BrokenPipeError):
            return
