"""Supervisor of one run member: `python -I -S supervisor.py DIRECTORY` (protocol §2).

Standard library only, one file, run by path: it must start in milliseconds, hold nothing of the worker's and survive it.
What it promises:

- It holds an exclusive lock on DIRECTORY/lock from before it starts anything until nothing of the run is left.
- One start per id, ever: the tombstone file is created exclusively and never removed.
- The program is forked and held; it runs only after `go` on standard input. End of input instead: it never runs.
- Output goes straight to DIRECTORY/spool; the program is never blocked by it. Beyond the limit the middle is punched out.
- At the deadline (CLOCK_BOOTTIME, in a file that the worker renews), or when the file names another lease epoch,
  everything is killed without grace. DIRECTORY/stop asks for SIGTERM, a grace, SIGKILL.
- It is a child subreaper, so children that left the group or the session are still its descendants and are ended too
  (with a cgroup: killed by the kernel at once).
- DIRECTORY/exit is written (temporary file, fsync, rename) only when no process of the run is left.
"""

# pathlib alone costs a third of the start-up time:
# ruff: noqa: PTH102, PTH103, PTH104, PTH106, PTH108, PTH110, PTH116, PTH118, PTH119, PTH120, PTH123, PTH208

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pwd
import signal
import sys
import time
import warnings  # noqa: F401 - os.execvpe imports it, and the job's user may not be able to read the library

TICK_S = 0.1
LOCK_WAIT_S = 1.0
GO_WAIT_S = 60.0
LEFTOVER_TERM_S = 0.3  # what a finished program leaves behind may end by itself for so long, ...
LEFTOVER_KILL_S = 1.3  # ... and is killed after so long
EXIT_WRITE_TRIES = 3600

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
FALLOC_FL_KEEP_SIZE_AND_PUNCH_HOLE = 3
PAGE_BYTES = 4096

REFUSED_EXIT = 3


class LaunchFailedError(Exception):
    """The program could not be executed."""


# --- /proc ------------------------------------------------------------------------------------------------------------


class Stat:
    """The few fields of /proc/PID/stat that are needed here."""

    __slots__ = ("parent", "pid", "session", "start_ticks", "state")

    def __init__(self, pid: int, state: str, parent: int, session: int, start_ticks: int) -> None:
        self.pid = pid
        self.state = state
        self.parent = parent
        self.session = session
        self.start_ticks = start_ticks


def read_stat(pid: int) -> Stat | None:
    """Return a process's entry, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def process_table() -> dict[int, Stat]:
    """Return every process that can be seen."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = read_stat(int(name))
            if stat is not None:
                table[stat.pid] = stat
    return table


def descendants(table: dict[int, Stat], roots: set[int]) -> set[int]:
    """Return the processes below `roots`, without the roots."""
    children: dict[int, list[int]] = {}
    for stat in table.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found - roots


def send_signal(stat: Stat, number: int) -> None:
    """Signal the very process that `stat` describes: a pid that has been reused meanwhile is left alone."""
    try:
        handle = os.pidfd_open(stat.pid)
    except OSError:
        return
    try:
        now = read_stat(stat.pid)
        if now is not None and now.start_ticks == stat.start_ticks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


# --- files ------------------------------------------------------------------------------------------------------------


def write_atomically(path: str, content: bytes, *, durable: bool = True) -> None:
    """Write a file whole or not at all; `durable` survives a power loss as well."""
    temporary = f"{path}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(temporary, path)
    if durable:
        sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: str) -> dict[str, object] | None:
    """Return a JSON object, or None when the file is absent or no such object."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def boot_time() -> float:
    """Return CLOCK_BOOTTIME: it runs through suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_time() -> float:
    """Return Unix seconds."""
    return time.time()  # noqa: TID251 - a program of its own, nobody could inject a clock


def prctl(option: int, argument: int) -> None:
    """Set an attribute of this process. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# --- the deadline -----------------------------------------------------------------------------------------------------


class Deadline:
    """The worker's lease as its supervisors see it: `EPOCH BOOTTIME …` in a file that is replaced at each renewal."""

    def __init__(self, path: str, epoch: int) -> None:
        self._path = path
        self._epoch = epoch
        self._at = 0.0
        self._complained = False

    def has_passed(self) -> bool:
        """Tell whether the run must end now. A file that cannot be read renews nothing."""
        try:
            with open(self._path, "rb") as file:
                epoch, at = file.read().split()[:2]
            if int(epoch) != self._epoch:
                return True
            self._at = float(at)
        except (OSError, ValueError) as error:
            if not self._complained:
                self._complained = True
                sys.stderr.write(f"the deadline cannot be read: {error}\n")
                sys.stderr.flush()
        return boot_time() >= self._at


