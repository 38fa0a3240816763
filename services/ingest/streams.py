"""Event streams: how many are open, who waits for what, and the end of all of them."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from schedmate.infra.store.port import Json


class TooManyStreamsError(Exception):
    """As many streams are open as may be."""


class Streams:
    """Counts open streams and wakes them when what they follow has changed. Bounded by `streams_max`."""

    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        self._open = 0
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.closing = asyncio.Event()

    def acquire(self) -> None:
        """Take a place for a stream; `release` gives it back.

        Raises:
            TooManyStreamsError: there is none.
        """
        if self._open >= self._streams_max or self.closing.is_set():
            raise TooManyStreamsError
        self._open += 1

    def release(self) -> None:
        """Give a place back."""
        self._open -= 1

    @property
    def open(self) -> int:
        """How many streams are open."""
        return self._open

    @contextmanager
    def following(self, key: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever what `key` names has changed; the follower clears it."""
        changed = asyncio.Event()
        self._waiting[key].add(changed)
        try:
            yield changed
        finally:
            self._waiting[key].discard(changed)
            if not self._waiting[key]:
                del self._waiting[key]

    def notify(self, key: str) -> None:
        """Wake whoever follows `key`."""
        for changed in self._waiting.get(key, ()):
            changed.set()

    def close(self) -> None:
        """Wake everybody for the last time: the server stops."""
        self.closing.set()
        for waiting in self._waiting.values():
            for changed in waiting:
                changed.set()


async def woken(changed: asyncio.Event, timeout_s: float) -> bool:
    """Wait until something has changed, or the time is over (False); ready for the next wait."""
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        return False
    changed.clear()
    return True


KEEP_ALIVE = b": still here\n\n"


def server_sent(event: str, value: Mapping[str, Json], event_id: str | None = None) -> bytes:
    """Return a server-sent event. JSON has no raw line breaks, so one `data` line holds it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {event}\ndata: {text}\n\n".encode("utf-8", "replace")
