"""The section on wrong advice: what `benchmarks/robustness.py` found over its seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any, Final

from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.simulator.plots import COLOURS
from schedmate.simulator.results.tables import table

ALLOWED: Final = 1.02
COMMAND: Final = "python benchmarks/robustness.py --results results/robustness.jsonl"
PICTURE: Final = "robustness.svg"
_Z: Final = 1.959964
_STYLE: Final[dict[Any, Any]] = {"svg.hashsalt": "schedmate", "svg.fonttype": "none", "font.size": 9}
_GROUNDS: Final = {"week": "the peer week, 54 nodes"}


@dataclass(frozen=True, slots=True)
class Share:
    """A figure over its seeds as a share of the one without advice: the mean and half the width of its 95 % interval."""

    seeds: int
    mean: float
    half: float

    def text(self) -> str:
        """Return it as the page writes it."""
        return f"{self.mean:.3f} ± {self.half:.3f}" if self.seeds > 1 else f"{self.mean:.3f}"


Key = tuple[str, str, str]
"""Setting (`week` or a node factor), policy, advice."""


def shares_of(path: Path) -> dict[Key, tuple[Share, Share]]:
    """Return the shares of the average JCT and of the p99.9 wait; nothing where nothing was measured."""
    runs: dict[Key, dict[int, dict[str, float]]] = {}
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        if line.strip():
            run = json.loads(line)
            runs.setdefault((run["setting"], run["policy"], run["advice"]), {})[run["seed"]] = run
    out: dict[Key, tuple[Share, Share]] = {}
    for (setting, policy, advice), by_seed in sorted(runs.items()):
        without = runs.get((setting, policy, "none"), {})
        if (
            advice != "none" and 0 in without
        ):  # what jobs share is drawn by the seed: then each seed has a run without advice
            first, second = (
                [run[name] / without.get(seed, without[0])[name] for seed, run in by_seed.items()]
                for name in ("avg_jct_s", "p999_wait_s")
            )
            out[setting, policy, advice] = (share_of(first), share_of(second))
    return out


def share_of(values: Sequence[float]) -> Share:
    """Return the mean with Student's interval, its quantile from the normal one (Abramowitz and Stegun, 26.7.5)."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return Share(1, mean, 0.0)
    free = len(values) - 1
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / free)
    quantile = _Z + (_Z**3 + _Z) / (4 * free) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * free**2)
    return Share(len(values), mean, quantile * deviation / sqrt(len(values)))


def robustness_section(path: Path, pictures: Path) -> str:
    """Return the section, and draw its picture; where nothing was measured, say how it is."""
    head = (
        "## Wrong advice\n\nMeans over seeds as shares of the same policy without advice, with 95 % intervals. `random` is a permutation of the true run times, "
        f"`noisy:S` multiplies them by exp(N(0, S²)). Written of the lines of\n\n    {COMMAND}\n\n"
    )
    shares = shares_of(path)
    if not shares:
        return head + "which has not been run yet here.\n"
    _draw(shares, pictures / PICTURE)
    rows = [
        (_ground(setting), f"`{policy}`", advice, str(jct.seeds), jct.text(), wait.text())
        for (setting, policy, advice), (jct, wait) in sorted(shares.items(), key=lambda item: (item[0][:2], _rank(item[0][2])))
    ]  # fmt: skip
    columns = ("on", "policy", "advice", "seeds", "average JCT", "p99.9 wait")
    return f"{head}{_random(shares)} {_noise(shares)}\n\n![Average JCT over the noise of the advice](pictures/{PICTURE})\n\n{table(columns, rows)}\n"


