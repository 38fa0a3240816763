"""Traces over HTTP: a server's span around each request, and the traceparent on each request that goes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

import httpx
from opentelemetry.trace import SpanKind, Status, StatusCode

from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.tracing import current_traceparent, span_from
from schedmate.schemas.wire import HEADER_TRACEPARENT

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SERVER_ERROR: Final = 500


class TracedApp:
    """ASGI: runs each request in a span that continues the caller's trace, named by method and route once that is known.

    `app.add_middleware(TracedApp)`. One span a request, none for the parts of a response.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        traceparent = _header(scope["headers"], HEADER_TRACEPARENT)
        with span_from(traceparent, names.HTTP_SERVER, kind=SpanKind.SERVER, http_request_method=method) as span:

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set_attribute(names.HTTP_RESPONSE_STATUS_CODE, status)
                    if status >= SERVER_ERROR:
                        span.set_status(Status(StatusCode.ERROR))
                await send(message)

            try:
                await self._app(scope, receive, noted)
            finally:
                route = getattr(scope.get("route"), "path", None)
                if isinstance(route, str):
                    span.update_name(f"{method} {route}")
                    span.set_attribute(names.HTTP_ROUTE, route)


async def add_traceparent(request: httpx.Request) -> None:
    """Put the current traceparent on a request: `httpx.AsyncClient(event_hooks={"request": [add_traceparent]})`."""
    request.headers.setdefault(HEADER_TRACEPARENT, current_traceparent())


def _header(headers: Iterable[tuple[bytes, bytes]], name: str) -> str | None:
    """Return a header that stands exactly once; two traceparents are as good as none."""
    found = [value for key, value in headers if key == name.encode()]
    return found[0].decode("ascii", "replace") if len(found) == 1 else None
