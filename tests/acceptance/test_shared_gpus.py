"""GPUs that runs share, in a live pool: a dispatcher, workers, real programs; one worker is killed in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from schedmate.infra.bus.port import EventBus
from schedmate.infra.bus.sqlite import SqliteBus
from schedmate.infra.gpus.scripted import ScriptedGpus
from schedmate.infra.processes.real import RealProcesses
from schedmate.schemas import events as e
from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.log import Entry, PoolLog
from schedmate.services.dispatcher.replay import replay
from schedmate.services.dispatcher.wiring import Dispatcher
from schedmate.services.worker.settings import WorkerSettings
from schedmate.services.worker.wiring import build as build_worker
from schedmate.simulator.recorded import line_of, read_log, recording_of, replayed
from tests.acceptance.node import Node
from tests.journal_checker import check_directories
from tests.leading import CLOCK, World
from tests.processes import is_alive
from tests.waiting import eventually
from tests.worker_bench import Talk

pytestmark = pytest.mark.localhost  # the leader answers `why` on the loopback

WAIT_S = 30.0
WAITS = "needs 0.5 of a GPU on one node; the most left of one is 0 on n1"
UNTIL_TOLD = "while [ ! -e {} ]; do sleep 0.05; done"
"""A program that runs until a file is there."""


class Pool(World):
    """A dispatcher that shares GPUs as told, on any bus; the workers are real."""

    def __init__(self, bus: EventBus | None = None) -> None:
        super().__init__()
        self.bus = bus or self.bus  # type: ignore[assignment]

    async def lead(self, **config: Any) -> Dispatcher:
        await self.setup()
        await self.store.put("pool_config", "default", {"gpu_sharing": True, **config})
        return await self.leader(profile_after_s=0.2, lease_s=10.0, batch_max=500)

    async def runs(self, job: str, script: str, **spec: Any) -> None:
        await self.submit(job, command=None, script=script, **spec)

    async def told(self, topic: str, kind: type[e.Event], job: str, count: int = 1) -> list[Any]:
        return await eventually(
            lambda: self._of(topic, kind, job, count), WAIT_S, f"{count} x {kind.__name__} of {job}"
        )

    async def _of(self, topic: str, kind: type[e.Event], job: str, count: int) -> list[Any]:
        found = [x for x in await self.events(topic, kind) if x.job_id == job]
        return found if len(found) >= count else []

    async def log(self) -> list[Entry]:
        return [entry async for entry in PoolLog(self.store, "default").entries(-1)]


async def same_again(pool: Pool, directory: Path) -> list[Entry]:
    """The pool's log, decided again from the store and from an exported file: equal byte for byte."""
    done = await replay(pool.store, "default")
    assert done.difference is None
    log = await pool.log()
    path = directory / "log.jsonl"
    path.write_text("".join(line_of(entry) for entry in log))
    assert replayed(read_log(path)) is None
    return log


def held(directory: Path) -> dict[str, dict[str, Any]]:
    """What the journal of a node says of each run's start: how it holds its GPUs."""
    lines = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    return {line["job_id"]: line for line in lines if line["event"] == "started"}


