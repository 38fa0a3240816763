"""The files of a job: those of its source, and those that its scripts write before the program starts."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from posixpath import basename, dirname, join, normpath
from typing import Final, TypeVar

from schedmate.services.code_analyzer.resolve.units import Units
from schedmate.services.code_analyzer.resolve.values import Place
from schedmate.services.code_analyzer.source import Tree

T = TypeVar("T")

_CODING: Final = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.MULTILINE)
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
TEXT_MAX: Final = 1_048_576


@dataclass(slots=True)
class Written:
    """A file that a script writes: its text, and where in the script it stands."""

    text: str
    place: Place


@dataclass(slots=True)
class Files:
    """Finds and reads the files of a job, remembers which were read, and says why some could not be."""

    tree: Tree
    written: dict[str, Written] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    steps: int = 0
    """Steps that all shells of the job have taken together."""
    following: list[str] = field(default_factory=list)
    """Scripts that are being followed, the outermost first."""
    partial: list[str] = field(default_factory=list)
    missed: set[str] = field(default_factory=set)
    """Paths that were looked for and are not there: were one added, the analysis could change."""
    lines: dict[str, list[int]] = field(default_factory=dict)
    """For a notebook, the line of its file that each line of its code stands on."""
    units: Units = field(default_factory=Units)
    parsed: set[str] = field(default_factory=set)
    reused: set[str] = field(default_factory=set)
    """Files that were parsed now, and those whose parsed form was known from an earlier analysis."""
    _by_name: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in self.tree.files:
            self._by_name.setdefault(basename(path), []).append(path)

    def missing(self, why: str) -> None:
        """Say why something could not be read; each reason once."""
        if why not in self.partial:
            self.partial.append(why)

    def find(self, path: str, *bases: str) -> str | None:
        """Return the file that a path names: below one of the bases, as it stands, or the only one that ends in it."""
        if not path or "\x01" in path or len(path) > 1000:  # noqa: PLR2004 - no path is longer
            return None
        if path in self.written:
            return path
        for base in (*bases, ""):
            wanted = normpath(join(base, path)).lstrip("/")
            while wanted.startswith("../"):
                wanted = wanted[3:]
            if wanted in self.tree.files:
                return wanted
        wanted = normpath(path).lstrip("/")
        ending = [
            p for p in self._by_name.get(basename(wanted), ()) if p.endswith("/" + wanted) or wanted.endswith("/" + p)
        ]
        if len(ending) == 1:
            return ending[0]
        self.missed.add(wanted)
        return None

    def text(self, path: str) -> str | None:
        """Return a file's text in whatever encoding it says it has, or None when it is not there."""
        written = self.written.get(path)
        if written is not None:
            return written.text
        content = self.tree.files.get(path)
        if content is None:
            return None
        self.read.add(path)
        if b"\0" in content[:4096] and not content.startswith(tuple(bom for bom, _ in _BOMS)):
            self.missing(f"{path} is no text")
            return None
        text = decoded(content)
        if len(text) > TEXT_MAX:
            self.missing(f"{path} is longer than {TEXT_MAX} characters")
            return None
        return text

    def unit(self, kind: str, path: str, text: str, parse: Callable[[str], T]) -> T:
        """Return what a parser makes of a file's text, which nobody may change; raises what it raises."""
        unit, known = self.units.get(kind, text, parse)
        if path in self.tree.files and path not in self.parsed:
            (self.reused if known else self.parsed).add(path)
        return unit

    def place(self, path: str, line: int | None) -> Place:
        """Return the place of a line: that of the script, for a file that a script writes."""
        written = self.written.get(path)
        numbers = self.lines.get(path)
        if numbers is not None and line is not None:
            return Place(path, numbers[min(line, len(numbers)) - 1] if numbers else None)
        if written is None:
            return Place(path, line)
        start = written.place.line or 1
        return Place(written.place.file, start + (line or 0))

    def inside(self, folder: str) -> list[str]:
        """Return the files directly in a folder."""
        prefix = folder.rstrip("/") + "/" if folder not in ("", ".") else ""
        return sorted(p for p in self.tree.files if p.startswith(prefix) and dirname(p) == prefix.rstrip("/"))


def decoded(content: bytes) -> str:
    """Return a file's text: by its byte order mark, by its coding line, else UTF-8, else Latin-1."""
    for bom, encoding in _BOMS:
        if content.startswith(bom):
            return content.decode(encoding, "replace")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        pass
    declared = _CODING.search(content[:200])
    try:
        return content.decode(declared[1].decode("ascii") if declared is not None else "latin-1", "replace")
    except LookupError:
        return content.decode("latin-1")
