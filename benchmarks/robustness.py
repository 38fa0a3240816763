"""What wrong advice costs, over seeds: random advice against none, and noise of growing sigma.

    SCHEDMATE_TRACES=../shared/traces python benchmarks/robustness.py [--settings week,0.75,0.5] [--policies sjf,qssf,srtf,easy]
        [--advice "random;noisy:0;noisy:1;noisy:4"] [--seeds 20] [--processes 2] [--results FILE.jsonl] [--plot FILE.png]

A setting is `week` (the peer week on 54 nodes) or a node factor of Philly's October. Every finished run is a line of the results file, and
what stands there is not run again: the sweep can be stopped at any time. Random advice that no pool comes to believe changes nothing, so it
is judged along the course of the jobs without advice (`benchmarks/trust_replay.py`) and simulated only where it is believed. At the end, and with `--only-table` at once, it prints for each
policy the mean over the seeds of the average JCT and of the p99.9 wait as shares of those without advice, each with its 95 % interval
(t distribution), and tells whether

- random advice costs at most 2 %, and
- noise costs: no step to a larger sigma lowers, by more than the interval of the paired difference, the average JCT, or, of a policy that backfills,
  the p99.9 wait. Under backfilling it is the reservations that wrong estimates break; the average is as good or better with them, because whoever
  overruns a reservation lets short jobs pass the head (Tsafrir and Feitelson, "The dynamics of backfilling", IISWC 2006).

The exit status is 0 when both hold for all that was run.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from math import sqrt
from pathlib import Path
from time import process_time
from typing import Any, Final

from trust_replay import Course, Happened, replayed

from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.simulator.advice import advisor
from schedmate.simulator.cluster import Cluster, from_table, uniform
from schedmate.simulator.engine import Simulation
from schedmate.simulator.measures import measured
from schedmate.simulator.readers import read_trace
from schedmate.simulator.residents import Residents, drawn
from schedmate.simulator.runs import Setting, run_one, usable
from schedmate.simulator.trace import Trace

ALLOWED: Final = 1.02
WEEK: Final = "week"
KEPT: Final = ("avg_jct_s", "p999_wait_s", "max_wait_s", "preemptions", "finished", "cpu_s")
MEASURED: Final = ("avg_jct_s", "p999_wait_s")
Run = tuple[str, str, str, int]
"""Setting, policy, advice, seed."""
Results = dict[Run, dict[str, Any]]


@cache
def loaded(setting: str) -> tuple[Trace, Cluster]:
    """Return the trace and its cluster."""
    folder = Path(os.environ["SCHEDMATE_TRACES"])
    if setting == WEEK:
        return read_trace(folder / "philly-week-peer" / "philly_week_20171001.csv"), uniform(54, 8)
    trace = read_trace(folder / "philly-2017" / "philly_2017_aug-oct.csv").window("2017-10-01", "2017-11-01")
    cluster = from_table(folder / "published-summaries" / "philly_vc.csv", float(setting), trace)
    return usable(trace, cluster), cluster


@cache
def without_advice(setting: str, policy: str, seed: int) -> tuple[dict[str, list[Happened]], dict[str, Any]]:
    """Return the course of the jobs without advice, and its figures."""
    trace, cluster = loaded(setting)
    course = Course()
    began = process_time()
    packs = policy_named(policy).packs
    residents = Residents(drawn(len(trace.jobs), seed), seed) if packs else None
    outcome = Simulation(trace.jobs, cluster, policy, None, recorder=course, residents=residents).run()
    return course.pools, measured(trace.jobs, cluster, outcome) | {"cpu_s": round(process_time() - began, 3)}


def as_without(setting: str, policy: str, seed: int) -> dict[str, Any] | None:
    """Return the figures under random advice where no pool comes to believe it, which are those without; None where one does."""
    trace, cluster = loaded(setting)
    pools, figures = without_advice(setting, policy, seed if policy_named(policy).packs else 0)
    source = advisor("random", trace, seed, one_pool=cluster.one_pool)
    assert source is not None
    estimates = {job.id: source.estimate_s(n, job.pool) or 0.0 for n, job in enumerate(trace.jobs)}
    began = process_time()
    believed = any(replayed(course, estimates) is None for course in pools.values())
    return None if believed else figures | {"cpu_s": round(process_time() - began, 3)}


def run(asked: Run) -> dict[str, Any]:
    """Run one; return the line for the results file. Random advice is simulated only where some pool comes to believe it."""
    setting, policy, advice, seed = asked
    trace, cluster = loaded(setting)
    got = as_without(setting, policy, seed) if advice == "random" else None
    if got is None:
        got = run_one(trace, cluster, Setting(policy, advice, seed))
    return {"setting": setting, "policy": policy, "advice": advice, "seed": seed, **{key: got[key] for key in KEPT}}


def is_seeded(advice: str) -> bool:
    """Tell whether the seed makes a difference."""
    return advice == "random" or (advice.startswith("noisy:") and sigma_of(advice) > 0)


def sigma_of(advice: str) -> float:
    """Return the sigma of a noisy source."""
    return float(advice.partition(":")[2].split(",", maxsplit=1)[0])


def wanted(settings: list[str], policies: list[str], sources: list[str], seeds: int) -> Iterator[Run]:
    """Yield every run, all settings at one seed before the next seed: a sweep that is stopped has few seeds of everything."""
    for seed in range(seeds):
        for setting in settings:
            for policy in policies:
                for advice in ("none", *sources):
                    if (
                        seed == 0 or is_seeded(advice) or policy_named(policy).packs
                    ):  # what jobs share is drawn by the seed
                        yield setting, policy, advice, seed


def read(results: Path) -> Results:
    """Return what has been run."""
    found: Results = {}
    if results.exists():
        for line in results.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            found[one["setting"], one["policy"], one["advice"], one["seed"]] = one
    return found


def sweep(runs: list[Run], results: Path, processes: int) -> None:
    """Run what is missing; each one is written as it is finished."""
    known = read(results)
    missing = [asked for asked in runs if asked not in known]
    os.nice(19)
    with results.open("a", encoding="utf-8") as file, ProcessPoolExecutor(processes) as pool:
        for done in as_completed([pool.submit(run, asked) for asked in missing]):
            file.write(json.dumps(done.result()) + "\n")
            file.flush()


def interval(values: list[float]) -> tuple[float, float]:
    """Return the mean and the half width of its 95 % interval (0 of one value, which says nothing of its spread)."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    deviation = sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    quantile = 1.96 + 2.4 / (len(values) - 1)  # Student's, within 0.01 from 10 values on
    return mean, quantile * deviation / sqrt(len(values))


