"""The adapter of `Processes` on the operating system: starts, adopts and cleans up after supervisors by locks and files."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from schedmate.infra.processes import supervisor
from schedmate.infra.processes.files import write_whole
from schedmate.infra.processes.port import (
    AlreadyStartedError,
    EndCause,
    ExitStatus,
    Launch,
    MemberKey,
    MemberStatus,
    Phase,
    SetupError,
)

HOLD_TIMEOUT_S: Final = 20.0
ANSWER_BYTES_MAX: Final = 4096
DEADLINE_BYTES: Final = 96  # always the same length, so that it can be written over in place


class RealProcesses:
    """Run members under `ROOT`: `runs/RUN.MEMBER/` has a member's files, `started/` a tombstone of every start.

    `cgroup_root` is a cgroup v2 directory in which this process may make children; without one, descendants are found
    through /proc alone.
    """

    def __init__(self, root: Path, *, cgroup_root: Path | None = None, python: str = sys.executable) -> None:
        self._root = root.resolve()
        self._cgroup_root = cgroup_root
        self._python = python
        self._gates: dict[MemberKey, Any] = {}
        self._lock = threading.Lock()
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        self._directories_made = False

    def hold(self, key: MemberKey, launch: Launch) -> int:
        """Start the member's supervisor; see the port."""
        self._make_directories()
        if self._tombstone(key).exists():
            raise AlreadyStartedError(f"{key} was started before")
        directory = self._directory(key)
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            write_whole(directory / "launch", json.dumps(self._launch_file(key, launch)).encode())
            with (directory / "supervisor.log").open("ab") as log:
                process = subprocess.Popen(  # noqa: S603 - our own program
                    [self._python, "-I", "-S", supervisor.__file__, str(directory)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd="/",
                    env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                    start_new_session=True,
                )
        except OSError as error:
            raise SetupError(f"cannot start the supervisor of {key}: {error}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout as answers:
            word, rest = _first_answer(answers.fileno())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(HOLD_TIMEOUT_S)  # only the parent half: the supervisor itself has detached
        if word != "held":
            process.stdin.close()
            if word == "refused":
                raise AlreadyStartedError(f"{key}: {rest}")
            raise SetupError(f"the supervisor of {key} did not start: {rest or 'no answer in time'}")
        with self._lock:
            self._gates[key] = process.stdin
        return int(rest)

    def let_run(self, key: MemberKey) -> None:
        """Let a held program run."""
        self._answer_gate(key, b"go\n")

    def abandon(self, key: MemberKey) -> None:
        """End a held program without letting it run."""
        self._answer_gate(key, b"")

    def status(self, key: MemberKey) -> MemberStatus:
        """Return where a member stands."""
        directory = self._directory(key)
        if not directory.is_dir():
            return MemberStatus(Phase.ABSENT)
        is_supervised = self._is_supervised(key)
        exit_file = supervisor.read_json(
            str(directory / "exit")
        )  # after the lock: it is written before the lock is let go
        processes = supervisor.read_json(str(directory / "processes")) or {}
        running = supervisor.read_json(str(directory / "running"))
        exit_status = _exit_status(exit_file) if exit_file is not None else None
        if exit_status is not None:
            phase = Phase.ENDED
        elif not is_supervised:
            phase = Phase.LOST
        else:
            phase = Phase.HELD if running is None else Phase.RUNNING
        return MemberStatus(
            phase=phase,
            pid=_integer(processes.get("pid")),
            started_at=_number((running or {}).get("started_at")),
            exit=exit_status,
            spool_bytes=_size(directory / "spool"),
            spool_gap=self._gap(directory),
        )

    def stop(self, key: MemberKey, *, grace_s: float, cause: EndCause) -> None:
        """Ask the supervisor to end the run."""
        directory = self._directory(key)
        if directory.is_dir():
            write_whole(directory / "stop", json.dumps({"grace_s": grace_s, "cause": cause.value}).encode())

    def end_lost(self, key: MemberKey) -> bool:
        """Kill what is left of a member without supervisor."""
        directory = self._directory(key)
        with self._holding_lock(key) as is_ours:
            if not is_ours:
                return False
            remaining = self._remaining(key)
            for stat in remaining:
                supervisor.send_signal(stat, signal.SIGKILL)
            if remaining:
                return False
            cgroup = self._cgroup(key)
            if cgroup is not None:
                with contextlib.suppress(OSError):
                    cgroup.rmdir()
            if not (directory / "exit").exists():
                self._write_lost(directory)
        return True

    def kill(self, key: MemberKey) -> None:
        """Kill the supervisor and all of the run at once."""
        self.abandon(key)
        stat = self._supervisor(key)
        if stat is None:
            return
        table = supervisor.process_table()
        below = supervisor.descendants(table, {stat.pid})
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in below:
                supervisor.send_signal(table[pid], number)
        supervisor.send_signal(stat, signal.SIGKILL)

    def renew(self, *, epoch: int, deadline: float) -> None:
        """Move the deadline on. Not synced: no supervisor outlives the kernel that would lose it."""
        self._make_directories()
        content = f"{epoch} {deadline!r} {self._boot_id}".encode().ljust(DEADLINE_BYTES) + b"\n"
        try:
            write_whole(self._deadline_file, content, durable=False)
        except OSError:  # a full disk must end no run: the old file has room for the new deadline
            handle = os.open(self._deadline_file, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(handle, content, 0)
            finally:
                os.close(handle)

    def deadline(self) -> tuple[int, float] | None:
        """Return the deadline last set since the node booted."""
        try:
            epoch, deadline, boot_id = self._deadline_file.read_text("ascii").split()
            return (int(epoch), float(deadline)) if boot_id == self._boot_id else None
        except (OSError, ValueError):
            return None

    def kept(self) -> Sequence[MemberKey]:
        """Return the members that have files here."""
        try:
            names = [path.name for path in (self._root / "runs").iterdir()]
        except FileNotFoundError:
            return []
        keys = []
        for name in names:
            with contextlib.suppress(ValueError):  # nobody's member: left to whoever put it there
                keys.append(MemberKey.parse(name))
        return sorted(keys)

    def pids(self) -> frozenset[int]:
        """Return the processes of all living members."""
        roots = {stat.pid for key in self.kept() if (stat := self._supervisor(key)) is not None}
        return frozenset(roots | supervisor.descendants(supervisor.process_table(), roots)) if roots else frozenset()

    def read_spool(self, key: MemberKey, start: int, length: int) -> bytes:
        """Return output bytes from `start`."""
        try:
            handle = os.open(self._directory(key) / "spool", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(handle, length, start)
        finally:
            os.close(handle)

    def forget(self, key: MemberKey) -> None:
        """Remove the files of an ended member."""
        self._reap(supervisor.read_json(str(self._directory(key) / "processes")) or {})
        shutil.rmtree(self._directory(key), ignore_errors=True)

    # --- files --------------------------------------------------------------------------------------------------------

    @property
    def _deadline_file(self) -> Path:
        return self._root / "deadline"

    def _directory(self, key: MemberKey) -> Path:
        return self._root / "runs" / str(key)

    def _tombstone(self, key: MemberKey) -> Path:
        return self._root / "started" / key.run_id[:2] / str(key)

    def _make_directories(self) -> None:
        if not self._directories_made:
            for name in ("runs", "started"):
                (self._root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directories_made = True

    def _launch_file(self, key: MemberKey, launch: Launch) -> Mapping[str, Any]:
        marks = {"SCHEDMATE_RUN_ID": key.run_id, "SCHEDMATE_MEMBER": str(key.member)}
        return {
            "argv": launch.argv,
            "env": {**launch.env, **marks},
            "workdir": launch.workdir,
            "user": launch.user,
            "lease_epoch": launch.lease_epoch,
            "spool_bytes_max": launch.spool_bytes_max,
            "deadline_file": str(self._deadline_file),
            "tombstone": str(self._tombstone(key)),
            "cgroup_root": str(self._cgroup_root) if self._cgroup_root is not None else None,
        }

    def _gap(self, directory: Path) -> tuple[int, int] | None:
        gap = supervisor.read_json(str(directory / "gap"))
        start, end = _integer((gap or {}).get("start")), _integer((gap or {}).get("end"))
        return (start, end) if start is not None and end is not None else None

    def _write_lost(self, directory: Path) -> None:
        running = supervisor.read_json(str(directory / "running")) or {}
        lost = {
            "cause": EndCause.LOST.value,
            "exit_code": None,
            "signal": None,
            "started_at": _number(running.get("started_at")),
            "ended_at": supervisor.wall_time(),
            "detail": "its supervisor is gone and left no exit status; what was left of the run was killed",
        }
        write_whole(directory / "exit", json.dumps(lost).encode())

    # --- locks and processes ------------------------------------------------------------------------------------------

    def _answer_gate(self, key: MemberKey, word: bytes) -> None:
        with self._lock:
            gate = self._gates.pop(key, None)
        if gate is not None:
            with contextlib.suppress(BrokenPipeError), gate:
                gate.write(word)

    def _is_supervised(self, key: MemberKey) -> bool:
        try:
            handle = os.open(self._directory(key) / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    @contextlib.contextmanager
    def _holding_lock(self, key: MemberKey) -> Iterator[bool]:
        handle = os.open(self._directory(key) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
        finally:
            os.close(handle)

    def _supervisor(self, key: MemberKey) -> supervisor.Stat | None:
        """Return the living supervisor, told from a later process with its pid by boot and start time."""
        processes = supervisor.read_json(str(self._directory(key) / "processes")) or {}
        pid = _integer(processes.get("supervisor_pid"))
        if pid is None or processes.get("boot_id") != self._boot_id:
            return None
        stat = supervisor.read_stat(pid)
        return stat if stat is not None and stat.start_ticks == processes.get("supervisor_start_ticks") else None

    def _remaining(self, key: MemberKey) -> list[supervisor.Stat]:
        """Return what lives of a run without supervisor.

        What is in its cgroup; its main process (pid and start time), that one's session, whatever carries the run's mark in
        its environment, and the descendants of all these.
        """
        processes = supervisor.read_json(str(self._directory(key) / "processes")) or {}
        table = {pid: stat for pid, stat in supervisor.process_table().items() if stat.state != "Z"}
        found = {pid for pid in table if self._is_marked(pid, key)} | (self._in_cgroup(key) & table.keys())
        main = table.get(_integer(processes.get("pid")) or -1)
        is_main_ours = (
            main is not None
            and processes.get("boot_id") == self._boot_id
            and main.start_ticks == processes.get("start_ticks")
        )
        if main is not None and is_main_ours:
            found |= {stat.pid for stat in table.values() if stat.session == main.pid}
        found |= supervisor.descendants(table, found)
        return [table[pid] for pid in sorted(found)]

    def _cgroup(self, key: MemberKey) -> Path | None:
        """Return the cgroup that the member's supervisor made, if it made one and left it."""
        root = (supervisor.read_json(str(self._directory(key) / "launch")) or {}).get("cgroup_root")
        path = Path(str(root)) / supervisor.cgroup_name(str(key)) if root is not None else None
        return path if path is not None and path.is_dir() else None

    def _in_cgroup(self, key: MemberKey) -> set[int]:
        cgroup = self._cgroup(key)
        if cgroup is None:
            return set()
        with contextlib.suppress(OSError):
            return {int(pid) for pid in (cgroup / "cgroup.procs").read_text("ascii").split()}
        return set()

    @staticmethod
    def _is_marked(pid: int, key: MemberKey) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return (
            f"SCHEDMATE_RUN_ID={key.run_id}".encode() in environment
            and f"SCHEDMATE_MEMBER={key.member}".encode() in environment
        )

    @staticmethod
    def _reap(processes: Mapping[str, object]) -> None:
        """Collect an ended supervisor where this process is the one that orphans go to (pid 1 of a container)."""
        pid = _integer(processes.get("supervisor_pid"))
        if pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _first_answer(handle: int) -> tuple[str, str]:
    """Return the first word and the rest of the supervisor's answer; empty when none came in time."""
    ready, _, _ = select.select([handle], [], [], HOLD_TIMEOUT_S)
    line = os.read(handle, ANSWER_BYTES_MAX).decode("utf-8", "replace").strip() if ready else ""
    word, _, rest = line.partition(" ")
    return word, rest


def _exit_status(value: Mapping[str, object]) -> ExitStatus:
    return ExitStatus(
        cause=EndCause(str(value.get("cause"))),
        exit_code=_integer(value.get("exit_code")),
        signal=_integer(value.get("signal")),
        started_at=_number(value.get("started_at")),
        ended_at=_number(value.get("ended_at")) or 0.0,
        detail=str(value.get("detail", "")),
    )


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
