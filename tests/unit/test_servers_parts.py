"""What the real servers are started with: processes that are ended for certain, and a cache that is filled once and whole."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from schedmate.infra.servers.cache import InstallError, cache_directory, filled, program, run_step
from schedmate.infra.servers.command import main
from schedmate.infra.servers.process import ServerProcess
from tests.processes import is_alive
from tests.waiting import eventually_sync

ENDS_AT_ONCE = "import time, sys; print('up', flush=True); time.sleep(60)"
IGNORES_TERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
)
HAS_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path, "server")
    yield server
    server.kill()


def started(server: ServerProcess, program_text: str) -> int:
    server.start([sys.executable, "-c", program_text])
    eventually_sync(lambda: server.log_tail() != "", 20)
    pid = server.living_pid()
    assert pid is not None
    return pid


def test_a_process_that_takes_sigterm_is_stopped(process: ServerProcess):
    started(process, ENDS_AT_ONCE)
    process.stop(timeout_s=10)
    assert process.living_pid() is None


def test_a_process_that_ignores_sigterm_is_killed_after_the_timeout(process: ServerProcess):
    pid = started(process, IGNORES_TERM)
    process.stop(timeout_s=0.2)
    assert process.living_pid() is None
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("end", [ServerProcess.kill, lambda process: process.stop(5)], ids=["kill", "stop"])
def test_what_a_server_started_ends_with_it(process: ServerProcess, end: Callable[[ServerProcess], None]):
    started(process, HAS_A_CHILD)
    child = int(process.log_tail())
    end(process)
    eventually_sync(lambda: not is_alive(child), 20)


def test_another_object_for_the_same_directory_speaks_of_the_same_process(process: ServerProcess, tmp_path: Path):
    pid = started(process, ENDS_AT_ONCE)
    other = ServerProcess(tmp_path, "server")
    assert other.living_pid() == pid
    other.kill()
    assert process.living_pid() is None


def test_a_pid_that_the_kernel_gave_to_another_process_is_left_alone(process: ServerProcess, tmp_path: Path):
    pid = started(process, ENDS_AT_ONCE)
    foreign = ServerProcess(tmp_path, "foreign")
    (tmp_path / "foreign.pid").write_text(f"{pid} 1\n")  # the same number, another start
    assert foreign.living_pid() is None
    foreign.stop(timeout_s=1)
    foreign.kill()
    assert process.living_pid() == pid


@pytest.mark.parametrize("content", ["", "12", "a b c", "x 1\n"])
def test_a_pid_file_that_says_nothing_useful_is_no_process(process: ServerProcess, tmp_path: Path, content: str):
    (tmp_path / "server.pid").write_text(content)
    assert process.living_pid() is None
    process.stop(timeout_s=1)


def test_a_process_that_ended_by_itself_is_not_living(process: ServerProcess):
    process.start([sys.executable, "-c", "print('done')"])
    eventually_sync(lambda: process.living_pid() is None, 20)
    assert process.log_tail() == "done"


def test_a_target_is_filled_once_by_many_callers_and_appears_whole(tmp_path: Path):
    target = tmp_path / "jars"
    filling = []

    def fill() -> None:
        with filled(target) as staging:
            if staging is not None:
                filling.append(staging)
                (staging / "jars").mkdir()
                (staging / "jars" / "a.jar").write_text("a")
                assert not target.exists()

    threads = [threading.Thread(target=fill) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert len(filling) == 1
    assert [path.name for path in target.iterdir()] == ["a.jar"]
    assert not filling[0].exists()


def test_a_filling_that_fails_leaves_nothing_and_may_be_tried_again(tmp_path: Path):
    target = tmp_path / "binary"

    def fill(fails: bool) -> None:
        with filled(target) as staging:
            assert staging is not None
            (staging / "binary").write_text("half")
            if fails:
                raise InstallError("the compiler gave up")

    with pytest.raises(InstallError, match="gave up"):
        fill(fails=True)
    assert [path.name for path in tmp_path.iterdir()] == ["binary.lock"]
    fill(fails=False)
    assert target.read_text() == "half"


def test_a_step_that_fails_shows_the_end_of_its_output():
    with pytest.raises(InstallError, match="status 3:\nno such goal"):
        run_step([sys.executable, "-c", "print('no such goal'); raise SystemExit(3)"], timeout_s=20)


def test_a_step_that_hangs_is_ended():
    with pytest.raises(InstallError, match=r"did not end within 0\.2 s"):
        run_step([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2)


def test_a_missing_program_is_named_with_its_purpose(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InstallError, match="`mvn` is not on PATH; it is needed once, to fetch the jars"):
        program("mvn", "once, to fetch the jars")


def test_the_cache_is_where_the_variable_says_else_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SCHEDMATE_SERVERS_CACHE", str(tmp_path / "own"))
    assert cache_directory("kafka") == tmp_path / "own" / "kafka"
    monkeypatch.delenv("SCHEDMATE_SERVERS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory("kafka") == tmp_path / "xdg" / "schedmate-servers" / "kafka"


def test_the_command_refuses_a_server_that_it_does_not_know(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(["up", "postgres"])
    assert stopped.value.code == 2
    assert "choose from kafka, mongo, ollama, tracing" in capsys.readouterr().err


def test_the_command_says_that_nothing_runs_in_a_fresh_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SCHEDMATE_SERVERS_DIR", str(tmp_path))
    assert main(["status"]) == 1
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["kafka", "stopped"],
        ["mongo", "stopped"],
        ["ollama", "stopped"],
        ["tracing", "stopped"],
    ]
    assert main(["down", "--kill"]) == 0
    assert (tmp_path / "env").read_text() == ""
