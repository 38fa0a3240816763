"""Makes a long log short for a reader or a model: routine lines out, every line that speaks of an error kept.

A line is routine when its shape (numbers, paths and hashes masked) has come often; the first and the last of each shape stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import re2

from schedmate.services.log_monitor.failures.digest import is_suspect
from schedmate.services.log_monitor.failures.rules import LOG, Rules

ROUTINE_AFTER: Final = 3
SHAPES_MAX: Final = 20_000
AROUND: Final = 2
SHAPE_TEXT_MAX: Final = 400

_VARIABLE: Final = re2.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,64}\b|/[\w./@+-]+|\d+(?:[.,:]\d+)*|[█▉▊▋▌▍▎▏#=>-]{2,}")


@dataclass(frozen=True, slots=True)
class Kept:
    """A line that was kept, by its index in the log."""

    index: int
    text: str
    bearing: bool


def compress(lines: Sequence[str], rules: Rules, source: str = LOG) -> list[Kept]:
    """Return the lines worth reading, in order: all that bear errors, their neighbours, and the ends of each routine."""
    bearing = {index for index, text in enumerate(lines) if bears_error(text, rules, source)}
    keep = set(bearing)
    for index in bearing:
        keep.update(range(max(0, index - AROUND), min(len(lines), index + AROUND + 1)))
    keep |= _ends_of_routines(lines)
    return [Kept(index, lines[index], index in bearing) for index in sorted(keep)]


def within(kept: Sequence[Kept], lines_max: int) -> list[Kept]:
    """Cut to a number of lines: error-bearing ones first, the earliest and the latest of them rather than the middle."""
    if len(kept) <= lines_max:
        return list(kept)
    ranked = sorted(range(len(kept)), key=lambda n: (not kept[n].bearing, min(n, len(kept) - 1 - n), n))
    return [kept[n] for n in sorted(ranked[:lines_max])]


def bears_error(text: str, rules: Rules, source: str = LOG) -> bool:
    """Tell whether a line is a sign of a cause or speaks of an error in any words."""
    return is_suspect(text) or any(rule.role == "cause" for rule in rules.match(text, source))


def shape_of(text: str) -> str:
    """Return a line with what varies masked: lines of one template have one shape."""
    return str(_VARIABLE.sub("*", text[:SHAPE_TEXT_MAX]))


def _ends_of_routines(lines: Iterable[str]) -> set[int]:
    seen: dict[str, tuple[int, int]] = {}  # shape: how often, and where last
    first: set[int] = set()
    for index, text in enumerate(lines):
        shape = shape_of(text)
        count, _ = seen.get(shape, (0, index))
        if count == 0 and len(seen) >= SHAPES_MAX:
            continue
        seen[shape] = (count + 1, index)
        if count < ROUTINE_AFTER:
            first.add(index)
    return first | {last for _, last in seen.values()}
