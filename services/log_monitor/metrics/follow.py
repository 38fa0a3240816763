"""Takes lines into a member's metrics: reads what the line's plan names, learns what no word names, and keeps counters apart.

Deterministic: the state depends on the lines alone. Plans are kept by masked line in a bounded cache of the process; they are a function
of the line.
"""

from __future__ import annotations

from typing import Final

from schedmate.services.log_monitor.metrics.library import Library
from schedmate.services.log_monitor.metrics.plans import Plan, plan_of
from schedmate.services.log_monitor.metrics.reading import Reading
from schedmate.services.log_monitor.metrics.shapes import TEXT_MAX, Shape, shape_of
from schedmate.services.log_monitor.metrics.state import Metrics

CACHE_MAX: Final = 20_000
CACHED_LINE_MAX: Final = 400
_MASK: Final = bytes.maketrans(b"123456789", b"000000000")


class Follower:
    """Follows lines. Holds the caches of a process and no state of a job."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._known: dict[bytes, tuple[Shape, Plan]] = {}
        self._plans: dict[str, Plan] = {}

    def follow(self, metrics: Metrics, line: str, arrived_at: float | None = None) -> None:
        """Take one line (or one state of a bar) into the metrics."""
        metrics.line += 1
        text = line[:TEXT_MAX] if len(line) > TEXT_MAX else line
        key = text.encode("utf-8", "replace").translate(_MASK)
        known = self._known.get(key)
        if known is None:
            known = self._look(text, key)
        shape, plan = known
        if shape.bare:
            plan = self._row(metrics, shape, text, plan)
        elif not shape.slots:
            _note_header(metrics, text)
        if plan.says:
            Reading(metrics, shape, plan, text, arrived_at).take()

    def _look(self, text: str, key: bytes) -> tuple[Shape, Plan]:
        shape = shape_of(text)
        plan = self._plans.get(shape.template)
        if plan is None:
            plan = self._library.plan(shape, text) or plan_of(shape, text)
            if len(self._plans) >= CACHE_MAX:
                self._plans.clear()
            self._plans[shape.template] = plan
        if len(self._known) >= CACHE_MAX:
            self._known.clear()
        if len(key) <= CACHED_LINE_MAX:
            self._known[key] = shape, plan
        return shape, plan

    def _row(self, metrics: Metrics, shape: Shape, text: str, plan: Plan) -> Plan:
        header = metrics.header
        if header is None or len(header) != len(shape.slots) or plan.known:
            return plan
        key = "\x01".join((shape.template, *header))
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = plan_of(shape, text, header)
        return found


def _note_header(metrics: Metrics, text: str) -> None:
    """A line of two or more words over a row of numbers names the columns."""
    stripped = text.strip().strip("|")
    if not stripped or not any(c.isalpha() for c in stripped):
        return
    wide = [part.strip() for part in stripped.replace("|", "  ").split("  ") if part.strip()]
    columns = wide if len(wide) > 1 else stripped.split()
    if 2 <= len(columns) <= 24 and len(stripped) < 400:  # noqa: PLR2004 - a table's header
        metrics.header, metrics.header_line = tuple(c[:32] for c in columns), metrics.line
