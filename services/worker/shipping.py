"""Which bytes of a member's output go on the bus next (protocol §6). Pure: progress and sizes in, pieces out.

Output goes in order, so a reader needs to keep its highest offset only. A member that writes faster than it may ship gets
an explicit gap in the middle of what waits: the head says what it is, the tail how it stands.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD_SHARE = 4  # a quarter of what may wait stays before the gap, the rest behind it


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of shipping, bytes."""

    chunk_bytes: int
    backlog_bytes: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a member's output has been acknowledged, and the range that was given up (in the middle of what waits)."""

    shipped: int = 0
    skip: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, end); a gap has no content."""

    start: int
    end: int
    is_gap: bool = False


def next_pieces(
    progress: Progress, size: int, punched: tuple[int, int] | None, limits: Limits, budget_bytes: int
) -> tuple[list[Piece], Progress]:
    """Return what may go now within the budget, and the progress once it is acknowledged. Gaps cost no budget."""
    skip = _given_up(progress, size, limits)
    gaps = [gap for gap in (punched, skip) if gap is not None]
    position = progress.shipped
    pieces: list[Piece] = []
    while position < size:
        end = max((stop for start, stop in gaps if start <= position < stop), default=position)
        if end > position:
            pieces.append(Piece(position, end, is_gap=True))
            position = end
            continue
        until = min([size, *(start for start, _ in gaps if start > position)])
        length = min(until - position, limits.chunk_bytes, budget_bytes)
        if length <= 0:
            break
        pieces.append(Piece(position, position + length))
        position += length
        budget_bytes -= length
    if skip is not None and position >= skip[1]:
        skip = None
    return pieces, Progress(position, skip)


def _given_up(progress: Progress, size: int, limits: Limits) -> tuple[int, int] | None:
    """Return the range to give up: none while all that waits is within the backlog."""
    head = limits.backlog_bytes // HEAD_SHARE
    tail = limits.backlog_bytes - head
    if progress.skip is not None:
        start, end = progress.skip
        return (start, max(end, size - tail))
    if size - progress.shipped <= limits.backlog_bytes:
        return None
    return (progress.shipped + head, size - tail)


class Budget:
    """Bytes per second with a burst of one second. Time is given, never asked."""

    def __init__(self, bytes_s: int, now: float) -> None:
        self._bytes_s = bytes_s
        self._level = float(bytes_s)
        self._at = now

    def available(self, now: float) -> int:
        """Return how many bytes may go now."""
        self._level = min(float(self._bytes_s), self._level + (now - self._at) * self._bytes_s)
        self._at = now
        return int(self._level)

    def spend(self, count: int) -> None:
        """Take bytes out; it may go below nothing, and then waits longer."""
        self._level -= count
