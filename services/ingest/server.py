"""The HTTP server: uvicorn, told when to stop instead of taking signals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from schedmate.infra.health import bind

_KEEP_ALIVE_S: Final = 30
_BACKLOG: Final = 512
_POLL_S: Final = 0.01
_SPARE_CONNECTIONS: Final = 100
_HEADER_BYTES_MAX: Final = 64 * 1024


class _Server(uvicorn.Server):
    """uvicorn leaves the signals to the host."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signals."""
        yield


class ApiServer:
    """Listens from `listen` on, serves in `run`."""

    def __init__(self, app: ASGIApp, *, host: str, port: int, connections_max: int, drain_timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._server = _Server(
            uvicorn.Config(
                app,
                http="h11",
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=connections_max + _SPARE_CONNECTIONS,  # the edge refuses first, and in words
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, int(drain_timeout_s)),
                h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
            )
        )

    def listen(self) -> tuple[str, int]:
        """Take the port; return host and port.

        Raises:
            StartError: the port cannot be had.
        """
        self._socket = bind(self._host, self._port, setting="SCHEDMATE_API_PORT")
        self._socket.listen(_BACKLOG)
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    @property
    def is_serving(self) -> bool:
        """Whether requests are answered."""
        return bool(self._server.started)

    async def run(self, stop: asyncio.Event, before_stop: Callable[[], None]) -> None:
        """Serve until `stop` is set; then let open calls finish, bounded. `before_stop` ends what would not end by itself."""
        assert self._socket is not None, "listen() comes first"
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="api server")
        stopped = asyncio.create_task(stop.wait(), name="api stop")
        try:
            await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            before_stop()
            self._server.should_exit = True
            await serving

    def close(self) -> None:
        """Give the port back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
