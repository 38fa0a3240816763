"""Parsed files, found again by what they hold: a resubmission parses only what has changed.

A unit is what a parser makes of a text alone (a syntax tree, a script's nodes, the nodes of a configuration), never what following it gives:
that depends on all files. Nobody may change a unit. Kept by the hash of the text, bounded by the length of the texts.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

CHARACTERS_MAX: Final = 4_000_000
UNIT_CHARACTERS_MAX: Final = 400_000


class Units:
    """The parsed files of one process."""

    def __init__(self, characters_max: int = CHARACTERS_MAX) -> None:
        self._characters_max = characters_max
        self._characters = 0
        self._units: OrderedDict[tuple[str, bytes], tuple[Any, int]] = OrderedDict()

    def get(self, kind: str, text: str, parse: Callable[[str], T]) -> tuple[T, bool]:
        """Return what `parse` makes of a text, and whether it was known. What `parse` raises is the caller's, and is not kept."""
        key = kind, hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = self._units.get(key)
        if known is not None:
            self._units.move_to_end(key)
            unit: T = known[0]
            return unit, True
        unit = parse(text)
        if len(text) <= UNIT_CHARACTERS_MAX:
            self._units[key] = unit, len(text)
            self._characters += len(text)
            while self._characters > self._characters_max:
                self._characters -= self._units.popitem(last=False)[1][1]
        return unit, False
