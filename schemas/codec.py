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

HEADER_CONTENT_TYPE: Final = "content-type"
CONTENT_TYPE: Final = "application/json"
STRUCTURED_CONTENT_TYPES: Final = ("application/cloudevents+", "application/cloudevents-batch+")
# The library makes up an id, a time and a version where they are missing: a repeat would not be recognised. So we insist.
REQUIRED_HEADERS: Final = ("ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time")


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
        UndecodableError: it is no CloudEvent in binary mode, its type is unknown or belongs elsewhere, its value does not fit the
            type's model, or its key or pool header say something else than the event itself.
    """
    attributes = _attributes(record)
    try:
        message = kafka.KafkaMessage(attributes, record.key, record.value)
        cloud_event = kafka.from_binary(message, _FORMAT, CloudEvent)
    except (CloudEventValidationError, ValueError, KeyError, TypeError) as error:
        raise UndecodableError(f"not a CloudEvent in binary mode: {error}") from error
    model = BY_TYPE.get(cloud_event.get_type())
    if model is None:
        raise UndecodableError(f"unknown event type {cloud_event.get_type()!r}")
    if record.topic != model.TOPIC:
        raise UndecodableError(f"{model.ce_type()} does not belong on {record.topic}")
    time = cloud_event.get_time()
    assert time is not None, "ce_time is among the required headers"
    event = _event(model, record.value)
    _agrees(event, record)
    traceparent = record.header(HEADER_TRACEPARENT)
    return Envelope(
        id=cloud_event.get_id(),
        source=cloud_event.get_source(),
        time=time.timestamp(),
        event=event,
        traceparent=traceparent.decode("ascii", "replace") if traceparent is not None else None,
    )


def _attributes(record: Record) -> dict[str, bytes]:
    """Return the headers that are CloudEvents' business: any other may hold any bytes, and stand there twice."""
    attributes: dict[str, bytes] = {}
    for name, value in record.headers:
        attribute = name.lower()
        if not attribute.startswith(kafka.CE_PREFIX) and attribute != HEADER_CONTENT_TYPE:
            continue
        if attribute in attributes:
            raise UndecodableError(f"header {attribute} stands there twice")
        attributes[attribute] = value
    content_type = attributes.get(HEADER_CONTENT_TYPE, CONTENT_TYPE.encode()).decode("utf-8", "replace").lower()
    if content_type.startswith(STRUCTURED_CONTENT_TYPES):
        raise UndecodableError(f"{content_type} is CloudEvents' structured mode; only the binary mode is read")
    if content_type.partition(";")[0].strip() != CONTENT_TYPE:
        raise UndecodableError(f"the content type is {content_type!r}, not {CONTENT_TYPE}")
    missing = [name for name in REQUIRED_HEADERS if name not in attributes]
    if missing:
        raise UndecodableError(f"not a CloudEvent in binary mode: {', '.join(missing)} missing")
    return attributes


def _event(model: type[Event], value: bytes) -> Event:
    """Parse a value. Strictly: what its JSON Schema refuses ("5" for 5) is refused here too."""
    try:
        return model.model_validate_json(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "value"
        raise UndecodableError(f"{model.ce_type()}: {where}: {first['msg']}") from error


def _agrees(event: Event, record: Record) -> None:
    """Order holds by key and readers skip by pool, so neither may differ from what the event says."""
    if record.key != event.key.encode():
        raise UndecodableError(f"the record's key is {record.key!r}, the event's {event.KEY} is {event.key!r}")
    header, pool = record.header(HEADER_POOL), getattr(event, "pool", None)
    if header is not None and pool is not None and header != str(pool).encode():
        raise UndecodableError(f"the header {HEADER_POOL} is {header!r}, the event's pool is {pool!r}")
