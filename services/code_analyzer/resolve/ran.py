"""What scripts run: arguments with the place that they stand at, and commands with their environment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from schedmate.services.code_analyzer.resolve.values import Place

DEPTH_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class Arg:
    """A word of a command: its text, and the line that it rests on (that of the variable it came from)."""

    text: str
    place: Place


@dataclass(slots=True)
class Ran:
    """A command that a script would run: its words, its environment and where it stands."""

    words: list[Arg]
    environment: dict[str, Arg]
    place: Place
    folder: str = ""
    certain: bool = True


def printed(words: list[str]) -> str | None:
    """Return what `printf` writes by a format of plain `%s` and `%d`, used anew while words are left; None for others."""
    template, given = (words[0], words[1:]) if words else ("", [])
    fields = len(re.findall(r"%[sd]", template))
    if re.search(r"%[^sd]", template):
        return None
    out: list[str] = []
    while True:
        out.append(re.sub(r"%[sd]", lambda _: given.pop(0) if given else "", template))
        if not given or not fields:
            return "".join(out).replace("\\n", "\n").replace("\\t", "\t")
