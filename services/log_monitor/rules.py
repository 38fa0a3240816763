"""Rules that recognise causes of failure in single lines, read from `rules.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from schedmate.schemas.events import Action, Culpable

UNKNOWN: Final = "UNKNOWN"
TEXT_MAX: Final = 2000


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause and how a line shows it. Fields as explained at the top of `rules.toml`."""

    id: str
    category: str
    culpable: Culpable
    action: Action
    tier: int
    confidence: float
    patterns: tuple[re.Pattern[str], ...]
    unless: tuple[re.Pattern[str], ...]
    examples: tuple[str, ...]
    counterexamples: tuple[str, ...]
    survives: int | None = None
    node: bool = False
    awaits_node: bool = False
    xids: frozenset[int] = frozenset()
    proposed_change: str | None = None

    def matches(self, line: str) -> bool:
        """Tell whether the line shows this cause."""
        text = line[:TEXT_MAX]
        return any(p.search(text) for p in self.patterns) and not any(p.search(text) for p in self.unless)


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules, in the order of the file."""

    rules: tuple[Rule, ...]
    by_id: Mapping[str, Rule]
    _any: re.Pattern[str]

    def match(self, line: str) -> tuple[Rule, ...]:
        """Return the rules that the line matches; most lines match none, and are told so by one search."""
        text = line[:TEXT_MAX]
        if self._any.search(text) is None:
            return ()
        return tuple(rule for rule in self.rules if rule.matches(text))

    def of_xid(self, xid: int) -> Rule | None:
        """Return the rule of an Xid number, or None when it says nothing about hardware or a cause we know."""
        return next((rule for rule in self.rules if xid in rule.xids), None)


@cache
def load_rules() -> Rules:
    """Return the rules that this version was built with."""
    table = tomllib.loads(resources.files(__package__).joinpath("rules.toml").read_text("utf-8"))
    rules = tuple(_rule(entry) for entry in table["rule"])
    by_id = {rule.id: rule for rule in rules}
    if len(by_id) != len(rules):
        raise ValueError("rules.toml: two rules have the same id")
    return Rules(rules, by_id, _prefilter([p for entry in table["rule"] for p in entry["patterns"]]))


def _rule(entry: Mapping[str, Any]) -> Rule:
    known = set(Rule.__slots__)
    unknown = set(entry) - known
    if unknown:
        raise ValueError(f"rules.toml: rule {entry.get('id')!r} has unknown keys {sorted(unknown)}")
    return Rule(
        id=entry["id"],
        category=entry["category"],
        culpable=Culpable(entry["culpable"]),
        action=Action(entry["action"]),
        tier=entry["tier"],
        confidence=entry["confidence"],
        patterns=tuple(re.compile(p) for p in entry["patterns"]),
        unless=tuple(re.compile(p) for p in entry.get("unless", ())),
        examples=tuple(entry["examples"]),
        counterexamples=tuple(entry["counterexamples"]),
        survives=entry.get("survives"),
        node=entry.get("node", False),
        awaits_node=entry.get("awaits_node", entry.get("node", False)),
        xids=frozenset(entry.get("xids", ())),
        proposed_change=entry.get("proposed_change"),
    )


def _prefilter(patterns: list[str]) -> re.Pattern[str]:
    """One pattern that matches whenever any of them does: `(?i)` is scoped to its own alternative."""
    parts = [f"(?i:{p.removeprefix('(?i)')})" if p.startswith("(?i)") else f"(?:{p})" for p in patterns]
    return re.compile("|".join(parts))
