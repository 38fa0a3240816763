"""`schedmate demo`: the whole system in one process, a dozen real jobs, and an account of what became of each.

Two workers with four declared GPUs each, SQLite bus and store, no language model. The jobs are the programs of `examples/`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from schedmate.cli import rendering
from schedmate.client import Client
from schedmate.embedded import UpSettings, run_up
from schedmate.infra.settings import SettingsError
from schedmate.infra.telemetry.logs import setup_logging
from schedmate.schemas.states import TERMINAL, JobState
from schedmate.services.ingest.models import JobView

TIMEOUT_S: Final = 150.0
_LOOK_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Act:
    """One job of the demo. It is submitted once the jobs named in `after` have ended."""

    key: str
    program: str
    arguments: tuple[str, ...] = ()
    gpus: int = 1
    nodes: int = 1
    name: str = ""
    after: tuple[str, ...] = ()
    expected: JobState = JobState.SUCCEEDED
    cancel_when_running: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


def acts(kernel_logs: Path) -> list[Act]:
    """Return the jobs, in the order in which they are submitted."""
    gang = ("gang",)
    return [
        Act("steps", "train_steps.py", ("--max-steps", "50"), gpus=2, name="regression"),
        Act("bar", "train_bar.py", ("--steps", "40"), gpus=1, name="k-means"),
        Act("epochs", "train_epochs.py", ("--epochs", "5"), gpus=1, name="majority-vote"),
        Act("wide", "train_steps.py", ("--max-steps", "40", "--batch-size", "256"), gpus=4, name="regression-wide"),
        Act("gang", "gang_average.py", ("--rounds", "20"), gpus=4, nodes=2, name="gang-average", after=("steps", "bar")),
        Act("again", "train_steps.py", ("--max-steps", "50"), gpus=2, name="regression", after=gang),
        Act(
            "fault",
            "driver_fault.py",
            ("--steps", "25", "--kernel-log-dir", str(kernel_logs)),
            gpus=2,
            name="driver-fault",
            after=gang,
        ),
        Act("memory", "out_of_memory.py", ("--batch-size", "4096"), name="out-of-memory", after=gang, expected=JobState.FAILED),
        Act("endless", "endless.py", name="endless", after=gang, expected=JobState.CANCELLED, cancel_when_running=True),
        Act("resumable", "train_epochs.py", ("--epochs", "4"), name="majority-vote-2", after=gang, fields={"resume_flag": "--resume"}),
        Act("urgent", "train_steps.py", ("--max-steps", "30"), name="urgent-regression", after=gang, fields={"priority": "urgent"}),
        Act("limited", "endless.py", name="time-limited", after=gang, expected=JobState.FAILED, fields={"time_limit_s": 5}),
        Act("last", "train_bar.py", ("--steps", "30"), gpus=2, name="k-means-2", after=gang),
    ]  # fmt: skip


def run_demo(directory: Path | None, examples: Path | None, *, json: bool) -> int:
    """Run the demo; return 0 when every job came to its expected end, else 1."""
    programs = _examples(examples)
    setup_logging("error", "console")
    with tempfile.TemporaryDirectory(prefix="schedmate-demo-", ignore_cleanup_errors=True) as scratch:
        state_dir = directory if directory is not None else Path(scratch)
        return asyncio.run(_run(state_dir, programs, json=json))


def _examples(given: Path | None) -> Path:
    candidates = (
        [given] if given is not None else [Path.cwd() / "examples", Path(__file__).resolve().parent.parent / "examples"]
    )
    found = next((path for path in candidates if (path / "gang_average.py").is_file()), None)
    if found is None:
        raise SettingsError(
            "--examples: the example programs are not here; run it in a checkout, or name their directory"
        )
    return found.resolve()


async def _run(state_dir: Path, programs: Path, *, json: bool) -> int:
    kernel_logs = state_dir / "kernel-logs"
    kernel_logs.mkdir(parents=True, exist_ok=True)
    for node in ("n1", "n2"):
        (kernel_logs / f"{node}.log").touch()
    settings = UpSettings(
        state_dir=state_dir, bus="sqlite:", store="sqlite:", blobs="files:", llm="none", nodes=2, gpus=4, gpu_type="demo-gpu",
        gpu_memory_mib=40960, api_port=0, health_port=0, kernel_logs=kernel_logs, log_level="error", log_format="console",
    )  # fmt: skip
    stop = asyncio.Event()
    components: list[Any] = []
    up = asyncio.create_task(run_up(settings, stop=stop, on_components=components.extend))
    try:
        host, port = await _listening(up, components)
        show = Show(Client(f"http://{host}:{port}"), acts(kernel_logs), programs, json=json)
        watching = asyncio.ensure_future(asyncio.to_thread(show.play))
        await asyncio.wait({watching, up}, return_when=asyncio.FIRST_COMPLETED)
        if not watching.done():
            show.stopped = True
            await watching
            return 1
        return watching.result()
    finally:
        stop.set()
        await up


async def _listening(up: asyncio.Task[int], components: list[Any]) -> tuple[str, int]:
    """Wait until ingest has its port."""
    deadline = asyncio.get_running_loop().time() + 30
    while asyncio.get_running_loop().time() < deadline and not up.done():
        found = next((c.address for c in components if c.name == "ingest" and c.address is not None), None)
        if found is not None:
            return str(found[0]), int(found[1])
        await asyncio.sleep(0.05)
    raise SettingsError("the demo's services did not start; run `schedmate up` to see why")


class Show:
    """Submits the acts, watches them, and tells what became of each. Runs in a thread of its own."""

    def __init__(self, client: Client, planned: list[Act], programs: Path, *, json: bool) -> None:
        self.stopped = False
        self._client = client
        self._planned = planned
        self._programs = programs
        self._json = json
        self._ids: dict[str, str] = {}
        self._jobs: dict[str, JobView] = {}
        self._cancelled: set[str] = set()
        self._began = time.monotonic()

    def play(self) -> int:
        """Play all acts and print the account."""
        with self._client:
            self._wait_for_nodes()
            if self._json or not sys.stdout.isatty():
                self._loop(lambda: None)
            else:
                with Live(self._screen(), console=rendering.console(), refresh_per_second=4, transient=True) as live:
                    self._loop(lambda: live.update(self._screen()))
            return self._account()

    def _wait_for_nodes(self) -> None:
        while not self._over() and sum(n.state == "up" for n in self._client.nodes()) < 2:  # noqa: PLR2004 - the demo's two
            time.sleep(0.1)

    def _over(self) -> bool:
        return self.stopped or time.monotonic() - self._began > TIMEOUT_S

    def _loop(self, shown: Callable[[], None]) -> None:
        told = ""
        while not self._over():
            self._submit_what_is_due()
            self._jobs = {job.job_id: job for job in self._client.jobs(limit=100)}
            self._cancel_what_runs()
            shown()
            line = self._line()
            if line != told and not self._json and not sys.stdout.isatty():
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
                told = line
            if len(self._ids) == len(self._planned) and all(self._ended(a.key) for a in self._planned):
                return
            time.sleep(_LOOK_EVERY_S)

    def _ended(self, key: str) -> bool:
        job = self._jobs.get(self._ids.get(key, ""))
        return job is not None and job.state in TERMINAL

    def _submit_what_is_due(self) -> None:
        for act in self._planned:
            if act.key not in self._ids and all(self._ended(key) for key in act.after):
                job = self._client.submit(
                    {
                        "name": act.name,
                        "command": [sys.executable, str(self._programs / act.program), *act.arguments],
                        "workdir": str(self._programs),
                        "entry": act.program,
                        "gpus": act.gpus,
                        "nodes": act.nodes,
                        "env": {"PYTHONDONTWRITEBYTECODE": "1"},
                        **act.fields,
                    },
                    idempotency_key=f"demo-{act.key}-{os.getpid()}",
                )
                self._ids[act.key] = job.job_id

    def _cancel_what_runs(self) -> None:
        for act in self._planned:
            job = self._jobs.get(self._ids.get(act.key, ""))
            if (
                act.cancel_when_running
                and job is not None
                and job.state is JobState.RUNNING
                and job.job_id not in self._cancelled
            ):
                self._client.cancel(job.job_id, "the demo cancels it")
                self._cancelled.add(job.job_id)

    def _in_order(self) -> list[JobView]:
        return [self._jobs[i] for a in self._planned if (i := self._ids.get(a.key)) is not None and i in self._jobs]

    def _line(self) -> str:
        return "  ".join(f"{job.name}:{job.state.lower()}" for job in self._in_order())

    def _screen(self) -> Group:
        nodes = rendering.nodes_table(self._client.nodes())
        passed = rendering.cell(f"schedmate demo, {time.monotonic() - self._began:.0f} s", "bold")
        return Group(passed, "", nodes, "", rendering.jobs_table(self._in_order()))

    def _account(self) -> int:
        rows = [(act, self._jobs.get(self._ids.get(act.key, ""))) for act in self._planned]
        wrong = [act.name for act, job in rows if job is None or job.state is not act.expected]
        found = [job for _, job in rows if job is not None]
        if self._json:
            rendering.print_json(
                {
                    "seconds": round(time.monotonic() - self._began, 1),
                    "jobs": [{**job.model_dump(mode="json"), "predicted_words": _foretold(job)} for job in found],
                    "nodes": self._client.nodes(),
                    "unexpected": wrong,
                }
            )
            return 1 if wrong else 0
        out = rendering.console()
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("JOB", "STATE", "TRIES", "GPUS", "WAIT", "RUN", "PREDICTED", "NODES", "TRACE"):
            table.add_column(name, no_wrap=True)
        for job in found:
            table.add_row(
                rendering.cell(job.name),
                rendering.state_cell(job.state),
                rendering.cell(job.attempt),
                rendering.cell(rendering.gpu_words(job)),
                rendering.cell(rendering.duration(job.wait_s)),
                rendering.cell(rendering.duration(job.run_s)),
                rendering.cell(_foretold(job)),
                rendering.cell(rendering.node_words(job)),
                rendering.cell(job.trace_id),
            )
        Console(width=max(out.width, 150), highlight=False).print(table)
        out.print()
        for job in found:
            out.print(rendering.cell(f"{job.name}: {job.why_there or 'never placed'}"), soft_wrap=True)
            if job.state is not JobState.SUCCEEDED or job.attempt > 1:
                out.print(rendering.cell(f"    {_story(job)}"), soft_wrap=True)
        for node in self._client.nodes():
            if node.state != "up":
                out.print(rendering.cell(f"node {node.node} is {node.state}: {node.why}"))
        out.print(rendering.cell(f"{len(rows)} jobs in {time.monotonic() - self._began:.0f} s"))
        if wrong:
            out.print(rendering.cell(f"did not come to the expected end: {', '.join(wrong)}", "bold red"))
        return 1 if wrong else 0


def _foretold(job: JobView) -> str:
    """Return what was predicted before the run itself told; beside it stands what came true."""
    told = job.foretold
    if told is None or told.p50_s is None:
        return "unknown"
    return f"{rendering.duration(told.p50_s)} ({told.basis})"


def _story(job: JobView) -> str:
    told = job.diagnosis
    words = job.detail or job.reason.value
    if told is not None:
        words += f"; attempt {told.attempt} diagnosed as {told.category}: {told.action}"
        if told.evidence is not None:
            words += f" ({told.evidence.file}: {told.evidence.text})"
    if job.proposed_change is not None:
        words += f"; to do: {job.proposed_change}"
    return words
