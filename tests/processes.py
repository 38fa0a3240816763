"""What /proc tells of processes that a test started."""

from __future__ import annotations

from pathlib import Path

from tests.waiting import eventually_sync


def is_alive(pid: int) -> bool:
    """Tell whether a process is there and no zombie."""
    try:
        return _state(Path(f"/proc/{pid}/stat")) != "Z"
    except OSError:
        return False


def is_stopped(pid: int) -> bool:
    """Tell whether SIGSTOP has reached every thread of a process: it is sent at once, and a busy one goes on for a moment."""
    states = [_state(path) for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return bool(states) and all(state in "Tt" for state in states)


def some_rounds(pid: int, timeout_s: float = 20.0) -> None:
    """Wait until a process that looks around and sleeps, again and again, has done so some times: it knows by then what was there before."""
    before = _sleeps(pid)
    eventually_sync(lambda: _sleeps(pid) >= before + 4, timeout_s, f"process {pid} goes its rounds")


def _sleeps(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def _state(stat: Path) -> str:
    return stat.read_text().rpartition(")")[2].split()[0]
