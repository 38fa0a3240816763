"""Takes lines into a member's metrics: reads what the line's plan names, learns what no word names, and keeps counters apart.

Deterministic: the state depends on the lines alone. Plans are kept by masked line in a bounded cache of the process; they are a function
of the line.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterable
from typing import Final

from schedmate.services.log_monitor.metrics.library import Library
from schedmate.services.log_monitor.metrics.plan import Plan
from schedmate.services.log_monitor.metrics.plans import plan_of
from schedmate.services.log_monitor.metrics.reading import Reading
from schedmate.services.log_monitor.metrics.shapes import TEXT_MAX, Shape, shape_of
from schedmate.services.log_monitor.metrics.state import ROUTINES_MAX, Metrics, Routine

CACHE_MAX: Final = 4096
CACHED_LINE_MAX: Final = 400
ROUTINE_AFTER: Final = 48
PASSED_MAX: Final = 15
HEADER_STALE_LINES: Final = 40
_CELL: Final = re.compile(r"\S+(?: \S+)*")
_MASK: Final = bytes.maketrans(b"123456789", b"000000000")


class Follower:
    """Follows lines. Holds the caches of a process and no state of a job."""

    def __init__(self, library: Library, *, routine_after: int = ROUTINE_AFTER) -> None:
        self._library = library
        self._routine_after = routine_after
        self._known: dict[bytes, tuple[Shape, Plan]] = {}
        self._plans: dict[str, Plan] = {}

    def follow(self, metrics: Metrics, line: str, arrived_at: float | None = None) -> None:
        """Take one line (or one state of a bar) into the metrics."""
        metrics.line += 1
        text = line if len(line) <= TEXT_MAX else line[:TEXT_MAX]
        key = text.encode("utf-8", "replace").translate(_MASK)
        known = self._known.get(key)
        if known is None:
            known = self._look(text, key)
        plan = known[1]
        routine = metrics.routine.get(plan.key)
        if routine is not None and routine.reads >= self._routine_after and routine.passed < PASSED_MAX:
            routine.passed += 1
            routine.text = text
            routine.line = metrics.line
            routine.at = arrived_at
            return
        self._read(metrics, known[0], plan, text, arrived_at, routine)

    def view(self, metrics: Metrics, unfinished: Iterable[str] = ()) -> Metrics:
        """Return the metrics with the lines that were passed over, and those that are not finished yet, taken in; a copy if there are any."""
        lines = sorted((r.line, r.text, r.at) for r in metrics.routine.values() if r.text is not None)
        last = [text for text in unfinished if text]
        if not lines and not last:
            return metrics
        seen = copy.deepcopy(metrics)
        seen.routine.clear()
        for number, text, at in lines:
            seen.line = number - 1
            self.follow(seen, text, at)
        seen.line = metrics.line
        for text in last:
            self.follow(seen, text)
        return seen

    def _read(
        self, metrics: Metrics, shape: Shape, plan: Plan, text: str, arrived_at: float | None, routine: Routine | None
    ) -> None:
        if metrics.header is not None and shape.slots and not plan.known:
            plan = self._row(metrics, shape, text, plan)
        if not shape.slots:
            _note_header(metrics, text)
        if not plan.says:
            return
        if routine is None:
            routine = _new_routine(metrics, plan.key)
            self._catch_up(metrics)
        before = _standing(metrics)
        Reading(metrics, shape, plan, text, arrived_at).take()
        routine.line, routine.passed, routine.text = metrics.line, 0, None
        routine.reads = routine.reads + 1 if _standing(metrics) == before else routine.reads // 2

    def _catch_up(self, metrics: Metrics) -> None:
        """Something new comes: first take in what was passed over, in order."""
        now = metrics.line
        for kept in sorted((r for r in metrics.routine.values() if r.text is not None), key=lambda r: r.line):
            text, kept.text, kept.passed = kept.text, None, PASSED_MAX
            metrics.line = kept.line - 1
            if text is not None:
                self.follow(metrics, text, kept.at)
        metrics.line = now

    def _look(self, text: str, key: bytes) -> tuple[Shape, Plan]:
        shape = shape_of(text)
        plan = self._plans.get(shape.template)
        if plan is None:
            plan = self._library.plan(shape, text) or plan_of(shape, text)
            if len(self._plans) >= CACHE_MAX:
                del self._plans[next(iter(self._plans))]  # one at a time: no line pays for many
            plan.key = hashlib.blake2b(shape.template.encode("utf-8", "replace"), digest_size=9).hexdigest()
            self._plans[shape.template] = plan
        if len(self._known) >= CACHE_MAX:
            del self._known[next(iter(self._known))]
        if len(key) <= CACHED_LINE_MAX:
            self._known[key] = shape, plan
        return shape, plan

    def _row(self, metrics: Metrics, shape: Shape, text: str, plan: Plan) -> Plan:
        """Return the plan of a row under the table's header that was seen last; `plan` when the line is no such row."""
        header = metrics.header
        assert header is not None
        if metrics.line - metrics.header_line > HEADER_STALE_LINES and metrics.header_used == 0:
            return plan
        names = _columns(shape, text, header)
        if names is None:
            return plan
        metrics.header_used += 1
        key = "\x01".join((shape.template, *names))
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= CACHE_MAX:
                del self._plans[next(iter(self._plans))]
            found = self._plans[key] = plan_of(shape, text, names)
            found.key = plan.key
        return found


def _columns(shape: Shape, text: str, header: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the column's name for every number of a row: of a bare one, or of cells (with units) as wide apart as the header's."""
    if shape.bare and len(header) == len(shape.slots):
        return header
    cells = list(_CELL.finditer(text))
    if len(cells) != len(header) or not cells[0].group()[:1].isdigit():
        return None
    return tuple(
        next((name for cell, name in zip(cells, header, strict=True) if cell.start() <= slot.start < cell.end()), "")
        for slot in shape.slots
    )


def _note_header(metrics: Metrics, text: str) -> None:
    """A line of two or more words over a row of numbers names the columns."""
    stripped = text.strip().strip("|")
    if not stripped or not any(c.isalpha() for c in stripped):
        return
    wide = [part.strip() for part in stripped.replace("|", "  ").split("  ") if part.strip()]
    columns = wide if len(wide) > 1 else stripped.split()
    if 2 <= len(columns) <= 24 and len(stripped) < 400:  # noqa: PLR2004 - a table's header
        metrics.header, metrics.header_line, metrics.header_used = tuple(c[:32] for c in columns), metrics.line, 0


def _new_routine(metrics: Metrics, key: str) -> Routine:
    routines = metrics.routine
    if len(routines) >= ROUTINES_MAX:
        del routines[min(routines, key=lambda k: routines[k].line)]
    return routines.setdefault(key, Routine())


def _standing(metrics: Metrics) -> tuple[object, ...]:
    """Return what does not change while a job just goes on."""
    epoch = metrics.epoch.last if metrics.epoch is not None else None
    counters = metrics.counters.values()
    return (
        metrics.phase,
        epoch,
        len(metrics.announced),
        metrics.resumed_line,
        metrics.header_line,
        len(counters),
        sum(c.resets + c.falls for c in counters),
    )
