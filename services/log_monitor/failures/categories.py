"""The 44 causes of failure as data: `categories.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from schedmate.schemas.events import Action, Culpable

UNKNOWN: Final = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Category:
    """A cause: the usual culpable side and action, what the user is told, and what a system can propose to change."""

    name: str
    culpable: Culpable
    action: Action
    advice: str
    proposed_change: str | None = None


@cache
def load_categories() -> Mapping[str, Category]:
    """Return every category by name."""
    table = tomllib.loads(resources.files(__package__).joinpath("categories.toml").read_text("utf-8"))
    return {
        name: Category(
            name, Culpable(row["culpable"]), Action(row["action"]), row["advice"], row.get("proposed_change")
        )
        for name, row in table.items()
    }


def advice_on(category: str) -> str:
    """Return what the user is told about a cause."""
    known = load_categories().get(category)
    return known.advice if known is not None else "Nothing in the log or on the nodes explains the exit."
