"""The OpenAPI document: complete, so that a client can be written, and checked, against it."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from schedmate.schemas.job import GPU_MILLI_WHOLE, JobRequest
from schedmate.services.ingest.api.bodies import JSON_TYPE, MULTIPART_TYPE
from schedmate.services.ingest.models import CommandRequest, EstimateOrder, PinOrder, ReservationRequest
from schedmate.services.ingest.problems import Kind, ProblemDetails, documented

ALWAYS: Final = (Kind.WRONG_HOST, Kind.UNAUTHORIZED, Kind.FORBIDDEN, Kind.RATE, Kind.INTERNAL, Kind.UNAVAILABLE)
"""What every operation may answer."""
BODY: Final = (Kind.BAD_REQUEST, Kind.TIMEOUT, Kind.TOO_LARGE, Kind.UNSUPPORTED, Kind.INVALID)
"""What an operation with a body may answer besides."""
_BY_HAND: Final = (JobRequest, CommandRequest, EstimateOrder, PinOrder, ReservationRequest)
"""The models of the bodies that are read by hand: FastAPI does not see them."""


def json_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Return what an operation says of its JSON body, for `openapi_extra`."""
    assert model in _BY_HAND, "the document has the schemas of these"
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {JSON_TYPE: {"schema": schema}}}}


JOB_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON_TYPE: {"schema": {"$ref": "#/components/schemas/JobRequest"}},
            MULTIPART_TYPE: {
                "schema": {
                    "type": "object",
                    "required": ["job"],
                    "additionalProperties": False,
                    "properties": {
                        "job": {"$ref": "#/components/schemas/JobRequest"},
                        "bundle": {"type": "string", "format": "binary", "description": "A tar or zip archive."},
                    },
                },
                "encoding": {"job": {"contentType": JSON_TYPE}, "bundle": {"contentType": "application/octet-stream"}},
            },
        },
    }
}
WHY_BODY: Final = json_body(CommandRequest, required=False)
BUNDLE_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def problems(*kinds: Kind) -> dict[int | str, dict[str, Any]]:
    """Return the documented problems of an operation: those given, and those of every operation."""
    return documented(*ALWAYS, *kinds)


def events(description: str) -> dict[int | str, dict[str, Any]]:
    """Return the documented answer of an event stream."""
    return {200: {"description": description, "content": {"text/event-stream": {"schema": {"type": "string"}}}}}


def install(app: FastAPI) -> None:
    """Give the application its document: FastAPI's, with the schemas of the bodies that are read by hand."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for model in (*_BY_HAND, ProblemDetails):
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
            _say_exactly_one(schemas["JobRequest"])
            _say_named_or_counted(schemas["ReservationRequest"])
            _say_that_tokens_are_optional(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _say_that_tokens_are_optional(document: dict[str, Any]) -> None:
    """Say of each operation that it may need a token: on the loopback it does not."""
    for path in document["paths"].values():
        for operation in path.values():
            if "security" in operation:
                operation["security"] = [{}, *operation["security"]]


def _say_exactly_one(schema: dict[str, Any]) -> None:
    """Add what the model checks and Pydantic does not say: one of command and script, where an entry lies, what a part of a GPU goes with, env's names."""
    schema["properties"]["env"]["additionalProperties"] = False
    null = {"type": "null"}
    command = {"type": "array", "minItems": 1, "prefixItems": [{"type": "string", "minLength": 1}]}
    script = {"type": "string", "pattern": r"\S"}
    schema["oneOf"] = [
        {"required": ["command"], "properties": {"command": command, "script": null}},
        {"required": ["script"], "properties": {"command": null, "script": script}},
    ]
    schema["anyOf"] = [
        {"properties": {"entry": null}},
        *({"required": [place], "properties": {place: {"type": "string"}}} for place in ("bundle", "workdir")),
    ]
    whole, one = {"const": GPU_MILLI_WHOLE}, {"const": 1}
    schema["allOf"] = [{"anyOf": [{"properties": {"gpu_milli": whole}}, {"properties": {"gpus": one, "nodes": one}}]}]


def _say_named_or_counted(schema: dict[str, Any]) -> None:
    """Add that a reservation names its nodes or says how many, one of the two."""
    schema["oneOf"] = [
        {"required": ["nodes"], "properties": {"nodes": {"minItems": 1}, "count": {"const": 0}}},
        {"required": ["count"], "properties": {"nodes": {"maxItems": 0}, "count": {"minimum": 1}}},
    ]
