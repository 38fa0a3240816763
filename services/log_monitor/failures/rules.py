"""Rules that recognise signs of causes in single lines, read from `signs/*.toml`.

Keys of a rule there:

    id, category   what it is called, and which cause of `categories.toml` it is a sign of
    culpable, action, proposed_change   where they differ from the category's
    tier           0 a notice from outside the job, 1 the node's own side, 2 a specific cause, 3 a general exception, 4-6 consequences,
                   each later than the former; among signs of one tier the earliest line is the cause
    where          sources in which the line counts: log (the job's own output), kernel, node, scheduler, events; default: log
    patterns, unless   RE2 patterns: any of the former and none of the latter
    needs          words that another sign within a few lines must hold
    yields         in the job's own output it is the cause only when no other cause comes before it
    survives       how many further signs of life after the line show that the job lived on: the line is then forgotten
    node           the cause lies with the node (a cordon still needs evidence from the node's own side)
    awaits_node    the diagnosis waits for the node's side until its bound, even when the log is complete
    timeout        a collective's timeout, that a busy rank may explain
    general        says no more than that there was an error: it counts in a line that nothing else matches, and retrieval may know better
    role           "busy" (a rank at long work) or "done" (work was finished): context, never a cause
    xids           numbers of the GPU driver's messages
    examples, counterexamples   lines that it must match and refuse; a test runs them all

Matching takes time linear in the line, whatever the line: RE2 has no backtracking, and a line is cut at TEXT_MAX.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final, Literal

import re2

from schedmate.schemas.events import Action, Culpable
from schedmate.services.log_monitor.failures.categories import UNKNOWN, Category, load_categories

TEXT_MAX: Final = 2000
LOG: Final = "log"
SOURCES: Final = frozenset({LOG, "kernel", "node", "scheduler", "events"})
SURVIVES: Final = 3
TIER_NOTICE, TIER_NODE, TIER_SPECIFIC, TIER_GENERAL, TIER_TIMEOUT, TIER_CONTEXT = 0, 1, 2, 3, 4, 9

SHAPES_CACHED: Final = 4096

_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_COUNTS: Final = re2.compile(r"\{\d+(?:,\d*)?\}")
_DIGIT: Final = re2.compile(r"\d")

Role = Literal["cause", "busy", "done"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of sign. Fields as explained at the top of this module."""

    id: str
    category: str
    culpable: Culpable
    action: Action
    tier: int
    confidence: float
    patterns: tuple[str, ...]
    unless: tuple[str, ...]
    examples: tuple[str, ...]
    counterexamples: tuple[str, ...]
    where: frozenset[str] = frozenset({LOG})
    needs: str | None = None
    yields: bool = False
    survives: int | None = SURVIVES
    node: bool = False
    awaits_node: bool = False
    timeout: bool = False
    general: bool = False
    role: Role = "cause"
    xids: frozenset[int] = frozenset()
    proposed_change: str | None = None


class _Search:
    """Patterns that are looked for at once, and what each stands for."""

    def __init__(self) -> None:
        self._filter = re2.Filter()
        self._meaning: list[tuple[int, bool]] = []

    def add(self, pattern: str, rule: int, *, wanted: bool) -> None:
        self._filter.Add(pattern)
        self._meaning.append((rule, wanted))

    def compile(self) -> None:
        if self._meaning:
            self._filter.Compile()

    def found(self, text: str) -> tuple[tuple[int, bool], ...]:
        return tuple(self._meaning[n] for n in self._filter.Match(text) or ()) if self._meaning else ()


