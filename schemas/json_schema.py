"""JSON Schema (2020-12) of what travels, from the models and the glossary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from schedmate.schemas import glossary
from schedmate.schemas.events import EVENTS, Event

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


class WireSchema(GenerateJsonSchema):
    """Pydantic's generator, with the glossary's words at every field, bytes as they travel, and no titles that repeat the name."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the base's signature
        """Fields have meanings instead of titles."""
        return False

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        """Bytes are base64 in JSON, in the alphabet that is safe in addresses."""
        described = {**super().bytes_schema(schema), "contentEncoding": "base64url"}
        described.pop("format", None)
        return described

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """A map whose keys have a pattern has no other keys."""
        described = super().dict_schema(schema)
        return {**described, "additionalProperties": False} if "patternProperties" in described else described

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Say at each field what it means."""
        described = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        for field, value in described.get("properties", {}).items():
            value.setdefault("description", glossary.meaning(model, field))
        return described


def event_schema(event: type[Event]) -> Schema:
    """Return the JSON Schema of one version's value, standing on its own."""
    schema = event.model_json_schema(schema_generator=WireSchema)
    return {"$schema": DIALECT, "$id": f"urn:schedmate:event:{event.ce_type()}", **schema}


def shared_schemas(ref_template: str) -> dict[str, Schema]:
    """Return the schemas of all events and of all that they hold, by name, referring to each other by `ref_template`."""
    wanted = [(event, "validation") for event in EVENTS]
    _, shared = models_json_schema(wanted, ref_template=ref_template, schema_generator=WireSchema)  # type: ignore[arg-type]
    definitions: dict[str, Schema] = shared["$defs"]
    return definitions
