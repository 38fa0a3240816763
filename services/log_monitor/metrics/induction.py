"""Learns what no word names: of a template's unnamed numbers, which one counts, which is its total, which is a clock.

A number is proposed from the first lines of its template (whole, rising, in equal strides), and adopted only after it has behaved the same on
lines that were not used to propose it. When it stops behaving, it is dropped and learned anew.
"""

from __future__ import annotations

import math
from typing import Final

from schedmate.services.log_monitor.metrics.shapes import Shape
from schedmate.services.log_monitor.metrics.state import TEMPLATES_MAX, Learning, Metrics, Slotted

PROPOSE_AFTER: Final = 4
CHECK_LINES: Final = 2
FAILURES_MAX: Final = 3
REPEATS_MAX: Final = 9  # ranks that print the same
UNIX_FROM: Final = 1.0e9
UNIX_TO: Final = 4.0e9

Adopted = tuple[int, int | None]


def learn(
    metrics: Metrics,
    template: str,
    values: dict[int, float | None],
    whole: dict[int, bool],
    shape: Shape,
) -> Adopted | None:
    """Take a line's unnamed numbers in; return (counter, total) slots once they are adopted."""
    learning = metrics.learning.get(template)
    if learning is None:
        if len(metrics.learning) >= TEMPLATES_MAX:
            oldest = min(
                metrics.learning, key=lambda k: (metrics.learning[k].counter is not None, metrics.learning[k].line)
            )
            del metrics.learning[oldest]
        learning = metrics.learning[template] = Learning()
    learning.seen += 1
    learning.line = metrics.line
    for slot, value in values.items():
        if value is not None and not math.isnan(value):
            _take(learning, slot, value, whole=whole[slot])
    if learning.counter is None:
        _propose(learning, shape)
        return None
    return _check(learning, values)


def _take(learning: Learning, slot: int, value: float, *, whole: bool) -> None:
    known = learning.slots.get(slot)
    if known is None:
        learning.slots[slot] = Slotted(last=value, first=value, whole=whole)
        return
    known.whole &= whole
    step = value - known.last
    if step > 0:
        known.ups += 1
        if known.stride == 0 or math.isclose(step, known.stride, rel_tol=0.01):
            known.hits += 1
        else:
            known.hits = max(0, known.hits - 1)
        known.stride = step
    elif step < 0:
        known.downs += 1
    known.last = value


def _propose(learning: Learning, shape: Shape) -> None:
    if learning.seen < PROPOSE_AFTER:
        return
    rising = [
        slot
        for slot, s in learning.slots.items()
        if s.whole and s.downs == 0 and s.ups >= PROPOSE_AFTER - 1 and s.ups * REPEATS_MAX >= learning.seen and 4 * s.hits >= 3 * s.ups
        and s.last < UNIX_FROM
    ]  # fmt: skip
    if not rising:
        return
    counter = rising[0]
    learning.counter, learning.checked, learning.failed = counter, 0, 0
    last = learning.slots[counter].last
    constant = [
        slot
        for slot, s in learning.slots.items()
        if s.whole and s.ups == 0 and s.downs == 0 and s.last > last and slot > counter
    ]
    learning.total = next(
        (slot for slot in constant if set(shape.slots[slot].label) & {"of", "max", "total", "n"}), None
    )


def _check(learning: Learning, values: dict[int, float | None]) -> Adopted | None:
    counter = learning.counter
    assert counter is not None
    known = learning.slots[counter]
    if known.downs or not known.whole or values.get(counter) is None:
        learning.failed += 1
        known.downs = 0
        if learning.failed >= FAILURES_MAX:
            learning.counter = learning.total = None
            learning.seen = 0
            learning.slots.clear()
        return None
    learning.checked += 1
    if learning.checked < CHECK_LINES:
        return None
    return counter, learning.total