async def test_halves_of_a_gpu_run_side_by_side_a_third_waits_and_a_killed_worker_keeps_the_shares(
    tmp_path: Path,
) -> None:
    bus = SqliteBus(tmp_path / "bus.db", CLOCK)
    pool = Pool(bus)
    node = Node(tmp_path, Talk(bus, "n1"))
    leave = {job: tmp_path / f"leave-{job}" for job in "abc"}
    try:
        await pool.lead(policy="fifo-skip")
        await node.up(GPUS="1", GPU_SOURCE="declared", REPORT_INTERVAL_S="0.2")
        for job in "abc":
            await pool.runs(job, UNTIL_TOLD.format(leave[job]), gpu_milli=500)
        started = {job: (await pool.told("schedmate.runs", e.RunStarted, job))[0] for job in "ab"}
        assert {run.gpus for run in started.values()} == {(0,)}
        waits = (await pool.told("schedmate.reasons", e.JobReasoned, "c"))[-1]
        assert (waits.reason, waits.detail) == ("INSUFFICIENT_GPUS", WAITS)
        assigned = (await pool.told("schedmate.assignments", e.MemberAssigned, "a"))[0]
        assert isinstance(assigned, e.MemberAssignedV2)
        assert assigned.gpu_milli == 500

        node.signal(signal.SIGKILL)
        assert all(is_alive(run.pid) for run in started.values())
        await node.up(GPUS="1", GPU_SOURCE="declared", REPORT_INTERVAL_S="0.2")
        report = await eventually(lambda: node.talk.reported(lambda r: len(r.runs) == 2), WAIT_S)
        assert {(run.job_id, run.state) for run in report.runs} == {("a", "running"), ("b", "running")}
        leave["a"].touch()
        await pool.told("schedmate.runs", e.RunStarted, "c")
        assert is_alive(started["b"].pid)
        await refuses_more(pool, node, assigned)
        for path in leave.values():
            path.touch()
        for job in "abc":
            await pool.told("schedmate.decisions", e.JobSucceeded, job)
        assert {job: line["gpu_milli"] for job, line in held(tmp_path / "n1").items()} == dict.fromkeys("abc", 500)
        log = await same_again(pool, tmp_path)
        placed = [x for entry in log for x in entry.decisions if isinstance(x, d.Placed)]
        assert [(x.job, x.gpu_milli, x.seats[0].gpus) for x in placed] == [(job, 500, (0,)) for job in "abc"]
        assert recording_of(log).measured()["utilisation"] is None, "declared GPUs are not measured"
    finally:
        for path in leave.values():
            path.touch()
        await pool.close()
        if node.process is not None and node.process.poll() is None:
            node.signal(signal.SIGTERM)
        await bus.stop()
    verdict = check_directories([tmp_path / "n1"])
    assert verdict.violations == []
    assert len(verdict.lives) == 3


async def refuses_more(pool: Pool, node: Node, like: e.MemberAssignedV2) -> None:
    """Orders that no dispatcher of this pool would give: a third half, and the whole of a GPU that is held in part."""
    session = (await node.talk.reports())[-1].session
    for number, (milli, kind) in enumerate([(500, e.MemberAssignedV2), (1000, e.MemberAssigned)]):
        given = {name: value for name, value in dict(like).items() if name in kind.model_fields}
        given |= {
            "session": session,
            "seq": 10_000 + number,
            "job_id": f"forged-{number}",
            "run_id": f"forged-{number}",
        }
        forged = kind(**(given | {"gpu_milli": milli} if kind is e.MemberAssignedV2 else given))
        await pool.say(forged, f"forged-{number}")
        refused = (await pool.told("schedmate.runs", e.RunRefused, f"forged-{number}"))[0]
        assert refused.cause is e.RefusalCause.GPU_IN_USE


