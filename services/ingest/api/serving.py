"""Serving event streams: bounded in number, and always given back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

from starlette.responses import StreamingResponse

from schedmate.services.ingest.problems import RETRY_AFTER_S, Kind, Problem
from schedmate.services.ingest.streams import Streams, TooManyStreamsError

_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def stream(streams: Streams, content: Callable[[], AsyncIterator[bytes]]) -> StreamingResponse:
    """Return the response of an event stream.

    Raises:
        Problem: as many streams are open as this instance serves.
    """
    try:
        streams.acquire()
    except TooManyStreamsError as error:
        raise Problem(
            Kind.UNAVAILABLE,
            "This instance has as many streams open as it may. Try again in a moment, or read by ranges.",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        ) from error
    return _Stream(streams, content)


class _Stream(StreamingResponse):
    """A streaming response that gives its place back however it ends, even if it never began."""

    def __init__(self, streams: Streams, content: Callable[[], AsyncIterator[bytes]]) -> None:
        super().__init__(content(), media_type="text/event-stream", headers=_HEADERS)
        self._streams = streams

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        """Send the stream until it ends or the client goes."""
        try:
            await super().__call__(scope, receive, send)  # type: ignore[arg-type]
        finally:
            self._streams.release()
