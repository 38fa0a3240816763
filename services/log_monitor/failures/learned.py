"""Rules learned from failures: quarantined until they survive negatives, and dropped when one proves them wrong.

A rule is the shape of a line that came with one cause. In quarantine it is matched and counted, and says nothing. It is let out when
enough runs of more than one tenant showed it with the same cause and enough runs that ended well did not show it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import BaseModel, Field

from schedmate.services.log_monitor.failures.categories import load_categories
from schedmate.services.log_monitor.failures.compression import shape_of
from schedmate.services.log_monitor.failures.rules import Rules

POSITIVES_MIN: Final = 3
TENANTS_MIN: Final = 2
NEGATIVES_MIN: Final = 50
LETTERS_MIN: Final = 12
RULES_MAX: Final = 200
RUNS_KEPT_MAX: Final = 8


class LearnedRule(BaseModel):
    """The shape of a line, the cause it came with, and what speaks for it."""

    shape: str
    category: str
    runs: list[str] = Field(default_factory=list)
    tenants: list[str] = Field(default_factory=list)
    survived: int = 0

    @property
    def status(self) -> Literal["quarantined", "trusted"]:
        """Whether it may say something."""
        proven = len(self.runs) >= POSITIVES_MIN and len(self.tenants) >= TENANTS_MIN and self.survived >= NEGATIVES_MIN
        return "trusted" if proven else "quarantined"

    def matches(self, text: str) -> bool:
        """Tell whether a line has the shape."""
        return shape_of(text) == self.shape


class Learned(BaseModel):
    """All learned rules. Bounded; a shape that came with two causes, or in a run that ended well, is gone for good."""

    rules: list[LearnedRule] = Field(default_factory=list)
    refuted: list[str] = Field(default_factory=list)

    def propose(self, text: str, category: str, *, run_id: str, tenant: str, known: Rules) -> LearnedRule | None:
        """Take a line that came with a cause; return its rule, or None when it cannot be one."""
        shape = shape_of(text)
        if category not in load_categories() or shape in self.refuted or sum(c.isalpha() for c in shape) < LETTERS_MIN:
            return None
        if any(shape_of(negative) == shape for rule in known.rules for negative in rule.counterexamples):
            self._refute(shape)
            return None
        rule = next((r for r in self.rules if r.shape == shape), None)
        if rule is not None and rule.category != category:
            self._refute(shape)
            return None
        if rule is None:
            rule = LearnedRule(shape=shape, category=category)
            self.rules.append(rule)
            del self.rules[:-RULES_MAX]
        if run_id not in rule.runs and len(rule.runs) < RUNS_KEPT_MAX:
            rule.runs.append(run_id)
        if tenant not in rule.tenants and len(rule.tenants) < RUNS_KEPT_MAX:
            rule.tenants.append(tenant)
        return rule

    def ended_well(self, lines: Iterable[str]) -> None:
        """Take the suspicious lines of a run that ended well: no rule may match them."""
        shapes = {shape_of(text) for text in lines}
        for rule in list(self.rules):
            if rule.shape in shapes:
                self._refute(rule.shape)
            else:
                rule.survived += 1

    def trusted(self, text: str) -> LearnedRule | None:
        """Return the rule that may say what a line shows."""
        return next((r for r in self.rules if r.status == "trusted" and r.matches(text)), None)

    def _refute(self, shape: str) -> None:
        self.rules = [rule for rule in self.rules if rule.shape != shape]
        self.refuted = [*self.refuted, shape][-RULES_MAX:]
