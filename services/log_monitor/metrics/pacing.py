"""What a line prints about pace: steps a second, seconds a step, remaining time. It goes to the counters that the line is about."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from schedmate.schemas.events import Phase
from schedmate.services.log_monitor.metrics.counting import FRESH_LINES
from schedmate.services.log_monitor.metrics.state import PRINTED_MAX, Counter, Metrics

if TYPE_CHECKING:
    from schedmate.services.log_monitor.metrics.reading import Reading


def take(reading: Reading, counter: Counter | None) -> None:
    """Take in the paces of a line that counts with `counter`, or belongs to a block whose counter is on another line."""
    plan, metrics = reading.plan, reading.metrics
    if not (plan.rates or plan.paces or plan.each or plan.left or plan.epoch_paces):
        return
    _take_frame_rates(reading)
    if counter is None:
        if plan.counters:
            return
        counter = _counter_of_block(metrics)
    else:
        metrics.last_counter = next((k for k, c in metrics.counters.items() if c is counter), "")
    _take_epoch_paces(reading, counter)
    if plan.left and not plan.counters:
        _take_job_left(reading)
    if counter is not None:
        _take_rates(reading, counter)
    elif plan.percent is not None and plan.left and metrics.percent is not None:
        _take_left(reading, metrics.percent)


def _counter_of_block(metrics: Metrics) -> Counter | None:
    counter = metrics.counters.get(metrics.last_counter)
    if counter is None:
        named = [c for c in metrics.counters.values() if c.aside is None and metrics.line - c.line <= FRESH_LINES]
        return named[0] if len(named) == 1 else None
    return counter if metrics.line - counter.line <= FRESH_LINES else None


def _take_frame_rates(reading: Reading) -> None:
    for slot, factor, frames in reading.plan.rates:
        value = reading.positive(slot) if frames else None
        if value is not None:
            _push(reading.metrics.frame_rates, value * factor)


def _take_epoch_paces(reading: Reading, counter: Counter | None) -> None:
    epoch = reading.metrics.epoch
    if epoch is None:
        return
    for slot, factor in reading.plan.epoch_paces:
        value = reading.positive(slot)
        if value is not None:
            _push(epoch.printed, 1.0 / (value * factor))
    if counter is None and reading.plan.epoch is not None:
        for slot, factor, _ in reading.plan.paces:
            value = reading.positive(slot)
            if value is not None:
                _push(epoch.weak, 1.0 / (value * factor))


def _take_job_left(reading: Reading) -> None:
    metrics, (slot, _) = reading.metrics, reading.plan.left[0]
    metrics.job_left, metrics.job_left_stamp = None, None
    if reading.plan.phase is not Phase.EVAL and {"finish", "total"} & set(reading.shape.slots[slot].label):
        metrics.job_left, metrics.job_left_stamp = reading.value(slot), metrics.stamp


def _take_rates(reading: Reading, counter: Counter) -> None:
    plan = reading.plan
    alike = [c for c in reading.counted if c.frame == counter.frame] or [counter]
    for slot, factor, frames in plan.rates:
        value = reading.positive(slot) if not frames else None
        if value is not None:
            _say(alike, value * factor, strong=True)
    for slot, factor, strong in plan.paces:
        value = reading.positive(slot)
        if value is not None:
            _say(alike, 1.0 / (value * factor), strong=strong)
    if plan.each and not plan.rates and not plan.paces:
        value = reading.positive(plan.each[0][0])
        if value is not None:
            _push(counter.printed, value * plan.each[0][1])
    if plan.left:
        _take_left(reading, counter)


def _take_left(reading: Reading, counter: Counter) -> None:
    slot, factor = reading.plan.left[0]
    value = reading.positive(slot)
    if value is not None:
        counter.left.append((counter.last, value * factor))
        del counter.left[:-PRINTED_MAX]


def _say(counters: list[Counter], rate: float, *, strong: bool) -> None:
    for counter in counters:
        _push(counter.printed if strong else counter.weak, rate)
        counter.printed_seen = counter.seen


def _push(values: list[float], value: float) -> None:
    if math.isfinite(value) and value > 0:
        values.append(value)
        del values[:-PRINTED_MAX]
