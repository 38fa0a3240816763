"""Known formats, as data in `formats.toml`: a pattern a line, whose groups say what its numbers are.

An entry is laid over the plan that the words give: what it names is its own, the rest stays.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Container
from dataclasses import dataclass
from functools import cache
from importlib import resources

from schedmate.schemas.events import Phase
from schedmate.services.log_monitor.metrics.measures import LOSS_EXACT
from schedmate.services.log_monitor.metrics.plan import CounterSlot, Plan
from schedmate.services.log_monitor.metrics.plans import plan_of
from schedmate.services.log_monitor.metrics.shapes import Shape


@dataclass(frozen=True, slots=True)
class Format:
    """One known format."""

    name: str
    pattern: re.Pattern[str]
    base: int | None = None
    phase: Phase | None = None
    frame: bool = False
    within: bool = False  # its counter counts within an epoch even when no epoch was seen
    weak: bool = False  # says only where its numbers stand; names come from the words


class Library:
    """The formats that are known by name."""

    def __init__(self, formats: tuple[Format, ...]) -> None:
        self.formats = formats

    def without(self, names: Container[str]) -> Library:
        """Return the library without some formats."""
        return Library(tuple(f for f in self.formats if f.name not in names))

    def plan(self, shape: Shape, text: str) -> Plan | None:
        """Return the plan of a line of a known format, None for any other."""
        for known in self.formats:
            match = known.pattern.search(text)
            if match is not None:
                return _laid_over(plan_of(shape, text), known, match, shape)
        return None


@cache
def library() -> Library:
    """Return the library that comes with the package."""
    text = resources.files(__package__).joinpath("formats.toml").read_text(encoding="utf-8")
    return Library(tuple(_format(entry) for entry in tomllib.loads(text)["format"]))


def _format(entry: dict[str, object]) -> Format:
    base, phase = entry.get("base"), entry.get("phase")
    return Format(
        name=str(entry["name"]),
        pattern=re.compile(str(entry["pattern"])),
        base=base if isinstance(base, int) else None,
        phase=Phase(phase) if isinstance(phase, str) else None,
        frame=bool(entry.get("frame")),
        within=bool(entry.get("within")),
        weak=bool(entry.get("weak")),
    )


def _laid_over(plan: Plan, known: Format, match: re.Match[str], shape: Shape) -> Plan:
    starts = {slot.start: i for i, slot in enumerate(shape.slots)}
    at = {name: starts[match.start(name)] for name in match.re.groupindex if match.start(name) in starts}
    plan.known = known.name
    for name, slot in at.items():
        if name.startswith("none_"):
            _forget(plan, slot)
    if known.weak:
        return plan
    if known.phase is not None:
        plan.phase = known.phase
        plan.evaluates = known.phase is Phase.EVAL
        return plan
    if "step" in at or "inner" in at:
        plan.evaluates = False
        plan.phase = None
        _counters(plan, known, at)
    if "epoch" in at:
        plan.epoch, plan.epochs, plan.epoch_base = at["epoch"], at.get("epochs"), known.base
        plan.counters = [c for c in plan.counters if c.slot != at["epoch"]]
    if "loss" in at:
        plan.losses = [(at["loss"], LOSS_EXACT)]
    _times(plan, at)
    return plan


def _forget(plan: Plan, slot: int) -> None:
    plan.counters = [c for c in plan.counters if slot not in {c.slot, c.total}]
    plan.announced = [(s, kind) for s, kind in plan.announced if s != slot]
    plan.unknown = [s for s in plan.unknown if s != slot]
    plan.paces = [p for p in plan.paces if p[0] != slot]
    if plan.epoch == slot:
        plan.epoch = plan.epochs = plan.epoch_base = None


def _counters(plan: Plan, known: Format, at: dict[str, int]) -> None:
    plan.counters, plan.announced, plan.unknown = [], [], []
    if "inner" in at:
        plan.counters.append(
            CounterSlot(at["inner"], at.get("inner_total"), f"{known.name} inner", named=True, inner=True, within=known.within, bar=True)
        )  # fmt: skip
    if "step" in at:
        plan.counters.append(
            CounterSlot(at["step"], at.get("total"), f"{known.name} step", named=True, whole=True, frame=known.frame)
        )  # fmt: skip


def _times(plan: Plan, at: dict[str, int]) -> None:
    if "rate" in at:
        plan.rates, plan.paces = [(at["rate"], 1.0, False)], []
    if "frames_rate" in at:
        plan.rates, plan.paces = [(at["frames_rate"], 1.0, True)], []
    if "spi" in at:
        plan.paces, plan.rates = [(at["spi"], 1.0, True)], []
    if "mspi" in at:
        plan.paces, plan.rates = [(at["mspi"], 0.001, True)], []
    if "spe" in at:
        plan.epoch_paces, plan.paces = [(at["spe"], 1.0)], []
    if "elapsed" in at:
        plan.elapsed = [(at["elapsed"], 1.0, True)]
        plan.paces = [p for p in plan.paces if p[0] != at["elapsed"]]
    if "left" in at:
        plan.left = [(at["left"], 1.0)]
    if "none_time" in at:
        plan.paces = []
