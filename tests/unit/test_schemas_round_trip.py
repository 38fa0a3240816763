"""Any event that its schema allows can be read, and any event can be written and read again."""

from __future__ import annotations

import contextlib
import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schedmate.schemas.codec import UndecodableError, decode, encode
from schedmate.schemas.events import EVENTS, Event
from schedmate.schemas.json_schema import Schema, event_schema
from schedmate.schemas.wire import Envelope, Record
from tests.event_fixtures import path_of, read

CHARACTERS = st.characters(exclude_categories=["Cs"])
IDENTIFIERS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=200)
ARGUMENTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=30)

# What is ruled over several fields stands in the model alone, so a job is drawn whole.
JOBS = st.fixed_dictionaries(
    {
        "name": NAMES,
        "command": st.lists(ARGUMENTS, min_size=1, max_size=4),
        "tenant": IDENTIFIERS,
        "user": NAMES,
        "pool": IDENTIFIERS,
    },
    optional={
        "gpus": st.integers(1, 1024),
        "nodes": st.integers(1, 4096),
        "gpu_type": st.none() | IDENTIFIERS,
        "gpu_memory_gib": st.none() | st.floats(0.5, 4096),
        "priority": st.sampled_from(["low", "normal", "high", "urgent"]),
        "env": st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True), ARGUMENTS, max_size=3),
    },
)


def values(schema: Schema, definitions: dict[str, Schema]) -> st.SearchStrategy[Any]:
    """Return every JSON value that a schema allows, as far as ours say things."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return JOBS if name in {"JobSpec", "JobRequest"} else values(definitions[name], definitions)
    if "anyOf" in schema:
        return st.one_of([values(choice, definitions) for choice in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    return KINDS[schema["type"]](schema, definitions)


def _objects(schema: Schema, definitions: dict[str, Schema]) -> st.SearchStrategy[Any]:
    if "properties" not in schema:
        return st.dictionaries(
            st.text(CHARACTERS, max_size=5), values(schema["additionalProperties"], definitions), max_size=3
        )
    fields = {name: values(field, definitions) for name, field in schema["properties"].items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: field for name, field in fields.items() if name in required},
        optional={name: field for name, field in fields.items() if name not in required},
    )


def _arrays(schema: Schema, definitions: dict[str, Schema]) -> st.SearchStrategy[Any]:
    if "prefixItems" in schema:
        return st.tuples(*(values(item, definitions) for item in schema["prefixItems"])).map(list)
    return st.lists(values(schema["items"], definitions), max_size=min(schema.get("maxItems", 3), 3))


def _strings(schema: Schema, _: dict[str, Schema]) -> st.SearchStrategy[str]:
    if schema.get("contentEncoding") == "base64url":
        return st.binary(max_size=30).map(lambda content: urlsafe_b64encode(content).decode())
    if "pattern" in schema:
        return st.from_regex(schema["pattern"].removeprefix("^").removesuffix("$"), fullmatch=True)
    return st.text(CHARACTERS, min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 30), 30))


def _integers(schema: Schema, _: dict[str, Schema]) -> st.SearchStrategy[int]:
    return st.integers(schema.get("minimum", -(2**63)), schema.get("maximum", 2**63))


def _numbers(schema: Schema, _: dict[str, Schema]) -> st.SearchStrategy[float]:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    floats = st.floats(least, schema.get("maximum"), allow_nan=False, allow_infinity=False)
    return floats.filter(lambda number: number != schema.get("exclusiveMinimum"))


KINDS = {
    "object": _objects,
    "array": _arrays,
    "string": _strings,
    "integer": _integers,
    "number": _numbers,
    "boolean": lambda *_: st.booleans(),
    "null": lambda *_: st.none(),
}


def events(model: type[Event]) -> st.SearchStrategy[Event]:
    """Return every event of this version, made from JSON that its schema allows."""
    schema = event_schema(model)
    fields = dict(schema["properties"])
    if fields[model.KEY].get("type") == "string":
        fields[model.KEY] = {"minLength": 1, **fields[model.KEY]}  # without a key there is no record
    strategy = values({**schema, "properties": fields}, schema.get("$defs", {}))
    return strategy.map(lambda value: model.model_validate_json(json.dumps(value), strict=True))


ENVELOPES = st.builds(
    Envelope,
    id=st.text(CHARACTERS, min_size=1, max_size=30),
    source=st.text(CHARACTERS, min_size=1, max_size=30),
    time=st.integers(0, 4_000_000_000_000_000).map(lambda microseconds: microseconds / 1_000_000),
    event=st.sampled_from(EVENTS).flatmap(events),
    traceparent=st.none() | st.from_regex(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", fullmatch=True),
)


@given(ENVELOPES)
def test_what_is_written_is_read_again_and_written_the_same(envelope: Envelope[Event]):
    record = encode(envelope)
    assert decode(record) == envelope
    assert encode(decode(record)) == record


@pytest.mark.parametrize("model", EVENTS, ids=lambda model: model.__name__)
def test_what_its_schema_allows_is_an_event_and_what_it_writes_fits_the_schema(model: type[Event]):
    validator = Draft202012Validator(event_schema(model))

    @given(events(model))
    def fits(event: Event):
        assert list(validator.iter_errors(json.loads(event.model_dump_json()))) == []

    fits()


@given(st.sampled_from(EVENTS).map(lambda event: read(path_of(event.ce_type()))), st.data())
def test_a_damaged_record_is_read_or_refused_but_breaks_nothing(record: Record, data: st.DataObject):
    headers = [*record.headers]
    at = data.draw(st.integers(0, len(headers) - 1), "header")
    headers[at] = (headers[at][0], data.draw(st.binary(max_size=40), "bytes of the header"))
    cut = data.draw(st.integers(0, len(record.value)), "cut at")
    inserted = data.draw(st.binary(max_size=10), "inserted")
    value = record.value[:cut] + inserted + record.value[cut:]
    for damaged in (
        Record(record.topic, record.key, record.value, tuple(headers)),
        Record(record.topic, record.key, value, record.headers),
        Record(record.topic, record.key, record.value[:cut], record.headers),
        Record(record.topic, data.draw(st.binary(max_size=20), "key"), record.value, record.headers),
    ):
        with contextlib.suppress(UndecodableError):
            assert encode(decode(damaged)).topic == record.topic
