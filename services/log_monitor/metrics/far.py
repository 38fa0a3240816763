"""How far a member is, from its metrics and what is known of the job: chooses the counter that is the training, its length and its rate."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import median
from typing import Final

from schedmate.schemas.events import Phase
from schedmate.services.log_monitor.metrics.counting import FRESH_LINES
from schedmate.services.log_monitor.metrics.slowdown import Slowdown, slowdown
from schedmate.services.log_monitor.metrics.state import Counter, Metrics

TRUST_PRINTED_WITHIN: Final = 1.3
OUTLIER: Final = 1.6
QUANTILE: Final = 0.6  # pauses only ever make an interval slower
INTERVALS_MIN: Final = 2
SPAN_MIN_S: Final = 2.0
COARSE_S: Final = 10.0
OVERSHOOT: Final = 1.01
NEARLY: Final = 0.9


@dataclass(frozen=True, slots=True)
class Hints:
    """What the job's command and source say of its length."""

    total_steps: int | None = None
    total_epochs: float | None = None
    batch_size: int | None = None
    samples: int | None = None
    world: int = 1
    weak_total: int | None = None
    inner: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How far a member is, as far as it can be told; unknown is None."""

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    fraction: float | None = None
    steps_per_sec: float | None = None
    eta_s: float | None = None
    phase: Phase | None = None
    loss: float | None = None
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    slowed: Slowdown | None = None


def snapshot(metrics: Metrics, hints: Hints) -> Snapshot:
    """Return how far the member is now."""
    if metrics.base_phase is Phase.SERVING:
        return Snapshot(phase=Phase.SERVING)
    epochs = _total_epochs(metrics, hints)
    known_total = _announced_steps(metrics, hints)
    counter = _choose(metrics, known_total)
    if counter is None:
        return _by_epochs(metrics, epochs, known_total)
    inner = _is_inner(metrics, counter, known_total)
    rate = rate_of(counter)
    if inner and (counter.total is not None or metrics.epoch is not None):
        step, total, rate = _of_epochs(metrics, counter, hints, epochs, rate)
        if counter.within and metrics.epoch is None and known_total is None:
            return Snapshot(step=int(step), steps_per_sec=rate, phase=metrics.phase, loss=metrics.loss)
        total = total or known_total
    else:
        step = _with_twin(metrics, counter)
        total = counter.total if not counter.totals else None
        if total and epochs and metrics.epoch is None and 0 < counter.resets < epochs:
            step, total = step + counter.resets * total, total * epochs  # an unnumbered bar an epoch
        total = total or _borrowed_total(metrics, counter) or known_total or _total_by_epochs(metrics, hints, epochs)
        if counter.frame and metrics.frame_rates and not counter.printed:
            rate = _rate(counter, metrics.frame_rates, counter.weak)
        if rate is None and counter.left and total:
            rate = _rate_left(counter, total)
    if total is not None and step > total * OVERSHOOT:
        total = None
    if not total and epochs and metrics.epoch is not None:
        return _by_epochs(metrics, epochs, known_total, counter=counter, rate=rate)
    return _told(metrics, counter, step, total, rate, epochs)


def _told(
    metrics: Metrics, counter: Counter, step: float, total: float | None, rate: float | None, epochs: float | None
) -> Snapshot:
    eta = (total - step) / rate if total and rate else None
    if metrics.phase is Phase.DONE and total and step > NEARLY * total:
        step, eta = total, 0.0  # the last lines are not always printed
    fraction = min(1.0, step / total) if total else _percentage(metrics)
    if eta is None and not total and fraction and rate:
        eta = step * (1 / fraction - 1) / rate
    low, high = _interval(counter, eta)
    return Snapshot(
        step=int(step), total_steps=int(total) if total else None,
        epoch=metrics.epoch.last if metrics.epoch is not None else None, total_epochs=epochs,
        fraction=fraction, steps_per_sec=rate, eta_s=max(0.0, eta) if eta is not None else None,
        phase=metrics.phase, loss=metrics.loss, eta_low_s=low, eta_high_s=high,
        slowed=slowdown(counter),
    )  # fmt: skip


def _of_epochs(
    metrics: Metrics, counter: Counter, hints: Hints, epochs: float | None, rate: float | None
) -> tuple[float, float | None, float | None]:
    """Return step, total and rate over the job of a counter that counts within an epoch, in samples even."""
    step, length = counter.last, counter.total
    if _counts_samples(metrics, counter, hints):
        assert length is not None
        batch = _global_batch(metrics, hints) or 1
        step, length = step / batch, float(math.floor(length / batch))
        rate = _rate(counter, [], counter.weak)
        if rate is not None and not counter.weak:
            rate /= batch
    length = length or _kind(metrics, "inner")
    epoch = metrics.epoch
    if length is None or epoch is None:
        return step, None, rate
    if metrics.epoch_line > counter.line and counter.total is not None and epoch.last.is_integer():
        step = 0.0  # the next epoch has begun, its first step has not come
    step += max(0.0, math.floor(epoch.last) - _base(metrics)) * length
    return step, length * epochs if epochs else None, rate


def _with_twin(metrics: Metrics, counter: Counter) -> float:
    """Return where the counter stands, or another that stood at its values and has been heard of since."""
    twin = metrics.counters.get(counter.twin) if counter.twin is not None else None
    if twin is None or twin.aside is not None or twin.line <= counter.line or twin.last <= counter.last:
        return counter.last
    return twin.last if counter.total is None or twin.last <= counter.total else counter.last


def _by_epochs(
    metrics: Metrics,
    epochs: float | None,
    known_total: float | None,
    counter: Counter | None = None,
    rate: float | None = None,
) -> Snapshot:
    """Epochs, or a percentage, are all that there is (besides a counter within the epoch whose length is not known)."""
    track = metrics.epoch
    if track is None:
        return _by_percentage(metrics, epochs, known_total)
    fractional = not track.last.is_integer() or any(not steps.is_integer() for steps, _ in track.pace)
    done = track.last
    if not fractional:
        closed = metrics.loss is not None and counter is None  # a line with a result closes its epoch
        done = max(0.0, done - _base(metrics) + closed)
    pace = _rate(track, track.printed, track.weak)
    eta = (epochs - done) / pace if epochs and pace else _job_left(metrics)
    step = counter.last if counter is not None else None
    total = None
    if fractional and known_total and epochs:
        step, total = done / epochs * known_total, known_total
        rate = pace * known_total / epochs if pace else None
    return Snapshot(
        step=int(step) if step is not None else None, total_steps=int(total) if total else None, epoch=track.last,
        total_epochs=epochs, fraction=min(1.0, done / epochs) if epochs else None, steps_per_sec=rate,
        eta_s=max(0.0, eta) if eta is not None else None, phase=metrics.phase, loss=metrics.loss,
    )  # fmt: skip


def _percentage(metrics: Metrics) -> float | None:
    """Return the share that is printed beside a counter whose total is not."""
    percent = metrics.percent
    if percent is None or not percent.moves or metrics.line - percent.line > FRESH_LINES:
        return None
    return percent.last / 100


def _by_percentage(metrics: Metrics, epochs: float | None, known_total: float | None) -> Snapshot:
    percent = metrics.percent
    total = int(known_total) if known_total else None
    if percent is None or not percent.moves:
        return Snapshot(total_steps=total, total_epochs=epochs, phase=metrics.phase, loss=metrics.loss)
    pace = rate_of(percent)
    eta = (100 - percent.last) / pace if pace else None
    if eta is None and percent.left:
        eta = percent.left[-1][1]
    return Snapshot(fraction=percent.last / 100, eta_s=eta, phase=metrics.phase, loss=metrics.loss, total_epochs=epochs)


def _job_left(metrics: Metrics) -> float | None:
    """Return the remaining time that the program itself gave for the whole job, less what has passed since."""
    if metrics.job_left is None:
        return None
    since = (metrics.stamp or 0.0) - metrics.job_left_stamp if metrics.job_left_stamp is not None else 0.0
    return max(0.0, metrics.job_left - max(0.0, since))


def _choose(metrics: Metrics, known_total: float | None) -> Counter | None:
    best: tuple[float, Counter] | None = None
    for counter in metrics.counters.values():
        if not counter.named and counter.moves == 0 and counter.seen > 3:  # noqa: PLR2004 - a constant
            continue
        if counter.aside is not None or (
            not counter.named and counter.totals > 1 and counter.totals >= counter.seen // 2
        ):
            continue
        score = 0.0
        if known_total is not None and counter.total == known_total:
            score += 5
        score += (
            3 * counter.whole
            + 2 * counter.named
            + (counter.total is not None and counter.totals == 0)
            + (counter.losses > 0)
        )
        score += min(2.0, 0.25 * counter.moves)
        others = [c for c in metrics.counters.values() if c is not counter and c.aside is None and c.moves > 0]
        score -= 4 * (counter.learned and any(not c.learned for c in others))
        score -= 4 * (counter.moves == 0 and bool(others))
        if known_total is not None and counter.last > known_total * OVERSHOOT:
            score -= 4
        if counter.resets > 1 and metrics.epoch is None:
            score -= 3
        if metrics.line - counter.line > 8 + 5 * counter.line / counter.seen:
            score -= 3  # it has not been heard of for long
        if best is None or score > best[0]:
            best = score, counter
    return best[1] if best is not None else None


def _is_inner(metrics: Metrics, counter: Counter, known_total: float | None) -> bool:
    if counter.within:
        return True
    if counter.whole or counter.learned or metrics.epoch is None:
        return False
    if counter.total is None:
        return counter.inner
    if known_total is not None and abs(counter.total - known_total) <= 1:
        return False
    if not metrics.epoch.last.is_integer() or any(not s.is_integer() for s, _ in metrics.epoch.pace):
        return counter.resets > 0 and counter.inner
    return counter.resets > 0 or counter.with_epoch > 0 or counter.inner or not counter.named


def _counts_samples(metrics: Metrics, counter: Counter, hints: Hints) -> bool:
    batch = _global_batch(metrics, hints)
    if not batch or batch < 2 or counter.total is None:  # noqa: PLR2004 - one is no batch
        return False
    samples = hints.samples or _kind(metrics, "samples")
    if samples is not None and counter.total == samples:
        return True
    return (
        counter.moves > 1
        and counter.stride > 0
        and counter.stride % batch == 0
        and counter.first % batch == 0
        and counter.total >= 4 * batch
    )


def _global_batch(metrics: Metrics, hints: Hints) -> int | None:
    batch = hints.batch_size or _kind(metrics, "batch")
    return int(batch) * hints.world if batch else None


def _kind(metrics: Metrics, kind: str) -> float | None:
    found = [a for a in metrics.announced.values() if a.kind == kind and a.constant]
    return found[-1].value if found else None


def _announced_steps(metrics: Metrics, hints: Hints) -> float | None:
    named = [c for c in metrics.counters.values() if c.aside is None and c.named]
    highest = max((c.last for c in named or metrics.counters.values() if c.aside is None), default=0.0)
    found = [a.value for a in metrics.announced.values() if a.kind == "steps" and a.constant and a.value >= highest]
    if found:
        paired = [c.total for c in metrics.counters.values() if c.total in found]
        if paired:
            return paired[0]
        return max(found)
    if hints.total_steps:
        return float(hints.total_steps)
    if hints.weak_total and hints.weak_total >= highest:
        return float(hints.weak_total)
    return None


def _total_epochs(metrics: Metrics, hints: Hints) -> float | None:
    if metrics.epochs_total is not None:
        return metrics.epochs_total
    found = [a.value for a in metrics.announced.values() if a.kind == "epochs" and a.constant]
    if found:
        return found[-1]
    return hints.total_epochs


def _base(metrics: Metrics) -> int:
    return 1 if metrics.epoch_base is None else metrics.epoch_base


def rate_of(counter: Counter) -> float | None:
    """Return steps a second: our own, or the printed one where it bears ours out or ours is not known."""
    return _rate(counter, counter.printed, counter.weak)


def _rate(counter: Counter, printed: list[float], weak: list[float]) -> float | None:
    own = own_rate(counter)
    said = median(printed[-3:]) if printed else None
    softly = median(weak) if weak and _steady(weak) else None
    if own is None and counter.total is not None and len(counter.left) > 2 and counter.seen - counter.printed_seen > 5:  # noqa: PLR2004
        said = softly = None
    if own is not None:
        for claim in (said, softly):
            if claim is not None and 1 / TRUST_PRINTED_WITHIN <= claim / own <= TRUST_PRINTED_WITHIN:
                return claim
        return own
    if said is not None:
        return said
    if softly is not None:
        return softly
    return _rate_left(counter, counter.total) if counter.total is not None else None


def _rate_left(counter: Counter, total: float) -> float | None:
    """Return the rate that the printed remaining times amount to."""
    rates = [(total - value) / seconds for value, seconds in counter.left if total > value]
    return median(rates) if rates else None


def _total_by_epochs(metrics: Metrics, hints: Hints, epochs: float | None) -> float | None:
    """Return epochs times the length of one, where a bar or the command tells that."""
    if not epochs:
        return None
    if hints.inner is not None:
        return hints.inner * epochs
    for other in metrics.counters.values():
        if (
            other.total is not None
            and not other.totals
            and other.aside is None
            and other.moves
            and _is_inner(metrics, other, None)
        ):
            return other.total * epochs
    length = _kind(metrics, "inner")
    return length * epochs if length is not None else None


def _borrowed_total(metrics: Metrics, counter: Counter) -> float | None:
    """Return the total of another counter that stands where this one stands."""
    for other in metrics.counters.values():
        if other is counter or other.total is None or other.totals or other.aside is not None or not other.moves:
            continue
        if _is_inner(metrics, other, None):
            continue
        if (
            abs(other.last - counter.last) <= max(2.0, 0.02 * counter.last, counter.stride, other.stride)
            and other.resets == 0
        ):
            return other.total
    return None


def _steady(weak: list[float]) -> bool:
    """A pace is no clock: it does not just grow from line to line."""
    return len(weak) < 4 or not all(b < a for a, b in itertools.pairwise(weak)) or weak[0] < 1.1 * weak[-1]  # noqa: PLR2004


def own_rate(counter: Counter) -> float | None:
    """Return the rate of the last intervals without outliers (pauses for evaluation, compilation, checkpoints)."""
    if len(counter.pace) < INTERVALS_MIN or sum(seconds for _, seconds in counter.pace) < SPAN_MIN_S:
        return None
    pace = _coarse(counter.pace)
    if len(pace) == 1 and pace[0][1] < COARSE_S and counter.printed:
        return None  # too short to contradict what is printed
    rates = sorted(steps / seconds for steps, seconds in pace)
    middle = rates[int(len(rates) * QUANTILE)]
    kept = [(steps, seconds) for steps, seconds in pace if middle / OUTLIER <= steps / seconds <= middle * OUTLIER]
    return sum(steps for steps, _ in kept) / sum(seconds for _, seconds in kept)


def _coarse(pace: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join intervals that whole seconds measure too coarsely."""
    if not all(seconds.is_integer() for _, seconds in pace):
        return pace
    joined: list[tuple[float, float]] = []
    steps_open = seconds_open = 0.0
    for steps, seconds in reversed(pace):
        steps_open, seconds_open = steps_open + steps, seconds_open + seconds
        if seconds_open >= COARSE_S:
            joined.append((steps_open, seconds_open))
            steps_open = seconds_open = 0.0
    return joined or [(steps_open, seconds_open)]


def _interval(counter: Counter, eta: float | None) -> tuple[float | None, float | None]:
    """Bounds of the remaining time from how the pace varied (about eight of ten)."""
    if eta is None or len(counter.pace) < 4:  # noqa: PLR2004 - too few to say
        return None, None
    rates = sorted(steps / seconds for steps, seconds in counter.pace)
    own = own_rate(counter)
    if not own:
        return None, None
    slow, fast = rates[len(rates) // 10], rates[-1 - len(rates) // 10]
    return eta * min(1.0, own / fast), eta * max(1.0, own / slow)
