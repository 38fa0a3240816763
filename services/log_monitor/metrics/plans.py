"""From a shape to a plan: which numbers of a line are counters, totals, epochs, losses, rates and times, by the words around them."""

from __future__ import annotations

import re
from typing import Final

from schedmate.schemas.events import Phase
from schedmate.services.log_monitor.metrics.lexicon import lexicon, words_of
from schedmate.services.log_monitor.metrics.measures import (
    place_clock,
    place_loss,
    place_rate,
    place_time,
    place_unit_per_step,
    time_factor,
)
from schedmate.services.log_monitor.metrics.plan import CounterSlot, Plan
from schedmate.services.log_monitor.metrics.shapes import Shape, Slot, unit_meaning

_RESUME: Final = re.compile(
    r"(?i)\b(?:resum(?:e|ed|ing)|restor(?:e|ed|ing)|loaded (?:\w{1,20} )?checkpoint|loading (?:\w{1,20} )?checkpoint|continu(?:e|ed|ing) training|skip(?:ping)? the first|restart(?:ed|ing)?)\b"
)
_FOLLOWS: Final = re.compile(r"^\s?([A-Za-z]{1,12}(?: [A-Za-z]{1,12}){0,2})\s?(?:[,;|)\t]|$|\s{2})")
_PROGRESS: Final = frozenset(
    {"progress", "complete", "completed", "done", "percentage", "percent", "fortschritt", "进度"}
)


def plan_of(shape: Shape, text: str, header: tuple[str, ...] | None = None) -> Plan:
    """Return the plan for a line's shape. `header` names the columns of a bare row."""
    plan = Plan()
    slots = shape.slots
    labels = [_own_label(slots, i) for i in range(len(slots))]
    if header is not None and len(header) == len(slots):
        labels = [words_of(name) for name in header]
    for i, slot in enumerate(slots):
        if slot.pair:
            continue
        _place(plan, shape, i, slot, labels[i])
    _settle_others(plan, shape)
    _read_text(plan, shape, text, labels)
    return plan


def _place(  # noqa: C901, PLR0911, PLR0912 - a decision list, in order of certainty
    plan: Plan, shape: Shape, i: int, slot: Slot, label: list[str]
) -> None:
    if slot.kind == "stamp":
        plan.stamp = i if plan.stamp is None else plan.stamp
        return
    before, after = shape.texts[i], shape.texts[i + 1]
    if slot.kind == "clock":
        place_clock(plan, i, label, before, after)
        return
    lex = lexicon()
    follows = _FOLLOWS.match(after)
    following = words_of(follows.group(1))[:3] if follows is not None else []
    if lex.has("left", label) or lex.has("left", following):
        plan.left.append((i, time_factor(slot)))
        return
    if following[1:2] == ["elapsed"] and slot.unit.lower() in lex.units:
        plan.elapsed.append((i, time_factor(slot), True))
        return
    meaning = unit_meaning(slot.unit) if slot.unit else None
    if place_rate(plan, i, label, meaning, after):
        return
    if place_loss(plan, i, label, following):
        return
    if place_unit_per_step(plan, i, label):
        return
    if (
        lex.has("time", label)
        and ("per" in label or label[-1] in {"time", "cost"})
        and place_time(plan, i, label, meaning)
    ):
        return
    total = i + 1 if i + 1 < len(shape.slots) and shape.slots[i + 1].pair else None
    if slot.percent and total is None:
        beside = before.strip() == "(" and i > 0 and not any(s.pair for s in shape.slots)
        if plan.percent is None and (beside or ((not label or _PROGRESS & set(label)) and not before.endswith("("))):
            plan.percent = i
        return
    if _place_epoch(plan, shape, i, label, total):
        return
    if _place_counter(plan, shape, i, label, total):
        return
    if _place_announced(plan, shape, i, label):
        return
    if place_time(plan, i, label, meaning):
        return
    if not lex.has("other", label):
        plan.unknown.append(i)


def _settle_others(plan: Plan, shape: Shape) -> None:
    """`40 / 5000 tasks; 3.1 tasks/sec`, or a bar's own rate: what is counted is what the rate counts."""
    for slot, factor in plan.others:
        noun = shape.slots[slot].unit.lower().split("/")[0].strip()
        units = {shape.slots[c.total].unit.lower() for c in plan.counters if c.total is not None}
        in_bar = shape.texts[slot].strip() == "," and slot > 1 and shape.texts[slot - 1].endswith("<")
        if noun in units or (in_bar and any(c.bar for c in plan.counters)):
            plan.rates.append((slot, factor, False))


