"""What rules that answer for fields have in common: the facts, the framework, its defaults."""

from __future__ import annotations

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.facts import (
    Facts,
    Found,
)


class Answers:
    """Answers for some of the fields of a job."""

    def __init__(self, facts: Facts, sizes: dict[str, Found]) -> None:
        self.facts = facts
        self.framework = facts.framework
        self.sizes = sizes
        self.serving = bool(facts.framework is not None and facts.framework.table.get("serving"))

    def default(self, key: str) -> Found | None:
        """Return the framework's own default of a field."""
        value = self.framework.default(key) if self.framework is not None else None
        return (
            Found(value, self.framework.place, Basis.LIBRARY_DEFAULT, 0.8)
            if value is not None and self.framework is not None
            else None
        )
