"""The supervisor on real processes: nothing of a run survives its end, and nothing ends a run but what may."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from schedmate.infra.processes import supervisor
from schedmate.infra.processes.port import AlreadyStartedError, EndCause, Launch, MemberKey, Phase, SetupError
from schedmate.infra.processes.real import RealProcesses
from tests.processes import is_alive, is_stopped, some_rounds
from tests.waiting import eventually_sync

KEY = MemberKey(
    f"{os.getpid():08x}-0000-5000-8000-000000000001", 0
)  # lost runs are found by their id: not those of another test process
FAR = 1e12
UNIFIED = next(
    (p for p in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")) if (p / "cgroup.procs").exists()), None
)

# A run whose children do all they can to get away: one in a session of its own, one forked twice from there, one that ignores SIGTERM.
ESCAPES = """
import os, signal, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
one = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True, env={})
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("grandchild", os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
print("child", one.pid, flush=True)
print("main", os.getpid(), flush=True)
"""


def launch(*argv: str, spool_bytes_max: int = 1 << 20, user: str | None = None, **env: str) -> Launch:
    return Launch(argv, {"PATH": "/usr/bin:/bin", **env}, "/", 1, spool_bytes_max, user)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[RealProcesses]:
    made = RealProcesses(tmp_path / "n1")
    made.renew(epoch=1, deadline=FAR)
    yield made
    for key in made.kept():
        made.kill(key)


def run(processes: RealProcesses, launched: Launch, key: MemberKey = KEY) -> None:
    processes.hold(key, launched)
    processes.let_run(key)


def ended(processes: RealProcesses, key: MemberKey = KEY, timeout_s: float = 15.0):
    eventually_sync(lambda: processes.status(key).phase is Phase.ENDED, timeout_s)
    return processes.status(key)


def spool(processes: RealProcesses, key: MemberKey = KEY) -> bytes:
    return processes.read_spool(key, 0, 1 << 22)


def pids_of(processes: RealProcesses) -> dict[str, int]:
    eventually_sync(lambda: spool(processes).count(b"\n") == 3)
    return {name: int(pid) for name, pid in (line.split() for line in spool(processes).decode().splitlines())}


def supervisor_pid(tmp_path: Path, key: MemberKey = KEY) -> int:
    return json.loads((tmp_path / "n1" / "runs" / str(key) / "processes").read_text())["supervisor_pid"]


def test_children_that_left_the_group_and_the_session_are_ended_with_a_stop(processes: RealProcesses) -> None:
    run(processes, launch(sys.executable, "-S", "-c", ESCAPES + "time.sleep(600)"))
    pids = pids_of(processes)
    assert set(pids.values()) <= processes.pids()
    processes.stop(KEY, grace_s=60, cause=EndCause.STOPPED)
    eventually_sync(lambda: not is_alive(pids["main"]))  # however long SIGTERM takes; one child ignores it
    processes.stop(KEY, grace_s=0.0, cause=EndCause.STOPPED)
    status = ended(processes)
    assert [name for name, pid in pids.items() if is_alive(pid)] == []
    assert status.exit is not None
    assert (status.exit.cause, status.exit.signal) == (EndCause.STOPPED, signal.SIGTERM)


def test_children_that_outlive_their_parent_are_ended_before_the_exit_is_told(processes: RealProcesses) -> None:
    run(processes, launch(sys.executable, "-S", "-c", ESCAPES + "sys.exit(6)"))
    pids = pids_of(processes)
    status = ended(processes)
    assert [name for name, pid in pids.items() if is_alive(pid)] == []
    assert status.exit is not None
    assert (status.exit.cause, status.exit.exit_code) == (EndCause.EXITED, 6)


def test_children_are_ended_when_only_the_parent_is_killed(processes: RealProcesses) -> None:
    run(processes, launch(sys.executable, "-S", "-c", ESCAPES + "time.sleep(600)"))
    pids = pids_of(processes)
    os.kill(pids["main"], signal.SIGKILL)
    status = ended(processes)
    assert [name for name, pid in pids.items() if is_alive(pid)] == []
    assert status.exit is not None
    assert (status.exit.cause, status.exit.signal) == (EndCause.EXITED, signal.SIGKILL)


def test_a_child_may_finish_its_last_words(processes: RealProcesses) -> None:
    run(processes, launch("sh", "-c", "(sleep 0.05; echo last words) & exit 0"))
    status = ended(processes)
    assert status.exit is not None
    assert status.exit.exit_code == 0
    assert spool(processes) == b"last words\n"


def test_a_run_that_forks_without_end_is_ended(processes: RealProcesses, tmp_path: Path) -> None:
    bomb = (
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0: os.setsid()\n    time.sleep(0.01)\ntime.sleep(600)"
    )
    run(processes, launch(sys.executable, "-S", "-c", bomb))
    eventually_sync(lambda: len(processes.pids()) > 20)
    pids = processes.pids() - {supervisor_pid(tmp_path)}
    processes.stop(KEY, grace_s=0.0, cause=EndCause.STOPPED)
    ended(processes)
    assert [pid for pid in pids if is_alive(pid)] == []


def test_a_stopped_run_is_ended_too(processes: RealProcesses) -> None:
    run(processes, launch("sleep", "600"))
    eventually_sync(lambda: processes.status(KEY).phase is Phase.RUNNING)
    os.kill(processes.status(KEY).pid, signal.SIGSTOP)
    processes.stop(KEY, grace_s=0.2, cause=EndCause.STOPPED)
    assert ended(processes).exit.signal in {signal.SIGTERM, signal.SIGKILL}


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGUSR1]
)
def test_only_sigkill_ends_a_supervisor(processes: RealProcesses, tmp_path: Path, number: int) -> None:
    run(processes, launch("sleep", "600"))
    eventually_sync(lambda: processes.status(KEY).phase is Phase.RUNNING)
    os.kill(supervisor_pid(tmp_path), number)
    some_rounds(supervisor_pid(tmp_path))
    assert processes.status(KEY).phase is Phase.RUNNING


def test_a_supervisor_is_in_a_session_of_its_own_and_so_is_its_program(
    processes: RealProcesses, tmp_path: Path
) -> None:
    run(processes, launch("sleep", "600"))
    sessions = {os.getsid(0), os.getsid(supervisor_pid(tmp_path)), os.getsid(processes.status(KEY).pid)}
    assert len(sessions) == 3


def test_the_program_starts_with_no_signal_blocked_or_ignored_and_no_foreign_file_open(
    processes: RealProcesses,
) -> None:
    run(
        processes,
        launch(
            "/usr/bin/env",
            "sh",
            "-c",
            "grep -E 'SigBlk|SigIgn' /proc/self/status | cut -f2; ls /proc/self/fd | tr '\\n' ' '",
        ),
    )
    ended(processes)
    blocked, ignored, files = spool(processes).decode().splitlines()
    # Signals 32 and 33 are the C library's own: nobody may set them, and the posix_spawn of some versions (make's) leaves them ignored.
    settable = sum(1 << (number - 1) for number in signal.valid_signals())
    assert (int(blocked, 16), int(ignored, 16) & settable) == (0, 0)
    assert set(files.split()) <= {"0", "1", "2", "3"}  # 3 is ls's own


def test_a_killed_supervisor_takes_its_program_along_and_the_rest_is_found(
    processes: RealProcesses, tmp_path: Path
) -> None:
    code = ESCAPES.replace("start_new_session=True, env={}", "start_new_session=True")
    run(processes, launch(sys.executable, "-S", "-c", code + "time.sleep(600)"))
    pids = pids_of(processes)
    eventually_sync(lambda: processes.status(KEY).phase is Phase.RUNNING)  # the supervisor, too, has seen it run
    os.kill(supervisor_pid(tmp_path), signal.SIGKILL)
    eventually_sync(lambda: processes.status(KEY).phase is Phase.LOST)
    eventually_sync(lambda: not is_alive(pids["main"]))
    eventually_sync(lambda: processes.end_lost(KEY))
    assert [name for name, pid in pids.items() if is_alive(pid)] == []
    status = ended(processes)
    assert status.exit is not None
    assert (status.exit.cause, status.exit.exit_code, status.exit.signal) == (EndCause.LOST, None, None)
    assert status.exit.started_at is not None


def test_killing_past_a_frozen_supervisor_leaves_nothing(processes: RealProcesses, tmp_path: Path) -> None:
    run(processes, launch(sys.executable, "-S", "-c", ESCAPES + "time.sleep(600)"))
    pids = pids_of(processes)
    os.kill(supervisor_pid(tmp_path), signal.SIGSTOP)
    eventually_sync(lambda: is_stopped(supervisor_pid(tmp_path)))
    processes.kill(KEY)
    eventually_sync(lambda: processes.status(KEY).phase is Phase.LOST)
    eventually_sync(lambda: processes.end_lost(KEY))
    assert [name for name, pid in pids.items() if is_alive(pid)] == []


def test_what_lives_under_a_supervisor_is_not_taken_for_lost(processes: RealProcesses) -> None:
    run(processes, launch("sleep", "600"))
    assert not processes.end_lost(KEY)
    assert processes.status(KEY).phase in {Phase.HELD, Phase.RUNNING}


def test_a_reused_pid_is_left_alone(processes: RealProcesses, tmp_path: Path) -> None:
    """The files of a lost run name pids that belong to somebody else by now."""
    run(processes, launch("true"))
    ended(processes)
    stranger = subprocess.Popen(["sleep", "600"])
    directory = tmp_path / "n1" / "runs" / str(KEY)
    (directory / "exit").unlink()
    known = json.loads((directory / "processes").read_text())
    stat = supervisor.read_stat(stranger.pid)
    assert stat is not None
    before = stat.start_ticks - 1  # said, not waited for: the program and the stranger may well begin within one tick
    known |= {
        "pid": stranger.pid,
        "start_ticks": before,
        "supervisor_pid": stranger.pid,
        "supervisor_start_ticks": before,
    }
    (directory / "processes").write_text(json.dumps(known))
    try:
        assert processes.pids() == frozenset()
        processes.kill(KEY)
        eventually_sync(lambda: processes.end_lost(KEY))
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_the_deadline_kills_without_grace_and_a_renewal_moves_it(processes: RealProcesses, tmp_path: Path) -> None:
    run(processes, launch("sh", "-c", "trap 'echo asked to end' TERM; echo ready; while true; do sleep 0.05; done"))
    eventually_sync(lambda: spool(processes) == b"ready\n")
    now = supervisor.boot_time()
    processes.renew(epoch=1, deadline=now + 2.0)
    some_rounds(supervisor_pid(tmp_path))
    processes.renew(epoch=1, deadline=now + 2.6)
    status = ended(processes)
    assert supervisor.boot_time() >= now + 2.6
    assert status.exit is not None
    assert (status.exit.cause, status.exit.signal) == (EndCause.LEASE_EXPIRED, signal.SIGKILL)
    assert spool(processes) == b"ready\n", "it was asked first"


def test_a_deadline_file_that_is_gone_renews_nothing_and_ends_nothing_early(
    processes: RealProcesses, tmp_path: Path
) -> None:
    run(processes, launch("sleep", "600"))
    eventually_sync(lambda: processes.status(KEY).phase is Phase.RUNNING)
    deadline = supervisor.boot_time() + 1.5
    processes.renew(epoch=1, deadline=deadline)
    some_rounds(supervisor_pid(tmp_path))  # it knows the deadline
    (tmp_path / "n1" / "deadline").unlink()
    status = ended(processes)
    assert status.exit is not None
    assert status.exit.cause is EndCause.LEASE_EXPIRED
    assert supervisor.boot_time() >= deadline


def test_a_program_whose_starter_dies_before_the_word_go_never_runs(tmp_path: Path) -> None:
    code = f"""
import os, sys
from pathlib import Path
from schedmate.infra.processes.port import Launch, MemberKey
from schedmate.infra.processes.real import RealProcesses
processes = RealProcesses(Path({str(tmp_path / "n1")!r}))
processes.renew(epoch=1, deadline={FAR})
processes.hold(MemberKey({KEY.run_id!r}, 0), Launch(("sh", "-c", "echo ran"), {{"PATH": "/bin"}}, "/", 1, 1 << 20))
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=30)
    processes = RealProcesses(tmp_path / "n1")
    status = ended(processes)
    assert status.exit is not None
    assert status.exit.cause is EndCause.NOT_STARTED
    assert status.spool_bytes == 0


