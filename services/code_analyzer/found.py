"""What was found about a field: candidates with the line they rest on, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from schedmate.schemas.events import WORKLOAD_FIELDS, Basis, WorkloadField, WorkloadValue

TEXT_MAX: Final = 300


class Origin(IntEnum):
    """Where a value stands; the lowest wins: what is given when the job is launched overrides what the code says."""

    COMMAND = 1
    LAUNCHER = 2
    ARGUMENT_DEFAULT = 3
    CALL = 4
    CONSTANT = 5
    SIGN = 6
    JOB = 7


@dataclass(frozen=True, slots=True)
class Place:
    """A file and a line. `command` and `script` name the job's own."""

    file: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One value for one field."""

    name: str
    value: WorkloadValue
    origin: Origin
    basis: Basis
    place: Place | None
    confidence: float


@dataclass(slots=True)
class Findings:
    """Everything that was found, and why not more."""

    candidates: list[Candidate] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)

    def add(
        self, name: str, value: WorkloadValue, origin: Origin, place: Place | None, confidence: float, *,
        basis: Basis = Basis.EXPLICIT,
    ) -> None:  # fmt: skip
        """Add a candidate; an empty value is none."""
        assert name in WORKLOAD_FIELDS, name
        if value is None or value in ("", ()):
            return
        if isinstance(value, str):
            value = value[:TEXT_MAX]
        self.candidates.append(Candidate(name, value, origin, basis, place, confidence))

    def missing(self, why: str) -> None:
        """Say why something could not be read; each reason once."""
        if why not in self.partial:
            self.partial.append(why)

    def best(self, name: str) -> Candidate | None:
        """Return the candidate that wins: by origin, then confidence, then the order found."""
        of_field = [c for c in self.candidates if c.name == name]
        return min(of_field, key=lambda c: (c.origin, -c.confidence), default=None)

    def all_of(self, name: str) -> Iterable[Candidate]:
        """Return all candidates of a field."""
        return (c for c in self.candidates if c.name == name)


def as_field(candidate: Candidate) -> WorkloadField:
    """Return a candidate as the event carries it."""
    place = candidate.place
    return WorkloadField(
        value=candidate.value,
        basis=candidate.basis,
        file=place.file if place is not None else None,
        line=place.line if place is not None else None,
        confidence=candidate.confidence,
    )