def _random(shares: Mapping[Key, tuple[Share, Share]]) -> str:
    """Say whether random advice costs more than it may."""
    found = {key: told for key, told in shares.items() if key[2] == "random"}
    if not found:
        return ""
    worst = max(max(jct.mean, wait.mean) for jct, wait in found.values())
    over = [f"`{policy}` on {_ground(setting)}" for (setting, policy, _), told in found.items() if any(share.mean > ALLOWED for share in told)]  # fmt: skip
    said = f"Random advice costs at most {100 * (worst - 1):.1f} % of the average JCT or of the p99.9 wait" if worst > 1 else "Random advice costs nothing"  # fmt: skip
    return f"{said} ({len(found)} policies and settings)" + (f", **more than the 2 % allowed** under {', '.join(over)}." if over else ".")  # fmt: skip


def _noise(shares: Mapping[Key, tuple[Share, Share]]) -> str:
    """Say whether more noise makes it worse: the average JCT, or, under backfilling, the p99.9 wait."""
    noisy: dict[tuple[str, str], list[tuple[float, Share, Share]]] = {}
    for (setting, policy, advice), (jct, wait) in shares.items():
        if advice.startswith("noisy:"):
            noisy.setdefault((setting, policy), []).append((_rank(advice)[1], jct, wait))
    falls, flat = [], set()
    for (setting, policy), told in sorted(noisy.items()):
        told.sort(key=lambda one: one[0])
        backfills = policy_named(policy).backfills
        falls += [
            f"`{policy}` on {_ground(setting)} at S = {sigma:g}"
            for sigma in _falling([(s, w if backfills else j) for s, j, w in told])
        ]
        if backfills and told[-1][1].mean <= told[0][1].mean:
            flat.add(policy)
    if not noisy:
        return ""
    text = "The more noise, the higher the average JCT, within its intervals, everywhere"
    if any(policy_named(policy).backfills for _, policy in noisy):
        text += " (under backfilling: the p99.9 wait, which its reservations are for)"
    if falls:
        text = f"More noise is not always worse: beyond the intervals it gets better with {', '.join(falls)}"
    if flat:
        text += (
            f". The average JCT of {', '.join(f'`{policy}`' for policy in sorted(flat))} does not rise with the noise: whoever overruns a reservation lets short jobs pass the head, "
            'as is known of backfilling (Tsafrir and Feitelson, "The dynamics of backfilling: solving the mystery of why increased inaccuracy may help", IISWC 2006)'
        )
    return f"{text}."


def _falling(told: Sequence[tuple[float, Share]]) -> list[float]:
    """Return the sigmas at which the figure is lower than before, beyond the intervals."""
    return [
        sigma for (_, before), (sigma, after) in pairwise(told) if after.mean + after.half < before.mean - before.half
    ]


def _ground(setting: str) -> str:
    return _GROUNDS.get(setting, f"Philly October, f = {setting}")


def _rank(advice: str) -> tuple[int, float]:
    return (1, float(advice.partition(":")[2].partition(",")[0])) if advice.startswith("noisy:") else (0, 0.0)


def _draw(shares: Mapping[Key, tuple[Share, Share]], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    settings = sorted({setting for setting, _, _ in shares}, key=lambda setting: (setting in _GROUNDS, setting))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(3.2 * len(settings), 3), layout="constrained")
        panels = figure.subplots(1, len(settings), squeeze=False)[0]
        for axes, setting in zip(panels, settings, strict=True):
            for place, policy in enumerate(sorted({key[1] for key in shares if key[0] == setting})):
                told = sorted((_rank(advice), advice, jct) for (s, p, advice), (jct, _) in shares.items() if (s, p) == (setting, policy))  # fmt: skip
                axes.errorbar([advice.removeprefix("noisy:") for _, advice, _ in told], [jct.mean for _, _, jct in told],
                              yerr=[jct.half for _, _, jct in told], fmt="o-", markersize=3, linewidth=0.8, color=COLOURS[place], label=policy)  # fmt: skip
            axes.axhline(1.0, color="#888888", linewidth=0.6)
            axes.set_title(_ground(setting), fontsize=8)
            axes.set_xlabel("random, then sigma of the noise")
        panels[0].set_ylabel("average JCT / without advice")
        panels[0].legend(fontsize=7)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
