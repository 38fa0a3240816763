"""Dead letters: a record that could not be processed, kept whole, and the way back (design §2)."""

from __future__ import annotations

from typing import Final

from schedmate.infra.telemetry.redaction import redact
from schedmate.schemas.events import DeadLettered
from schedmate.schemas.ids import derived
from schedmate.schemas.wire import HEADER_RESENT, HEADER_TOKEN, HEADER_TRACEPARENT, Delivery, Envelope, Record

_ERROR_CHARS_MAX: Final = 4000
_LOSSLESS: Final = "latin-1"  # one character a byte: foreign keys and headers survive the way through JSON and back


def dead_letter(
    delivery: Delivery, service: str, error: Exception | str, attempts: int, at: float
) -> Envelope[DeadLettered]:
    """Return the dead letter of a delivery. Its id follows from service, topic and offset, so a repeat is recognised.

    A token header is a secret and is left out: a request that is sent back counts as one without a token.
    """
    record = delivery.record
    traceparent = record.header(HEADER_TRACEPARENT)
    return Envelope(
        id=derived("dead-letter", service, record.topic, delivery.partition, delivery.offset),
        source=f"schedmate/{service}",
        time=at,
        event=DeadLettered(
            original_topic=record.topic,
            original_partition=delivery.partition,
            original_offset=delivery.offset,
            original_key=record.key.decode(_LOSSLESS),
            original_value=record.value,
            original_headers=tuple(
                (name, value.decode(_LOSSLESS)) for name, value in record.headers if name != HEADER_TOKEN
            ),
            service=service,
            error=_text(error),
            attempts=attempts,
            at=at,
        ),
        traceparent=traceparent.decode("ascii", "replace") if traceparent is not None else None,
    )


def resend(event: DeadLettered) -> Record:
    """Return the record as it was (same key, value and headers), with a header that counts how often it was sent back."""
    headers = [(name, value.encode(_LOSSLESS)) for name, value in event.original_headers]
    before = next((value for name, value in headers if name == HEADER_RESENT), b"0")
    count = int(before) + 1 if before.isdigit() else 1
    kept = [(name, value) for name, value in headers if name != HEADER_RESENT]
    return Record(
        topic=event.original_topic,
        key=event.original_key.encode(_LOSSLESS),
        value=event.original_value,
        headers=(*kept, (HEADER_RESENT, str(count).encode())),
    )


def _text(error: Exception | str) -> str:
    """Return what went wrong with its causes, in one bounded line without secrets."""
    if isinstance(error, str):
        return redact(error)[:_ERROR_CHARS_MAX]
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < 5:  # noqa: PLR2004 - deeper causes say no more
        parts.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__
    return redact(" <- ".join(parts))[:_ERROR_CHARS_MAX]
