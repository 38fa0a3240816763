"""Waiting in tests: for a condition, with a deadline, never for a time.

await eventually(lambda: runner.ready())
job = await eventually(lambda: client.job_if(state="SUCCEEDED"), 20)   # may be a coroutine; returns what was waited for
eventually_sync(path.exists)
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

__all__ = ["eventually", "eventually_sync"]

T = TypeVar("T")

FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.1


@overload
async def eventually(
    predicate: Callable[[], Awaitable[T | None]], timeout_s: float = ..., what: str | None = ...
) -> T: ...
@overload
async def eventually(predicate: Callable[[], T | None], timeout_s: float = ..., what: str | None = ...) -> T: ...
async def eventually(predicate: Callable[[], Any], timeout_s: float = 10.0, what: str | None = None) -> Any:
    """Return the first true value of `predicate`, which may be a coroutine function.

    Raises:
        AssertionError: none came within `timeout_s`; the message names the predicate and its last value.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    value: Any = None
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            try:
                value = await asyncio.wait_for(answer, max(deadline - time.monotonic(), FIRST_PAUSE_S))
            except TimeoutError:
                if time.monotonic() < deadline:
                    raise  # its own, not ours
                raise AssertionError(_message(predicate, what, timeout_s, value)) from None
        else:
            value = answer
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(_message(predicate, what, timeout_s, value))
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)


def eventually_sync(predicate: Callable[[], T | None], timeout_s: float = 10.0, what: str | None = None) -> T:
    """Return the first true value of `predicate`, without an event loop.

    Raises:
        AssertionError: none came within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while not (value := predicate()):
        if time.monotonic() >= deadline:
            raise AssertionError(_message(predicate, what, timeout_s, value))
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
    return value


def _message(predicate: Callable[[], object], what: str | None, timeout_s: float, last: object) -> str:
    if what is None:
        try:
            what = inspect.getsource(predicate).strip()
        except (OSError, TypeError):
            what = repr(predicate)
    return f"not within {timeout_s} s: {what} (last value: {last!r})"
