"""Any policy runs a live pool by a setting; what it decided there is decided again, measured, and simulated to the same placements."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schedmate.cli.app import app
from schedmate.infra.store.sqlite import SqliteStore
from schedmate.schemas import events as e
from schedmate.schemas.topology import topology
from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policies.tiresias import Tiresias
from schedmate.services.dispatcher.core.policy import policies
from schedmate.services.dispatcher.log import Entry, PoolLog
from schedmate.simulator.engine import Simulation
from schedmate.simulator.recorded import line_of, read_log, recording_of, replayed
from tests.leading import CLOCK, World
from tests.waiting import eventually

pytestmark = pytest.mark.localhost  # the leader answers `why` on the loopback

JOBS = (
    {"gpus": 4}, {"gpus": 2}, {"gpus": 4, "nodes": 2}, {"gpus": 1, "kind": "inference"}, {"gpus": 1, "nodes": 2, "within": "rack"},
    {"gpus": 3, "tenant": "team-b"}, {"gpus": 1}, {"gpus": 4, "priority": "high"},
)  # fmt: skip
NODES = {"n1": "r1", "n2": "r1", "n3": "r2"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.setup()
    yield made
    await made.close()


class Workers:
    """Play the nodes: every member starts when it is assigned, and jobs end one by one, the first placed first."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.members: dict[str, list[e.MemberAssigned]] = {}
        self.started: set[tuple[str, int]] = set()
        self.ended: set[str] = set()
        self._numbers = count()

    async def join(self) -> None:
        for n, (node, rack) in enumerate(NODES.items()):
            gpus = tuple(e.GpuReport(index=g, type="a100", memory_mib=40960) for g in range(4))
            event = e.NodeReportedV2(
                node=node, pool="default", boot_id="b", session=1, report_no=1, applied_seq=-1, applied_index=-1, address="127.0.0.1",
                port_min=20000, port_max=20999, gpus=gpus, runs=(), lease_s=60.0, at=CLOCK.now(), rack=rack,
            )  # fmt: skip
            await self.world.say(event, f"report-{n}")
            await self.world.until(
                "schedmate.decisions", e.NodeJoined, n + 1
            )  # one after the other: their order is fixed

    async def until_all_have_ended(self, jobs: int) -> None:
        while len(self.ended) < jobs:
            await eventually(self._start_and_end_one, 10, "a job that can end")
            await self.world.until("schedmate.decisions", e.JobSucceeded, len(self.ended))

    async def _start_and_end_one(self) -> bool:
        for a in await self.world.events("schedmate.assignments", e.MemberAssigned):
            if (a.job_id, a.member) not in self.started:
                self.started.add((a.job_id, a.member))
                self.members.setdefault(a.job_id, []).append(a)
                await self.world.say(
                    e.RunStarted(**self._about(a), pid=1, gpus=a.gpus, started_at=CLOCK.now()), self._id()
                )
        ready = [job for job, told in self.members.items() if job not in self.ended and len(told) == told[0].members]
        if not ready:
            return False
        self.ended.add(ready[0])
        for a in self.members[ready[0]]:
            now = CLOCK.now()
            done = e.RunExited(
                **self._about(a), cause=e.ExitCause.EXITED, exit_code=0, log_bytes=0, started_at=now, ended_at=now
            )
            await self.world.say(done, self._id())
        return True

    def _id(self) -> str:
        return f"worker-{next(self._numbers)}"

    @staticmethod
    def _about(a: e.MemberAssigned) -> dict[str, object]:
        return {name: getattr(a, name) for name in ("job_id", "pool", "run_id", "attempt", "member", "node", "session")}


async def recorded(world: World, policy: str) -> list[Entry]:
    """Let a live pool run the jobs under a policy; return its log."""
    await world.leader(policy=policy)
    workers = Workers(world)
    await workers.join()
    for n, job in enumerate(JOBS):
        await world.submit(f"j{n}", **job)
        await world.until("schedmate.decisions", e.JobQueued, n + 1)
    await asyncio.wait_for(workers.until_all_have_ended(len(JOBS)), 60)
    return [entry async for entry in PoolLog(world.store, "default").entries(-1)]


@pytest.mark.parametrize("policy", sorted(policies()))
async def test_a_live_pool_runs_any_policy_by_a_setting(
    world: World, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(Tiresias, "rounds_s", 0.25)  # a minute is long for a test
    log = await recorded(world, policy)
    assert replayed(log) is None
    told = [x for entry in log for x in entry.inputs if type(x) is i.ConfigChanged]
    assert policy == (told[-1].config["policy"] if told else PoolConfig().policy)
    recording = recording_of(log)
    figures = recording.measured()
    assert (figures["jobs"], figures["finished"], figures["ended"]) == (len(JOBS), len(JOBS), {"SUCCEEDED": len(JOBS)})
    assert figures["gpus"] == 12
    assert 0 < figures["allocated_max"] <= 1
    assert figures["jtted_leaf_groups"] >= 1
    if policy.startswith(("tiresias", "lucid")):
        return  # a round's instant lies before the entry that a live pool decides it in
    config = PoolConfig.from_json(dict(told[-1].config)) if told else PoolConfig()
    order: list[tuple[str, tuple[d.Seat, ...]]] = []
    simulation = Simulation(
        recording.trace("live").jobs, recording.cluster, policy, config=config,
        recorder=lambda _, done: order.extend((x.job, x.seats) for x in done.decisions if type(x) is d.Placed),
    )  # fmt: skip
    outcome = simulation.run()
    assert order == [(x.job, x.seats) for entry in log for x in entry.decisions if type(x) is d.Placed]
    assert outcome.preemptions == 0


async def test_the_commands_read_a_live_pool_s_log_from_its_store(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await recorded(world, "kant-spread")
    store = SqliteStore(tmp_path / "store.db")
    await store.start()
    await store.setup(topology().collections.values())
    for entry in log:
        await PoolLog(store, "default").append(entry)
    await store.stop()
    monkeypatch.setenv("SCHEDMATE_STATE_DIR", str(tmp_path))
    out = tmp_path / "log.jsonl"

    def run(*given: str) -> str:
        done = CliRunner().invoke(app, list(given))
        assert done.exit_code == 0, done.output
        return done.stdout

    await asyncio.to_thread(run, "pool", "export", "default", "--out", str(out))
    assert out.read_text() == "".join(line_of(entry) for entry in log)
    figures = json.loads(await asyncio.to_thread(run, "pool", "metrics", "default", "--json"))
    assert figures == json.loads(json.dumps(recording_of(read_log(out)).measured()))
    assert json.loads(await asyncio.to_thread(run, "replay", "--log", str(out), "--json"))["equal"] is True
    value = json.loads(await asyncio.to_thread(run, "simulate", str(out), "--policy", "kant-spread", "--json"))
    assert (value["gpus"], value["results"][0]["finished"]) == (12, len(JOBS))
    nothing = await asyncio.to_thread(CliRunner().invoke, app, ["pool", "metrics", "other"])
    assert nothing.exit_code == 2
