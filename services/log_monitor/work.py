"""The tracker as a function of plain values, so that a large chunk can be read in another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from schedmate.infra.telemetry.redaction import redact
from schedmate.schemas.events import Event
from schedmate.services.log_monitor.failures.rules import load_rules
from schedmate.services.log_monitor.tracker import Outcome, Tracker, Tuning


@dataclass(slots=True)
class Overlay:
    """A table of loaded values that remembers what was changed."""

    values: dict[str, bytes]
    puts: dict[str, bytes]
    removes: set[str]

    @classmethod
    def over(cls, loaded: Mapping[str, bytes]) -> Overlay:
        """Return an unchanged table of these values."""
        return cls(dict(loaded), {}, set())

    def get(self, key: str) -> bytes | None:
        """Return a value, or None."""
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Set a value."""
        self.values[key] = self.puts[key] = value
        self.removes.discard(key)

    def remove(self, key: str) -> None:
        """Remove a value."""
        self.values.pop(key, None)
        self.puts.pop(key, None)
        self.removes.add(key)


@cache
def tracker(tuning: Tuning) -> Tracker:
    """Return the tracker of this process."""
    return Tracker(load_rules(), tuning, redact)


def apply(
    tuning: Tuning, event: Event, at: float, now: float, loaded: Mapping[str, bytes], traceparent: str | None
) -> tuple[Outcome, Overlay]:
    """Take in one event over the loaded tracks; return what came of it and what to save."""
    overlay = Overlay.over(loaded)
    outcome = tracker(tuning).apply(event, at=at, now=now, table=overlay, traceparent=traceparent)
    return outcome, overlay
