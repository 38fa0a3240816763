"""The results page, written whole from the finished runs: every sentence and figure follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from schedmate.simulator.results.advised import advised_table, where_not
from schedmate.simulator.results.grid import ADVICE, BY_NAME, GROUNDS, Case, Ground, absent_files, cases, loaded
from schedmate.simulator.results.intervals import gained
from schedmate.simulator.results.ledger import Line
from schedmate.simulator.results.peers import PEERS
from schedmate.simulator.results.pictures import Picture, draw_pictures
from schedmate.simulator.results.profiler import profiler_section
from schedmate.simulator.results.robustness import robustness_section
from schedmate.simulator.results.sections import pool_table, sentences, worth_table
from schedmate.simulator.results.tables import gain, number, seconds, table
from schedmate.simulator.results.worth import WITHOUT, best_without, by_advice, comparable, title_of

_FIGURES = ("avg_jct_s", "avg_wait_s", "p50_jct_s", "p99_jct_s", "p999_wait_s", "makespan_s", "preemptions", "lost_gpu_h", "gar", "sor", "gfr", "jtted", "ftf")  # fmt: skip
_SHOWN = sorted(
    (ground for ground in GROUNDS if ground.full),
    key=lambda ground: (ground.factor is None, ground.workloads is None),
)  # October first, then the semantic trace
_HEAD = """# Results