class Rules:
    """All rules, and one search that finds which of them a line matches."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.by_id: Mapping[str, Rule] = {rule.id: rule for rule in self.rules}
        if len(self.by_id) != len(self.rules):
            raise ValueError("two rules have the same id")
        self._plain = _Search()
        self._numbered = _Search()
        for index, rule in enumerate(self.rules):
            for wanted, patterns in ((True, rule.patterns), (False, rule.unless)):
                for pattern in patterns:
                    search = self._numbered if _DIGIT.search(_COUNTS.sub("", pattern)) else self._plain
                    search.add(pattern, index, wanted=wanted)
        self._plain.compile()
        self._numbered.compile()
        self._plain_of = lru_cache(SHAPES_CACHED)(self._plain.found)
        self._xids = {xid: rule for rule in self.rules for xid in sorted(rule.xids)}

    def match(self, line: str, source: str = LOG, masked: str | None = None) -> tuple[Rule, ...]:
        """Return the rules that the line of this kind of source matches, in the order of the files.

        `masked` is the line as `digits_masked` gives it, where the caller has it already.
        """
        text = line[:TEXT_MAX]
        plain = self._plain_of(masked[:TEXT_MAX] if masked is not None else digits_masked(text))
        numbered = self._numbered.found(text)
        if not plain and not numbered:
            return ()
        shown: set[int] = set()
        refused: set[int] = set()
        for index, wanted in (*plain, *numbered):
            (shown if wanted else refused).add(index)
        hits = [rule for index in sorted(shown - refused) if source in (rule := self.rules[index]).where]
        if any(not rule.general and rule.role == "cause" for rule in hits):
            hits = [rule for rule in hits if not rule.general]
        return tuple(hits)

    def of_xid(self, xid: int) -> Rule | None:
        """Return the rule of an Xid number, or None when it says nothing about hardware or a cause we know."""
        return self._xids.get(xid)


def digits_masked(text: str) -> str:
    """Return the text with every digit a nought, as long as it was.

    Patterns that ask for no number in particular give the same for lines that differ in digits alone, as routine lines do.
    """
    return text.encode("utf-8", "replace").translate(_DIGITS).decode()


@cache
def load_rules() -> Rules:
    """Return the rules that this version was built with."""
    folder = resources.files(__package__).joinpath("signs")
    tables = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda e: e.name)
    return Rules(read_rule(row) for table in tables for row in tomllib.loads(table.read_text("utf-8"))["rule"])


def read_rule(row: Mapping[str, Any]) -> Rule:
    """Return a rule from its table; what is not said is the category's."""
    unknown = set(row) - set(Rule.__slots__)
    if unknown:
        raise ValueError(f"rule {row.get('id')!r} has unknown keys {sorted(unknown)}")
    usual = load_categories().get(row["category"])
    if usual is None and row["category"] != UNKNOWN:
        raise ValueError(f"rule {row['id']!r}: no such category: {row['category']}")
    where = frozenset(row.get("where", (LOG,)))
    if not where <= SOURCES:
        raise ValueError(f"rule {row['id']!r}: no such source among {sorted(where)}")
    for pattern in (*row["patterns"], *row.get("unless", ())):
        re2.compile(pattern)
    return Rule(
        id=row["id"],
        category=row["category"],
        culpable=Culpable(row["culpable"]) if "culpable" in row else _known(usual).culpable,
        action=Action(row["action"]) if "action" in row else _known(usual).action,
        tier=row["tier"],
        confidence=row.get("confidence", 0.9),
        patterns=tuple(row["patterns"]),
        unless=tuple(row.get("unless", ())),
        examples=tuple(row["examples"]),
        counterexamples=tuple(row["counterexamples"]),
        where=where,
        needs=row.get("needs"),
        yields=row.get("yields", False),
        survives=row.get("survives", SURVIVES),
        node=row.get("node", False),
        awaits_node=row.get("awaits_node", False),
        timeout=row.get("timeout", False),
        general=row.get("general", False),
        role=row.get("role", "cause"),
        xids=frozenset(row.get("xids", ())),
        proposed_change=row.get("proposed_change", usual.proposed_change if usual is not None else None),
    )


def _known(value: Category | None) -> Category:
    if value is None:
        raise ValueError("a rule without a category says whose side and what to do")
    return value
