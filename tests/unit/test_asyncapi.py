"""The AsyncAPI document says what the models, the topology and the tables of writers and readers say."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from schedmate.schemas import asyncapi
from schedmate.schemas.codec import decode
from schedmate.schemas.events import BY_TYPE, EVENTS, READERS, WRITERS, Event
from schedmate.schemas.topology import topology
from tests.event_fixtures import path_of, read

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "schemas" / "generated" / "asyncapi.yaml").read_text("utf-8"))
    return loaded


def resolved(document: dict[str, Any], reference: dict[str, str]) -> Any:
    target: Any = document
    for part in reference["$ref"].removeprefix("#/").split("/"):
        target = target[part]
    return target


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [reference for value in part.values() for reference in references(value)]
    return [reference for value in part for reference in references(value)] if isinstance(part, list) else []


def test_every_reference_leads_somewhere_inside_the_document(document: dict[str, Any]):
    assert references(document)
    for reference in references(document):
        assert reference.startswith("#/")
        assert resolved(document, {"$ref": reference})


def test_every_topic_of_events_is_a_channel_with_its_partitions_and_limits(document: dict[str, Any]):
    assert set(document["channels"]) == set(WRITERS)
    for name, channel in document["channels"].items():
        topic, kafka = topology().topics[name], channel["bindings"]["kafka"]
        assert channel["address"] == kafka["topic"] == name
        assert kafka["partitions"] == topic.partitions
        assert kafka["topicConfiguration"] == {
            "cleanup.policy": [topic.cleanup],
            "max.message.bytes": topic.record_bytes_max,
            "retention.ms": topic.retention_s * 1000,
        }


def test_every_version_of_every_event_is_a_message_on_its_channel(document: dict[str, Any]):
    on_channels = {(topic, name) for topic, channel in document["channels"].items() for name in channel["messages"]}
    assert on_channels == {(event.TOPIC, event.ce_type()) for event in EVENTS}
    assert set(document["components"]["messages"]) == set(BY_TYPE)


def test_operations_are_exactly_who_writes_and_who_reads(document: dict[str, Any]):
    told = {
        (operation["tags"][0]["name"], operation["action"], resolved(document, operation["channel"])["address"])
        for operation in document["operations"].values()
    }
    services = set(asyncapi.SERVICES) - {"platforms"}
    wanted = {(service, "receive", topic) for topic, readers in READERS.items() for service in readers}
    wanted |= {(writer, "send", topic) for topic, writer in WRITERS.items() if writer != "any reader"}
    wanted |= {(service, "send", "schedmate.dead-letters") for service in services}
    assert told == wanted


def test_an_operation_names_all_messages_of_its_channel(document: dict[str, Any]):
    for operation in document["operations"].values():
        channel = resolved(document, operation["channel"])
        assert len(operation["messages"]) == len(channel["messages"])
        for message in operation["messages"]:
            assert resolved(document, resolved(document, message))["name"] in channel["messages"]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_a_messages_headers_and_payload_take_the_fixture(document: dict[str, Any], event: type[Event]):
    message = document["components"]["messages"][event.ce_type()]
    record = read(path_of(event.ce_type()))
    headers = {name: value.decode() for name, value in record.headers}
    Draft7Validator(message["headers"]).validate(headers)
    payload = {**message["payload"], "components": document["components"]}
    Draft7Validator.check_schema(payload)
    Draft7Validator(payload).validate(yaml.safe_load(decode(record).event.model_dump_json()))


@pytest.mark.parametrize("header", ["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time"])
def test_a_message_without_a_required_header_is_refused(document: dict[str, Any], header: str):
    message = document["components"]["messages"]["schedmate.job.queued.v1"]
    headers = {name: value.decode() for name, value in read(path_of("schedmate.job.queued.v1")).headers}
    del headers[header]
    assert not Draft7Validator(message["headers"]).is_valid(headers)


def test_headers_say_what_travels_beside_the_attributes(document: dict[str, Any]):
    messages = document["components"]["messages"]
    for event in EVENTS:
        properties = set(messages[event.ce_type()]["headers"]["properties"])
        assert {"content-type", "traceparent", "ce_subject"} <= properties
        assert ("pool" in properties) is ("pool" in event.model_fields)
        assert ("schedmate-token" in properties) is (event.TOPIC == "schedmate.requests")


def test_the_events_of_a_topic_stand_together():
    """`events_of_topics` goes through EVENTS once; a topic that begins twice would lose its first events."""
    order = [event.TOPIC for event in EVENTS]
    assert sum(before != after for before, after in itertools.pairwise(order)) + 1 == len(set(order))
