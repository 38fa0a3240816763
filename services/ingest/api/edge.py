"""What stands around every request: trace, Host and Origin, sizes, timeouts, and an end of every error as a problem."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from opentelemetry.trace import SpanKind
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from schedmate.infra.blobs.port import BlobError
from schedmate.infra.bus.port import BusError
from schedmate.infra.clock import Clock
from schedmate.infra.store.port import StoreError
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.tracing import current_trace_id, current_traceparent, span_from
from schedmate.services.ingest.access import is_our_host, is_our_origin
from schedmate.services.ingest.problems import MEDIA_TYPE, Kind, Problem, overloaded, unavailable
from schedmate.services.ingest.settings import IngestSettings

_MULTIPART: Final = b"multipart/form-data"
_PARTS: Final = ((BusError, "The bus"), (StoreError, "The store"), (BlobError, "The blob store"))

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def problem_response(problem: Problem, path: str) -> Response:
    """Return the response of a problem."""
    document = problem.document(path, current_trace_id() or None)
    return Response(
        document.model_dump_json(), status_code=problem.kind.status, headers=problem.headers, media_type=MEDIA_TYPE
    )


@dataclass(slots=True)
class _Answered:
    """What has gone out so far."""

    status: int = 0


class Edge:
    """ASGI middleware; the outermost of ours, so that nothing leaves but what the API documents."""

    def __init__(
        self, app: ASGIApp, *, settings: IngestSettings, clock: Clock, metrics: Metrics, check_host: bool
    ) -> None:
        self._app = app
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._check_host = check_host
        self._in_hand = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection's request; anything but HTTP is not for us."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        began = self._clock.monotonic()
        answered = _Answered()
        parent = headers.get(b"traceparent", b"").decode("ascii", "replace") or None
        with span_from(parent, names.HTTP_SERVER, kind=SpanKind.SERVER, http_request_method=scope["method"]) as span:
            sending = _sender(send, answered)
            problem = await self._through(scope, headers, receive, sending)
            if problem is not None and not answered.status:
                await problem_response(problem, scope["path"])(scope, receive, sending)
            elif problem is not None:
                log.warning("a stream broke off", action="ingest.broken_off", detail=problem.detail)
            route = _route(scope)
            span.update_name(f"{scope['method']} {route}")
            span.set_attribute(names.HTTP_ROUTE, route)
            span.set_attribute(names.HTTP_RESPONSE_STATUS_CODE, answered.status)
        self._metrics.count(names.HTTP_REQUESTS, method=scope["method"], route=route, status=str(answered.status))
        self._metrics.observe(
            names.HTTP_REQUEST_S, self._clock.monotonic() - began, method=scope["method"], route=route
        )

    async def _through(
        self, scope: Scope, headers: MutableMapping[bytes, bytes], receive: Receive, send: Send
    ) -> Problem | None:
        """Pass the request on; return the problem that it ended with, if any."""
        self._in_hand += 1
        try:
            self._checked(headers)
            bounded = self._receiver(receive, headers, self._body_bytes_max(scope, headers))
            async with asyncio.timeout(None if self._is_long(scope, headers) else self._settings.request_timeout_s):
                await self._app(scope, bounded, send)
        except Problem as problem:
            return problem
        except (BusError, StoreError, BlobError, TimeoutError) as error:
            what = next((name for kind, name in _PARTS if isinstance(error, kind)), "Something behind the API")
            log.warning("unavailable", action="ingest.unavailable", what=what, error=repr(error))
            return unavailable(what)
        except Exception:
            log.exception("a request failed", action="ingest.failed", path=scope["path"])
            return Problem(
                Kind.INTERNAL, "The failure is in the log under this trace id; nothing you sent is to blame."
            )
        finally:
            self._in_hand -= 1
        return None

    def _checked(self, headers: MutableMapping[bytes, bytes]) -> None:
        if self._in_hand > self._settings.connections_max:
            raise overloaded()
        if not self._check_host:
            return
        also = self._settings.api_hosts_allowed
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers[b"origin"].decode("latin-1") if b"origin" in headers else None
        if not is_our_host(host, also) or not is_our_origin(origin, also):
            raise Problem(
                Kind.WRONG_HOST,
                "Without tokens only this machine's own names are served, and no web page of elsewhere. Ask for 127.0.0.1 or "
                "localhost, or name the host in SCHEDMATE_API_HOSTS_ALLOWED.",
            )

    def _body_bytes_max(self, scope: Scope, headers: MutableMapping[bytes, bytes]) -> int:
        plain = self._settings.body_bytes_max
        return plain + self._settings.bundle_bytes_max if _is_upload(scope, headers) else plain

    def _is_long(self, scope: Scope, headers: MutableMapping[bytes, bytes]) -> bool:
        path: str = scope["path"]
        return (
            path.endswith("/log/follow")
            or path == "/v1/events"
            or path.startswith("/v1/bundles/")
            or _is_upload(scope, headers)
        )

    def _receiver(self, receive: Receive, headers: MutableMapping[bytes, bytes], bytes_max: int) -> Receive:
        too_large = Problem(
            Kind.TOO_LARGE, f"This call takes at most {bytes_max} bytes. Put what is long into a bundle."
        )
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > bytes_max:
            raise too_large
        seen_bytes = 0
        more = True

        async def bounded() -> Message:
            nonlocal seen_bytes, more
            if not more:
                return await receive()  # waiting for a disconnect has no bound
            try:
                async with asyncio.timeout(self._settings.receive_timeout_s):
                    message = await receive()
            except TimeoutError as error:
                raise Problem(Kind.TIMEOUT, "The body stopped arriving. Send it again.") from error
            seen_bytes += len(message.get("body", b""))
            more = bool(message.get("more_body", False))
            if seen_bytes > bytes_max:
                raise too_large
            return message

        return bounded


def _headers(scope: Scope) -> dict[bytes, bytes]:
    return dict(scope["headers"])


def _is_upload(scope: Scope, headers: MutableMapping[bytes, bytes]) -> bool:
    path: str = scope["path"]
    if path.startswith("/v1/bundles/"):
        return bool(scope["method"] == "PUT")
    return path == "/v1/jobs" and headers.get(b"content-type", b"").lower().startswith(_MULTIPART)


def _route(scope: Scope) -> str:
    """Return the route's template: paths as sent would be labels without end."""
    route: Any = scope.get("route")
    return getattr(route, "path", None) or "unknown"


def _sender(send: Send, answered: _Answered) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            answered.status = message["status"]
            message["headers"] = [
                *message.get("headers", []),
                (b"traceparent", current_traceparent().encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
        await send(message)

    return sending