def by_seed(found: Results, setting: str, policy: str, advice: str, key: str) -> dict[int, float]:
    """Return a figure as share of the one without advice, seed by seed."""
    first = found[setting, policy, "none", 0]
    base = {run[3]: one[key] for run, one in found.items() if run[:3] == (setting, policy, "none")}
    return {
        run[3]: one[key] / base.get(run[3], first[key])
        for run, one in found.items()
        if run[:3] == (setting, policy, advice)
    }


def falls(before: dict[int, float], after: dict[int, float]) -> bool:
    """Tell whether the mean falls by more than its interval, paired by seed (a source without a seed counts for every one)."""
    pairs = [after[s] - before.get(s, before[min(before)]) for s in after]
    mean, half = interval(pairs)
    return mean + half < 0


def table(found: Results) -> bool:
    """Print the table; return whether everything holds."""
    held = True
    cells = sorted({(run[0], run[1]) for run in found})
    print(
        f"{'setting':8} {'policy':8} {'advice':10} {'seeds':>5}  {'average JCT / none':>22}  {'p99.9 wait / none':>22}"
    )
    for setting, policy in cells:
        if (setting, policy, "none", 0) not in found:
            continue
        sources = sorted({r[2] for r in found if r[:2] == (setting, policy)} - {"none"}, key=_rank)
        before: dict[int, float] | None = None
        for advice in sources:
            shares = {key: by_seed(found, setting, policy, advice, key) for key in MEASURED}
            told = [interval(list(shares[key].values())) for key in MEASURED]
            note = ""
            if advice == "random" and any(mean > ALLOWED for mean, _ in told):
                note = "  MORE THAN ALLOWED"
            if advice.startswith("noisy:"):
                costs = shares["p999_wait_s" if policy_named(policy).backfills else "avg_jct_s"]
                if before is not None and falls(before, costs):
                    note = "  FALLS"
                before = costs
            held = held and not note
            text = "  ".join(f"{mean:12.4f} +- {half:6.4f}" for mean, half in told)
            print(f"{setting:8} {policy:8} {advice:10} {len(shares['avg_jct_s']):5}  {text}{note}")
    return held


def _rank(advice: str) -> tuple[int, float, str]:
    return (1, sigma_of(advice), advice) if advice.startswith("noisy:") else (0, 0.0, advice)


def plot(found: Results, path: Path) -> None:
    """Draw the average JCT over sigma, one panel a setting, and random advice at the right."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional extra `sim`

    settings = sorted({run[0] for run in found})
    figure = Figure(figsize=(4.2 * len(settings), 4.0), layout="constrained")
    for panel, setting in zip(figure.subplots(1, len(settings), squeeze=False)[0], settings, strict=True):
        for policy in sorted({run[1] for run in found if run[0] == setting}):
            sources = {r[2] for r in found if r[:2] == (setting, policy)} - {"none"}
            noisy = sorted((s for s in sources if s.startswith("noisy:")), key=sigma_of)
            shares = [interval(list(by_seed(found, setting, policy, s, "avg_jct_s").values())) for s in noisy]
            places = [str(sigma_of(s)) for s in noisy]
            if "random" in sources:
                shares.append(interval(list(by_seed(found, setting, policy, "random", "avg_jct_s").values())))
                places.append("random")
            panel.errorbar(places, [m for m, _ in shares], [h for _, h in shares], marker="o", capsize=3, label=policy)
        panel.axhline(1.0, color="grey", linewidth=0.8)
        panel.axhline(ALLOWED, color="grey", linewidth=0.8, linestyle="--")
        panel.set(
            title="peer week, 54 nodes" if setting == WEEK else f"Philly October, f = {setting}",
            xlabel="sigma of the noise",
        )
    figure.axes[0].set_ylabel("average JCT as a share of that without advice")
    figure.axes[0].legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the sweep, print the table, draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default="week,0.75,0.5")
    parser.add_argument("--policies", default="sjf,qssf,srtf,easy")
    parser.add_argument("--advice", default="random;noisy:0;noisy:0.5;noisy:1;noisy:2;noisy:4")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("robustness.jsonl"))
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--only-table", action="store_true")
    given = parser.parse_args()
    if not given.only_table:
        runs = wanted(given.settings.split(","), given.policies.split(","), given.advice.split(";"), given.seeds)
        sweep(list(runs), given.results, given.processes)
    found = read(given.results)
    held = table(found)
    if given.plot is not None:
        plot(found, given.plot)
    raise SystemExit(0 if held else 1)


if __name__ == "__main__":
    main()
