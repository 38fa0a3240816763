"""What every adapter of `Processes` owes its callers; on real processes and on scripted ones."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from schedmate.infra.clock import SystemClock
from schedmate.infra.processes.port import (
    AlreadyStartedError,
    EndCause,
    Launch,
    MemberKey,
    MemberStatus,
    Phase,
    Processes,
)
from schedmate.infra.processes.real import RealProcesses
from schedmate.infra.processes.scripted import ScriptedProcesses
from tests.processes import some_rounds
from tests.waiting import eventually_sync

FAR = 1e12
KEY = MemberKey(
    f"{os.getpid():08x}-0000-5000-8000-000000000002", 0
)  # lost runs are found by their id: not those of another test process


class Bench(Protocol):
    """Makes a program do the same thing on each adapter."""

    processes: Processes

    def exiting(self, key: MemberKey, code: int, output: str = "") -> None: ...

    def staying(self, key: MemberKey, *, ignores_term: bool = False) -> None: ...

    def has_seen_requests(self, key: MemberKey) -> None: ...


def launch(argv: tuple[str, ...] = ("/bin/true",), epoch: int = 1) -> Launch:
    return Launch(argv, {"PATH": "/usr/bin:/bin"}, "/", epoch, 1 << 20)


class RealBench:
    def __init__(self, root: Path) -> None:
        self._root = root
        self.processes = RealProcesses(root)

    def exiting(self, key: MemberKey, code: int, output: str = "") -> None:
        self.processes.hold(key, launch(("/bin/sh", "-c", f"printf '{output}'; exit {code}")))
        self.processes.let_run(key)

    def staying(self, key: MemberKey, *, ignores_term: bool = False) -> None:
        trap = "trap '' TERM; " if ignores_term else ""
        self.processes.hold(key, launch(("/bin/sh", "-c", f"{trap}echo ready; while true; do sleep 0.05; done")))
        self.processes.let_run(key)
        eventually_sync(lambda: self.processes.read_spool(key, 0, 100) == b"ready\n")

    def has_seen_requests(self, key: MemberKey) -> None:
        """Wait until the supervisor has read what was asked of it so far."""
        some_rounds(json.loads((self._root / "runs" / str(key) / "processes").read_text())["supervisor_pid"])


class ScriptedBench:
    def __init__(self) -> None:
        self.processes = ScriptedProcesses(SystemClock())

    def exiting(self, key: MemberKey, code: int, output: str = "") -> None:
        self.processes.hold(key, launch())
        self.processes.let_run(key)
        self.processes.prints(key, output.encode())
        self.processes.exits(key, code)

    def staying(self, key: MemberKey, *, ignores_term: bool = False) -> None:
        self.processes.hold(key, launch())
        self.processes.let_run(key)
        if ignores_term:
            self.processes.ignores_term(key)

    def has_seen_requests(self, key: MemberKey) -> None:
        """It sees each at once."""


@pytest.fixture(params=["real", "scripted"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made: Bench = RealBench(tmp_path / "n1") if request.param == "real" else ScriptedBench()
    made.processes.renew(epoch=1, deadline=FAR)
    yield made
    for key in made.processes.kept():
        made.processes.kill(key)


def ended(processes: Processes, key: MemberKey = KEY) -> MemberStatus:
    eventually_sync(lambda: processes.status(key).phase is Phase.ENDED)
    return processes.status(key)


def test_an_unknown_member_is_absent(bench: Bench) -> None:
    assert bench.processes.status(KEY) == MemberStatus(Phase.ABSENT)
    assert list(bench.processes.kept()) == []
    bench.processes.stop(KEY, grace_s=0, cause=EndCause.STOPPED)
    bench.processes.forget(KEY)


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_an_exit_code_and_all_output_are_kept(bench: Bench, code: int) -> None:
    bench.exiting(KEY, code, "step 1/2")
    status = ended(bench.processes)
    assert status.exit is not None
    assert (status.exit.cause, status.exit.exit_code, status.exit.signal) == (EndCause.EXITED, code, None)
    assert status.exit.started_at is not None
    assert status.exit.ended_at >= status.exit.started_at
    assert status.spool_bytes == 8
    assert bench.processes.read_spool(KEY, 5, 100) == b"1/2"
    assert bench.processes.read_spool(KEY, 8, 100) == b""


def test_a_held_program_does_not_run_until_it_may(bench: Bench) -> None:
    pid = bench.processes.hold(KEY, launch(("/bin/sh", "-c", "echo ran; sleep 60")))
    status = bench.processes.status(KEY)
    assert (status.phase, status.pid, status.started_at) == (Phase.HELD, pid, None)
    assert bench.processes.read_spool(KEY, 0, 10) == b""
    bench.processes.let_run(KEY)
    eventually_sync(lambda: bench.processes.status(KEY).phase is Phase.RUNNING)
    assert bench.processes.status(KEY).started_at is not None


def test_an_abandoned_program_never_runs(bench: Bench) -> None:
    bench.processes.hold(KEY, launch(("/bin/sh", "-c", "echo ran")))
    bench.processes.abandon(KEY)
    status = ended(bench.processes)
    assert status.exit is not None
    assert (status.exit.cause, status.exit.exit_code) == (EndCause.NOT_STARTED, None)
    assert status.spool_bytes == 0


def test_a_stop_ends_a_program_by_sigterm(bench: Bench) -> None:
    bench.staying(KEY)
    bench.processes.stop(KEY, grace_s=30, cause=EndCause.STOPPED)
    status = ended(bench.processes)
    assert status.exit is not None
    assert (status.exit.cause, status.exit.signal) == (EndCause.STOPPED, 15)


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(bench: Bench) -> None:
    bench.staying(KEY, ignores_term=True)
    before = time.monotonic()
    bench.processes.stop(KEY, grace_s=0.5, cause=EndCause.STOPPED)
    status = ended(bench.processes)
    assert time.monotonic() - before >= 0.5
    assert status.exit is not None
    assert (status.exit.cause, status.exit.signal) == (EndCause.STOPPED, 9)


def test_a_shorter_grace_overtakes_a_longer_one_and_the_first_cause_stays(bench: Bench) -> None:
    bench.staying(KEY, ignores_term=True)
    bench.processes.stop(KEY, grace_s=600, cause=EndCause.STOPPED)
    bench.has_seen_requests(KEY)
    bench.processes.stop(KEY, grace_s=0, cause=EndCause.WORKER_STOPPED)
    status = ended(bench.processes)
    assert status.exit is not None
    assert status.exit.cause is EndCause.STOPPED


def test_a_member_is_started_once_for_ever(bench: Bench) -> None:
    bench.exiting(KEY, 0)
    with pytest.raises(AlreadyStartedError):
        bench.processes.hold(KEY, launch())
    ended(bench.processes)
    with pytest.raises(AlreadyStartedError):
        bench.processes.hold(KEY, launch())
    bench.processes.forget(KEY)
    assert bench.processes.status(KEY).phase is Phase.ABSENT
    with pytest.raises(AlreadyStartedError):
        bench.processes.hold(KEY, launch())


def test_two_members_of_one_run_are_two_programs(bench: Bench) -> None:
    other = MemberKey(KEY.run_id, 1)
    bench.exiting(KEY, 0)
    bench.exiting(other, 3)
    status = ended(bench.processes, other)
    assert status.exit is not None
    assert status.exit.exit_code == 3
    assert list(bench.processes.kept()) == [KEY, other]


def test_a_passed_deadline_kills_without_grace(bench: Bench) -> None:
    bench.staying(KEY, ignores_term=True)
    bench.processes.renew(epoch=2, deadline=FAR)  # another epoch: the lease had lapsed
    status = ended(bench.processes)
    assert status.exit is not None
    assert (status.exit.cause, status.exit.signal) == (EndCause.LEASE_EXPIRED, 9)


def test_a_program_is_not_let_run_after_the_deadline(bench: Bench) -> None:
    bench.processes.hold(KEY, launch(("/bin/sh", "-c", "echo ran")))
    bench.processes.renew(epoch=1, deadline=0.0)
    bench.processes.let_run(KEY)
    status = ended(bench.processes)
    assert status.exit is not None
    assert status.exit.cause is EndCause.LEASE_EXPIRED
    assert status.spool_bytes == 0


def test_the_deadline_last_set_is_told(bench: Bench) -> None:
    bench.processes.renew(epoch=3, deadline=12.5)
    assert bench.processes.deadline() == (3, 12.5)


def test_a_member_whose_supervisor_is_killed_is_lost_and_then_ended(bench: Bench) -> None:
    bench.staying(KEY)
    bench.processes.kill(KEY)
    eventually_sync(lambda: bench.processes.status(KEY).phase is Phase.LOST)
    eventually_sync(lambda: bench.processes.end_lost(KEY))
    status = ended(bench.processes)
    assert status.exit is not None
    assert status.exit.cause is EndCause.LOST


def test_the_processes_of_living_members_are_told(bench: Bench) -> None:
    assert bench.processes.pids() == frozenset()
    bench.staying(KEY)
    pid = bench.processes.status(KEY).pid
    assert pid in bench.processes.pids()
    bench.processes.stop(KEY, grace_s=5, cause=EndCause.STOPPED)
    ended(bench.processes)
    eventually_sync(lambda: pid not in bench.processes.pids())
