"""The health server: /healthz, /readyz and /metrics of one process, on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from prometheus_client import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    import uvicorn

CONNECTIONS_MAX: Final = 64
KEEP_ALIVE_S: Final = 5
START_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 2.0

Checks = Mapping[str, Mapping[str, bool]]


class StartError(Exception):
    """The process cannot start. The message is one line that says what to do."""


class View(Protocol):
    """What the server shows. Calls are quick and bounded."""

    def alive(self) -> bool:
        """Whether nothing has failed for good; False gets the process restarted."""
        ...

    def ready(self) -> tuple[bool, Checks]:
        """Whether the process should get work, and each component's checks."""
        ...

    async def metrics_text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        ...


class HealthServer:
    """Serves a view while its block runs: `async with HealthServer(view, socket) as (host, port)`."""

    def __init__(self, view: View, listening: socket.socket) -> None:
        self._view = view
        self._socket = listening
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> tuple[str, int]:
        """Start serving; return the address."""
        address = self._socket.getsockname()
        self._server = _quiet_server(self._answer)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="health server")
        async with asyncio.timeout(START_TIMEOUT_S):
            while not self._server.started:
                if self._task.done():
                    self._task.result()
                    raise StartError("the health server ended at its start")
                await asyncio.sleep(0.005)
        return address[0], address[1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop serving, bounded."""
        assert self._server is not None
        assert self._task is not None
        self._server.should_exit = True
        _, pending = await asyncio.wait({self._task}, timeout=STOP_TIMEOUT_S)
        if pending:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._socket.close()

    async def _answer(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:  # noqa: ARG002 - ASGI's signature
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _send(send, 405, b"only GET\n", "text/plain; charset=utf-8")
            return
        status, body, kind = await self._page(scope["path"])
        await _send(send, status, b"" if scope["method"] == "HEAD" else body, kind)

    async def _page(self, path: str) -> tuple[int, bytes, str]:
        if path == "/healthz":
            alive = self._view.alive()
            return (200 if alive else 503), _json({"alive": alive}), "application/json"
        if path == "/readyz":
            ready, checks = self._view.ready()
            return (200 if ready else 503), _json({"ready": ready, "components": checks}), "application/json"
        if path == "/metrics":
            return 200, await self._view.metrics_text(), CONTENT_TYPE_LATEST
        return 404, b"there are /healthz, /readyz and /metrics\n", "text/plain; charset=utf-8"


def bind(host: str, port: int, *, setting: str = "SCHEDMATE_HEALTH_PORT") -> socket.socket:
    """Return a bound TCP socket for a server; port 0 takes a free one.

    Raises:
        StartError: the address cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise StartError(
            f"{host}: no address to listen on ({error.strerror}); check the host that goes with {setting}"
        ) from error
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise StartError(
            f"port {port} of {host} cannot be had ({error.strerror}); free it, or choose another with {setting}"
        ) from error
    return bound


def _quiet_server(app: Any) -> uvicorn.Server:
    """Return a uvicorn server that leaves signals and logging to the host."""
    import uvicorn  # noqa: PLC0415 - costs 100 ms, and only a serving process needs it

    class Quiet(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Quiet(
        uvicorn.Config(
            app,
            interface="asgi3",
            http="h11",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=16 * 1024,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


async def _send(send: Any, status: int, body: bytes, kind: str) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
