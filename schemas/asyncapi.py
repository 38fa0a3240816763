"""The AsyncAPI 3 document: channels from the topology, messages from the models, operations from who writes and who reads."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final

import schedmate
from schedmate.schemas.codec import CONTENT_TYPE
from schedmate.schemas.events import EVENTS, READERS, WRITERS, Event
from schedmate.schemas.json_schema import Schema, shared_schemas
from schedmate.schemas.topology import Topic, topology
from schedmate.schemas.wire import HEADER_POOL, HEADER_RESENT, HEADER_TOKEN, HEADER_TRACEPARENT

KAFKA_BINDING: Final = "0.5.0"

SERVICES: Final[dict[str, str]] = {
    "platforms": "Other systems that ask for jobs.",
    "ingest": "The HTTP API, the second door on the bus, and the read model.",
    "code-analyzer": "Reads what a job's source says about it.",
    "history-estimator": "Estimates a job's run time from jobs like it.",
    "log-monitor": "Follows each job's log: progress, and why a run failed.",
    "dispatcher": "Decides: order, placement, states. One leader a pool.",
    "worker": "Runs the members on its node.",
}


def document() -> dict[str, Any]:
    """Return the whole document. It refers to nothing outside itself."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "SchedMate's events",
            "version": schedmate.__version__,
            "description": "CloudEvents 1.0 in Kafka's binary mode. A version of an event is never edited; a new one is added beside it.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": {
            "kafka": {
                "host": "localhost:9092",
                "protocol": "kafka",
                "description": "The address is a setting: SCHEDMATE_BUS=kafka://HOST:PORT. Without Kafka the same records are kept in SQLite.",
            }
        },
        "channels": {name: _channel(topology().topics[name], events) for name, events in events_of_topics().items()},
        "operations": _operations(),
        "components": {
            "messages": {event.ce_type(): _message(event) for event in EVENTS},
            "schemas": {
                name: _draft_07(schema)
                for name, schema in sorted(shared_schemas("#/components/schemas/{model}").items())
            },
        },
    }


def events_of_topics() -> dict[str, list[type[Event]]]:
    """Return each topic's events, in the order in which both are declared."""
    return {topic: list(events) for topic, events in groupby(EVENTS, key=lambda event: event.TOPIC)}


def writers(topic: str) -> tuple[str, ...]:
    """Return the names of those who write a topic."""
    writer = WRITERS[topic]
    return (writer,) if writer in SERVICES else tuple(name for name in SERVICES if name != "platforms")


def headers(event: type[Event]) -> Schema:
    """Return the schema of a record's headers, each as UTF-8 text."""
    properties: dict[str, Schema] = {
        "ce_specversion": {"type": "string", "const": "1.0"},
        "ce_id": {
            "type": "string",
            "minLength": 1,
            "description": "Derived from the event's cause: a repeat has the same id.",
        },
        "ce_source": {"type": "string", "minLength": 1, "description": "schedmate/SERVICE; a worker's ends in /NODE."},
        "ce_type": {"type": "string", "const": event.ce_type()},
        "ce_subject": {"type": "string", "description": f"The record's key: `{event.KEY}`."},
        "ce_time": {
            "type": "string",
            "format": "date-time",
            "description": "From the writer's clock, UTC, microseconds.",
        },
        "content-type": {"type": "string", "const": CONTENT_TYPE},
        HEADER_TRACEPARENT: {
            "type": "string",
            "description": "W3C trace context of the span that published the record.",
        },
    }
    required = [name for name in properties if name.startswith("ce_") and name != "ce_subject"]
    if "pool" in event.model_fields:
        properties[HEADER_POOL] = {
            "type": "string",
            "description": "The event's pool: readers skip others' without decoding.",
        }
    if event.TOPIC == "schedmate.requests":
        properties[HEADER_TOKEN] = {
            "type": "string",
            "description": "The tenant's API token. Checked by ingest, never forwarded.",
        }
    properties[HEADER_RESENT] = {
        "type": "string",
        "description": "How often the record was sent back from the dead letters.",
    }
    return {"type": "object", "required": required, "properties": properties}


def _channel(topic: Topic, events: list[type[Event]]) -> dict[str, Any]:
    configuration: dict[str, Any] = {"cleanup.policy": [topic.cleanup], "max.message.bytes": topic.record_bytes_max}
    if topic.cleanup == "delete":
        configuration["retention.ms"] = topic.retention_s * 1000
    return {
        "address": topic.name,
        "description": f"Written by {', '.join(writers(topic.name))}; read by {', '.join(READERS[topic.name])}.",
        "messages": {event.ce_type(): {"$ref": f"#/components/messages/{event.ce_type()}"} for event in events},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": configuration,
                "bindingVersion": KAFKA_BINDING,
            }
        },
    }


def _operations() -> dict[str, Any]:
    wanted = [
        (service, action, topic)
        for service in SERVICES
        for action, topics in (
            ("receive", [topic for topic in READERS if service in READERS[topic]]),
            ("send", [topic for topic in WRITERS if service in writers(topic)]),
        )
        for topic in topics
    ]
    return {
        f"{service}.{action}.{topic.removeprefix('schedmate.')}": {
            "action": action,
            "channel": {"$ref": f"#/channels/{topic}"},
            "summary": f"{service} {'reads' if action == 'receive' else 'writes'} {topic}",
            "tags": [{"name": service, "description": SERVICES[service]}],
            "messages": [
                {"$ref": f"#/channels/{topic}/messages/{event.ce_type()}"} for event in events_of_topics()[topic]
            ],
        }
        for service, action, topic in wanted
    }


def _message(event: type[Event]) -> dict[str, Any]:
    return {
        "name": event.ce_type(),
        "title": event.__name__,
        "summary": (event.__doc__ or "").strip().splitlines()[0],
        "contentType": CONTENT_TYPE,
        "headers": headers(event),
        "payload": {"$ref": f"#/components/schemas/{event.__name__}"},
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": f"`{event.KEY}` of the event"},
                "bindingVersion": KAFKA_BINDING,
            }
        },
    }


def _draft_07(schema: Any) -> Any:
    """AsyncAPI's own schemas are of JSON Schema's draft 07: tuples are `items`, and nothing may stand beside a `$ref`."""
    if isinstance(schema, list):
        return [_draft_07(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {key: _draft_07(value) for key, value in schema.items()}
    if "prefixItems" in converted:
        converted |= {"items": converted.pop("prefixItems"), "additionalItems": False}
    if "$ref" in converted and len(converted) > 1:
        converted["allOf"] = [{"$ref": converted.pop("$ref")}]
    return converted
