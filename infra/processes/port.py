"""The port `Processes`: run members under supervisors that outlive whoever started them (protocol §2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class ProcessesError(Exception):
    """The processes of this node could not do what was asked."""


class AlreadyStartedError(ProcessesError):
    """A start of this member was made before: one start per id, ever."""


class SetupError(ProcessesError):
    """Directories, spool or supervisor of the member could not be made."""


@dataclass(frozen=True, slots=True, order=True)
class MemberKey:
    """One member of one run."""

    run_id: str
    member: int

    def __str__(self) -> str:
        return f"{self.run_id}.{self.member}"

    @classmethod
    def parse(cls, text: str) -> MemberKey:
        """Return the key that `str` wrote. Raises ValueError."""
        run_id, _, member = text.rpartition(".")
        return cls(run_id, int(member))


@dataclass(frozen=True, slots=True)
class Launch:
    """All that a supervisor needs to start a program.

    `env` is the whole environment. `user` is an account to switch to (needs root), None keeps the worker's own.
    Output beyond `spool_bytes_max` keeps its head and its tail; what lies between is a gap.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    lease_epoch: int
    spool_bytes_max: int
    user: str | None = None


class Phase(StrEnum):
    """Where a member stands, read from locks and files, never from parenthood."""

    ABSENT = "absent"  # nothing is known of it
    HELD = "held"  # its supervisor holds the lock; the program may not run yet
    RUNNING = "running"
    ENDED = "ended"  # the exit status is written, nothing of it is left
    LOST = "lost"  # the supervisor is gone and left no exit status


class EndCause(StrEnum):
    """What a supervisor writes about the end; `lost` is written by whoever cleans up after a supervisor."""

    EXITED = "exited"
    STOPPED = "stopped"
    LEASE_EXPIRED = "lease_expired"
    LAUNCH_FAILED = "launch_failed"
    WORKER_STOPPED = "worker_stopped"
    NOT_STARTED = "not_started"  # the worker went away before it let the program run
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a member ended. Times are Unix seconds; `exit_code` is None when a signal ended it or it is unknown."""

    cause: EndCause
    exit_code: int | None
    signal: int | None
    started_at: float | None
    ended_at: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member now. `spool_gap` is the range of bytes that the size limit took out of the spool."""

    phase: Phase
    pid: int | None = None
    started_at: float | None = None
    exit: ExitStatus | None = None
    spool_bytes: int = 0
    spool_gap: tuple[int, int] | None = None


class Processes(Protocol):
    """The run members of one node. Calls are synchronous and take milliseconds (`hold`: tens of them)."""

    def hold(self, key: MemberKey, launch: Launch) -> int:
        """Start the member's supervisor and return the pid of the program, which is held until `let_run`.

        If the caller dies before `let_run`, the program never runs and the member ends as `not_started`.

        Raises:
            AlreadyStartedError, SetupError
        """
        ...

    def let_run(self, key: MemberKey) -> None:
        """Let a held program run. Whether it could be executed shows in its status."""
        ...

    def abandon(self, key: MemberKey) -> None:
        """End a held program without letting it run."""
        ...

    def status(self, key: MemberKey) -> MemberStatus:
        """Return where a member stands."""
        ...

    def stop(self, key: MemberKey, *, grace_s: float, cause: EndCause) -> None:
        """Ask the supervisor for SIGTERM, a grace and SIGKILL to all of the run. A shorter grace may follow a longer one."""
        ...

    def end_lost(self, key: MemberKey) -> bool:
        """Kill what is left of a member whose supervisor is gone; True (and an exit status `lost`) when nothing is."""
        ...

    def kill(self, key: MemberKey) -> None:
        """Kill the supervisor and all of the run at once, whatever state the supervisor is in."""
        ...

    def renew(self, *, epoch: int, deadline: float) -> None:
        """Set the time (CLOCK_BOOTTIME) at which supervisors of this epoch end their runs; others end theirs at once."""
        ...

    def deadline(self) -> tuple[int, float] | None:
        """Return the (epoch, deadline) last set on this node since it booted, or None."""
        ...

    def kept(self) -> Sequence[MemberKey]:
        """Return the members that have files here, in order."""
        ...

    def pids(self) -> frozenset[int]:
        """Return the processes of all living members."""
        ...

    def read_spool(self, key: MemberKey, start: int, length: int) -> bytes:
        """Return output bytes from `start`, at most `length`; empty where there are none."""
        ...

    def forget(self, key: MemberKey) -> None:
        """Remove the files of an ended member. That it was started once stays known."""
        ...
