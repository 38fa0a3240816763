"""Folds what single lines show into how far a member is: step, total, epoch, rate, remaining time.

Pure and deterministic. The rate is our own, from consecutive observations since the last (re)start, as soon as there are three; a
printed one serves until then, for frameworks divide all steps by the time since a resume. Time is read from the log itself
where it shows any (a bar's elapsed time, a timestamp), else from the events that brought the lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, Field

from schedmate.schemas.events import Phase
from schedmate.services.log_monitor.formats import Sighting

WINDOW: Final = 16
OBSERVATIONS_MIN: Final = 3
SPAN_MIN_S: Final = {"elapsed": 4.0, "stamp": 2.0, "arrival": 0.5}
TRUST_PRINTED_WITHIN: Final = 1.3

TimeSource = Literal["elapsed", "stamp", "arrival"]


@dataclass(frozen=True, slots=True)
class Hints:
    """What the job's source says about its length (code-analyzer), where the log does not."""

    total_steps: int | None = None
    total_epochs: float | None = None


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


class Observation(BaseModel):
    """A position at a time: `done` counts steps, or epochs where a log has no steps."""

    at: float
    done: float


class Progress(BaseModel):
    """What has been read of one member's progress. Bounded."""

    step: int | None = None
    total_steps: int | None = None
    inner_total: int | None = None
    epoch: float | None = None
    epochs_done: float | None = None
    total_epochs: float | None = None
    base: int | None = None
    loss: float | None = None
    phase: Phase | None = None
    printed_rate: float | None = None
    time_source: TimeSource | None = None
    observations: list[Observation] = Field(default_factory=list)
    sightings: int = 0
    checkpoint: str | None = None


def fold(progress: Progress, seen: Sighting, arrived_at: float) -> None:
    """Take in what one line shows. `arrived_at` is the time of the event that brought it (Unix seconds)."""
    if seen.checkpoint is not None:
        progress.checkpoint = seen.checkpoint
    if seen.total_epochs is not None and seen.total_epochs > 0:
        progress.total_epochs = seen.total_epochs
    if seen.resumed_at is not None:
        progress.observations = []
        progress.printed_rate = None
        return
    if seen.phase is not None:
        progress.phase = seen.phase
    if seen.phase not in {Phase.TRAIN, None}:
        return
    if seen.total is not None and seen.total > 0:
        progress.total_steps = seen.total
    if seen.loss is not None:
        progress.loss = None if math.isnan(seen.loss) else seen.loss
    before = progress.step
    _take_epoch(progress, seen)
    _take_step(progress, seen)
    if seen.rate is not None:
        progress.printed_rate = seen.rate
    if seen.counts():
        progress.sightings += 1
        _observe(progress, seen, arrived_at, restarted=before is not None and (progress.step or 0) < before)


def snapshot(progress: Progress, hints: Hints) -> Snapshot:
    """Return how far the member is now."""
    total_epochs = progress.total_epochs or hints.total_epochs
    total = _total_steps(progress, hints, total_epochs)
    step = progress.step
    by_epochs = step is None
    done = progress.epochs_done if by_epochs else step
    whole = total_epochs if by_epochs else total
    rate = _rate(progress, printed=None if by_epochs else progress.printed_rate)
    fraction = None
    if done is not None and whole:
        fraction = min(1.0, max(0.0, done / whole))
    if progress.phase is Phase.DONE and fraction is not None and fraction > 0.9:  # noqa: PLR2004 - the last lines are not always printed
        fraction = 1.0
    eta_s = None
    if done is not None and whole and rate:
        eta_s = max(0.0, (whole - done) / rate)
    if progress.phase is Phase.DONE:
        eta_s = 0.0
    return Snapshot(
        step=step,
        total_steps=total,
        epoch=progress.epoch,
        total_epochs=total_epochs,
        fraction=fraction,
        steps_per_sec=None if by_epochs else rate,
        eta_s=eta_s,
        phase=progress.phase,
        loss=progress.loss,
    )


def _take_epoch(progress: Progress, seen: Sighting) -> None:
    if seen.epoch is None:
        return
    if seen.base is not None:
        progress.base = seen.base
    elif seen.epoch == 0:
        progress.base = 0
    progress.epoch = seen.epoch
    if not seen.epoch.is_integer():
        progress.epochs_done = seen.epoch
    elif seen.inner is None:
        base = 1 if progress.base is None else progress.base
        # a line with a result closes its epoch, one without opens it
        progress.epochs_done = max(0.0, seen.epoch - base + (1 if seen.loss is not None else 0))


def _take_step(progress: Progress, seen: Sighting) -> None:
    if seen.step is not None:
        progress.step = seen.step
        return
    if seen.inner is None:
        return
    if seen.inner_total:
        progress.inner_total = seen.inner_total
    if progress.epoch is None:
        progress.step = seen.inner
    elif progress.inner_total:
        base = 1 if progress.base is None else progress.base
        progress.step = int(max(0.0, progress.epoch - base)) * progress.inner_total + seen.inner


def _observe(progress: Progress, seen: Sighting, arrived_at: float, *, restarted: bool) -> None:
    done = progress.step if progress.step is not None else progress.epochs_done
    if done is None:
        return
    source: TimeSource = "arrival"
    at = arrived_at
    if seen.elapsed_s is not None:
        source, at = "elapsed", seen.elapsed_s
    elif seen.stamp_s is not None:
        source, at = "stamp", seen.stamp_s
    seen_before = progress.observations
    if restarted or source != progress.time_source or (seen_before and at < seen_before[-1].at):
        seen_before = []
    progress.time_source = source
    if seen_before and done <= seen_before[-1].done:
        progress.observations = seen_before
        return
    if seen_before and at == seen_before[-1].at:
        if source == "arrival" or len(seen_before) > 1:
            seen_before = seen_before[:-1]
        else:
            progress.observations = seen_before
            return
    progress.observations = [*seen_before, Observation(at=at, done=done)][-WINDOW:]


def _rate(progress: Progress, printed: float | None) -> float | None:
    window = progress.observations
    own = None
    if len(window) >= OBSERVATIONS_MIN and progress.time_source is not None:
        span = window[-1].at - window[0].at
        if span >= SPAN_MIN_S[progress.time_source]:
            own = (window[-1].done - window[0].done) / span
    if own is None or own <= 0:
        return printed
    if printed is not None and 1 / TRUST_PRINTED_WITHIN <= printed / own <= TRUST_PRINTED_WITHIN:
        return printed
    return own


def _total_steps(progress: Progress, hints: Hints, total_epochs: float | None) -> int | None:
    if progress.total_steps is not None:
        return progress.total_steps
    if progress.inner_total and total_epochs:
        return int(progress.inner_total * total_epochs)
    if progress.inner_total and progress.epoch is None:
        return progress.inner_total
    return hints.total_steps
