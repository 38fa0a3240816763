"""The application: routes, the edge around them, and an end of FastAPI's own errors as problems."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route

from schedmate import __version__
from schedmate.services.ingest.api import (
    bodies,
    bundles,
    dead_letters,
    documentation,
    events,
    jobs,
    logs,
    nodes,
    orders,
    reservations,
)
from schedmate.services.ingest.api.context import Context
from schedmate.services.ingest.api.edge import Edge, problem_response
from schedmate.services.ingest.problems import Kind, Problem

_ROUTERS: Final = tuple(
    module.router for module in (jobs, logs, nodes, orders, reservations, bundles, dead_letters, events)
)
_KINDS: Final = {kind.status: kind for kind in (Kind.BAD_REQUEST, Kind.NOT_FOUND, Kind.METHOD_NOT_ALLOWED)}
_DETAILS: Final = {
    404: "There is nothing at this path; /openapi.json lists what there is.",
    405: "The path is right, the method is not; the Allow header lists those that are.",
}


def create_app(context: Context, *, check_host: bool) -> FastAPI:
    """Return the application over a context. `check_host`: serve this machine's own names only."""
    app = FastAPI(
        title="SchedMate",
        version=__version__,
        description="Submit deep-learning jobs, follow them, and ask why they stand where they stand.",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.context = context
    for router in _ROUTERS:
        app.include_router(router)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_middleware(
        Edge, settings=context.settings, clock=context.clock, metrics=context.metrics, check_host=check_host
    )
    documentation.install(app)
    return app


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "registered for these"
    return problem_response(bodies.invalid(error.errors()), request.url.path)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these"
    headers = dict(error.headers or {})
    if error.status_code == Kind.METHOD_NOT_ALLOWED.status:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    kind = _KINDS.get(error.status_code, Kind.BAD_REQUEST if error.status_code < 500 else Kind.INTERNAL)  # noqa: PLR2004
    detail = _DETAILS.get(error.status_code, str(error.detail))
    return problem_response(Problem(kind, detail, headers=headers), request.url.path)


def _methods(request: Request) -> set[str]:
    """Return what the path of a request can be asked with: a path may have several routes."""
    found: set[str] = set()
    for route in (route for router in _ROUTERS for route in router.routes):
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return found
