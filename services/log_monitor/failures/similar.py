"""Retrieval: which known failure a line resembles most. The known ones are the rules' examples, and what this cluster has met.

Lines are compared as sets of words weighted by how rare they are (tf-idf with binary counts, cosine). Only a clear winner counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

import re2
from pydantic import BaseModel, Field

from schedmate.services.log_monitor.failures.compression import shape_of
from schedmate.services.log_monitor.failures.rules import TIER_TIMEOUT, load_rules

NEAR: Final = 0.6
CLEAR: Final = 0.12
WORDS_MIN: Final = 3
WORDS_MAX: Final = 60
REMEMBERED_MAX: Final = 200
SEEN_MIN: Final = 2

_WORD: Final = re2.compile(r"[A-Za-z][a-z]+|[A-Z]{2,}")
_DULL: Final = frozenset(
    ["the", "of", "in", "to", "is", "at", "on", "for", "and", "or", "be", "file", "line", "error", "exception", "with", "from", "by", "not", "an"]
)  # fmt: skip


class Remembered(BaseModel):
    """The shape of a line that came with a cause, and how many runs showed it."""

    shape: str
    category: str
    runs: list[str] = Field(default_factory=list)


class Memory(BaseModel):
    """What runs of one tenant have shown before: shapes of suspicious lines with the cause that was found. Bounded."""

    entries: list[Remembered] = Field(default_factory=list)

    def remember(self, text: str, category: str, run_id: str) -> bool:
        """Add what a run showed; False when it was known."""
        shape = shape_of(text)[:200]
        for entry in self.entries:
            if entry.shape == shape and entry.category == category:
                if run_id in entry.runs or len(entry.runs) >= SEEN_MIN * 2:
                    return False
                entry.runs.append(run_id)
                return True
        self.entries.append(Remembered(shape=shape, category=category, runs=[run_id]))
        del self.entries[:-REMEMBERED_MAX]
        return True

    def trusted(self) -> list[tuple[str, str]]:
        """Return (text, category) of what more than one run showed and that never came with another cause."""
        by_shape: dict[str, set[str]] = {}
        for entry in self.entries:
            by_shape.setdefault(entry.shape, set()).add(entry.category)
        return [(e.shape, e.category) for e in self.entries if len(e.runs) >= SEEN_MIN and len(by_shape[e.shape]) == 1]


class Library:
    """Known failures, searched by a line."""

    def __init__(self, known: Iterable[tuple[str, str]]) -> None:
        documents = [(words_of(text), category) for text, category in known]
        self._count = len(documents)
        self._frequency = Counter(word for words, _ in documents for word in words)
        self._documents: list[tuple[dict[str, float], str]] = [
            (self._weights(words), category) for words, category in documents if words
        ]

    def nearest(self, text: str) -> tuple[str, float] | None:
        """Return the category of the known failure that the line resembles, and how much; None when none clearly does."""
        words = words_of(text)
        if len(words) < WORDS_MIN:
            return None
        asked = self._weights(words)
        best: dict[str, float] = {}
        for weights, category in self._documents:
            likeness = sum(weight * weights.get(word, 0.0) for word, weight in asked.items())
            best[category] = max(best.get(category, 0.0), likeness)
        ranked = sorted(best.items(), key=lambda item: (-item[1], item[0]))
        if not ranked or ranked[0][1] < NEAR:
            return None
        if len(ranked) > 1 and ranked[0][1] - ranked[1][1] < CLEAR:
            return None
        return ranked[0][0], ranked[0][1]

    def _weights(self, words: Sequence[str]) -> dict[str, float]:
        raw = {word: math.log(1.0 + self._count / (1.0 + self._frequency[word])) for word in words}
        norm = math.sqrt(sum(weight * weight for weight in raw.values())) or 1.0
        return {word: weight / norm for word, weight in raw.items()}


@cache
def load_library() -> Library:
    """Return the library of the rules' examples."""
    return Library(known_from_rules())


def known_from_rules() -> list[tuple[str, str]]:
    """Return (line, category) of every rule's examples that is a cause of its own."""
    return [
        (text, rule.category)
        for rule in load_rules().rules
        if rule.role == "cause" and rule.tier < TIER_TIMEOUT and not rule.general
        for text in rule.examples
    ]


def words_of(text: str) -> list[str]:
    """Return the distinct words of a line that carry meaning: camel case split, numbers and paths gone."""
    words = (match.group(0).lower() for match in _WORD.finditer(shape_of(text)))
    return list(dict.fromkeys(word for word in words if len(word) > 1 and word not in _DULL))[:WORDS_MAX]
