"""One line being read: the numbers that its plan names go into the member's metrics."""

from __future__ import annotations

import hashlib
import math
from typing import Final

from schedmate.schemas.events import Phase
from schedmate.services.log_monitor.metrics import induction, pacing
from schedmate.services.log_monitor.metrics.counting import FRESH_LINES, forget_pace, keep, move, observe
from schedmate.services.log_monitor.metrics.lexicon import words_of
from schedmate.services.log_monitor.metrics.numbers import DAY_S, clock, number, stamp
from schedmate.services.log_monitor.metrics.plan import CounterSlot, Plan
from schedmate.services.log_monitor.metrics.shapes import Shape
from schedmate.services.log_monitor.metrics.state import ANNOUNCED_MAX, Announced, Counter, Metrics

ASIDE: Final = frozenset({Phase.EVAL, Phase.LOAD, Phase.DATA_PREP, Phase.SAVE})
UNKNOWN_MAX: Final = 12
LOSS_STALE_LINES: Final = 200
LOG_BEGINS_LINES: Final = 60
PERCENT_MAX: Final = 100.0


class Reading:
    """Reads one line into the metrics."""

    __slots__ = ("arrived_at", "aside", "counted", "elapsed", "metrics", "plan", "shape", "text")

    def __init__(self, metrics: Metrics, shape: Shape, plan: Plan, text: str, arrived_at: float | None) -> None:
        self.metrics = metrics
        self.shape = shape
        self.plan = plan
        self.text = text
        self.arrived_at = arrived_at
        self.elapsed: float | None = None
        self.aside: Phase | None = None
        self.counted: list[Counter] = []

    def take(self) -> None:  # noqa: C901 - most lines have few of these parts; asking is cheaper than calling
        """Take the line in."""
        m, plan = self.metrics, self.plan
        if plan.stamp is not None or plan.daytime is not None:
            self._take_stamp()
        if plan.elapsed:
            self.elapsed = self._read_elapsed()
        if plan.resumes:
            self._resume()
            return
        self.aside = self._activity()
        if plan.announced:
            self._announce()
        if plan.epoch is not None:
            self._take_epoch()
        counter = self._take_counters() if plan.counters else None
        if self.aside is not None:
            self._in_phase(self.aside)
            return
        if plan.unknown:
            counter = self._learn(counter)
        if counter is None and self.counted:
            counter = self.counted[-1]  # of an announced length that turned out to count
        if plan.percent is not None:
            self._take_percent()
        self._take_phase(counter)
        if plan.losses:
            self._take_loss(counter)
        pacing.take(self, counter)
        if counter is not None or plan.epoch is not None:
            m.sightings += 1

    def value(self, slot: int) -> float | None:
        """Return the number in a slot; a clock's is in seconds."""
        found = self.shape.slots[slot]
        token = self.text[found.start : found.end]
        return clock(token) if found.kind == "clock" else number(token)

    def positive(self, slot: int) -> float | None:
        """Return the number in a slot if it is greater than zero."""
        value = self.value(slot)
        return value if value is not None and value > 0 else None

    def _token(self, slot: int) -> str:
        found = self.shape.slots[slot]
        return self.text[found.start : found.end]

    # --- time ------------------------------------------------------------------------------------------------------

    def _take_stamp(self) -> None:
        m, plan = self.metrics, self.plan
        if plan.stamp is not None:
            at = stamp(self._token(plan.stamp))
        else:
            assert plan.daytime is not None
            day = clock(self._token(plan.daytime))
            if day is None or day >= DAY_S:
                return
            if m.daytime is not None and day < m.daytime - DAY_S / 2:
                m.day_offset += DAY_S
            m.daytime = day
            at = day + m.day_offset
        if at is not None:
            m.stamp, m.stamp_line = at, m.line

    def _read_elapsed(self) -> float | None:
        """Return the time since the start; of several the one with the shortest name (`wall` before `train_wall`)."""
        slots = self.shape.slots
        best: tuple[int, float] | None = None
        for slot, factor, sure in self.plan.elapsed:
            value = self.value(slot) if sure else None
            if value is not None and not math.isnan(value) and (best is None or len(slots[slot].label) < best[0]):
                best = len(slots[slot].label), value * factor
        if best is None:
            return None
        self.metrics.elapsed, self.metrics.elapsed_line = best[1], self.metrics.line
        return best[1]

    def _now(self) -> tuple[str, float] | None:
        m = self.metrics
        if self.elapsed is not None:
            return "elapsed", self.elapsed
        if m.stamp is not None and m.line - m.stamp_line <= FRESH_LINES:
            return "stamp", m.stamp
        if m.elapsed is not None and m.line - m.elapsed_line <= FRESH_LINES:
            return "block", m.elapsed
        return ("arrival", float(self.arrived_at)) if self.arrived_at is not None else None

    # --- counters --------------------------------------------------------------------------------------------------

    def _activity(self) -> Phase | None:
        """Return what the line is about when it is not about training."""
        plan = self.plan
        if plan.evaluates:
            return Phase.EVAL
        if plan.phase in ASIDE and plan.counters and not any(c.named or c.epoch_bar for c in plan.counters):
            return plan.phase
        return None

    def _take_counters(self) -> Counter | None:
        chosen: Counter | None = None
        slots = self.plan.counters
        if (
            len(slots) > 1
            and slots[-1].bar
            and self.plan.epoch is None
            and not slots[0].named
            and slots[0].total is not None
        ):
            self._outer(slots[0])  # `12/50 … 60/160 [`: the first of two pairs is the round that the bar is in
            slots = slots[1:]
        for slot in slots:
            counter = self._count(slot)
            if counter is not None and (
                chosen is None or (counter.whole, counter.total is not None) > (chosen.whole, chosen.total is not None)
            ):
                chosen = counter
        return chosen

    def _outer(self, slot: CounterSlot) -> None:
        value = self.value(slot.slot)
        total = self.value(slot.total) if slot.total is not None else None
        if value is not None and value.is_integer():
            self._epoch_is(value, total, base=None, with_time=False)

    def _count(self, slot: CounterSlot) -> Counter | None:
        """Take in one counter; return it if it counts the training."""
        value = self.value(slot.slot)
        total = self.value(slot.total) if slot.total is not None else None
        if (
            value is None
            or not _plausible(value, total)
            or (total is None and not slot.whole and "." in self._token(slot.slot))
        ):
            return None
        if slot.epoch_bar and total is not None and slot.name in {"epoch", "epochs"}:
            self._epoch_is(value, total, base=0, with_time=True)
            return None
        if self.aside is not None and slot.named:
            return None
        return self._stands_at(_key(slot, total), slot, value, total)

    def _stands_at(self, key: str, slot: CounterSlot, value: float, total: float | None) -> Counter | None:
        m = self.metrics
        counter = m.counters.get(key)
        if counter is None:
            counter = self._new_counter(slot, value, total)
            keep(m, key, counter)
            observe(counter, value, self._now())
        else:
            move(m, counter, value, total, self._now())
        if self.aside is not None:
            counter.aside = self.aside.value
        counter.line = m.line
        if counter.aside is not None:
            return None
        self.counted.append(counter)
        if self.plan.epoch is not None:
            counter.with_epoch += 1
        if value > 0 and (total is not None or self.plan.known):
            self._find_twin(counter, value)
        return counter

    def _new_counter(self, slot: CounterSlot, value: float, total: float | None) -> Counter:
        counter = Counter(
            name=slot.name, last=value, first=value, named=slot.named, inner=slot.inner, frame=slot.frame,
            whole=slot.whole, bar=slot.bar or total is not None, within=slot.within, total=total, line=self.metrics.line,
        )  # fmt: skip
        unnamed = not slot.named or slot.within
        if self.aside is None and unnamed and total is not None and not self.plan.losses and self._beside(slot):
            counter.aside = Phase.EVAL.value
        return counter

    def _beside(self, slot: CounterSlot) -> bool:
        """Tell whether a bar that comes up beside a counter that runs already is another activity: an evaluation, samples."""
        training = [c for c in self.metrics.counters.values() if c.aside is None and c.moves > 0]
        if self.metrics.phase is Phase.EVAL:
            return bool(training)
        running = [c for c in training if c.moves > 1]
        return bool(running) and (not slot.name or all(c.name != slot.name for c in running if not c.named))

    def _find_twin(self, counter: Counter, value: float) -> None:
        for key, other in self.metrics.counters.items():
            if other.last == value and other is not counter and other.moves > 0 and other.aside is None:
                counter.twin = key

    def _take_percent(self) -> None:
        m, slot = self.metrics, self.plan.percent
        value = self.value(slot) if slot is not None else None
        if value is None or not 0 <= value <= PERCENT_MAX:
            return
        if m.percent is None:
            m.percent = Counter(name="%", last=value, first=value, total=PERCENT_MAX)
            observe(m.percent, value, self._now())
        else:
            move(m, m.percent, value, PERCENT_MAX, self._now())
        m.percent.line = m.line

    # --- epochs ----------------------------------------------------------------------------------------------------

    def _take_epoch(self) -> None:
        plan = self.plan
        assert plan.epoch is not None
        value = self.value(plan.epoch)
        total = self.value(plan.epochs) if plan.epochs is not None else None
        if (
            value is None
            or math.isnan(value)
            or value < 0
            or (self.aside is not None and self.metrics.epoch is not None)
        ):
            return
        self._epoch_is(value, total, plan.epoch_base, with_time=True)

    def _epoch_is(self, value: float, total: float | None, base: int | None, *, with_time: bool) -> None:
        m = self.metrics
        if total is not None and (value > total or math.isnan(total)):
            return
        m.epochs_total = total if total is not None else m.epochs_total
        if value == 0:
            m.epoch_base = 0
        elif m.epoch_base is None:
            m.epoch_base = base
        epoch = m.epoch
        if epoch is None:
            m.epoch = Counter(name="epoch", last=value, first=value, line=m.line)
            begins = m.line < LOG_BEGINS_LINES and m.resumed_at is None and not self.plan.known
            if value == 1 and base == 0 and begins:
                m.epoch_base = 1
            changed = m.epoch
        else:
            epoch.seen += 1
            epoch.line = m.line
            if value == epoch.last:
                return
            epoch.moves += value > epoch.last
            epoch.last = value
            changed = epoch
        m.epoch_line = m.line
        if with_time:
            observe(changed, value, self._now())

    # --- what else a line says -------------------------------------------------------------------------------------

    def _announce(self) -> None:
        m, shape = self.metrics, self.shape
        for slot, kind in self.plan.announced:
            value = self.positive(slot)
            if value is None or not value.is_integer():
                continue
            label = shape.slots[slot].label
            if shape.bare and m.header is not None and len(m.header) == len(shape.slots):
                label = tuple(words_of(m.header[slot]))
            key = f"{kind}:{' '.join(label)}:{shape.slots[slot].unit}"
            known = m.announced.get(key)
            if known is None:
                if len(m.announced) < ANNOUNCED_MAX and self.aside is not Phase.EVAL:
                    m.announced[key] = Announced(kind, value, m.line)
                continue
            known.same += value == known.value
            known.moves += value != known.value
            known.value = value
            if not known.constant and kind in {"steps", "inner"} and self.aside is None:
                frames = bool({"timesteps", "interacts", "frames", "env"} & set(label))
                whole = frames or bool({"total", "num"} & set(label))
                self._count(CounterSlot(slot, None, " ".join(label[-3:]), named=True, frame=frames, whole=whole))

    def _learn(self, counter: Counter | None) -> Counter | None:
        """Take the line's unnamed numbers to the induction; return the counter that it knows among them, if none is named."""
        m = self.metrics
        unknown = self.plan.unknown[:UNKNOWN_MAX]
        family = _family(self.shape, unknown[0])
        values = {slot: self.value(slot) for slot in unknown}
        for value in values.values():
            if value is not None and induction.UNIX_FROM < value < induction.UNIX_TO:
                m.stamp, m.stamp_line = value, m.line
        found = induction.learn(m, family, values, {slot: self._token(slot).isdigit() for slot in unknown}, self.shape)
        if found is None and m.learning[family].counter is None:
            m.counters.pop(f"~{family}", None)  # what was learned has not held
        if found is None or counter is not None:
            return counter
        slot, total = found
        position = values[slot]
        if position is None:
            return None
        length = values.get(total) if total is not None else None
        learned = self._stands_at(f"~{family}", CounterSlot(slot, None, "", named=False), position, length)
        if learned is not None:
            learned.learned = True
        return learned

    def _take_phase(self, counter: Counter | None) -> None:
        m, plan = self.metrics, self.plan
        if counter is not None:
            self._in_phase(Phase.TRAIN)
            return
        beside = self._aside_counter() if plan.counters else None
        if beside is not None:
            self._in_phase(Phase(beside))
        elif plan.epoch is not None and plan.phase is Phase.INFERENCE:
            self._in_phase(Phase.TRAIN)
        elif plan.phase is not None:
            self._in_phase(plan.phase)
            if plan.phase is Phase.SERVING:
                m.base_phase = Phase.SERVING
        elif plan.losses or plan.epoch is not None or plan.epoch_paces or (m.phase is None and m.percent is not None):
            self._in_phase(Phase.TRAIN)

    def _in_phase(self, phase: Phase) -> None:
        """The job is in a phase since this line, unless a later line has been read already."""
        m = self.metrics
        if m.line >= m.phase_line:
            m.phase, m.phase_line = phase, m.line

    def _aside_counter(self) -> str | None:
        names = {c.name for c in self.plan.counters}
        line = self.metrics.line
        return next(
            (c.aside for c in self.metrics.counters.values() if c.aside and c.line == line and c.name in names), None
        )

    def _take_loss(self, counter: Counter | None) -> None:
        m = self.metrics
        best: tuple[int, float] | None = None
        for slot, rank in self.plan.losses:
            if best is None or rank > best[0]:
                value = self.value(slot)
                if value is not None:
                    best = rank, value
        if best is None:
            return
        if counter is not None:
            counter.losses += 1
        rank, value = best
        if m.line < m.loss_line:
            return  # a later line has been read already
        if rank >= m.loss_rank or m.line - m.loss_line > LOSS_STALE_LINES:  # else the better name has gone
            m.loss, m.loss_rank, m.loss_line = (None if math.isnan(value) else value), rank, m.line

    def _resume(self) -> None:
        """The program goes on from somewhere."""
        m = self.metrics
        at = self._resumed_at()
        for counter in m.counters.values():
            forget_pace(counter)
            if at is not None and counter.aside is None and counter.named and at < counter.last:
                counter.last = at
                counter.falls += 1
        if m.epoch is not None:
            forget_pace(m.epoch)
        if m.sightings:
            m.loss, m.loss_rank = None, 0
        m.resumed_line = m.line
        m.resumed_at = at if at is not None else m.resumed_at
        self._in_phase(Phase.LOAD)

    def _resumed_at(self) -> float | None:
        for slot in [c.slot for c in self.plan.counters if c.named] + [s for s, _ in self.plan.announced]:
            value = self.value(slot)
            if value is not None and value.is_integer():
                return value
        return None


def _plausible(value: float, total: float | None) -> bool:
    if math.isnan(value) or value < 0 or not value.is_integer():
        return False
    return total is None or (total > 0 and value <= total)


def _key(slot: CounterSlot, total: float | None) -> str:
    """Unnamed counters are told apart by their totals; a named one is the same whatever its total is."""
    if total is None:
        return f"{slot.name}|"
    return f"{slot.name}|/" if slot.named and not slot.within else f"{slot.name}|{int(total)}"


def _family(shape: Shape, slot: int) -> str:
    """Lines that begin alike, up to an unnamed number and the word after it, are one family: what follows may vary."""
    pieces = shape.template.split("\x00")
    head = "\x00".join([*pieces[: slot + 1], pieces[slot + 1][:10]])
    return hashlib.blake2b(head.encode("utf-8", "replace"), digest_size=8).hexdigest()
