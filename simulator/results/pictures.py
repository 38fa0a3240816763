"""The pictures of the results page: small SVGs, the same bytes from the same runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schedmate.simulator.plots import COLOURS, check_plots
from schedmate.simulator.results.grid import ADVICE, GROUNDS, Ground
from schedmate.simulator.results.ledger import Line
from schedmate.simulator.results.worth import Lines, best_without, by_advice, worths

_STYLE: Final[dict[Any, Any]] = {"svg.hashsalt": "schedmate", "svg.fonttype": "none", "font.size": 9}
_TICKS: Final = (1, 2, 3, 5)
_CURVES: Final = (("fifo", "none"), ("smallest", "none"), ("srtf", "none"), ("sjf", "oracle"), ("srtf", "oracle"))


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture and what it shows."""

    ground: str
    name: str
    says: str


def draw_pictures(folder: Path, lines: Mapping[str, Line]) -> list[Picture]:
    """Draw what there are runs for; return the pictures."""
    check_plots(folder)
    out = []
    for ground in GROUNDS:
        own = by_advice(lines, ground.name)
        if ground.full and best_without(own) is not None:
            out += [_worth(folder, ground, own), _cdf(folder, ground, own)]
    return out


def _worth(folder: Path, ground: Ground, lines: Lines) -> Picture:
    """Average JCT of each policy and advice; a line at the best without advice, whiskers the interval of the difference to it."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    base = best_without(lines)
    assert base is not None
    level = base.figures["avg_jct_s"]
    gains = {(w.line.case.policy, w.line.case.label): w.gained_s for w in worths(lines, base)}
    names = sorted({policy for policy, _ in lines})
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 0.6 + 0.27 * len(names)), layout="constrained")
        axes = figure.subplots()
        for place, advice in enumerate(ADVICE):
            found = [(n, lines[name, advice]) for n, name in enumerate(names) if (name, advice) in lines]
            if not found:
                continue
            at = [n + (place - (len(ADVICE) - 1) / 2) * 0.13 for n, _ in found]
            values = [line.figures["avg_jct_s"] for _, line in found]
            intervals = [gains.get((names[n], advice)) for n, _ in found]
            low = [v - max(level - i.high, 1.0) if i and i.high is not None else 0.0 for v, i in zip(values, intervals, strict=True)]  # fmt: skip
            high = [level - i.low - v if i and i.low is not None else 0.0 for v, i in zip(values, intervals, strict=True)]  # fmt: skip
            axes.errorbar(values, at, xerr=[[max(x, 0.0) for x in low], [max(x, 0.0) for x in high]], fmt="o", markersize=3.5,
                          linewidth=0.8, color=COLOURS[place], label=advice)  # fmt: skip
        axes.axvline(level, color="#888888", linewidth=0.8, linestyle="--")
        axes.set_xscale("log")
        low_s, high_s = axes.get_xlim()
        ticks = [value * 10.0**power for power in range(1, 8) for value in _TICKS if low_s <= value * 10.0**power <= high_s]  # fmt: skip
        axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        axes.minorticks_off()
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel(
            "average JCT, s (dashed: the best without advice; whiskers: 95 % interval of the difference to it)"
        )
        axes.legend(fontsize=7)
        return _saved(figure, folder, Picture(ground.name, f"jct-{ground.name}.svg", f"Average JCT by policy and advice, {ground.title}"))  # fmt: skip


def _cdf(folder: Path, ground: Ground, lines: Lines) -> Picture:
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 3), layout="constrained")
        axes = figure.subplots()
        for place, key in enumerate(key for key in _CURVES if key in lines):
            jcts = lines[key].jct_s
            axes.plot([max(v, 1.0) for v in jcts], [n / (len(jcts) - 1) for n in range(len(jcts))], color=COLOURS[place],
                      linewidth=1.1, label=key[0] if key[1] == "none" else f"{key[0]}, {key[1]}")  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlabel("job completion time, s")
        axes.set_ylabel("share of the jobs")
        axes.minorticks_off()
        axes.grid(visible=True, color="#dddddd", linewidth=0.5)
        axes.legend(fontsize=7)
        return _saved(figure, folder, Picture(ground.name, f"cdf-{ground.name}.svg", f"Distribution of the JCT, {ground.title}"))  # fmt: skip


def _saved(figure: Any, folder: Path, picture: Picture) -> Picture:
    figure.savefig(folder / picture.name, metadata={"Date": None, "Creator": None})
    return picture
