"""What travels: a record on a topic, and an event with the metadata around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from schedmate.schemas.events import Event

E_co = TypeVar("E_co", bound=Event, covariant=True)

HEADER_TRACEPARENT: Final = "traceparent"
HEADER_POOL: Final = "pool"
HEADER_TOKEN: Final = "schedmate-token"  # noqa: S105 - the header's name; set by platforms on `requests`, never forwarded
HEADER_RESENT: Final = "schedmate-resent"  # how often a dead letter was sent back


@dataclass(frozen=True, slots=True)
class Record:
    """A record to publish: key and value are bytes, headers an ordered list of (name, bytes)."""

    topic: str
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()

    def header(self, name: str) -> bytes | None:
        """Return the first header of this name, or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record as a reader gets it: with its place in the topic."""

    record: Record
    partition: int
    offset: int

    @property
    def topic(self) -> str:
        """Topic that the record was read from."""
        return self.record.topic


@dataclass(frozen=True, slots=True)
class Envelope(Generic[E_co]):
    """An event with its CloudEvents attributes. `time` is Unix seconds, always from the injected clock."""

    id: str
    source: str
    time: float
    event: E_co
    traceparent: str | None = None
