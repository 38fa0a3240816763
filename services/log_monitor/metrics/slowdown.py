"""Slow-down against a job's own past: how much slower it is than it was, and since when.

A claim needs a past (stretches of the same run at a steady pace) and a present that is slower throughout: a pause for an evaluation or
a checkpoint is one slow stretch, interference is many in a row. Without a pace of its own nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

from schedmate.services.log_monitor.metrics.state import STRETCHES_MAX, Counter, Stretch

STRETCH_S: Final = 5.0
PAST_MIN: Final = 5
PRESENT_MIN: Final = 4
PRESENT_S: Final = 30.0
SLOWER: Final = 0.75  # of the past's pace, or less
STEADY: Final = 0.6  # the past itself must not vary more than this


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A run is slower than it was: paces in steps a second, and from which step on, for how many seconds already."""

    before: float
    now: float
    since_step: int
    slow_for_s: float

    @property
    def size(self) -> float:
        """How many times longer a step takes."""
        return self.before / self.now


def note(counter: Counter, steps: float, seconds: float) -> None:
    """Add an interval between two sightings to the counter's stretches; it began where the counter was last timed."""
    stretches = counter.stretches
    last = stretches[-1] if stretches else None
    if last is None or last.seconds >= STRETCH_S:
        last = Stretch(value=counter.at_value, at=counter.at or 0.0)
        stretches.append(last)
        if len(stretches) > STRETCHES_MAX:
            del stretches[1]  # the first is kept longest: it is the past that the present is compared with
    last.steps += steps
    last.seconds += seconds


def slowdown(counter: Counter) -> Slowdown | None:
    """Return how much slower the counter has become, or None when nothing can be claimed."""
    whole = [s for s in counter.stretches if s.seconds >= STRETCH_S]
    if len(whole) < PAST_MIN + PRESENT_MIN:
        return None
    rates = [s.steps / s.seconds for s in whole]
    best: int | None = None
    for cut in range(PAST_MIN, len(whole) - PRESENT_MIN + 1):
        past = median(rates[:cut])
        if all(rate <= SLOWER * past for rate in rates[cut:]) and _steady(rates[:cut], past):
            best = cut
            break
    if best is None:
        return None
    present = whole[best:]
    if sum(s.seconds for s in present) < PRESENT_S:
        return None
    now = sum(s.steps for s in present) / sum(s.seconds for s in present)
    return Slowdown(median(rates[:best]), now, int(present[0].value), sum(s.seconds for s in present))


def _steady(rates: list[float], middle: float) -> bool:
    near = sum(STEADY * middle <= rate <= middle / STEADY for rate in rates)
    return 2 * near > len(rates)
