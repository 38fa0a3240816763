"""Tables of the results page, and how its figures are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from schedmate.simulator.results.intervals import Interval

SMALL: Final = 10


def number(value: Any) -> str:
    """Return a figure as the page writes it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < SMALL else f"{value:,.1f}"
    return f"{value:,}"


def seconds(value: float) -> str:
    """Return whole seconds."""
    return f"{value:,.0f}"


def gain(interval: Interval) -> str:
    """Return seconds gained, with the interval: `+1,465 (900 to 2,100)`."""
    value = f"{interval.value:+,.0f}"
    return value if interval.low is None or interval.high is None else f"{value} ({interval.low:,.0f} to {interval.high:,.0f})"  # fmt: skip


def percent(interval: Interval | None) -> str:
    """Return a share with its interval."""
    if interval is None:
        return "-"
    value = f"{100 * interval.value:.0f} %"
    return value if interval.low is None or interval.high is None else f"{value} ({100 * interval.low:.0f} to {100 * interval.high:.0f})"  # fmt: skip


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; columns of figures to the right."""
    right = [all(_is_figure(row[n]) for row in rows) for n in range(len(head))]
    rule = ["---:" if r else "---" for r in right]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def _is_figure(cell: str) -> bool:
    return not cell or cell == "-" or cell.lstrip("+-*")[:1].isdigit()