def _own_label(slots: tuple[Slot, ...], i: int) -> list[str]:
    """The words before a number without those that are the unit of the number before it."""
    label = list(slots[i].label)
    if i == 0 or not slots[i - 1].unit:
        return label
    unit = words_of(slots[i - 1].unit)
    if len(label) > len(unit) and label[: len(unit)] == unit:
        return label[len(unit) :]
    return label


def _place_epoch(plan: Plan, shape: Shape, i: int, label: list[str], total: int | None) -> bool:
    lex = lexicon()
    last_unit = shape.slots[total].unit if total is not None else shape.slots[i].unit
    by_step_unit = bool(last_unit) and lex.is_("step", last_unit.lower().split(" ")[0])
    by_label = (
        not by_step_unit
        and any(lex.is_("epoch", word) for word in label[-2:])
        and not lex.has("other", [w for w in label if not lex.is_("eval", w)])
    )
    by_unit = bool(last_unit) and lex.is_("epoch", last_unit.lower().split(" ")[0])
    if not by_label and not by_unit:
        return total is None and _before_bracketed_pair(plan, shape, i)
    if total is None and (
        {"total", "max", "num", "maximum", "target", "scheduled", "final"} & set(label) or label[-1:] == ["epochs"]
    ):
        plan.announced.append((i, "epochs"))
        return True
    if total is None and by_unit and not by_label and _announces(shape.texts[i]):
        plan.announced.append((i, "epochs"))
        return True
    if plan.epoch is None:
        plan.epoch, plan.epochs = i, total
        if total is None and by_label:
            plan.epoch_base = 0 if shape.texts[i].rstrip(" [(").endswith(":") else None
    return True


_OPENS: Final = re.compile(r"^\]?\s{0,4}\[\s{0,8}$")


def _before_bracketed_pair(plan: Plan, shape: Shape, i: int) -> bool:
    """`Name: 12 [ 50/1251 ...`: a number right before a bracketed pair is the round that the pair is in."""
    slots = shape.slots
    if plan.epoch is not None or i + 2 >= len(slots) or not slots[i + 2].pair or slots[i + 1].pair:
        return False
    if _OPENS.match(shape.texts[i + 1]) is None or not shape.texts[i].strip():
        return False
    plan.epoch = i
    plan.epoch_base = 0 if shape.texts[i].rstrip(" [(").endswith(":") else None
    return True


_OF_A_COUNTER: Final = frozenset(
    {"train", "num", "count", "global", "val", "cur", "current", "now", "done", "idx", "index"}
)


def _announces(before: str) -> bool:
    words = words_of(before[-24:])
    return bool(words) and words[-1] in {
        "for",
        "to",
        "of",
        "with",
        "mit",
        "pour",
        "run",
        "running",
        "train",
        "training",
        "total",
        "max",
        "共",
    }


