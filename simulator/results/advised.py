"""Each policy with and without SchedMate's advice, side by side: average and tail, what it closes, the ratio to first in, first out.

And where it does not help, ground by ground, from the same runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from schedmate.simulator.results.grid import SCHEDMATE
from schedmate.simulator.results.intervals import Interval, gained, share_closed
from schedmate.simulator.results.ledger import Line
from schedmate.simulator.results.tables import gain, percent, seconds, table
from schedmate.simulator.results.worth import Lines, comparable, title_of

PAPER_RATIO: Final = 1.91
"""By the paper: the average JCT of first in, first out over that with its advisor."""
AIM: Final = 0.9
"""The share of what true run times gain that SchedMate's advice should gain."""
LONGER: Final = 1.01
"""A tail is called longer when it is so many times as long."""
_RAW: Final = (("learned_s (raw)", "learned key, raw"), ("planned_s (raw)", "own plan known, raw"))
_TAILS: Final = (("p99_jct_s", "p99 of the JCT"), ("p999_wait_s", "p99.9 of the wait"))


@dataclass(frozen=True, slots=True)
class Advised:
    """A policy that takes advice: its runs without, with SchedMate's, and with true run times; what is gained, and closed of the base's gap.

    `closed` is None where true run times gain nothing over the base: there is nothing to close.
    """

    policy: str
    without: Line
    told: Line
    true: Line | None
    over_itself: Interval
    over_base: Interval
    closed: Interval | None

    @property
    def idle(self) -> bool:
        """Did the advice change nothing?"""
        return self.without.blocks == self.told.blocks

    @property
    def longer(self) -> list[str]:
        """Name the tails that are longer with advice."""
        return [name for key, name in _TAILS if _figure(self.told, key) > LONGER * _figure(self.without, key) > 0]


def advised(lines: Lines, base: Line) -> list[Advised]:
    """Return every policy that was run without and with SchedMate's advice on the base's jobs."""
    found = []
    for (policy, advice), told in sorted(lines.items()):
        without, true = lines.get((policy, "none")), lines.get((policy, "oracle"))
        if advice != SCHEDMATE or without is None or not comparable(base, told) or not comparable(base, without):
            continue
        closed = share_closed(base.blocks, told.blocks, true.blocks) if true is not None and comparable(base, true) else None  # fmt: skip
        found.append(
            Advised(policy, without, told, true, gained(without.blocks, told.blocks), gained(base.blocks, told.blocks), closed)
        )  # fmt: skip
    return found


def advised_table(lines: Lines, base: Line) -> str:
    """Every policy of a ground with and without SchedMate's advice; empty where none was run with it."""
    found = {one.policy: one for one in advised(lines, base)}
    fifo = lines.get(("fifo", "none"))
    if not found or fifo is None:
        return ""
    raw = [{policy: line for (policy, advice), line in lines.items() if advice == label} for label, _ in _RAW]
    shown = [n for n, runs in enumerate(raw) if runs]
    rows = []
    for policy in sorted({policy for policy, advice in lines if advice == "none"}):
        without, one = lines[policy, "none"], found.get(policy)
        cells = [f"`{policy}`", _average(without)]
        if one is None:
            cells += ["", "", *("" for _ in shown), "", "", _tail(without, None, 0), _tail(without, None, 1)]
            rows.append((*cells, _ratio(fifo, without), "", ""))
            continue
        cells += [_average(one.told), _average(one.true), *(_average(raw[n].get(policy)) for n in shown)]
        cells += ["nothing" if one.idle else gain(one.over_itself), percent(one.closed)]
        cells += [_tail(without, one.told, 0), _tail(without, one.told, 1)]
        rows.append((*cells, _ratio(fifo, without), _ratio(fifo, one.told), _ratio(fifo, one.true)))
    head = (
        "policy", "average JCT without", "with", "true run times", *(_RAW[n][1] for n in shown), "gained by the advice", "share closed",
        "p99 JCT, without → with", "p99.9 wait, without → with", "FIFO / without", "FIFO / with", "FIFO / true",
    )  # fmt: skip
    return (
        f"**Each policy with and without SchedMate's advice** (`{SCHEDMATE}`: what history-estimator says, clamped and weighed by trust, as a live pool has it). Gained: over the same policy without it. "
        f"Share closed: of what the same policy with true run times gains over {title_of(base.case)}, the best without advice; `-` where that is nothing. {_beside_the_paper(found, fifo, base)}\n\n"
        f"{table(head, rows)}\n"
    )