Written by `make results` (`benchmarks/results.py`), every figure and sentence from the runs; nothing on this page is written by hand. `SCHEDMATE_TRACES` names the folder of the traces
([where each is published](traces.md)). What the names mean: [glossary](metrics-glossary.md); the policies and sources of advice: [policies](policies/README.md).
Times are in seconds. `random` and `noisy` have the seed 0 here; [over 20 seeds](#wrong-advice) below.
"""


def write_page(out: Path, used: Mapping[str, Line], code: str, folder: Path) -> None:
    """Write the page and its pictures, of the runs that hold for this code."""
    pictures = draw_pictures(out.parent / "pictures", used)
    parts = [_HEAD, _state(used, code), *_findings(used), _where_not(used), _peers(used)]
    for ground in _SHOWN:
        parts += _ground(ground, used, folder, pictures)
    parts += [
        profiler_section(used),
        robustness_section(out.parents[1] / "results" / "robustness.jsonl", out.parent / "pictures"),
        _missing(used, folder),
    ]
    out.write_text("\n".join(part.strip("\n") + "\n" for part in parts if part), "utf-8")


def _state(used: Mapping[str, Line], code: str) -> str:
    old = sum(line.code != code for line in used.values())
    said = f"{len(used)} runs of the core `{code}` (a sum over the modules that decide)."
    if not old:
        return said
    return (
        f"{len(used)} runs. {len(used) - old} are of the core `{code}` (a sum over the modules that decide), {old} of an earlier state of it, whose policy and advice came to the same "
        "sums of completion times, day by day, and preemptions on the peer week (54 nodes) under both."
    )


def _findings(used: Mapping[str, Line]) -> Iterator[str]:
    """What the figures say, one paragraph a ground."""
    yield "## What they say\n"
    for ground in _SHOWN:
        lines = by_advice(used, ground.name)
        base = best_without(lines)
        if base is None:
            continue
        missing = sum(case.ground == ground.name and case.key not in used for case in cases())
        fifo, best = lines.get(("fifo", "none")), base.figures["avg_jct_s"]
        said = f"**{ground.title[0].upper()}{ground.title[1:]}.** The best policy without advice is {title_of(base.case)}: {seconds(best)} s on average"
        if fifo is not None and fifo is not base:
            said += f", {100 * (1 - best / fifo.figures['avg_jct_s']):.0f} % less than first in, first out ({seconds(fifo.figures['avg_jct_s'])} s), with no estimate at all"
        yield f"{said}. {_others(lines, base)}{sentences(lines, base, missing)}\n"


def _where_not(used: Mapping[str, Line]) -> str:
    """Where SchedMate's advice does not help, one paragraph a ground that was run with it."""
    said = []
    for ground in _SHOWN:
        lines = by_advice(used, ground.name)
        base = best_without(lines)
        if base is not None and (text := where_not(lines, base, ground.title)):
            said.append(text)
    return "## Where SchedMate's advice does not help\n\n" + "\n\n".join(said) + "\n" if said else ""


def _others(lines: Mapping[tuple[str, str], Line], base: Line) -> str:
    """Name the policy that takes no advice, is none of those that the base is chosen from, and is better than it."""
    advised = {policy for policy, advice in lines if advice != "none"}
    others = [
        line for (policy, advice), line in lines.items() if advice == "none" and policy not in {*WITHOUT, *advised}
    ]
    best = min(others, key=lambda line: float(line.figures["avg_jct_s"]), default=base)
    if best.figures["avg_jct_s"] >= base.figures["avg_jct_s"] or not comparable(base, best):
        return ""
    return f"`{best.case.policy}` without advice comes to {seconds(best.figures['avg_jct_s'])} s: {gain(gained(base.blocks, best.blocks))} s gained over it. "


def _peers(used: Mapping[str, Line]) -> str:
    rows, commands = [], []
    for peer in PEERS:
        line = used.get(peer.case.key)
        if line is None:
            continue
        ours = line.figures
        speed = f"{number(peer.cpu_s)} / {number(ours['cpu_s'])}" if peer.cpu_s is not None else ""
        rows.append((BY_NAME[peer.case.ground].title, f"`{peer.case.policy}`, {peer.case.label}", peer.peer, number(peer.avg_jct_s),
                     number(ours["avg_jct_s"]), peer.verdict(ours["avg_jct_s"]), speed, peer.note))  # fmt: skip
        commands.append(peer.case.command)
    if not rows:
        return ""
    head = ("trace and cluster", "policy, advice", "peer", "its average JCT", "here", "", "CPU s: peer / here", "note")
    return (
        "## Beside the peers\n\nThe peers' figures are those that ship beside the traces; they were run on another, loaded machine, so their CPU seconds tell an order of magnitude.\n\n"
        f"{table(head, rows)}\n\n<details><summary>The commands, row by row</summary>\n\n```\n" + "\n".join(commands) + "\n```\n</details>\n"
    )  # fmt: skip


def _ground(ground: Ground, used: Mapping[str, Line], folder: Path, pictures: Sequence[Picture]) -> Iterator[str]:
    lines = by_advice(used, ground.name)
    if not lines:
        return
    yield f"## {ground.title[0].upper()}{ground.title[1:]}\n"
    trace, cluster = loaded(ground.name, folder)
    yield f"{len(trace.jobs):,} jobs, {cluster.nodes} nodes, {cluster.gpus} GPUs" + ("" if cluster.one_pool else f" in {len(cluster.pools)} pools") + ".\n"  # fmt: skip
    yield _matrix(lines)
    policies = ",".join(sorted({policy for policy, _ in lines}))
    advice = ",".join(name for name in ADVICE if any(a == name for _, a in lines))
    yield f"\n    {ground.command} --policy {policies} --advice {advice}\n"
    yield from (f"    {line.case.command}" for line in lines.values() if line.case.advice not in ADVICE)
    yield ""
    for picture in pictures:
        if picture.ground == ground.name:
            yield f"![{picture.says}](pictures/{picture.name})\n"
    base = best_without(lines)
    if base is not None:
        yield advised_table(lines, base)
        yield worth_table(lines, base)
        yield pool_table(lines, base, trace, cluster)
    yield _all_figures(lines)


def _matrix(lines: Mapping[tuple[str, str], Line]) -> str:
    """Average JCT by policy and advice."""
    names = [*ADVICE, *sorted({advice for _, advice in lines} - set(ADVICE))]
    rows = []
    for policy in sorted({policy for policy, _ in lines}):
        found = [lines.get((policy, name)) for name in names]
        rows.append((f"`{policy}`", *("" if line is None else number(line.figures["avg_jct_s"]) for line in found)))
    return "Average JCT by policy (rows) and advice (columns); what takes no advice has one figure:\n\n" + table(("", *names), rows)  # fmt: skip


def _all_figures(lines: Mapping[tuple[str, str], Line]) -> str:
    """All figures of the runs, but of those that came to the same as without advice."""
    rows = []
    for (policy, advice), line in sorted(lines.items()):
        own = lines.get((policy, "none"))
        if advice == "none" or own is None or own.blocks != line.blocks:
            rows.append((f"`{policy}`", advice, *(number(line.figures.get(name)) for name in _FIGURES)))
    return (
        "<details><summary>All figures (what came to the same as without advice is left out)</summary>\n\n"
        + table(("policy", "advice", *(f"`{name}`" for name in _FIGURES)), rows)
        + "\n\n</details>\n"
    )


def _missing(used: Mapping[str, Line], folder: Path) -> str:
    absent: list[Case] = [case for case in cases() if case.key not in used]
    if not absent:
        return "## What is missing\n\nNothing: every run that the page wants is in it.\n"
    by_ground: dict[str, list[Case]] = {}
    for case in absent:
        by_ground.setdefault(case.ground, []).append(case)
    said = []
    for name, wanted in by_ground.items():
        if files := absent_files(BY_NAME[name], folder):
            said.append(f"- {BY_NAME[name].title}: all {len(wanted)} runs, for want of {', '.join(files)}\n")
        else:
            runs = ", ".join(f"`{case.policy}` with {case.label}" for case in wanted)
            said.append(f"- {BY_NAME[name].title}: {runs}\n")
    return "## What is missing\n\nRuns that are not finished; `make results` goes on with them.\n\n" + "".join(said)
