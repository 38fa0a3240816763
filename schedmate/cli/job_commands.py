"""Commands about jobs: submit, ps, show, why, logs, cancel."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
import yaml
from pydantic import ValidationError
from rich.table import Table

from schedmate.cli import rendering
from schedmate.cli.bundling import bundle_of
from schedmate.client import Client
from schedmate.schemas.job import JobKind, JobRequest, PriorityClass
from schedmate.schemas.states import TERMINAL, JobState
from schedmate.services.ingest.models import JobView
from schedmate.services.log_monitor.failures.categories import advice_on

Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, the beginning of one, or a job's name.")]
_ID_LENGTH = 36
_LOOKED_AT = 1000


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(context_settings={"ignore_unknown_options": False})(submit)
    for command in (ps, show, why, logs, cancel):
        app.command()(command)


def find_job(client: Client, given: str) -> JobView:
    """Return the job with this id, with an id that begins so, or the newest of this name.

    Raises:
        typer.BadParameter: there is none, or several ids begin so.
    """
    if len(given) == _ID_LENGTH:
        return client.job(given)
    jobs = list(client.jobs(limit=_LOOKED_AT))
    by_id = [job for job in jobs if job.job_id.startswith(given)]
    if len(by_id) == 1:
        return by_id[0]
    if len(by_id) > 1:
        raise typer.BadParameter(f"{len(by_id)} jobs begin with {given!r}; give more of the id")
    named = next((job for job in jobs if job.name == given), None)
    if named is None:
        raise typer.BadParameter(f"no job has the id or the name {given!r}; `schedmate ps --all` lists them")
    return named


def submit(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- CMD…", help="The command and its arguments.")
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="A YAML job file; flags override it.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job; the command's last path without one.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs per node.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes of the gang.")] = None,
    gpu_type: Annotated[str | None, typer.Option(help="GPU type it must have.")] = None,
    gpu_memory_gib: Annotated[float | None, typer.Option(help="Least memory of each GPU, GiB.")] = None,
    gpu_milli: Annotated[
        int | None, typer.Option(help="Thousandths of one GPU, where a part is enough and the pool shares its GPUs.")
    ] = None,
    time_limit_s: Annotated[int | None, typer.Option(help="Ends the run after so many seconds.")] = None,
    priority: Annotated[PriorityClass | None, typer.Option(help="Priority class.")] = None,
    kind: Annotated[
        JobKind | None, typer.Option(help="What it is for: training, which is packed, or inference.")
    ] = None,
    within: Annotated[
        str | None, typer.Option(help="`rack` or `spine`: all nodes of the gang in one; else a preference.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant; the token's without one.")] = None,
    user: Annotated[str | None, typer.Option(help="User; the token's or the local one without.")] = None,
    pool: Annotated[str | None, typer.Option(help="Pool; the tenant's or `default` without one.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", help="NAME=VALUE; may be given several times.")] = None,
    workdir: Annotated[Path | None, typer.Option(help="Directory the run starts in; here, without a source.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="Directory or archive to send along; the run starts in it.")
    ] = None,
    entry: Annotated[str | None, typer.Option(help="File of the source that is launched, for analysis.")] = None,
    script: Annotated[Path | None, typer.Option(help="A shell script to run instead of a command.")] = None,
    retries: Annotated[int | None, typer.Option(help="Further attempts that the job's own failures may cost.")] = None,
    checkpoint_dir: Annotated[str | None, typer.Option(help="Where the job keeps its checkpoints.")] = None,
    resume_flag: Annotated[str | None, typer.Option(help="Flag that takes the checkpoint to resume from.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key again is the same job.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit 1 unless it succeeds.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print the output as it comes (on stderr with --json), then as --wait.")
    ] = False,
    json: Json = False,
) -> int:
    """Submit a job: flags, a YAML file, or both."""
    flags = {
        "name": name, "gpus": gpus, "nodes": nodes, "gpu_type": gpu_type, "gpu_memory_gib": gpu_memory_gib, "gpu_milli": gpu_milli,
        "time_limit_s": time_limit_s, "priority": priority, "tenant": tenant, "user": user, "pool": pool, "entry": entry,
        "retries": retries, "checkpoint_dir": checkpoint_dir, "resume_flag": resume_flag, "kind": kind, "within": within,
        "workdir": str(workdir.absolute()) if workdir is not None else None,
    }  # fmt: skip
    given, packed = _request(file, flags, command, script, env or [], source)
    with Client.from_environment() as client:
        job = _sent(client, given, packed, idempotency_key)
        if not json:
            rendering.console().print(rendering.cell(f"{job.job_id}  {job.name}"))
        if follow:
            _print_log(client, job.job_id, attempt=None, member=0, out=sys.stderr if json else sys.stdout)
        if wait or follow:
            return _wait(client, job.job_id, json=json)
    if json:
        rendering.print_json(job)
    return 0


def _sent(client: Client, given: dict[str, Any], packed: Path | None, idempotency_key: str | None) -> JobView:
    """Submit a job, with what is in `packed` as its bundle."""
    if packed is None:
        return client.submit(given, idempotency_key=idempotency_key)
    with bundle_of(packed) as archive:
        return client.submit(given, bundle=archive, idempotency_key=idempotency_key)


def _request(
    file: Path | None,
    flags: dict[str, Any],
    command: list[str] | None,
    script: Path | None,
    env: list[str],
    source: Path | None,
) -> tuple[dict[str, Any], Path | None]:
    """Return the job as it goes to the server, checked, and the source to send along."""
    if command and script is not None:
        raise typer.BadParameter("give a command or --script, not both")
    given: dict[str, Any] = _job_file(file) if file is not None else {}
    packed = source if source is not None else _source_of(given, file)
    given.update({key: value for key, value in flags.items() if value is not None})
    if env:
        named = given.get("env") or {}
        if not isinstance(named, dict):
            raise typer.BadParameter("env: must be a mapping of names to values")
        given["env"] = {**named, **dict(_pair(item) for item in env)}
    if command:
        given.pop("script", None)
        given["command"] = list(command)
    if script is not None:
        given.pop("command", None)
        given["script"] = _read(script)
    given.setdefault("name", _default_name(given, script))
    if packed is None:
        given.setdefault("workdir", str(Path.cwd()))
        _check(given)
    else:
        _check(
            {key: value for key, value in given.items() if key != "entry"}
        )  # it lies in the bundle, which has no hash yet
    return given, packed


def _wait(client: Client, job_id: str, *, json: bool) -> int:
    for _ in client.follow(job_id):
        pass
    job = client.job(job_id)
    while job.state not in TERMINAL:
        for _ in client.follow(job_id):
            pass
        job = client.job(job_id)
    if json:
        rendering.print_json(job)
    else:
        _show(job)
    return 0 if job.state is JobState.SUCCEEDED else 1


def _job_file(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(_read(path))
    except yaml.YAMLError as error:
        raise typer.BadParameter(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(loaded, dict):
        raise typer.BadParameter(f"{path}: must hold a mapping of the job's fields")
    return loaded


def _source_of(given: dict[str, Any], file: Path | None) -> Path | None:
    """A job file may name its source, relative to itself."""
    named = given.pop("source", None)
    if named is None:
        return None
    return (file.parent if file is not None else Path()) / str(named)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: cannot be read ({error})") from error


def _pair(item: str) -> tuple[str, str]:
    name, separator, value = item.partition("=")
    if not separator:
        raise typer.BadParameter(f"--env {item}: must be NAME=VALUE")
    return name, value


def _default_name(given: dict[str, Any], script: Path | None) -> str:
    command = given.get("command")
    words = [str(part) for part in command] if isinstance(command, list) else []  # what else it may be, the check tells
    named = next((word for word in words if word.endswith((".py", ".sh"))), words[0] if words else str(script or "job"))
    return Path(named).stem or "job"


def _check(given: dict[str, Any]) -> None:
    """Say what is wrong before anything is sent."""
    try:
        JobRequest.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(f"{where}: {message}" if where else message) from error


def ps(
    *,
    every: Annotated[bool, typer.Option("--all", help="Also jobs that have ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many, the newest.")] = 200,
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    json: Json = False,
) -> None:
    """List jobs, newest first: those that have not ended, or all."""
    with Client.from_environment() as client:
        unfinished = True if not every and state is None else None
        found = list(client.jobs(limit=limit, unfinished=unfinished, state=state.value if state is not None else None))
    if json:
        rendering.print_json(found)
    else:
        rendering.console().print(rendering.jobs_table(found))


def show(job: JobArgument, *, json: Json = False) -> None:
    """Show one job: state, times, placement, prediction, progress, diagnosis, trace."""
    with Client.from_environment() as client:
        found = find_job(client, job)
        history = client.events(found.job_id)
    if json:
        rendering.print_json({**found.model_dump(mode="json"), "history": rendering.plain(history.decisions)})
        return
    _show(found)
    out = rendering.console()
    out.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("WHEN", "STATE", "ATTEMPT", "WHY"):
        table.add_column(name)
    for decision in history.decisions:
        table.add_row(
            rendering.cell(rendering.moment(decision.decided_at)),
            rendering.state_cell(decision.state),
            rendering.cell(decision.attempt or "-"),
            rendering.cell(f"{decision.reason}{f': {decision.detail}' if decision.detail else ''}"),
        )
    out.print(table)


def _show(job: JobView) -> None:
    predicted = job.predicted
    spread = f"{rendering.duration(predicted.p10_s)} - {rendering.duration(predicted.p90_s)}" if predicted else ""
    rows: list[tuple[str, str | None]] = [
        ("job", job.job_id),
        ("name", f"{job.name} ({job.tenant}/{job.user}, pool {job.pool}, {job.priority})"),
        ("state", f"{job.state} - {job.detail or job.reason}"),
        ("asks for", rendering.request_words(job)),
        ("attempt", f"{job.attempt}"),
        ("submitted", rendering.moment(job.submitted_at)),
        ("waited", rendering.duration(job.wait_s)),
        ("ran", rendering.duration(job.run_s) if job.run_s is not None else None),
        (
            "predicted",
            f"{rendering.duration(predicted.p50_s)} ({spread}, {predicted.basis})"
            if predicted is not None and predicted.p50_s is not None
            else "unknown",
        ),
        ("ordered", rendering.order_words(job) or None),
        ("placed", f"{rendering.node_words(job)}: {job.why_there}" if job.why_there else None),
        ("progress", rendering.progress_words(job) if job.progress is not None else None),
        ("left", words if (words := rendering.left_words(job)) != "-" else None),
        ("unblocks", job.unblocks.text if job.unblocks is not None and job.state not in TERMINAL else None),
        ("diagnosis", _diagnosis_words(job)),
        ("to do", job.proposed_change),
        ("exit codes", ", ".join(f"{k}: {v}" for k, v in job.exit_codes.items()) or None),
        ("trace", job.trace_id),
    ]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows:
        if value is not None:
            table.add_row(name, rendering.cell(value))
    rendering.console().print(table)


def _diagnosis_words(job: JobView) -> str | None:
    told = job.diagnosis
    if told is None:
        return None
    text = f"{told.category} (attempt {told.attempt}, {told.culpable or 'nobody named'}, {told.confidence:.0%} sure): {told.action}"
    if told.evidence is not None:
        line = f":{told.evidence.line}" if told.evidence.line is not None else ""
        text += f" - {told.evidence.file}{line}: {told.evidence.text}"
    return text


def why(job: JobArgument, *, json: Json = False) -> None:
    """Tell why a job stands where it stands, and what would change that."""
    with Client.from_environment() as client:
        found = find_job(client, job)
        told = client.why(found.job_id)
    if json:
        diagnosis = rendering.plain(found.diagnosis)
        rendering.print_json(
            {
                **told.model_dump(mode="json"),
                "diagnosis": diagnosis,
                "advice": advice_on(found.diagnosis.category) if found.diagnosis is not None else None,
                "proposed_change": found.proposed_change,
            }
        )
        return
    out = rendering.console()
    out.print(
        rendering.cell(
            f"{told.state} - {told.reason}: {told.detail}" if told.detail else f"{told.state} - {told.reason}"
        )
    )
    if told.queue_position is not None:
        out.print(rendering.cell(f"{told.queue_position} jobs stand before it"))
    if told.unblocks is not None:
        out.print(rendering.cell(told.unblocks.text))
    words = _diagnosis_words(found)
    if words is not None and found.diagnosis is not None:
        out.print(rendering.cell(words))
        out.print(rendering.cell(advice_on(found.diagnosis.category)))
    if found.proposed_change is not None:
        out.print(rendering.cell(f"to do: {found.proposed_change}"))


def logs(
    job: JobArgument,
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job's end.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Attempt; the last without one.")] = None,
    member: Annotated[int, typer.Option(min=0, help="Member of the gang.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only, one object a line for each piece.")] = False,
) -> None:
    """Print a job's output. Control characters are made visible: the output cannot steer the terminal."""
    with Client.from_environment() as client:
        found = find_job(client, job)
        if follow and json:
            for part in client.follow(found.job_id, attempt=attempt, member=member):
                rendering.print_json(asdict(part))
                sys.stdout.flush()
            return
        if follow:
            _print_log(client, found.job_id, attempt=attempt, member=member, out=sys.stdout)
            return
        _print_pages(client, found.job_id, attempt=attempt, member=member, json=json)


