"""A worker as a process of its own on the embedded bus: killed, frozen, restarted. Its journal is checked from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schedmate.infra.bus.sqlite import SqliteBus
from schedmate.infra.clock import SeededRandom, SystemClock
from schedmate.infra.processes.port import MemberKey
from schedmate.schemas.events import NodeReported, RunExited
from schedmate.schemas.topology import topology
from tests.acceptance.node import Node
from tests.journal_checker import check_directories
from tests.processes import is_alive
from tests.waiting import eventually
from tests.worker_bench import Talk, spec

SHORT_LEASE_S = 4.0


@contextlib.asynccontextmanager
async def node_on(directory: Path) -> AsyncIterator[Node]:
    bus = SqliteBus(directory / "bus.db", SystemClock())
    await bus.start()
    await bus.create_topics(topology().topics.values())
    node = Node(directory, Talk(bus, "n1"))
    try:
        yield node
    finally:
        if node.process is not None and node.process.poll() is None:
            node.process.send_signal(signal.SIGCONT)
            node.process.kill()
            node.process.wait()
        await bus.stop()
        if (directory / "n1").is_dir():
            (directory / "n1" / "deadline").write_text("0 0")  # supervisors that are left end their runs now
        print((directory / "worker.log").read_text()[-8000:])


async def test_a_worker_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    async with node_on(tmp_path) as node:
        await node.up()
        ends: dict[Any, int] = {}
        for number in range(4):
            quick = await node.talk.assign(spec("sh", "-c", f"sleep 0.2; exit {10 + number}"), gpus=(0,))
            ends[quick] = 10 + number
            if number == 0:
                living = await node.talk.assign(spec("sh", "-c", "sleep 600"), gpus=(1,))
                pid = (await node.talk.started(living)).pid
            await node.talk.started(quick)
            node.signal(signal.SIGKILL)
            assert is_alive(pid)
            await node.up()
            exited = await node.talk.exited(quick)
            assert (exited.cause, exited.exit_code) == ("exited", ends[quick])
        await node.talk.order_stop(living, grace_s=1.0)
        assert (await node.talk.exited(living)).cause == "stopped"
        assert not is_alive(pid)
        node.signal(signal.SIGTERM)
        assert node.process is not None
        assert node.process.returncode == 0
    verdict = check_directories([tmp_path])
    assert verdict.violations == []
    assert len(verdict.lives) == 5


@pytest.mark.slow
async def test_killed_at_random_moments_every_assignment_has_one_outcome_and_the_journal_holds(
    tmp_path: Path, seed: int
) -> None:
    """Killed as it starts, runs and ends its members: each assignment ends, is refused, or is missing from a report that is past it."""
    chance = SeededRandom(seed)
    async with node_on(tmp_path) as node:
        await node.up()
        keys = []
        for number in range(24):
            command = f"sleep {chance.uniform(0.0, 0.4):.2f}; echo out; exit {number}"
            keys.append((number, await node.talk.assign(spec("sh", "-c", command), gpus=(number % 2,))))
            await asyncio.sleep(chance.uniform(0.0, 0.4))
            if number % 3 == 2:
                node.signal(signal.SIGKILL)
                await node.up()
        for number, key in keys:

            async def outcome(key: Any = key) -> Any:
                return await node.talk.end_of(key) or await node.talk.reported(lambda r: _is_missing(r, node.talk, key))

            end = await eventually(outcome, 20)
            if isinstance(end, RunExited) and end.cause == "exited":
                assert end.exit_code == number
        node.signal(signal.SIGTERM)
    verdict = check_directories([tmp_path])
    assert verdict.violations == []
    assert len(verdict.lives) >= 8


def _is_missing(report: NodeReported, talk: Talk, key: MemberKey) -> bool:
    return report.applied_seq >= talk.place_of(key) and all(run.run_id != key.run_id for run in report.runs)


async def test_a_worker_frozen_past_its_lease_comes_back_in_a_new_session_with_its_runs_dead(tmp_path: Path) -> None:
    async with node_on(tmp_path) as node:
        await node.up(LEASE_S=str(SHORT_LEASE_S))
        key = await node.talk.assign(spec("sh", "-c", "trap '' TERM; sleep 600"), gpus=(0, 1))
        pid = (await node.talk.started(key)).pid
        session = (await node.talk.reports())[-1].session
        node.signal(signal.SIGSTOP)
        await eventually(lambda: not is_alive(pid), SHORT_LEASE_S + 5)
        late = await node.talk.assign(spec("true"), gpus=(0,), session=session)
        node.signal(signal.SIGCONT)
        assert (await node.talk.exited(key)).cause == "lease_expired"
        await eventually(lambda: node.talk.reported(lambda r: r.session == session + 1), 20)
        refused_or_ended = await eventually(lambda: node.talk.end_of(late), 20)
        assert refused_or_ended is not None
        again = await node.talk.assign(spec("true"), gpus=(0, 1))
        assert (await node.talk.exited(again)).exit_code == 0
    assert check_directories([tmp_path]).violations == []


async def test_sigterm_leaves_runs_and_a_flag_ends_them(tmp_path: Path) -> None:
    async with node_on(tmp_path) as node:
        await node.up()
        key = await node.talk.assign(spec("sleep", "600"), gpus=(0,))
        pid = (await node.talk.started(key)).pid
        node.signal(signal.SIGTERM)
        assert is_alive(pid)
        await node.up(STOP_RUNS="true")
        assert is_alive(pid)
        node.signal(signal.SIGTERM)
        assert not is_alive(pid)
        assert (await node.talk.exited(key)).cause == "worker_stopped"
    assert check_directories([tmp_path]).violations == []


async def test_the_end_of_the_workers_whole_session_ends_no_run(tmp_path: Path) -> None:
    """SIGHUP and SIGTERM to the worker's process group, as a terminal or an init system sends them."""
    async with node_on(tmp_path) as node:
        await node.up()
        key = await node.talk.assign(spec("sleep", "600"), gpus=(0,))
        pid = (await node.talk.started(key)).pid
        assert node.process is not None
        assert os.getpgid(pid) != os.getpgid(node.process.pid)
        assert os.getsid(pid) != os.getsid(node.process.pid)


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({"GPUS": ""}, "SCHEDMATE_GPUS"),
        ({"KAFKA_PASSWORD": "x"}, "holds credentials"),
        ({"RUN_USER": "no-such-account"}, "SCHEDMATE_RUN_USER"),
        ({"LEASE_S": "soon"}, "lease_s"),
    ],
)
async def test_a_worker_that_cannot_start_says_why_in_one_line(
    tmp_path: Path, env: dict[str, str], complaint: str
) -> None:
    async with node_on(tmp_path) as node:
        node.start(**env)
        assert node.process is not None
        code = await asyncio.to_thread(node.process.wait, 30)
        assert code in {1, 2}
        (line,) = [
            line for line in (tmp_path / "worker.log").read_text().splitlines() if complaint.lower() in line.lower()
        ]
        assert "Traceback" not in (tmp_path / "worker.log").read_text()
        assert line


async def test_the_journal_is_of_the_designs_format(tmp_path: Path) -> None:
    async with node_on(tmp_path) as node:
        await node.up()
        await node.talk.exited(await node.talk.assign(spec("sh", "-c", "exit 3"), gpus=(1,)))
        lines = [json.loads(line) for line in (tmp_path / "n1" / "journal.jsonl").read_text().splitlines()]
        assert [(line["event"], line["gpus"], line["exit_code"]) for line in lines] == [
            ("started", [1], None),
            ("exited", [1], 3),
        ]
