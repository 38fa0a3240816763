"""Lines in which nothing shows a position, kept for a model to look at; and lines read by the pattern that it proposed. Pure.

Kept only while the log has shown no position at all, bounded, and asked about once. What the pattern counts goes into the member's metrics
like any other counter, so rate and remaining time follow; when the numbers stop behaving like a position, the pattern is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schedmate.schemas.events import Phase
from schedmate.services.log_monitor.metrics.counting import FRESH_LINES, keep, move, observe
from schedmate.services.log_monitor.metrics.proposal import HELD_BACK_MIN, SHOWN, Proposal
from schedmate.services.log_monitor.metrics.state import Counter, Metrics
from schedmate.services.log_monitor.tracks import MemberTrack

LINES_MAX: Final = 2 * (SHOWN + HELD_BACK_MIN)
LINE_MAX: Final = 160
FAILED_MAX: Final = 5
COUNTER: Final = "\x00proposed"


@dataclass(frozen=True, slots=True)
class Unread:
    """Lines of a member in which nothing shows a position."""

    job_id: str
    attempt: int
    member: int
    lines: tuple[str, ...]


def note(track: MemberTrack, text: str, at: float) -> None:
    """Take a line that the metrics have taken already: read it by the proposed pattern, or keep it while nothing is known."""
    if track.pattern is not None:
        _read(track, text, at)
    elif track.asked or track.progress.sightings:
        track.unread.clear()
    elif len(track.unread) < LINES_MAX and any(c.isdigit() for c in text[:LINE_MAX]):
        track.unread.append(text[:LINE_MAX])


def is_full(track: MemberTrack) -> bool:
    """Tell whether there are lines enough to ask about, and to check an answer on."""
    return not track.asked and not track.progress.sightings and len(track.unread) >= LINES_MAX


def adopt(track: MemberTrack, pattern: str, lines: tuple[str, ...], at: float) -> None:
    """Read by a pattern from now on, the lines that it was checked on first."""
    track.pattern, track.failed = pattern, 0
    for text in lines:
        _read(track, text, at)


def _read(track: MemberTrack, text: str, at: float) -> None:
    assert track.pattern is not None
    numbers = Proposal(track.pattern).read(text)
    step, total = numbers.get("step"), numbers.get("total")
    if step is None:
        return
    metrics = track.progress
    counter = metrics.counters.get(COUNTER)
    behaves = step.is_integer() and step >= 0 and (total is None or step <= total)
    if not behaves or (counter is not None and step < counter.last):
        track.failed += 1
        if track.failed > FAILED_MAX:
            track.pattern = None
            metrics.counters.pop(COUNTER, None)
        if not behaves or track.pattern is None:
            return
    else:
        track.failed = 0
    _count(metrics, counter, step, total, at)
    loss = numbers.get("loss")
    if loss is not None:
        metrics.loss, metrics.loss_line = loss, metrics.line
    metrics.phase, metrics.phase_line = metrics.phase or Phase.TRAIN, metrics.line
    metrics.sightings += 1


def _count(metrics: Metrics, counter: Counter | None, step: float, total: float | None, at: float) -> None:
    stamped = metrics.stamp is not None and metrics.line - metrics.stamp_line <= FRESH_LINES
    now = ("stamp", metrics.stamp) if stamped and metrics.stamp is not None else ("arrival", at)
    if counter is None:
        counter = Counter(name="proposed", last=step, first=step, named=True, total=total, line=metrics.line)
        keep(metrics, COUNTER, counter)
        observe(counter, step, now)
    else:
        move(metrics, counter, step, total, now)
    counter.line = metrics.line