def where_not(lines: Lines, base: Line, name: str) -> str:
    """Say where SchedMate's advice does not help on a ground, empty where it was not run."""
    found = advised(lines, base)
    if not found:
        return ""
    return f"**{name[0].upper()}{name[1:]}.** " + " ".join((*_limits(found, base), *_beyond(lines, base)))


def _limits(found: Sequence[Advised], base: Line) -> Iterator[str]:
    best = title_of(base.case)
    none = [one for one in found if one.idle]
    if none:
        yield f"It changes nothing for {_names(none)}: nothing is believed in time."
    real = [one for one in found if not one.idle]
    hopeless = [one for one in real if one.closed is None]
    if hopeless:
        yield f"{_names(hopeless)} {'stay' if len(hopeless) > 1 else 'stays'} behind {best} even with true run times: there advice about run times has nothing to close."
    behind = [one for one in real if one.closed is not None and not one.over_base.above_zero]
    if behind:
        yield f"Over {best} it gains nothing beyond chance with {_listed(behind)}."
    ahead = [one for one in real if one.closed is not None and one.over_base.above_zero]
    short = [one for one in ahead if one.closed is not None and one.closed.value < AIM]
    reached = [one for one in ahead if one not in short]
    if reached:
        yield f"It closes the {100 * AIM:.0f} % that it aims at with {_listed(reached)}."
    if short:
        yield f"It gains, but closes less than the {100 * AIM:.0f} % that it aims at, with {_listed(short)}."
    worse = [one for one in real if one.over_itself.below_zero]
    if worse:
        listed = ", ".join(f"`{one.policy}` ({-one.over_itself.value:,.0f} s)" for one in worse)
        yield f"Worse than the same policy without advice: {listed}."
    if tails := [f"`{one.policy}` ({' and '.join(one.longer)})" for one in real if one.longer]:
        yield f"The tail is longer with it under {', '.join(tails)}."


def _beyond(lines: Lines, base: Line) -> Iterator[str]:
    """What knowing each job's own plan exactly closes: the most that any prediction of the run time can be expected to."""
    shares = []
    for (policy, advice), line in sorted(lines.items()):
        true = lines.get((policy, "oracle"))
        if advice == _RAW[1][0] and true is not None and comparable(base, line) and comparable(base, true):
            closed = share_closed(base.blocks, line.blocks, true.blocks)
            shares += [(policy, closed)] if closed is not None else []
    if shares:
        listed = ", ".join(f"{percent(closed)} with `{policy}`" for policy, closed in shares)
        short = all(closed.value < AIM for _, closed in shares)
        yield (
            f"A job's own plan known exactly, but not whether it will be cancelled or fail, closes {listed}"
            + (f": {100 * AIM:.0f} % is beyond any prediction of the run time here." if short else ".")
        )


def _beside_the_paper(found: dict[str, Advised], fifo: Line, base: Line) -> str:
    """The ratio to first in, first out, at its best and at its worst, and what the best without advice has of it."""
    ratios = sorted((_jct(fifo) / _jct(one.told), policy) for policy, one in found.items())
    (low, worst), (high, best) = ratios[0], ratios[-1]
    return (
        f"The paper reports {PAPER_RATIO:g}x over first in, first out for its advisor; here the ratio with advice is {low:.2f}x (`{worst}`) to {high:.2f}x (`{best}`), "
        f"and {_jct(fifo) / _jct(base):.2f}x without any ({title_of(base.case)})."
    )


def _names(found: Sequence[Advised]) -> str:
    return ", ".join(f"`{one.policy}`" for one in found)


def _listed(found: Sequence[Advised]) -> str:
    return ", ".join(f"`{one.policy}` ({gain(one.over_base)} s; {percent(one.closed)} closed)" for one in found)


def _figure(line: Line, key: str) -> float:
    return float(line.figures.get(key) or 0.0)


def _jct(line: Line) -> float:
    return float(line.figures["avg_jct_s"])


def _average(line: Line | None) -> str:
    return "" if line is None else seconds(_jct(line))


def _ratio(fifo: Line, line: Line | None) -> str:
    return "" if line is None else f"{_jct(fifo) / _jct(line):.2f}x"


def _tail(without: Line, told: Line | None, which: int) -> str:
    key = _TAILS[which][0]
    before = seconds(_figure(without, key))
    return before if told is None else f"{before} → {seconds(_figure(told, key))}"
