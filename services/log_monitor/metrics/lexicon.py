"""The words around numbers: what a name, a unit or a phrase says about progress. Data in `lexicon.toml`."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from schedmate.schemas.events import Phase

_WORD: Final = re.compile(
    r"[A-Z]+(?![a-z])|[A-Z\u00c0-\u00d6\u00d8-\u00de]?[a-z\u00df-\u00f6\u00f8-\u017f]+|[\u0400-\u04ff]+|[\u3040-\u30ff]+|[\u4e00-\u9fff]+|[\uac00-\ud7a3]+|\d+"
)


@dataclass(frozen=True, slots=True)
class Phrase:
    """A line that shows this begins the phase."""

    phase: Phase
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Words by what they mean."""

    words: dict[str, frozenset[str]]
    units: dict[str, float]
    phrases: tuple[Phrase, ...]

    def has(self, kind: str, words: list[str]) -> bool:
        """Tell whether one of the words is of a kind."""
        known = self.words[kind]
        return any(word in known for word in words)

    def is_(self, kind: str, word: str) -> bool:
        """Tell whether a word is of a kind."""
        return word in self.words[kind]

    def counts(self, kind: str, word: str) -> bool:
        """Tell whether a word, or what it is a number or a limit of (`nsteps`, `maxiter`), is of a kind."""
        known = self.words[kind]
        return word in known or any(
            word.startswith(p) and word[len(p) :] in known for p in ("n", "max", "num", "total")
        )


@cache
def lexicon() -> Lexicon:
    """Return the lexicon that comes with the package."""
    text = resources.files(__package__).joinpath("lexicon.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    return Lexicon(
        words={kind: frozenset(words) for kind, words in raw["words"].items()},
        units={unit: float(seconds) for unit, seconds in raw["units"].items()},
        phrases=tuple(Phrase(Phase(p["phase"]), re.compile(p["pattern"])) for p in raw["phrase"]),
    )


def words_of(name: str) -> list[str]:
    """Split a name into lower-case words: at capitals, digits, underscores and everything that is no letter."""
    return [word.lower() for word in _WORD.findall(name)]