def _print_pages(client: Client, job_id: str, *, attempt: int | None, member: int, json: bool) -> None:
    offset = 0
    while True:
        page = client.log(job_id, attempt=attempt, member=member, offset=offset, limit=1 << 18)
        if json:
            if page.end > offset or offset == 0:
                rendering.print_json(page)
        else:
            for gap in page.gaps:
                sys.stdout.write(f"\n[bytes {gap.start} to {gap.end} were not kept]\n")
            sys.stdout.write(rendering.safe_log(page.text))
        if page.end <= offset:
            return
        offset, attempt = page.end, page.attempt


def _print_log(client: Client, job_id: str, *, attempt: int | None, member: int, out: TextIO) -> None:
    for part in client.follow(job_id, attempt=attempt, member=member):
        if part.gap:
            out.write(f"\n[bytes {part.offset} to {part.end} were not kept]\n")
        elif part.text:
            out.write(rendering.safe_log(part.text))
        out.flush()


def cancel(
    job: JobArgument,
    *,
    reason: Annotated[str, typer.Option("--why", help="Goes into the audit.")] = "",
    json: Json = False,
) -> None:
    """Ask to cancel a job; the pool's log decides what comes of it."""
    with Client.from_environment() as client:
        answer = client.cancel(find_job(client, job).job_id, reason)
    if json:
        rendering.print_json(answer)
    else:
        words = "cancel requested" if answer.requested else f"it had ended already ({answer.state})"
        rendering.console().print(rendering.cell(f"{answer.job_id}: {words}"))
