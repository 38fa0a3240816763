"""How counters move: forwards, anew in every epoch, back after a restart; and the pace between sightings."""

from __future__ import annotations

import math
from typing import Final

from schedmate.services.log_monitor.metrics import slowdown
from schedmate.services.log_monitor.metrics.state import COUNTERS_MAX, PACE_MAX, Counter, Metrics

FRESH_LINES: Final = 12
SKEW_STRIDES: Final = 8  # how far ranks that print the same counter may be apart
SKEWED_MAX: Final = 6  # after so many values below the highest in a row it is no skew but a restart
TIME_SOURCES: Final = frozenset({"elapsed", "stamp"})


def keep(metrics: Metrics, key: str, counter: Counter) -> None:
    """Add a counter; the stalest gives way when there are too many."""
    counters = metrics.counters
    if len(counters) >= COUNTERS_MAX:
        del counters[min(counters, key=lambda k: (counters[k].moves > 2, counters[k].line))]  # noqa: PLR2004 - it has counted
    counters[key] = counter


def move(metrics: Metrics, counter: Counter, value: float, total: float | None, now: tuple[str, float] | None) -> None:
    """Take in that a counter stands at `value`."""
    counter.seen += 1
    if total is not None:
        counter.totals += counter.total is not None and total != counter.total
        counter.total = total
    before = counter.last
    if value == before:
        return
    if value > before:
        counter.moves += 1
        counter.below = 0
        step = int(value - before)
        counter.stride = float(step if counter.stride == 0 else math.gcd(int(counter.stride), step))
    elif _skewed(metrics, counter, value):
        counter.below += 1
        return
    elif (value <= max(1.0, counter.first) or value < 0.5 * before) and counter.total is not None:
        counter.resets += 1
        counter.at = None
    else:
        counter.falls += 1
        forget_pace(counter)
    counter.last = value
    observe(counter, value, now)


def _skewed(metrics: Metrics, counter: Counter, value: float) -> bool:
    """Tell whether a lower value is another rank's, which prints the same a little later."""
    gap = counter.last - value
    if (
        max(metrics.resumed_line, metrics.epoch_line) > counter.line
        or counter.last <= SKEW_STRIDES
        or counter.below >= SKEWED_MAX
    ):
        return False
    return gap <= max(2.0, SKEW_STRIDES * counter.stride) and gap < 0.5 * counter.last


def forget_pace(counter: Counter) -> None:
    """What was measured before says nothing about now."""
    counter.pace.clear()
    counter.printed.clear()
    counter.weak.clear()
    counter.left.clear()
    counter.stretches.clear()
    counter.at = None
    counter.below = 0


def observe(counter: Counter, value: float, now: tuple[str, float] | None) -> None:
    """Note the time of a value, and the interval since the last one."""
    if now is None:
        return
    source, at = now
    if counter.at is None or source != counter.source or at < counter.at:
        if source != counter.source and counter.source in TIME_SOURCES and source not in TIME_SOURCES:
            return  # the log's own time is better than what a neighbour line or the delivery says
        counter.at, counter.at_value, counter.source = at, value, source
        return
    seconds, steps = at - counter.at, value - counter.at_value
    if steps > 0 and seconds <= 0:
        return
    if steps > 0:
        counter.pace.append((steps, seconds))
        del counter.pace[:-PACE_MAX]
        slowdown.note(counter, steps, seconds)
    counter.at, counter.at_value = at, value
