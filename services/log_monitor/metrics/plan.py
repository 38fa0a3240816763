"""What to read from a line of one template: a plan, and the numbers that may count."""

from __future__ import annotations

from dataclasses import dataclass, field

from schedmate.schemas.events import Phase


@dataclass(slots=True)
class CounterSlot:
    """A number that may count: where it and its total stand, and what it is called."""

    slot: int
    total: int | None
    name: str
    named: bool
    inner: bool = False
    frame: bool = False
    whole: bool = False  # its name says that it counts over the job
    bar: bool = False
    epoch_bar: bool = False
    within: bool = False


@dataclass(slots=True)
class Plan:
    """What to read from a line of one template."""

    counters: list[CounterSlot] = field(default_factory=list)
    epoch: int | None = None
    epochs: int | None = None
    epoch_base: int | None = None
    losses: list[tuple[int, int]] = field(default_factory=list)  # slot, priority
    rates: list[tuple[int, float, bool]] = field(default_factory=list)  # slot, factor, of frames
    paces: list[tuple[int, float, bool]] = field(default_factory=list)  # slot, seconds in its unit, strong
    epoch_paces: list[tuple[int, float]] = field(default_factory=list)
    each: list[tuple[int, float]] = field(default_factory=list)
    others: list[tuple[int, float]] = field(
        default_factory=list
    )  # per second, of something that may be what is counted
    elapsed: list[tuple[int, float, bool]] = field(default_factory=list)  # slot, seconds in its unit, certain
    left: list[tuple[int, float]] = field(default_factory=list)
    stamp: int | None = None
    daytime: int | None = None
    percent: int | None = None
    announced: list[tuple[int, str]] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    evaluates: bool = False
    phase: Phase | None = None
    resumes: bool = False
    known: str = ""
    key: str = ""

    @property
    def says(self) -> bool:
        """Tell whether a line of this template can say anything."""
        return bool(
            self.counters or self.losses or self.rates or self.paces or self.announced or self.unknown or self.elapsed
            or self.epoch is not None or self.phase is not None or self.stamp is not None or self.percent is not None
            or self.resumes or self.epoch_paces
        )  # fmt: skip