class Measuring:
    """A worker in this process whose GPU says what a test lets it say; it may be killed, and started again on what it left."""

    def __init__(self, pool: Pool, directory: Path, node: str) -> None:
        self.settings = WorkerSettings(
            node=node, gpus=1, state_dir=directory, same_user=True, lease_s=60.0, report_interval_s=0.2, tick_s=0.02, gpu_poll_s=0.05,
        )  # fmt: skip
        self.gpus = ScriptedGpus(1, "a100", memory_mib=40_000)
        self.gpus.shows(0, utilisation=0.1, memory_utilisation=0.05, memory_used_mib=1_000)
        self.processes = RealProcesses(self.settings.node_dir)
        self._pool = pool
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._worker: Any = None

    async def start(self) -> None:
        self._stop = asyncio.Event()
        self._worker = build_worker(
            self.settings, bus=self._pool.bus, gpus=self.gpus, processes=self.processes, clock=CLOCK
        )
        await self._worker.start()
        self._task = asyncio.create_task(self._worker.run(self._stop))
        await eventually(lambda: all(self._worker.ready().values()), WAIT_S)

    async def kill(self) -> None:
        """As kill -9 would: nothing is said, what is on disk stays as it is."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._worker.close()
        self._task = None

    async def end(self) -> None:
        if self._task is not None:
            await self.kill()
        for key in self.processes.kept():
            self.processes.kill(key)


@pytest.fixture
async def measured(tmp_path: Path) -> AsyncIterator[tuple[Pool, Callable[[str], Measuring]]]:
    pool = Pool()
    nodes: dict[str, Measuring] = {}

    def node(name: str) -> Measuring:
        if name not in nodes:
            nodes[name] = Measuring(pool, tmp_path, name)
        return nodes[name]

    yield pool, node
    await pool.close()
    for one in nodes.values():
        await one.end()


async def test_a_lucid_pool_packs_two_jobs_by_what_their_workers_measured_and_a_killed_worker_keeps_the_pair(
    measured: tuple[Pool, Callable[[str], Measuring]], tmp_path: Path
) -> None:
    pool, node = measured
    made = await pool.lead(policy="lucid", profiler_nodes=1, profiler_s=1.0, stop_grace_s=1.0)
    for name in ("n1", "n2"):  # the last one to join is the profiler
        await node(name).start()
        await pool.until("schedmate.decisions", e.NodeJoined, 1, lambda x, name=name: x.node == name)
    leave = {job: tmp_path / f"leave-{job}" for job in "abc"}
    resumable = {"resume_flag": "--resume", "retries": 0}
    await pool.runs("a", UNTIL_TOLD.format(leave["a"]), **resumable)
    await pool.told("schedmate.decisions", e.JobRequeued, "a")
    await pool.told("schedmate.decisions", e.JobStarted, "a", 2)
    await pool.runs("b", UNTIL_TOLD.format(leave["b"]), **resumable)
    await pool.told("schedmate.decisions", e.JobRequeued, "b")
    await pool.told("schedmate.decisions", e.JobStarted, "b", 2)

    first = (await pool.told("schedmate.assignments", e.MemberAssigned, "a", 2))[-1]
    second = (await pool.told("schedmate.assignments", e.MemberAssigned, "b", 2))[-1]
    assert (first.node, first.gpus, first.packable, first.packed_with) == ("n1", (0,), True, None)
    assert (second.node, second.gpus, second.packable, second.packed_with) == ("n1", (0,), True, first.run_id)
    state = made.leaders["default"].state
    assert state is not None
    assert state.jobs["b"].beside == "a"
    profiles = [x for entry in await pool.log() for x in entry.inputs if isinstance(x, i.ProfileArrived)]
    assert {x.job: (x.utilisation, x.memory_utilisation, x.memory_mib) for x in profiles} == dict.fromkeys(
        "ab", (0.1, 0.05, 1_000)
    )
    assert len(profiles) == 2, "a report that says nothing new is no input"

    await node("n1").kill()
    await node("n1").start()
    report = await eventually(lambda: _report_of(pool, "n1", 2), WAIT_S)
    assert {(run.job_id, run.state) for run in report.runs} == {("a", "running"), ("b", "running")}
    leave["a"].touch()
    await pool.told("schedmate.decisions", e.JobSucceeded, "a")
    assert (state.jobs["b"].state, state.nodes["n1"].owner) == ("RUNNING", {0: "b"})
    leave["b"].touch()
    await pool.told("schedmate.decisions", e.JobSucceeded, "b")
    exits = [x for x in await pool.told("schedmate.runs", e.RunExited, "b", 2) if isinstance(x, e.RunExitedV2)]
    assert exits
    assert exits[0].usage.gpu_utilisation == pytest.approx(0.1)
    log = await same_again(pool, tmp_path)
    assert recording_of(log).measured()["utilisation"] == pytest.approx(0.1)
    assert made.leaders["default"].utilisation is None, "nothing is held now"
    starts = held(tmp_path / "n1")
    assert (starts["a"]["packable"], starts["b"]["packed_with"]) == (True, first.run_id)
    assert check_directories([tmp_path / "n1", tmp_path / "n2"]).violations == []


async def _report_of(pool: Pool, node: str, runs: int) -> e.NodeReported | None:
    reports = [x for x in await pool.events("schedmate.nodes", e.NodeReported) if x.node == node]
    newest = max(reports, key=lambda x: (x.session, x.report_no))
    living = [run for run in newest.runs if run.state != "ended"]
    return (
        newest.model_copy(update={"runs": tuple(living)})
        if newest.session > reports[0].session and len(living) == runs
        else None
    )
