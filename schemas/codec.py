"""CloudEvents 1.0 in Kafka's binary mode, both ways (design §2).

Attributes travel as `ce_*` headers, the event as a JSON value; `traceparent` and `pool` stand beside them as bare headers.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import kafka
from cloudevents.core.exceptions import CloudEventValidationError
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from pydantic import ValidationError

from schedmate.schemas.events import BY_TYPE, Event
from schedmate.schemas.wire import HEADER_POOL, HEADER_TRACEPARENT, Envelope, Record

CONTENT_TYPE: Final = "application/json"


class UndecodableError(Exception):
    """The record is no event of ours."""


class _RawJson(JSONFormat):
    """Hands the value through as bytes: the event's own model parses it, once."""

    def read_data(self, body: Any, datacontenttype: str | None) -> Any:  # noqa: ARG002 - the library's signature
        return body

    def write_data(self, data: Any, datacontenttype: str | None) -> bytes:  # noqa: ARG002
        return bytes(data)


_FORMAT: Final = _RawJson()


def encode(envelope: Envelope[Event]) -> Record:
    """Return the Kafka record of an event. Shape: key = the event's key, value = JSON, headers = `ce_*` and bare ones."""
    event = envelope.event
    attributes = {
        "specversion": "1.0",
        "id": envelope.id,
        "source": envelope.source,
        "type": event.ce_type(),
        "subject": event.key,
        "time": datetime.fromtimestamp(envelope.time, tz=UTC),
        "datacontenttype": CONTENT_TYPE,
        "partitionkey": event.key,
    }
    cloud_event: BaseCloudEvent = CloudEvent(attributes, event.model_dump_json().encode())
    message = kafka.to_binary(cloud_event, _FORMAT)
    headers = [(name, value) for name, value in message.headers.items() if name != "ce_partitionkey"]
    pool = getattr(event, "pool", None)
    if pool is not None:
        headers.append((HEADER_POOL, str(pool).encode()))
    if envelope.traceparent is not None:
        headers.append((HEADER_TRACEPARENT, envelope.traceparent.encode()))
    return Record(event.TOPIC, event.key.encode(), message.value, tuple(headers))


def decode(record: Record) -> Envelope[Event]:
    """Return the event of a Kafka record.

    Raises:
        UndecodableError: attributes are missing, the type is unknown, or the value does not fit the type's model.
    """
    try:
        message = kafka.KafkaMessage(headers=dict(record.headers), key=record.key, value=record.value)
        cloud_event = kafka.from_binary(message, _FORMAT)
    except (CloudEventValidationError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise UndecodableError(f"not a CloudEvent in binary mode: {error}") from error
    model = BY_TYPE.get(cloud_event.get_type())
    if model is None:
        raise UndecodableError(f"unknown event type {cloud_event.get_type()!r}")
    if record.topic != model.TOPIC:
        raise UndecodableError(f"{model.ce_type()} does not belong on {record.topic}")
    try:
        event = model.model_validate_json(record.value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "value"
        raise UndecodableError(f"{model.ce_type()}: {where}: {first['msg']}") from error
    time = cloud_event.get_time()
    if time is None:
        raise UndecodableError("ce_time is missing")
    traceparent = record.header(HEADER_TRACEPARENT)
    return Envelope(
        id=cloud_event.get_id(),
        source=cloud_event.get_source(),
        time=time.timestamp(),
        event=event,
        traceparent=traceparent.decode("ascii", "replace") if traceparent is not None else None,
    )
