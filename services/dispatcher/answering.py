"""The leader answers `why` for any job of its pool (design §4): a small HTTP server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from schedmate.infra.clock import Clock
from schedmate.services.dispatcher.reasoning import answer, reservations_of

if TYPE_CHECKING:
    from schedmate.services.dispatcher.leader import PoolLeader


class AnswerServer:
    """Serves what only the leader knows now.

    `GET /v1/why/{job_id}`: the fields of JobReasoned, or 404 when no pool led here has the job. `GET /v1/reservations/{pool}`: the
    reservations that have not ended, in the order of their beginnings, or 404 when the pool is not led here.
    """

    def __init__(self, leaders: Mapping[str, PoolLeader], clock: Clock) -> None:
        self._leaders = leaders
        self._clock = clock
        self._socket: socket.socket | None = None
        self.address = ""

    def listen(self, listening: socket.socket) -> None:
        """Take over a bound socket."""
        self.close()
        self._socket = listening
        host, port = listening.getsockname()[:2]
        self.address = f"{host}:{port}"

    def close(self) -> None:
        """Let go of the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def app(self) -> FastAPI:
        """Return the application."""
        app = FastAPI(title="SchedMate dispatcher", openapi_url=None, docs_url=None, redoc_url=None)

        @app.get("/v1/why/{job_id}")
        async def why(job_id: str) -> JSONResponse:
            for leader in list(self._leaders.values()):
                if leader.state is not None:
                    found = answer(leader.state, job_id, self._clock.now())
                    if found is not None:
                        return JSONResponse(found.model_dump(mode="json"))
            return JSONResponse({"detail": "no pool led here has this job"}, status_code=404)

        @app.get("/v1/reservations/{pool}")
        async def reservations(pool: str) -> JSONResponse:
            leader = self._leaders.get(pool)
            if leader is None or leader.state is None:
                return JSONResponse({"detail": "the pool is not led here"}, status_code=404)
            return JSONResponse(reservations_of(leader.state))

        return app

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve while the context is open."""
        assert self._socket is not None, "listen first"
        config = uvicorn.Config(
            self.app(), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined] # the host owns the signals
        task = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            yield
        finally:
            server.should_exit = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(task, 3)
