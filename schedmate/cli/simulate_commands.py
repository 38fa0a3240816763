"""`schedmate simulate`: scheduling policies over real traces, with the dispatcher's own core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from schedmate.cli import rendering
from schedmate.cli.pool_commands import settings_of
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import policies
from schedmate.simulator.advice import check_advice
from schedmate.simulator.cluster import PHILLY_GPUS_PER_NODE, Cluster, from_list, from_table, in_racks, uniform
from schedmate.simulator.faults import HOUR_S, Faults, read_faults
from schedmate.simulator.maintenance import read_reservations
from schedmate.simulator.outcome import RESTART_LARGE_S, RESTART_S, Costs
from schedmate.simulator.plots import check_plots, draw
from schedmate.simulator.readers import read_trace
from schedmate.simulator.recorded import KIND as LOG_KIND
from schedmate.simulator.recorded import read_log, recording_of
from schedmate.simulator.runs import Setting, run_all, usable
from schedmate.simulator.trace import Trace, TraceError

_SHOWN = ("policy", "advice", "finished", "avg_jct_s", "p50_jct_s", "p99_jct_s", "avg_wait_s", "p999_wait_s", "makespan_s",
          "preemptions", "gar", "sor", "allocated_max", "gfr", "cpu_s")  # fmt: skip

_TABLE_WIDTH = 190  # a line of figures is read across: better a wrapped line than figures that are cut


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(simulate)


def simulate(
    trace: Annotated[Path, typer.Argument(help="A trace of jobs; its kind is read from its columns (docs/traces.md).")],
    *,
    nodes: Annotated[int | None, typer.Option(min=1, help="So many equal nodes, one pool.")] = None,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of each of them.")] = PHILLY_GPUS_PER_NODE,
    pools: Annotated[Path | None, typer.Option(help="A `vc,node num` table: one pool a virtual cluster.")] = None,
    node_factor: Annotated[float, typer.Option(help="Nodes of a pool: max(ceil(n x F), enough for its largest job).")] = 1.0,
    nodes_file: Annotated[Path | None, typer.Option(help="A list of unequal nodes: node,gpus[,gpu_type][,pool][,rack][,spine].")] = None,
    nodes_per_rack: Annotated[int | None, typer.Option(min=1, help="A declared topology: racks of so many nodes.")] = None,
    racks_per_spine: Annotated[int | None, typer.Option(min=1, help="And spines over so many racks.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="First day of submission, cluster local time.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="First day that is left out.")] = None,
    stay: Annotated[bool, typer.Option(help="No job leaves: the cluster fills until nothing more fits (allocated_max).")] = False,
    policy: Annotated[str, typer.Option(help="Policies, separated by commas.")] = "fifo",
    advice: Annotated[str, typer.Option(help="Sources of advice, separated by commas (docs/policies/README.md).")] = "none",
    seed: Annotated[int, typer.Option(help="Seed of random and noisy advice, and of drawn failures.")] = 0,
    restart_s: Annotated[float, typer.Option(min=0, help="What a restart adds to a stopped job's run.")] = RESTART_S,
    restart_large_s: Annotated[float, typer.Option(min=0, help="The same above 8 GPUs.")] = RESTART_LARGE_S,
    checkpoint_s: Annotated[float, typer.Option(min=0, help="Time between checkpoints: what was done since is lost; 0: nothing is.")] = 0.0,
    failures: Annotated[Path | None, typer.Option(help="Node failures: a table node,at_s,until_s[,pool] on the trace's clock.")] = None,
    reservations: Annotated[Path | None, typer.Option(help="Nodes in maintenance: a table node,from_s,until_s[,count][,pool] on the trace's clock.")] = None,
    mtbf_h: Annotated[float | None, typer.Option(help="Draw node failures by the seed: mean hours a node stays up.")] = None,
    mttr_h: Annotated[float, typer.Option(help="Mean hours until it is back.")] = 4.0,
    min_run_s: Annotated[float, typer.Option(min=0, help="So long runs whoever may be stopped for another job.")] = 0.0,
    pool_settings: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of every pool, as `schedmate pool set` takes it; more than once for more.")] = None,
    jobs_out: Annotated[Path | None, typer.Option(help="Write what became of each job (several runs: one file each).")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw plots of all runs into this folder (needs the extra `sim`).")] = None,
    weighed: Annotated[bool, typer.Option("--weighed", help="Clamp raw advice (`oracle`, `column`) and weigh it by trust, as any other.")] = False,
    workloads: Annotated[Path | None, typer.Option(help="What SchedMate would know of the jobs beside their rows, by job id, for `history` and `lucid` (docs/traces.md).")] = None,
    profile_again: Annotated[bool, typer.Option("--profile-again", help="`history` does not tell how the same job used its GPUs before: Lucid profiles everybody.")] = False,
    log: Annotated[Path | None, typer.Option(help="Write the pools' logs, one entry a line.")] = None,
    processes: Annotated[int, typer.Option(min=0, help="Runs side by side; 0: as many as there are cores.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:  # fmt: skip
    """Run a trace through one policy or several: `schedmate simulate TRACE --nodes 54 --policy fifo,sjf --advice none,oracle`."""
    names, sources = _policies(policy), _sources(advice)
    _check_files(trace, (failures, reservations, workloads), {"--jobs-out": jobs_out, "--log": log})
    if plot is not None:
        check_plots(plot)
    jobs = read_trace(trace).window(start, end)
    if jobs.kind == LOG_KIND and (nodes, pools, nodes_file) == (None, None, None):
        cluster = recording_of(read_log(trace)).cluster
    else:
        cluster = _cluster(jobs, nodes, gpus_per_node, pools, node_factor, nodes_file)
    cluster = _racked(cluster, nodes_per_rack, racks_per_spine)
    jobs = usable(jobs.staying() if stay else jobs, cluster)
    faults = _faults(failures, mtbf_h, mttr_h, seed, cluster)
    reserved = read_reservations(reservations, cluster) if reservations is not None else {}
    config = _config(pool_settings or [])
    combinations = list(product(names, sources))
    settings = [
        Setting(
            name, source, seed, Costs(restart_s, restart_large_s, checkpoint_s), config, faults=faults, min_run_s=min_run_s, reservations=reserved,
            jobs_out=_named(jobs_out, name, source, several=len(combinations) > 1),
            log=_named(log, name, source, several=len(combinations) > 1), weighed=weighed, curves=plot is not None,
            workloads=workloads, recalls=not profile_again,
        )
        for name, source in combinations
    ]  # fmt: skip
    with _progress(len(jobs.jobs) * len(settings), quiet=json) as progress:
        results = list(run_all(jobs, cluster, settings, processes or os.cpu_count() or 1, progress))
    if plot is not None:
        results = _drawn(plot, jobs, cluster, results, quiet=json)
    if not stay:
        _say_unfinished(results)
    if json:
        rendering.print_json({"trace": jobs.name, "nodes": cluster.nodes, "gpus": cluster.gpus, "results": results})
    else:
        _show(jobs, cluster, results)


def _policies(given: str) -> list[str]:
    names = _split(given, "--policy")
    if unknown := [name for name in names if name not in policies()]:
        raise typer.BadParameter(f"no policy is called {unknown[0]!r}; there are {', '.join(policies())}")
    return names


def _drawn(
    folder: Path, jobs: Trace, cluster: Cluster, results: list[dict[str, Any]], *, quiet: bool
) -> list[dict[str, Any]]:
    """Draw the plots of all runs; return the results without their curves, which nobody else wants."""
    title = f"{jobs.name}: {len(jobs.jobs):,} jobs on {cluster.nodes} nodes with {cluster.gpus} GPUs"
    for path in draw(folder, title, results):
        if not quiet:
            Console(stderr=True, highlight=False).print(f"wrote {path}", soft_wrap=True)
    return [{name: value for name, value in result.items() if name != "curves"} for result in results]


def _check_files(trace: Path, read: Iterable[Path | None], written: dict[str, Path | None]) -> None:
    """Refuse files that cannot be read or written before anything is simulated."""
    if not trace.is_file():
        raise typer.BadParameter(f"there is no trace {trace}")
    _check_read(read)
    for option, path in written.items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise typer.BadParameter(f"{option} {path}: it names a file in a folder that is there")


def _check_read(paths: Iterable[Path | None]) -> None:
    for path in paths:
        if path is not None and not path.is_file():
            raise typer.BadParameter(f"there is no file {path}")


def _faults(path: Path | None, mtbf_h: float | None, mttr_h: float, seed: int, cluster: Cluster) -> Faults:
    if (mtbf_h is not None and mtbf_h <= 0) or mttr_h <= 0:
        raise typer.BadParameter("--mtbf-h and --mttr-h are hours above 0")
    listed = read_faults(path, cluster) if path is not None else ()
    return Faults(listed, mtbf_h * HOUR_S if mtbf_h is not None else None, mttr_h * HOUR_S, seed)


def _config(items: list[str]) -> PoolConfig:
    """Return the settings of the simulated pools."""
    given = settings_of(items)
    if taken := sorted({"policy", "advice"} & set(given)):
        raise typer.BadParameter(f"--set {taken[0]}: say --{taken[0]}")
    try:
        return PoolConfig.from_json({name: value for name, value in given.items() if value is not None})
    except TypeError as error:
        raise typer.BadParameter(f"--set: {error}") from error


def _split(given: str, option: str) -> list[str]:
    parts = [part.strip() for part in given.split(",")]
    if not all(parts):
        raise typer.BadParameter(f"{option} {given!r}: names separated by commas")
    return list(dict.fromkeys(parts))


def _sources(given: str) -> list[str]:
    """Split a list of sources; the comma of `noisy:SIGMA,BIAS` is the one before a number."""
    out: list[str] = []
    for part in _split(given, "--advice"):
        if out and out[-1].startswith("noisy:") and "," not in out[-1] and _is_number(part):
            out[-1] += f",{part}"
        else:
            out.append(part)
    for source in out:
        try:
            check_advice(source)
        except TraceError as error:
            raise typer.BadParameter(str(error)) from error
    return out


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cluster(
    trace: Trace, nodes: int | None, gpus_per_node: int, pools: Path | None, factor: float, nodes_file: Path | None
) -> Cluster:
    given = [name for name, value in (("--nodes", nodes), ("--pools", pools), ("--nodes-file", nodes_file)) if value]
    if len(given) != 1:
        what = f"not {' and '.join(given)} together" if given else "one of them is needed"
        raise typer.BadParameter(f"name the cluster by --nodes, by --pools or by --nodes-file: {what}")
    _check_read((pools, nodes_file))
    if pools is not None:
        return from_table(pools, factor, trace, gpus_per_node)
    if nodes_file is not None:
        return from_list(nodes_file)
    assert nodes is not None
    return uniform(nodes, gpus_per_node)


def _racked(cluster: Cluster, nodes_per_rack: int | None, racks_per_spine: int | None) -> Cluster:
    if nodes_per_rack is not None:
        return in_racks(cluster, nodes_per_rack, racks_per_spine)
    if racks_per_spine is not None:
        raise typer.BadParameter("--racks-per-spine needs --nodes-per-rack")
    return cluster


def _named(path: Path | None, policy: str, advice: str, *, several: bool) -> Path | None:
    """Return the file of a run: the one named, or one beside it with the run's name where there are several."""
    if path is None or not several:
        return path
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in f"{policy}.{advice}")
    return path.with_name(f"{path.stem}.{plain}{path.suffix}")


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.advance(task, done)


def _say_unfinished(results: list[dict[str, Any]]) -> None:
    """Say of a run that it left jobs behind: its averages are of the others."""
    for result in results:
        if left := result["jobs"] - result["finished"]:
            Console(stderr=True, highlight=False).print(
                f"{result['policy']}, {result['advice']}: {left} of {result['jobs']} jobs never ran: they are larger than their pool, or ask for a "
                "GPU type that no node has; averages are of the others", soft_wrap=True,
            )  # fmt: skip


def _show(trace: Trace, cluster: Cluster, results: list[dict[str, Any]]) -> None:
    table = Table(
        title=f"{trace.name}: {len(trace.jobs)} jobs on {cluster.nodes} nodes with {cluster.gpus} GPUs",
        box=None,
        pad_edge=False,
        title_justify="left",
    )
    for name in _SHOWN:
        table.add_column(name, justify="left" if name in ("policy", "advice") else "right")
    for result in results:
        table.add_row(*(_shown(result[name]) for name in _SHOWN))
    Console(highlight=False, width=max(rendering.console().width, _TABLE_WIDTH)).print(table)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"  # noqa: PLR2004 - shares and seconds
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else rendering.harmless(str(value))
