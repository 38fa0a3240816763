"""Which numbers of a line measure something, by the words around them: clocks, rates, times, losses."""

from __future__ import annotations

import re
from typing import Final

from schedmate.services.log_monitor.metrics.lexicon import lexicon
from schedmate.services.log_monitor.metrics.plan import Plan
from schedmate.services.log_monitor.metrics.shapes import Slot, unit_meaning

LOSS_EXACT: Final = 5
LOSS_QUALIFIED: Final = 4
LOSS_WEAK: Final = 2


def time_factor(slot: Slot) -> float:
    """Return how many seconds the unit of a number is; 1 where it has none."""
    meaning = unit_meaning(slot.unit) if slot.unit else None
    return meaning[1] if meaning is not None and meaning[0] == "time" else 1.0


def place_clock(plan: Plan, i: int, label: list[str], before: str, after: str) -> None:
    """Place a clock: time that is left, that has passed, or the time of day."""
    lex = lexicon()
    tail = before.rstrip()
    if lex.has("left", label) or tail.endswith(("<", "~")):
        plan.left.append((i, 1.0))
    elif after.startswith("<") or lex.has("elapsed", label) or label[-1:] == ["in"]:
        plan.elapsed.append((i, 1.0, True))
    elif i == 0 and not before.strip(" [("):
        plan.daytime = i
    elif lex.has("time", label):
        plan.elapsed.append((i, 1.0, False))


def place_rate(  # noqa: C901, PLR0911 - a decision list
    plan: Plan, i: int, label: list[str], meaning: tuple[str, float] | None, after: str
) -> bool:
    """Place a number whose unit or name says how much comes a second, or how long one takes; False when it says neither."""
    lex = lexicon()
    if meaning is not None:
        kind, factor = meaning
        if kind == "rate":
            plan.rates.append((i, factor, False))
            return True
        if kind == "spi":
            count = re.match(r"\s?[a-z]{1,8}\s?/\s?(\d)", after)
            if count is None:
                plan.paces.append((i, factor, True))
            return True
        if kind == "spe":
            plan.epoch_paces.append((i, factor))
            return True
        if kind == "samples":
            plan.others.append((i, factor))
            return True
        if kind == "epoch_rate":
            return True
        if kind == "each":
            plan.each.append((i, factor))
            return True
    tail = set(label[-3:])
    if tail & {"fps", "sps"} and label[-1] in {"fps", "sps", "total"}:
        plan.rates.append((i, 1.0, "fps" in tail))
        return True
    if "ups" in tail:
        plan.rates.append((i, 1.0, False))
        return True
    if (
        label
        and label[-1] in {"sec", "second", "s"}
        and len(label) > 1
        and not {"time", "total", "elapsed"} & set(label)
    ):
        if any(lex.is_("step", word) for word in label[:-1]) and not lex.has("samples", label):
            plan.rates.append((i, 1.0, False))
        return True
    return False


def place_unit_per_step(plan: Plan, i: int, label: list[str]) -> bool:
    """`ms_per_iter: 231`: the name says the unit, and of what."""
    lex = lexicon()
    at = label.index("per") if "per" in label else 0
    if not 0 < at < len(label) - 1 or label[at - 1] not in lex.units:
        return False
    factor, of = lex.units[label[at - 1]], label[at + 1]
    if lex.is_("step", of):
        plan.paces.append((i, factor, True))
    elif lex.is_("epoch", of):
        plan.epoch_paces.append((i, factor))
    return lex.is_("step", of) or lex.is_("epoch", of)


def place_loss(  # noqa: PLR0911 - a decision list
    plan: Plan, i: int, label: list[str], following: list[str]
) -> bool:
    """Place a loss, by how surely its name is one; False when it is none."""
    lex = lexicon()
    if lex.has("eval", label):
        return False
    words = [w for w in label if not w.isdigit()]
    if not words and len(following) == 2 and lex.is_("loss", following[1]) and lex.is_("loss_with", following[0]):  # noqa: PLR2004
        words = following
    if lex.has("loss", words):
        others = [w for w in words if not lex.is_("loss", w) and not lex.is_("loss_with", w)]
        if not others:
            exact = len(words) == 1 or (words[-1] in {"loss", "损失"} and len(words) == 1)
            plan.losses.append((i, LOSS_EXACT if exact else LOSS_QUALIFIED))
        elif not lex.is_("loss", words[-1]) or set(others) & {"step", "epoch", "iter"}:
            return False
        return True
    if "l" in words and len(words) > 1 and all(w == "l" or lex.is_("loss_with", w) for w in words):
        plan.losses.append((i, LOSS_WEAK))  # `L_total`, as papers write it
        return True
    if words and lex.is_("weak_loss", words[-1]) and not lex.has("time", words[:-1]) and "avg" not in words[:-1]:
        if words[-1] == "cost" and len(words) > 1:
            return False
        plan.losses.append((i, LOSS_WEAK))
        return True
    return False


def place_time(plan: Plan, i: int, label: list[str], meaning: tuple[str, float] | None) -> bool:
    """Place a time by its name or unit: since the start, of a step, of an epoch; False when it is none."""
    lex = lexicon()
    factor = meaning[1] if meaning is not None and meaning[0] == "time" else 1.0
    timed = (meaning is not None and meaning[0] == "time") or (len(label) > 1 and label[-1] in {"s", "secs", "seconds"})
    if (
        not lex.has("time", label)
        and not timed
        and not (label and lex.is_("step", label[-1]))
        and not lex.has("elapsed", label[-1:])
    ):
        return False
    if (
        {"data", "reader", "load", "wait", "forward", "backward", "optim", "iter"} & set(label[:1])
        and "time" in label
        and label[:1] != ["iter"]
    ):
        return True
    if label[:2] == ["iter", "time"]:
        return True
    if {"maintenance", "testing", "val", "eval", "valid"} & set(label):
        return True
    if "epoch" in label or ("took" in label and "epoch" in label):
        plan.epoch_paces.append((i, factor))
    elif lex.has("elapsed", label if timed else [w for w in label if w != "total"]) and not {"per", "iteration"} & set(
        label
    ):
        plan.elapsed.append((i, factor, True))
    elif label and (
        lex.has("per_step", label)
        or label[-1] in {"seconds", "secs", "time", "t", "用时"}
        or lex.is_("step", label[-1])
        or (timed and label[-1] in {"time", "in"})
    ):
        strong = "per" in label or lex.has("per_step", label[:-1])
        plan.paces.append((i, factor, strong))
    elif timed and not label:
        plan.paces.append((i, factor, False))
    else:
        return timed
    return True
