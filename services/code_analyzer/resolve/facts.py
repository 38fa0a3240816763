"""All that was found about a job in one place: named values from flags, configurations and code, and the calls and loops of its program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.files import Files
from schedmate.services.code_analyzer.resolve.knowledge.load import knowledge
from schedmate.services.code_analyzer.resolve.launch import Launch
from schedmate.services.code_analyzer.resolve.machine import Loop
from schedmate.services.code_analyzer.resolve.values import UNKNOWN, Call, Instance, Place, Record, V, leaves

GIVEN: Final = 0
"""Rank of what the command line gives."""
CALLED: Final = 2
DECLARED: Final = 3
CONFIGURED: Final = 4
ASSIGNED: Final = 5
BOUND: Final = 6
"""A mere name in the code: weaker than what is read by that name, or passed on."""
ENVIRONMENT: Final = 7
SETTINGS_MAX: Final = 8000
_SKIPPED_PARTS: Final = frozenset(
    {"init_args", "params", "args", "kwargs", "cfg", "config", "value", "default", "hparams"}
)
_EVALUATION: Final = re.compile(
    r"(^|[_.])(eval|evaluation|val|valid|validation|test|testing|infer|inference|predict|sample|sampling|generate|eval_?batch)([_.]|$)|^(eval|val|test)"
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A named value: its dotted path, what it is, and how strong its source is (the lower, the stronger)."""

    path: str
    value: V
    rank: int
    order: int
    certain: bool = True
    inside: str = ""

    @property
    def data(self) -> Any:
        """The plain value."""
        return self.value.data


@dataclass(frozen=True, slots=True)
class Found:
    """A field's value with what it rests on."""

    value: Any
    place: Place | None
    basis: Basis = Basis.EXPLICIT
    confidence: float = 0.9


@dataclass(slots=True)
class Framework:
    """A framework as `frameworks.toml` has it, and where it was seen."""

    table: dict[str, Any]
    place: Place | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.table["name"])

    def default(self, key: str) -> Any:
        """Return its own default for something, None where it has none."""
        return self.table.get("defaults", {}).get(key)


@dataclass(slots=True)
class Facts:
    """What was found about one job."""

    launch: Launch
    files: Files
    settings: list[Setting] = field(default_factory=list)
    events: list[Call] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    created: list[tuple[Instance, Place]] = field(default_factory=list)
    models: list[Call] = field(default_factory=list)
    imports: dict[str, Place] = field(default_factory=dict)
    configs: list[Record] = field(default_factory=list)
    code: bool = False
    """Whether the program's own source was followed."""
    framework: Framework | None = None
    nodes: Found | None = None
    gpus: Found | None = None
    world: int | None = None
    mentions: list[tuple[str, Place]] = field(default_factory=list)
    _by_meaning: dict[str, list[Setting]] | None = None
    _named: int = -1
    _names: frozenset[str] = frozenset()

    def add(self, path: str, value: V, rank: int, *, certain: bool = True, inside: str = "") -> None:
        """Keep a named value."""
        if len(self.settings) < SETTINGS_MAX and path:
            self.settings.append(Setting(path, value, rank, len(self.settings), certain, inside))
            self._by_meaning = None

    def add_record(self, record: Record, rank: int) -> None:
        """Keep all values of a record."""
        for path, value in leaves(record):
            self.add(str(path), value, rank)

    def of(self, *meanings: str, known: bool = True) -> list[Setting]:
        """Return the settings that mean one of these, the strongest first."""
        if self._by_meaning is None:
            self._by_meaning = self._sorted()
        found = [s for meaning in meanings for s in self._by_meaning.get(meaning, ())]
        return [s for s in found if not known or (s.value.known and s.data is not None)]

    def _sorted(self) -> dict[str, list[Setting]]:
        out: dict[str, list[tuple[tuple[int, int, int, int], Setting]]] = {}
        for setting in self.settings:
            for meaning, position in meanings_of(setting.path):
                key = (setting.rank, 0 if setting.certain else 1, position, setting.order)
                out.setdefault(meaning, []).append((key, setting))
        return {meaning: [s for _, s in sorted(pairs, key=lambda p: p[0])] for meaning, pairs in out.items()}

    def first(self, *meanings: str) -> Setting | None:
        """Return the strongest known setting of these meanings, in their order."""
        for meaning in meanings:
            found = self.of(meaning)
            if found:
                return found[0]
        return None

    def number(self, *meanings: str, least: float = 1) -> Setting | None:
        """Return the strongest setting of these meanings that is a number."""
        for meaning in meanings:
            for setting in self.of(meaning):
                number = as_number(setting.data)
                if number is not None and number >= least:
                    return Setting(
                        setting.path,
                        V(number, setting.value.place, setting.value.basis, setting.value.role),
                        setting.rank,
                        setting.order,
                    )
        return None

    def calls(self, pattern: str, *, certain: bool = False) -> Iterator[Call]:
        """Yield the calls whose name matches."""
        if len(self.events) != self._named:  # calls are many, their names few
            self._named, self._names = len(self.events), frozenset(call.name for call in self.events)
        wanted = re.compile(pattern)
        matching = {name for name in self._names if wanted.search(name)}
        for call in self.events if matching else ():
            if call.name in matching and (call.certain or not certain):
                yield call

    def call(self, pattern: str) -> Call | None:
        """Return the first such call, one that certainly happens before one that may."""
        found = list(self.calls(pattern))
        return next((c for c in found if c.certain), found[0] if found else None)

    def true(self, *meanings: str) -> Setting | None:
        """Return the strongest setting of these meanings, when it says yes."""
        for meaning in meanings:
            for setting in self.of(meaning):
                return setting if truthy(setting.data) else None
        return None


