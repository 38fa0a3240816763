"""What is kept of a member's output: extents of bytes, each a blob; what to read, to merge and to let go of (pure).

An extent is named by its address, `logs/RUN/MEMBER/START-END` (or `START-END-gap` for bytes that will never come), so the
list of blobs is the index: nothing else has to be kept in step. Extents may overlap; their bytes are then the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

SPACE: Final = "logs"
MERGE_COUNT: Final = 32
MERGED_BYTES_MAX: Final = 1024 * 1024
_LEADS: Final = {2: (0xC2, 0xDF), 3: (0xE0, 0xEF), 4: (0xF0, 0xF4)}
_NAME: Final = re.compile(r"^(\d{15})-(\d{15})(-gap)?$")


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """Bytes [start, end) of a member's output; of a gap there are none."""

    start: int
    end: int
    gap: bool = False

    @property
    def size_bytes(self) -> int:
        """How many bytes of output the extent holds."""
        return 0 if self.gap else self.end - self.start


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of an extent: its bytes [start, end), in offsets of the output."""

    extent: Extent
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Read:
    """What a read gives: contiguous pieces from `start` to `end`, and the gaps passed over to get there."""

    start: int
    end: int
    pieces: tuple[Piece, ...]
    gaps: tuple[tuple[int, int], ...]
    missing: bool
    """True when what comes next is neither here nor known to be gone: it may still come."""


def prefix(run_id: str, member: int) -> str:
    """Return the address prefix of a member's extents."""
    return f"{SPACE}/{run_id}/{member}/"


def address(run_id: str, member: int, extent: Extent) -> str:
    """Return the address of an extent."""
    return f"{prefix(run_id, member)}{extent.start:015d}-{extent.end:015d}{'-gap' if extent.gap else ''}"


def parse(address: str) -> Extent | None:
    """Return the extent of an address, or None when it is none."""
    found = _NAME.match(address.rpartition("/")[2])
    return Extent(int(found[1]), int(found[2]), found[3] is not None) if found else None


def end_of(extents: Iterable[Extent]) -> int:
    """Return how far the output is known."""
    return max((e.end for e in extents), default=0)


def is_covered(extents: Iterable[Extent], start: int, end: int) -> bool:
    """Tell whether all bytes [start, end) are here, or known to be gone."""
    for extent in sorted(extents):
        if extent.start > start:
            return start >= end
        start = max(start, extent.end)
        if start >= end:
            return True
    return start >= end


def plan(extents: Sequence[Extent], offset: int, limit: int) -> Read:
    """Return what to read for `limit` bytes from `offset`: up to the first hole, and never across one."""
    ordered = sorted(extents, key=lambda e: (e.start, -e.end))
    gaps: list[tuple[int, int]] = []
    position = offset
    while (skipped := _gap_at(ordered, position)) is not None:
        gaps.append((position, skipped))
        position = skipped
    start = position
    pieces: list[Piece] = []
    while position - start < limit:
        extent = _best_at(ordered, position)
        if extent is None:
            break
        stop = min(extent.end, start + limit)
        pieces.append(Piece(extent, position, stop))
        position = stop
    here = _best_at(ordered, position) is not None or _gap_at(ordered, position) is not None
    return Read(start, position, tuple(pieces), tuple(gaps), missing=not here and position < end_of(ordered))


def next_known(extents: Iterable[Extent], offset: int) -> int | None:
    """Return where output (or a known gap) goes on after a hole at `offset`, or None."""
    return min((e.start for e in extents if e.start > offset), default=None)


def _best_at(ordered: Sequence[Extent], position: int) -> Extent | None:
    held = [e for e in ordered if not e.gap and e.start <= position < e.end]
    return max(held, key=lambda e: e.end) if held else None


def _gap_at(ordered: Sequence[Extent], position: int) -> int | None:
    """Return where the gap at a position ends; output that is here after all wins over a gap."""
    if _best_at(ordered, position) is not None:
        return None
    ends = [e.end for e in ordered if e.gap and e.start <= position < e.end]
    if not ends:
        return None
    inside = [e.start for e in ordered if not e.gap and position < e.start < max(ends)]
    return min([max(ends), *inside])


def to_merge(extents: Sequence[Extent], merged_bytes_max: int = MERGED_BYTES_MAX) -> tuple[Extent, ...]:
    """Return adjacent small extents that should become one, so that a talkative job does not make a blob a second."""
    small_bytes = merged_bytes_max // 4
    row: list[Extent] = []
    size_bytes = 0
    for extent in sorted(e for e in extents if not e.gap):
        fits = row and extent.start == row[-1].end and size_bytes + extent.size_bytes <= merged_bytes_max
        if extent.size_bytes >= small_bytes or not fits:
            if len(row) >= MERGE_COUNT:
                return tuple(row)
            row, size_bytes = [], 0
        if extent.size_bytes < small_bytes:
            row.append(extent)
            size_bytes += extent.size_bytes
    return tuple(row) if len(row) >= MERGE_COUNT else ()


def to_drop(extents: Sequence[Extent], kept_bytes_max: int) -> tuple[Extent, ...]:
    """Return what must go to stay within the bound: the oldest after the head. The head (a quarter) and the end stay."""
    held = sorted(e for e in extents if not e.gap)
    size_bytes = sum(e.size_bytes for e in held)
    dropped: list[Extent] = []
    head_bytes = kept_bytes_max // 4
    for extent in held[:-1]:
        if size_bytes <= kept_bytes_max:
            break
        if extent.end > head_bytes:
            dropped.append(extent)
            size_bytes -= extent.size_bytes
    return tuple(dropped)


def decode(content: bytes, *, more_may_follow: bool) -> tuple[str, int]:
    """Return text and how many bytes it took: a character cut off at the end is left for the next read.

    Invalid UTF-8 becomes the replacement character; so does a cut character when nothing may follow.
    """
    taken = len(content) - (_cut_character_bytes(content) if more_may_follow else 0)
    return content[:taken].decode("utf-8", "replace"), taken


def _cut_character_bytes(content: bytes) -> int:
    """Return how many bytes at the end begin a character that is not whole."""
    for back in range(1, min(3, len(content)) + 1):
        byte = content[-back]
        if byte >> 6 == 0b10:  # noqa: PLR2004 - UTF-8: 10xxxxxx goes on with a character
            continue
        return back if _character_bytes(byte) > back else 0
    return 0


def _character_bytes(lead: int) -> int:
    """Return how long the UTF-8 character is that begins with this byte; 1 for one that begins none."""
    for length, (lowest, highest) in _LEADS.items():
        if lowest <= lead <= highest:
            return length
    return 1
