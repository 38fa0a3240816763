"""Commands about the history of jobs: accounting data in, and what it says of a job. They work on the store, not through the API."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer
import yaml
from pydantic import ValidationError

from schedmate.cli import rendering
from schedmate.infra.adapters import make_embedder, make_store
from schedmate.infra.clock import SystemClock
from schedmate.infra.settings import load
from schedmate.infra.store.port import Store
from schedmate.schemas.job import JobRequest, JobSpec
from schedmate.schemas.topology import topology
from schedmate.services.history_estimator.importing import Defaults, LeftOut, Refused, TableError, read_rows
from schedmate.services.history_estimator.record import JobRecord
from schedmate.services.history_estimator.settings import HistoryEstimatorSettings

T = TypeVar("T")
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")]
BATCH = 500
SHOWN_MAX = 20

app = typer.Typer(help="The history of jobs that estimates rest on.", no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add `estimate`."""
    root.command()(estimate)


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV, or the output of `sacct --parsable2`.")],
    *,
    tenant: Annotated[str, typer.Option(help="Tenant of rows that name none.")] = "default",
    pool: Annotated[str, typer.Option(help="Pool of rows that name none.")] = "default",
    zone: Annotated[str, typer.Option(help="Time zone of times that are written without one.")] = "UTC",
    config: Config = None,
    json: Json = False,
) -> int:
    """Take accounting data into the history, so that a new cluster starts with what the old one knew.

    Again, it changes nothing. A history-estimator that runs already takes it in when it starts next.
    """
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}")
    try:
        defaults = Defaults(pool, tenant, ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise typer.BadParameter(f"--zone {zone}: no such time zone; write Europe/Berlin or UTC") from error
    try:
        told = _with_store(config, lambda store, _: _import(store, file, defaults))
    except (TableError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file}: {error}") from error
    if json:
        rendering.print_json(told)
    else:
        out = rendering.console()
        out.print(
            f"{told['imported']} jobs imported, {told['unchanged']} known already, {told['refused']} rows refused"
        )
        for why, count in told["left_out"].items():
            out.print(rendering.cell(f"left out: {count} ({why})"))
        for row in told["refusals"]:
            out.print(rendering.cell(f"line {row['line']}: {row['reason']}"))
    return 0 if told["imported"] or told["unchanged"] else 1


async def _import(store: Store, file: Path, defaults: Defaults) -> dict[str, Any]:
    refused: list[Refused] = []
    left_out: Counter[str] = Counter()
    counts = Counter[str]()
    waiting: dict[str, JobRecord] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for row in read_rows(lines, defaults):
            if isinstance(row, Refused):
                refused.append(row)
            elif isinstance(row, LeftOut):
                left_out[row.why] += 1
            else:
                counts["repeated"] += row.job_id in waiting
                waiting[row.job_id] = row
            if len(waiting) >= BATCH:
                counts += await _write(store, waiting)
                waiting = {}
        counts += await _write(store, waiting)
    return {
        "file": file.name, "imported": counts["imported"], "unchanged": counts["unchanged"] + counts["repeated"],
        "refused": len(refused), "left_out": dict(sorted(left_out.items())),
        "refusals": [{"line": r.line, "reason": r.reason} for r in refused[:SHOWN_MAX]],
    }  # fmt: skip


async def _write(store: Store, records: dict[str, JobRecord]) -> Counter[str]:
    """Write what is not yet there as it is; return how many were."""
    there = await store.get_many("history", list(records)) if records else {}
    new = {i: body for i, r in records.items() if (body := r.body()) != (dict(there[i].body) if i in there else None)}
    if new:
        await store.put_many("history", new)
    return Counter({"imported": len(new), "unchanged": len(records) - len(new)})


def estimate(
    *,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="A YAML job file, as `submit` takes it.")] = None,
    source: Annotated[Path | None, typer.Option(help="Directory with the job's source.")] = None,
    entry: Annotated[str | None, typer.Option(help="The file of the source that is launched.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs per node.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes of the gang.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant; `default` without one.")] = None,
    user: Annotated[str | None, typer.Option(help="User.")] = None,
    pool: Annotated[str | None, typer.Option(help="Pool; `default` without one.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Tell how long a job would run, from the history in the store of the settings. What is not known is unknown."""
    flags = {"gpus": gpus, "nodes": nodes, "tenant": tenant, "user": user, "pool": pool, "entry": entry}
    spec = _spec(file, {key: value for key, value in flags.items() if value is not None}, source)
    told = _with_store(config, lambda store, settings: _estimate(store, settings, spec, source, entry))
    if json:
        rendering.print_json(told)
        return
    if told["p50_s"] is None:
        rendering.console().print("unknown: the history says nothing of such a job")
        return
    line = f"{told['p50_s']:.0f} s (from {told['p10_s']:.0f} to {told['p90_s']:.0f} in 8 of 10 cases), {told['basis']}"
    rendering.console().print(rendering.cell(line))


async def _estimate(
    store: Store, settings: HistoryEstimatorSettings, spec: JobSpec, source: Path | None, entry: str | None
) -> dict[str, Any]:
    from schedmate.services.history_estimator import record as records  # noqa: PLC0415 - numpy and all, only here
    from schedmate.services.history_estimator.memory import Memory  # noqa: PLC0415
    from schedmate.services.history_estimator.wiring import rules_of  # noqa: PLC0415

    clock = SystemClock()
    record = JobRecord(job_id="asked", pool=spec.pool)
    records.take_submission(record, spec, clock.now())
    if source is not None and entry is not None:
        from schedmate.services.code_analyzer.analysis import Subject  # noqa: PLC0415 - only with a source
        from schedmate.services.code_analyzer.reading import analyze_directory  # noqa: PLC0415

        told, analysis = analyze_directory(Subject(entry=entry, gpus=spec.gpus, nodes=spec.nodes), source)
        records.take_analysis(record, told, analysis.fields)
    embedder = make_embedder(settings.embeddings, settings.state_dir)
    try:
        memory = Memory(store, embedder, rules_of(settings), clock)
        await memory.ready()
        await memory.fit_due()
        said = await memory.estimate(record, clock.now())
    finally:
        if embedder is not None:
            await embedder.stop()
    return {
        "p10_s": said.p10_s, "p50_s": said.p50_s, "p90_s": said.p90_s, "early_end_risk": said.early_end_risk,
        "basis": said.basis.value, "similar": list(said.similar), "similar_elsewhere": said.similar_elsewhere,
        "gpu_utilisation": said.gpu_utilisation, "gpu_memory_bytes": said.gpu_memory_bytes, "sharing_class": said.sharing_class,
    }  # fmt: skip


def _spec(file: Path | None, flags: dict[str, Any], source: Path | None) -> JobSpec:
    given: dict[str, Any] = {}
    if file is not None:
        try:
            given = yaml.safe_load(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise typer.BadParameter(f"{file}: cannot be read ({' '.join(str(error).split())})") from error
        if not isinstance(given, dict):
            raise typer.BadParameter(f"{file}: must hold a mapping of the job's fields")
    given = {key: value for key, value in given.items() if key != "source"} | flags
    if source is not None and (flags.get("entry") is None or not (source / str(flags["entry"])).is_file()):
        raise typer.BadParameter(f"--source {source}: name the file that is launched in it with --entry")
    if "command" not in given and "script" not in given:
        given["command"] = [str(given.get("entry", "unknown"))]
    given.pop("entry", None)
    given = {"name": "asked", "tenant": "default", "user": "unknown", "pool": "default"} | given
    try:
        return JobSpec.model_validate(JobRequest.model_validate(given).model_dump())
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise typer.BadParameter(f"{place}: {first['msg']}" if place else first["msg"]) from error


def _with_store(config: Path | None, act: Callable[[Store, HistoryEstimatorSettings], Awaitable[T]]) -> T:
    async def run() -> T:
        settings = load(HistoryEstimatorSettings, {}, config)
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        store = make_store(settings)
        await store.start()
        try:
            await store.setup(topology().collections.values())
            return await act(store, settings)
        finally:
            await store.stop()

    return asyncio.run(run())