@cache
def _patterns() -> dict[str, list[re.Pattern[str]]]:
    return {meaning: [re.compile(p) for p in patterns] for meaning, patterns in knowledge("meanings").items()}


@cache
def meanings_of(path: str) -> tuple[tuple[str, int], ...]:
    """Return what a dotted name means, with how specific the pattern was."""
    parts = [p for p in path.lower().replace("-", "_").split(".") if p]
    kept = [p for p in parts if p not in _SKIPPED_PARTS and not p.isdigit()] or parts
    names = {kept[-1], ".".join(kept[-2:]), ".".join(parts[-2:])}
    if _EVALUATION.search(kept[-1]) or any(_EVALUATION.fullmatch(p) for p in parts[:-1]):
        return ()
    found = []
    for meaning, patterns in _patterns().items():
        position = next((n for n, p in enumerate(patterns) if any(p.fullmatch(name) for name in names)), None)
        if position is not None:
            found.append((meaning, position))
    return tuple(found)


def as_number(data: Any) -> float | int | None:
    """Return a number from a value or its text; a list of one counts as its element."""
    if isinstance(data, (list, tuple)) and len(data) == 1:
        data = data[0].data if isinstance(data[0], V) else data[0]
    if isinstance(data, bool) or data is None or data is UNKNOWN:
        return None
    if isinstance(data, (int, float)):
        return int(data) if isinstance(data, float) and data.is_integer() and abs(data) < 1e18 else data  # noqa: PLR2004 - no count is larger
    if isinstance(data, str) and re.fullmatch(r"\s*\d[\d_]*(\.\d+)?([eE][+-]?\d+)?\s*", data):
        number = float(data.replace("_", ""))
        return int(number) if number.is_integer() else number
    return None


def truthy(data: Any) -> bool:
    """Tell whether a setting says yes."""
    if isinstance(data, str):
        return data.strip().lower() not in ("", "false", "no", "0", "none", "null", "off", "never", "disabled")
    if isinstance(data, (list, tuple)):
        return bool(data)
    return bool(data) and data is not UNKNOWN


def text_of(data: Any) -> str | None:
    """Return a value's text, None when it is none or has holes."""
    return data if isinstance(data, str) and data and "\x01" not in data else None


def letters(text: str) -> str:
    """Return letters and digits only, lower case."""
    return re.sub(r"[^a-z0-9]+", "", text.lower())