def test_of_many_who_start_one_id_at_once_one_does(processes: RealProcesses, tmp_path: Path) -> None:
    others = [RealProcesses(tmp_path / "n1") for _ in range(5)]
    outcomes: list[str] = []

    def start(one: RealProcesses) -> None:
        try:
            one.hold(KEY, launch("sh", "-c", "echo ran"))
            outcomes.append("started")
            one.let_run(KEY)
        except (AlreadyStartedError, SetupError):
            outcomes.append("refused")

    threads = [threading.Thread(target=start, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["refused"] * 4 + ["started"]
    ended(processes)
    assert spool(processes) == b"ran\n"


def test_the_spool_keeps_head_and_tail_and_says_what_is_gone(processes: RealProcesses) -> None:
    code = "import sys, time\nfor n in range(16000):\n    sys.stdout.write(f'{n:099d}\\n')\n    if n % 400 == 0: sys.stdout.flush(); time.sleep(0.02)\n"
    run(processes, launch(sys.executable, "-S", "-c", code, spool_bytes_max=1 << 18))
    status = ended(processes)
    assert status.exit is not None
    assert status.exit.exit_code == 0, "the job is never blocked by its spool"
    assert status.spool_bytes == 1_600_000, "offsets are those of what was written"
    assert status.spool_gap is not None
    start, end = status.spool_gap
    assert 0 < start < end < status.spool_bytes
    head, tail = processes.read_spool(KEY, 0, start), processes.read_spool(KEY, end, 1 << 22)
    whole = b"".join(b"%099d\n" % n for n in range(16000))
    assert head == whole[:start]
    assert tail == whole[end:]
    disk = (processes._directory(KEY) / "spool").stat().st_blocks * 512
    assert disk <= (1 << 18) + 65536, f"{disk} bytes on disk"


def test_any_bytes_are_output(processes: RealProcesses) -> None:
    run(processes, launch("printf", r"\342\202\000\200\377 tail"))
    ended(processes)
    assert spool(processes) == b"\xe2\x82\x00\x80\xff tail"


def test_names_with_spaces_and_beyond_ascii_pass_through(processes: RealProcesses, tmp_path: Path) -> None:
    directory = tmp_path / "训练 résumé 🚀"
    directory.mkdir()
    given = launch("sh", "-c", 'printf "%s|%s|%s" "$1" "$NAME" "$PWD"', "sh", "训练 🚀", NAME="résumé")
    run(processes, Launch(given.argv, given.env, str(directory), 1, 1 << 20))
    ended(processes)
    assert spool(processes).decode() == f"训练 🚀|résumé|{directory}"


def test_the_exit_status_is_written_whole(processes: RealProcesses, tmp_path: Path) -> None:
    run(processes, launch("sh", "-c", "exit 4"))
    ended(processes)
    directory = tmp_path / "n1" / "runs" / str(KEY)
    assert json.loads((directory / "exit").read_text())["exit_code"] == 4
    assert not list(directory.glob("*.tmp"))
    assert (directory / "supervisor.log").read_text() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch to another account")
def test_a_run_may_be_another_users(processes: RealProcesses) -> None:
    account = pwd.getpwnam("nobody")
    run(processes, launch("id", "-u", user="nobody"))
    ended(processes)
    assert int(spool(processes)) == account.pw_uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch to another account")
def test_another_users_run_is_stopped_and_lost_like_any_other(processes: RealProcesses, tmp_path: Path) -> None:
    run(processes, launch("sleep", "600", user="nobody"))
    eventually_sync(lambda: processes.status(KEY).phase is Phase.RUNNING)
    pid = processes.status(KEY).pid
    os.kill(supervisor_pid(tmp_path), signal.SIGKILL)
    eventually_sync(lambda: not is_alive(pid))
    eventually_sync(lambda: processes.end_lost(KEY))


def test_an_unknown_account_is_a_failed_launch(processes: RealProcesses) -> None:
    run(processes, launch("true", user="no-such-account"))
    status = ended(processes)
    assert status.exit is not None
    assert status.exit.cause is EndCause.LAUNCH_FAILED
    assert "set the user" in status.exit.detail


@pytest.mark.skipif(UNIFIED is None or not os.access(UNIFIED, os.W_OK), reason="no cgroup v2 that may be written")
def test_with_a_cgroup_the_kernel_ends_what_is_in_it(tmp_path: Path) -> None:
    assert UNIFIED is not None
    processes = RealProcesses(tmp_path / "n1", cgroup_root=UNIFIED)
    processes.renew(epoch=1, deadline=FAR)
    run(processes, launch(sys.executable, "-S", "-c", ESCAPES + "time.sleep(600)"))
    pids = pids_of(processes)
    group = UNIFIED / f"schedmate-{KEY}"
    assert {str(pid) for pid in pids.values()} <= set((group / "cgroup.procs").read_text().split())
    processes.stop(KEY, grace_s=0.0, cause=EndCause.STOPPED)
    ended(processes)
    assert [name for name, pid in pids.items() if is_alive(pid)] == []
    assert not group.exists()


@pytest.mark.skipif(UNIFIED is None or not os.access(UNIFIED, os.W_OK), reason="no cgroup v2 that may be written")
def test_with_a_cgroup_even_what_wiped_its_environment_is_found_after_a_lost_supervisor(tmp_path: Path) -> None:
    assert UNIFIED is not None
    processes = RealProcesses(tmp_path / "n1", cgroup_root=UNIFIED)
    processes.renew(epoch=1, deadline=FAR)
    run(processes, launch(sys.executable, "-S", "-c", ESCAPES + "time.sleep(600)"))  # one child's environment is empty
    pids = pids_of(processes)
    os.kill(supervisor_pid(tmp_path), signal.SIGKILL)
    eventually_sync(lambda: processes.status(KEY).phase is Phase.LOST)
    eventually_sync(lambda: processes.end_lost(KEY))
    assert [name for name, pid in pids.items() if is_alive(pid)] == []
    assert not (UNIFIED / f"schedmate-{KEY}").exists()


def test_where_no_cgroup_may_be_made_the_run_goes_on_without(tmp_path: Path) -> None:
    processes = RealProcesses(tmp_path / "n1", cgroup_root=tmp_path / "missing")
    processes.renew(epoch=1, deadline=FAR)
    run(processes, launch("true"))
    assert ended(processes).exit.exit_code == 0
    assert "no cgroup" in (tmp_path / "n1" / "runs" / str(KEY) / "supervisor.log").read_text()


def test_a_directory_that_cannot_be_made_is_a_failed_setup(tmp_path: Path) -> None:
    processes = RealProcesses(tmp_path / "n1", python="/no/such/python")
    with pytest.raises(SetupError, match="cannot start the supervisor"):
        processes.hold(KEY, launch("true"))


def test_a_full_disk_ends_no_run(processes: RealProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    run(processes, launch("sleep", "600"))
    monkeypatch.setattr("schedmate.infra.processes.real.write_whole", full)
    processes.renew(epoch=1, deadline=FAR + 7)
    assert processes.deadline() == (1, FAR + 7)


def test_where_orphans_go_to_this_process_no_zombie_is_left(tmp_path: Path) -> None:
    """As in a container, where the worker is pid 1."""
    code = f"""
import time
from pathlib import Path
from schedmate.infra.processes import supervisor
from schedmate.infra.processes.port import Launch, MemberKey, Phase
from schedmate.infra.processes.real import RealProcesses
supervisor.prctl(supervisor.PR_SET_CHILD_SUBREAPER, 1)
processes = RealProcesses(Path({str(tmp_path / "n1")!r}))
processes.renew(epoch=1, deadline={FAR})
key = MemberKey({KEY.run_id!r}, 0)
processes.hold(key, Launch(("true",), {{"PATH": "/usr/bin:/bin"}}, "/", 1, 1 << 20))
processes.let_run(key)
while processes.status(key).phase is not Phase.ENDED or processes._is_supervised(key):
    time.sleep(0.01)
processes.forget(key)
print(len(supervisor.descendants(supervisor.process_table(), {{supervisor.os.getpid()}})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "0\n"
