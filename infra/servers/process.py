"""A server's process: started apart from its starter, known by pid and start time, ended by nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ServerProcess"]

_POLL_S = 0.02
_KILL_WAIT_S = 10.0
_LOG_TAIL_LINES = 15


class ServerProcess:
    """One background process of a server, in a session of its own, whose pid file stands in `directory`.

    The pid file holds the pid and the kernel's start tick, so that a number which the kernel has since given to
    another process is never signalled.
    """

    def __init__(self, directory: Path, name: str) -> None:
        """Nothing is started or read here."""
        self.name = name
        self.log = directory / f"{name}.log"
        self._pid_file = directory / f"{name}.pid"

    def start(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Start `command` detached, its output appended to the log; `environment` is added to this process's own."""
        argv = [str(word) for word in command]
        # Not subprocess: the server outlives this object and often this process, which Popen warns about.
        pid = os.posix_spawn(
            argv[0],
            argv,
            {**os.environ, **(environment or {})},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        temporary = self._pid_file.with_suffix(".new")
        temporary.write_text(f"{pid} {_start_tick(pid)}\n")
        temporary.replace(self._pid_file)

    def living_pid(self) -> int | None:
        """The pid while the process lives; None when it has ended or was never started."""
        try:
            number, tick = self._pid_file.read_text().split()
            pid = int(number)
        except (OSError, ValueError):
            return None
        if _start_tick(pid) == tick:
            return pid
        # Ours to reap if this very process started it.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return None

    def stop(self, timeout_s: float) -> None:
        """SIGTERM, and SIGKILL after `timeout_s`."""
        pid = self.living_pid()
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if not self._ended_within(timeout_s):
            self.kill()
        # What it left in its group (Ollama's runners) goes with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL to its whole group, and wait until it is gone."""
        pid = self.living_pid()
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if not self._ended_within(_KILL_WAIT_S):
            message = f"{self.name}: process {pid} is still there {_KILL_WAIT_S:g} s after SIGKILL"
            raise TimeoutError(message)

    def log_tail(self) -> str:
        """The log's last lines."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def _ended_within(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.living_pid() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True


def _start_tick(pid: int) -> str | None:
    """The kernel's start time of a living process; None for one that is gone or waits to be reaped.

    A killed process's first thread is a zombie while others still end, and with them its sockets: it lives until then.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    state, threads, tick = fields[0], int(fields[17]), fields[19]
    return None if state == "Z" and threads <= 1 else tick