# --- the spool --------------------------------------------------------------------------------------------------------


class Spool:
    """The member's output file. The limit bounds what it takes on disk, not its length."""

    def __init__(self, path: str, gap_path: str, bytes_max: int) -> None:
        self.handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._gap_path = gap_path
        self._bytes_max = bytes_max
        self._gap_start = -(-(bytes_max // 4) // PAGE_BYTES) * PAGE_BYTES
        self._gap_end = self._gap_start
        self._can_punch = True

    def enforce_limit(self) -> None:
        """Punch the middle out of a spool that has grown past its limit; says so in the gap file before it does."""
        size = os.fstat(self.handle).st_size
        if not self._can_punch or size - self._gap_end <= self._bytes_max - self._gap_start:
            return
        end = (size - self._bytes_max // 2) // PAGE_BYTES * PAGE_BYTES
        if end <= self._gap_end:
            return
        gap = json.dumps({"start": self._gap_start, "end": end}).encode()
        write_atomically(self._gap_path, gap, durable=False)
        done = ctypes.CDLL(None, use_errno=True).fallocate(
            self.handle,
            FALLOC_FL_KEEP_SIZE_AND_PUNCH_HOLE,
            ctypes.c_longlong(self._gap_start),
            ctypes.c_longlong(end - self._gap_start),
        )
        if done != 0:
            self._can_punch = False
            os.unlink(self._gap_path)
            sys.stderr.write("the file system cannot punch holes: the spool's limit is not enforced\n")
            sys.stderr.flush()
            return
        self._gap_end = end


# --- the control group ------------------------------------------------------------------------------------------------


def cgroup_name(member: str) -> str:
    """Return the name of a member's cgroup."""
    return f"schedmate-{member}"


class ControlGroup:
    """A cgroup v2 of the member's own, where one may be made; otherwise absent and every call does nothing."""

    def __init__(self, root: str | None, name: str) -> None:
        self._path: str | None = None
        if root is None:
            return
        path = os.path.join(root, cgroup_name(name))
        try:
            os.mkdir(path)
        except FileExistsError:
            pass
        except OSError as error:
            sys.stderr.write(f"no cgroup under {root}: {error}\n")
            sys.stderr.flush()
            return
        self._path = path

    def take_in(self, pid: int) -> None:
        """Move a process in; its children follow by themselves."""
        self._write("cgroup.procs", str(pid))

    def kill(self) -> None:
        """Kill every process in it at once."""
        self._write("cgroup.kill", "1")

    def remove(self) -> None:
        """Remove it. Empty by then; one that is not stays for the node's owner to see."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self._path)

    def _write(self, name: str, value: str) -> None:
        if self._path is None:
            return
        try:
            with open(os.path.join(self._path, name), "w") as file:
                file.write(value)
        except OSError as error:
            sys.stderr.write(f"cgroup {name}: {error}\n")
            sys.stderr.flush()


# --- the program ------------------------------------------------------------------------------------------------------


class Program:
    """The member's main process: forked and held, then executed."""

    def __init__(self, launch: dict[str, object], spool: int, lock: int) -> None:
        self._launch = launch
        self._gate_read, self._gate = os.pipe()
        self._failure, self._failure_write = os.pipe()
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(lock)  # only the supervisor's own life holds the lock
            os.close(self._gate)
            os.close(self._failure)
            self._become_program(supervisor, spool)
        os.close(self._gate_read)
        os.close(self._failure_write)

    def let_run(self) -> None:
        """Open the gate and wait until the program is executed. Raises LaunchFailedError."""
        with contextlib.suppress(BrokenPipeError):  # it may have failed before the gate: its reason says so
            os.write(self._gate, b"g")
        os.close(self._gate)
        with open(self._failure, "rb") as pipe:
            failure = pipe.read(4000)
        if failure:
            raise LaunchFailedError(failure.decode("utf-8", "replace"))

    def _become_program(self, supervisor: int, spool: int) -> None:
        """Run in the child: wait at the gate, then execute. Never returns."""
        step = "setsid"
        try:
            os.setsid()
            step = "set the user"
            self._switch_user()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a supervisor that is killed takes its program along
            if os.getppid() != supervisor or os.read(self._gate_read, 1) != b"g":
                os._exit(127)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(spool, 1)
            os.dup2(spool, 2)
            workdir = str(self._launch["workdir"])
            step = f"enter the directory {workdir!r}"
            os.chdir(workdir)
            os.umask(0o022)
            argv = [str(a) for a in self._launch["argv"]]  # type: ignore[attr-defined]
            env = {str(k): str(v) for k, v in self._launch["env"].items()}  # type: ignore[attr-defined]
            for number in signal.valid_signals():
                if signal.getsignal(number) is signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            step = f"execute {argv[0]!r}"
            os.execvpe(argv[0], argv, env)  # noqa: S606 - running the user's program is what this is for
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
            reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
            os.write(self._failure_write, f"cannot {step}: {reason}".encode("utf-8", "replace")[:4000])
        finally:
            os._exit(127)

    def _switch_user(self) -> None:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("0")
        user = self._launch.get("user")
        if user is None:
            return
        account = pwd.getpwnam(str(user))
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)


# --- the supervisor ---------------------------------------------------------------------------------------------------


class Supervisor:
    """Watches one program and all that descends from it."""

    def __init__(self, directory: str, launch: dict[str, object], lock: int) -> None:
        self._directory = directory
        self._spool = Spool(self._path("spool"), self._path("gap"), int(str(launch["spool_bytes_max"])))
        self._deadline = Deadline(str(launch["deadline_file"]), int(str(launch["lease_epoch"])))
        root = launch.get("cgroup_root")
        self._cgroup = ControlGroup(str(root) if root is not None else None, os.path.basename(directory))
        self.program = Program(launch, self._spool.handle, lock)
        self._cgroup.take_in(self.program.pid)
        self._cause: str | None = None  # why it is being ended; None while nobody wants that
        self._term_at = 0.0
        self._kill_at = float("inf")
        self._terminated: set[tuple[int, int]] = set()
        self._stop_seen: tuple[int, int] | None = None
        self._status: int | None = None
        self._started_at: float | None = None
        self._detail = ""

    def announce(self) -> None:
        """Write who the processes are, then tell the worker."""
        own, program = read_stat(os.getpid()), read_stat(self.program.pid)
        if own is None or program is None:
            raise OSError(errno.ESRCH, "/proc does not show this process")
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot_id = file.read().strip()
        processes = {
            "boot_id": boot_id,
            "supervisor_pid": own.pid,
            "supervisor_start_ticks": own.start_ticks,
            "pid": program.pid,
            "start_ticks": program.start_ticks,
        }
        write_atomically(self._path("processes"), json.dumps(processes).encode())
        answer(f"held {program.pid}")

    def run(self, *, may_run: bool) -> None:
        """Let the program run if it may, and return when nothing of it is left and the exit status is written."""
        self._look_for_reasons_to_end()
        if may_run and self._cause is None:
            self._let_run()
        else:
            self._want_end("not_started", grace_s=0.0)
        while self._reap():
            self._spool.enforce_limit()
            self._look_for_reasons_to_end()
            self._end_what_must_end()
            signal.sigtimedwait({signal.SIGCHLD}, TICK_S if self._cause is None else TICK_S / 4)
        self._spool.enforce_limit()
        self._cgroup.remove()
        self._write_exit()

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _let_run(self) -> None:
        started_at = wall_time()
        try:
            self.program.let_run()
        except LaunchFailedError as error:
            self._detail = str(error)
            self._want_end("launch_failed", grace_s=0.0)
            return
        self._started_at = started_at
        write_atomically(self._path("running"), json.dumps({"started_at": started_at}).encode(), durable=False)

    def _reap(self) -> bool:
        """Collect ended children; False when none is left, and so, for a subreaper, no descendant either."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.program.pid:
                self._status = status
                if self._cause is None:
                    self._cause = "exited"
                    self._term_at = boot_time() + LEFTOVER_TERM_S
                    self._kill_at = boot_time() + LEFTOVER_KILL_S

    def _look_for_reasons_to_end(self) -> None:
        if self._deadline.has_passed():
            self._want_end("lease_expired", grace_s=0.0)
            return
        try:
            stat = os.stat(self._path("stop"))
        except OSError:
            return
        if (stat.st_ino, stat.st_mtime_ns) != self._stop_seen:
            self._stop_seen = (stat.st_ino, stat.st_mtime_ns)
            request = read_json(self._path("stop")) or {}
            self._want_end(str(request.get("cause", "stopped")), grace_s=float(str(request.get("grace_s", 0.0))))

    def _want_end(self, cause: str, *, grace_s: float) -> None:
        """End everything: SIGTERM now, SIGKILL after the grace. The first cause stays; the earliest kill counts."""
        if self._cause is None:
            self._cause = cause
        now = boot_time()
        self._term_at = min(self._term_at, now) if self._term_at else now
        self._kill_at = min(self._kill_at, now + grace_s)

    def _end_what_must_end(self) -> None:
        if self._cause is None or boot_time() < self._term_at:
            return
        if boot_time() >= self._kill_at:
            self._kill_all()
            return
        table = process_table()
        for pid in descendants(table, {os.getpid()}):
            stat = table[pid]
            if (pid, stat.start_ticks) not in self._terminated:
                self._terminated.add((pid, stat.start_ticks))
                send_signal(stat, signal.SIGTERM)

    def _kill_all(self) -> None:
        """Freeze first, so that nothing forks away, then kill."""
        self._cgroup.kill()
        frozen: set[int] = set()
        for _ in range(20):
            table = process_table()
            below = descendants(table, {os.getpid()})
            for pid in below - frozen:
                send_signal(table[pid], signal.SIGSTOP)
            if below <= frozen:
                break
            frozen |= below
        table = process_table()
        for pid in descendants(table, {os.getpid()}):
            send_signal(table[pid], signal.SIGKILL)

    def _write_exit(self) -> None:
        status = self._status
        if self._started_at is None:  # what was forked and held was no program yet
            status = None
        code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
        number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        exit_status = {
            "cause": self._cause,
            "exit_code": code,
            "signal": number,
            "started_at": self._started_at,
            "ended_at": wall_time(),
            "detail": self._detail,
        }
        for attempt in range(EXIT_WRITE_TRIES):  # a full disk must not cost the exit status
            try:
                os.fsync(self._spool.handle)
                write_atomically(self._path("exit"), json.dumps(exit_status).encode())
                return
            except FileNotFoundError:  # the directory was removed: nobody waits for it any more
                return
            except OSError as error:
                if attempt == 0:
                    with contextlib.suppress(OSError):
                        sys.stderr.write(f"cannot write the exit status yet: {error}\n")
                time.sleep(1.0)


def answer(text: str) -> None:
    """Tell the worker, if it is still there."""
    with contextlib.suppress(OSError):
        os.write(1, text.encode() + b"\n")


def take_lock(path: str) -> int | None:
    """Return the held lock, or None when another supervisor has it. A worker that only looks holds it for an instant."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    until = boot_time() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError:
            if boot_time() >= until:
                os.close(handle)
                return None
            time.sleep(0.01)


def leave_tombstone(path: str) -> bool:
    """Mark this id as started, for ever; False when it was already."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    sync_directory(os.path.dirname(path))
    return True


def wait_for_go() -> bool:
    """Wait for the worker's word; False when it went away or says otherwise."""
    import select  # noqa: PLC0415 - needed once

    ready, _, _ = select.select([0], [], [], GO_WAIT_S)
    return bool(ready) and os.read(0, 16).startswith(b"go")


def detach() -> None:
    """Leave the worker's process tree, session and signals; only SIGKILL and SIGSTOP reach us from now on."""
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")  # may be refused; the program sets its own back
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def main(directory: str) -> int:
    """Supervise the member whose files are in `directory`."""
    detach()
    launch = read_json(os.path.join(directory, "launch"))
    if launch is None:
        answer("failed the launch file cannot be read")
        return 1
    lock = take_lock(os.path.join(directory, "lock"))
    has_ended = os.path.exists(os.path.join(directory, "exit"))
    if lock is None or has_ended or not leave_tombstone(str(launch["tombstone"])):
        answer("refused this member was started before")
        return REFUSED_EXIT
    try:
        supervisor = Supervisor(directory, launch, lock)
        supervisor.announce()
    except OSError as error:
        answer(f"failed {error}")
        return 1
    may_run = wait_for_go()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    supervisor.run(may_run=may_run)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
