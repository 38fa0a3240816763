"""Plots of one run or several: `schedmate simulate --plot DIR`. Matplotlib comes with the extra `sim`, and is loaded when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from schedmate.simulator.measures import HOUR_S, SIZES
from schedmate.simulator.trace import TraceError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES: Final = ("jct_cdf", "wait_by_size", "allocation", "fragmentation", "gantt")
COLOURS: Final = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#f0e442",
)  # Okabe and Ito
STYLES: Final = ("-", "--", ":", "-.")
SIZE_COLOURS: Final = ("#9ecae1", "#4292c6", "#08519c", "#fd8d3c", "#a63603")
GANTT_RUNS_MAX: Final = 6
DPI: Final = 120


class PlotError(TraceError):
    """Plots cannot be drawn; the message says what to install, or where they cannot be written."""


def check_plots(folder: Path) -> None:
    """Refuse to plot before anything is simulated.

    Raises:
        PlotError: Matplotlib is not there, or the folder cannot be made.
    """
    try:
        import matplotlib  # noqa: F401, ICN001, PLC0415 - an extra, wanted by plots alone
    except ImportError as error:
        raise PlotError(f"plots need Matplotlib, which is not there ({error}): pip install 'schedmate[sim]'") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlotError(f"the folder {folder} for the plots cannot be made: {error.strerror}") from error


def draw(folder: Path, title: str, results: Sequence[dict[str, Any]]) -> list[Path]:
    """Draw the runs, each plot with all of them; return the files. Each result has its `curves` (simulator/curves.py)."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra; Figure without pyplot needs no screen

    made = []
    for name in NAMES:
        figure = Figure(figsize=(9, 5), layout="constrained")
        _DRAWN[name](figure, results)
        figure.suptitle(title, fontsize=10)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=DPI, metadata={"Software": None})
        made.append(path)
    return made


def _label(result: dict[str, Any]) -> str:
    return str(result["policy"]) if result["advice"] == "none" else f"{result['policy']}, {result['advice']}"


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": STYLES[number // len(COLOURS) % len(STYLES)],
        "linewidth": 1.3,
    }


def _jct_cdf(figure: Figure, results: Sequence[dict[str, Any]]) -> None:
    axes = figure.subplots()
    for number, result in enumerate(results):
        jcts = result["curves"]["jct_s"]
        axes.plot([max(v, 1.0) for v in jcts], [n / max(len(jcts) - 1, 1) for n in range(len(jcts))], label=_label(result), **_style(number))  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("job completion time, s")
    axes.set_ylabel("share of the jobs")
    axes.set_ylim(0, 1)
    _finish(axes)


def _wait_by_size(figure: Figure, results: Sequence[dict[str, Any]]) -> None:
    """Bars from 0 to the mean; the mark above is the 99th percentile."""
    axes = figure.subplots()
    sizes = [name for name, _, _ in SIZES]
    width = 0.8 / max(len(results), 1)
    for number, result in enumerate(results):
        rows = [result["jwtd"].get(name, {}) for name in sizes]
        at = [place + (number - (len(results) - 1) / 2) * width for place in range(len(sizes))]
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(at, [row.get("mean_s") or 0.0 for row in rows], width, label=_label(result), color=colour)
        axes.scatter(at, [row.get("p99_s") or 0.0 for row in rows], marker="_", color=colour, s=60)
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("GPUs of the job")
    axes.set_ylabel("waiting, s: mean (bar), 99th percentile (mark)")
    _finish(axes)


def _over_time(figure: Figure, results: Sequence[dict[str, Any]], key: str, what: str) -> None:
    axes = figure.subplots()
    for number, result in enumerate(results):
        curves = result["curves"]
        axes.step([t / HOUR_S for t in curves["times_s"]], curves[key], where="post", label=_label(result), **_style(number))  # fmt: skip
    if results:
        axes.axvline(results[0]["curves"]["submitted_s"] / HOUR_S, color="#999999", linewidth=0.8)
    axes.set_xlabel("hours since the first submission (line: the last submission)")
    axes.set_ylabel(what)
    axes.set_ylim(0, 1)
    _finish(axes)


def _allocation(figure: Figure, results: Sequence[dict[str, Any]]) -> None:
    _over_time(figure, results, "allocated", "allocated / all GPUs")


def _fragmentation(figure: Figure, results: Sequence[dict[str, Any]]) -> None:
    _over_time(figure, results, "fragmented", "share of nodes with 0 < free < all GPUs")


def _gantt(figure: Figure, results: Sequence[dict[str, Any]]) -> None:
    """One row a GPU, the first ones of the cluster; the colour tells the job's size."""
    shown = results[:GANTT_RUNS_MAX]
    rows = max((len(result["curves"]["gantt"]) for result in shown), default=1)
    figure.set_size_inches(11, min(max(1.2 + rows * 0.09, 2.5) * max(len(shown), 1), 40))
    for axes, result in zip(figure.subplots(max(len(shown), 1), squeeze=False, sharex=True)[:, 0], shown, strict=False):
        gantt = result["curves"]["gantt"]
        for place, bars in enumerate(gantt.values()):
            spans = [(start / HOUR_S, length / HOUR_S) for start, length, _ in bars]
            axes.broken_barh(spans, (place - 0.5, 1.0), facecolors=[_size_colour(bar[2]) for bar in bars])
        axes.set_ylabel(_label(result))
        axes.set_ylim(-0.5, max(len(gantt), 1) - 0.5)
        names = list(gantt)
        marked = range(0, len(names), max(1, len(names) // 8))
        axes.set_yticks(list(marked), [names[n] for n in marked], fontsize=6)
        axes.set_xlabel(
            f"hours; the first {len(names)} GPUs; light to dark: 1, 2-4, 5-8 GPUs; orange: more than a node"
        )


def _size_colour(gpus: float) -> str:
    for colour, (_, low, high) in zip(SIZE_COLOURS, SIZES, strict=False):
        if low <= gpus <= high:
            return colour
    return SIZE_COLOURS[-1]


def _finish(axes: Axes) -> None:
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    axes.legend(fontsize=8)


_DRAWN: Final = {
    "jct_cdf": _jct_cdf,
    "wait_by_size": _wait_by_size,
    "allocation": _allocation,
    "fragmentation": _fragmentation,
    "gantt": _gantt,
}