def _place_counter(  # noqa: PLR0911 - a decision list
    plan: Plan, shape: Shape, i: int, label: list[str], total: int | None
) -> bool:
    lex = lexicon()
    slot = shape.slots[i]
    name = [w for w in label if not w.isdigit()]
    unit = (shape.slots[total].unit if total is not None else slot.unit).lower().split(" ")[0].split("/")[0]
    head = name[-1] if name else ""
    qualified = [w for w in name if not lex.is_("step", w)]
    named = (bool(head) and lex.is_("step", head)) or (
        len(name) > 1 and lex.is_("step", name[-2]) and head in _OF_A_COUNTER
    )
    if named and total is None and slot.unit.lower() in lex.units:
        return False  # `t_iter=0.4s` is a time
    if named and lex.has("other", [w for w in qualified if not lex.is_("eval", w)]):
        return head not in {"step", "iter", "iteration"} or total is None
    if not named and unit and lex.is_("step", unit) and unit not in {"it", "up", "ts"} and not lex.has("other", name):
        if total is None and (
            _announces(shape.texts[i]) or (unit.endswith("s") and shape.texts[i + 1].startswith(" "))
        ):
            return False  # "for 200 steps" announces; "200 steps" may be anything, and is for the induction
        named, head, name = True, unit, [*name[-1:], unit] if total is None else [unit]
    if (
        total is None
        and named
        and (
            lex.has("total", qualified)
            or (
                head in {"steps", "iters", "iterations", "rounds", "nsteps", "nstep", "updates"}
                and not {"current", "global"} & set(qualified)
            )
        )
    ):
        within = "per" in label or "per" in words_of(shape.texts[i + 1])[:3]
        loader = within or {"dataloader", "loader"} & set(words_of(shape.free))
        plan.announced.append((i, "inner" if loader else "steps"))
        return True
    if not named and total is None and not slot.open_end:
        return False
    if not named and (lex.has("samples", name[-1:]) or unit in {"gib", "gb", "mib", "mb"}):
        return True
    if not name:
        previous = shape.slots[i - 1] if i else None
        name = list(previous.label) if previous is not None and previous.percent and not previous.pair else []
        name = name or words_of(shape.texts[i].replace("|", " "))[-3:]
    plan.counters.append(
        CounterSlot(
            i, total, " ".join(name[-3:]), named,
            inner=lex.is_("inner", head) if head else False,
            frame=lex.has("frame", name),
            whole=bool({"global", "env", "current", "num"} & set(name)) or head in {"updates", "interacts"},
            bar=_is_bar(shape, i, total),
            epoch_bar=lex.has("epoch", name),
        )
    )  # fmt: skip
    return True


def _is_bar(shape: Shape, i: int, total: int | None) -> bool:
    after = shape.texts[(total if total is not None else i) + 1]
    before = shape.texts[i]
    return "|" in before or "\u2501" in before or "[" in after[:3]


def _place_announced(  # noqa: PLR0911 - a decision list
    plan: Plan, shape: Shape, i: int, label: list[str]
) -> bool:
    lex = lexicon()
    slot = shape.slots[i]
    unit = slot.unit.lower()
    if lex.has("other", [w for w in label if w != "size"]) or shape.texts[i].rstrip().endswith(("<",)):
        return False
    if lex.has("samples", label[-1:]) and {"num", "total", "train"} & set(label):
        plan.announced.append((i, "samples"))
        return True
    if label[-2:] == ["batch", "size"]:
        plan.announced.append((i, "batch" if not {"total", "global"} & set(label) else "global_batch"))
        return True
    if unit and lex.is_("step", unit) and unit not in {"it", "up"}:
        within = {"dataloader", "loader", "epoch"} & set(words_of(shape.free))
        if within or _announces(shape.texts[i]):
            plan.announced.append((i, "inner" if within or unit in lex.words["inner"] else "steps"))
        return True
    if label and any(lex.is_("step", word) for word in label[-2:]) and lex.has("total", label):
        plan.announced.append((i, "steps"))
        return True
    if label in (["run"], ["n", "max"], ["of"]):
        plan.announced.append((i, "steps"))
        return True
    return False


def _read_text(plan: Plan, shape: Shape, text: str, labels: list[list[str]]) -> None:
    lex = lexicon()
    counted = {c.slot for c in plan.counters} | ({plan.epoch} if plan.epoch is not None else set())
    own = eval_slots = metric_slots = 0
    for i, slot in enumerate(shape.slots):
        if slot.kind != "num" or slot.pair:
            continue
        evaluated = lex.has("eval", labels[i])
        if i in counted:
            own += evaluated
        elif evaluated and not lex.has("time", labels[i]):
            eval_slots += 1
        elif any(s == i for s, _ in plan.losses):
            metric_slots += 1
    plan.evaluates = bool(own) or (eval_slots > 0 and metric_slots == 0) or _eval_head(shape)
    plan.resumes = _RESUME.search(text) is not None
    if plan.evaluates:
        plan.phase = Phase.EVAL
        return
    for phrase in lex.phrases:
        if phrase.pattern.search(text) is not None:
            plan.phase = phrase.phase
            break


_BRACKETED: Final = re.compile(
    r"(?i)[\[(](?:valid\w{0,6}|val|eval\w{0,6}|test)[\])]|^\s{0,8}(?:valid\w{0,6}|eval\w{0,7}|test\w{0,3})\b|===> epoch \d{1,6}: test|\btesting net|\b(?:validat\w{1,5}|evaluat\w{1,5})\b.{0,30}:"
)


def _eval_head(shape: Shape) -> bool:
    return _BRACKETED.search("0".join(shape.texts)) is not None
