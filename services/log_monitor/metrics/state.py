"""What is kept of one member's log: counters, epochs, times, announced lengths, learned slots. Plain values, bounded, JSON-able."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from schedmate.schemas.events import Phase

COUNTERS_MAX: Final = 12
TEMPLATES_MAX: Final = 32
ROUTINES_MAX: Final = 24
PACE_MAX: Final = 24
PRINTED_MAX: Final = 5
STRETCHES_MAX: Final = 32
ANNOUNCED_MAX: Final = 24


@dataclass(slots=True)
class Stretch:
    """A stretch of a counter's way: from where and when, how many steps in how many seconds."""

    value: float
    at: float
    steps: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True)
class Counter:
    """A number that counts: where it is, how it moved, and at what pace."""

    name: str
    last: float
    first: float
    named: bool = False
    inner: bool = False
    frame: bool = False
    whole: bool = False
    bar: bool = False
    within: bool = False
    learned: bool = False
    total: float | None = None
    seen: int = 1
    moves: int = 0
    resets: int = 0
    falls: int = 0
    totals: int = 0
    below: int = 0
    losses: int = 0
    with_epoch: int = 0
    aside: str | None = None  # phase that it belongs to when it is not the training
    stride: float = 0.0
    line: int = 0
    at: float | None = None
    at_value: float = 0.0
    source: str = ""
    pace: list[tuple[float, float]] = field(default_factory=list)  # (steps, seconds) between sightings
    printed: list[float] = field(default_factory=list)  # steps a second
    weak: list[float] = field(default_factory=list)
    left: list[tuple[float, float]] = field(default_factory=list)  # (value, remaining seconds as printed)
    printed_seen: int = 0
    stretches: list[Stretch] = field(default_factory=list)
    twin: str | None = None  # another counter that stands at the same values


@dataclass(slots=True)
class Slotted:
    """How one unnamed number of a template behaves."""

    last: float
    first: float
    ups: int = 0
    downs: int = 0
    stride: float = 0.0
    hits: int = 0
    whole: bool = True


@dataclass(slots=True)
class Learning:
    """What is being learned about one template, and what was adopted."""

    seen: int = 0
    line: int = 0
    slots: dict[int, Slotted] = field(default_factory=dict)
    counter: int | None = None
    total: int | None = None
    checked: int = 0
    failed: int = 0


@dataclass(slots=True)
class Announced:
    """A length that the log announced: of `kind`, under a name; `moves` when it turns out to be no constant."""

    kind: str
    value: float
    line: int
    moves: int = 0
    same: int = 0

    @property
    def constant(self) -> bool:
        """It stands still, or did so since it was last set anew."""
        return self.same >= 2 * self.moves


@dataclass(slots=True)
class Routine:
    """Lines of one template that bring nothing but the next values: most of them are passed over, the newest is kept."""

    reads: int = 0
    passed: int = 0
    text: str | None = None
    line: int = 0
    at: float | None = None


@dataclass(slots=True)
class Metrics:
    """All that is known of a member's progress."""

    line: int = 0
    counters: dict[str, Counter] = field(default_factory=dict)
    epoch: Counter | None = None
    epoch_base: int | None = None
    epochs_total: float | None = None
    announced: dict[str, Announced] = field(default_factory=dict)
    learning: dict[str, Learning] = field(default_factory=dict)
    routine: dict[str, Routine] = field(default_factory=dict)
    header: tuple[str, ...] | None = None
    header_line: int = 0
    header_used: int = 0
    stamp: float | None = None
    stamp_line: int = 0
    elapsed: float | None = None
    elapsed_line: int = 0
    day_offset: float = 0.0
    daytime: float | None = None
    loss: float | None = None
    loss_rank: int = 0
    loss_line: int = 0
    phase: Phase | None = None
    phase_line: int = 0
    base_phase: Phase | None = None
    last_counter: str = ""
    percent: Counter | None = None
    frame_rates: list[float] = field(default_factory=list)
    sightings: int = 0
    epoch_line: int = 0
    job_left: float | None = None
    job_left_stamp: float | None = None
    resumed_at: float | None = None
    resumed_line: int = 0
