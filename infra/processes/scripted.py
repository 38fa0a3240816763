"""The adapter of `Processes` for tests: nothing runs; the test says what each program does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from schedmate.infra.clock import Clock
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

FIRST_PID: Final = 1000


@dataclass
class _Member:
    launch: Launch
    pid: int
    phase: Phase = Phase.HELD
    started_at: float | None = None
    exit: ExitStatus | None = None
    output: bytearray = field(default_factory=bytearray)
    stop: tuple[float, EndCause] | None = None  # (kill at, cause), asked for and not yet carried out
    ignores_term: bool = False


class ScriptedProcesses:
    """Members in memory. Programs react to SIGTERM at once unless told otherwise; `tick` carries out kills and deadlines."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._members: dict[MemberKey, _Member] = {}
        self._started: set[MemberKey] = set()
        self._deadline: tuple[int, float] | None = None
        self._next_pid = FIRST_PID
        self._lock = threading.RLock()
        self.refuses_setup = False

    # --- what a test says ---------------------------------------------------------------------------------------------

    def exits(self, key: MemberKey, code: int | None = 0, *, number: int | None = None) -> None:
        """Let the program exit by itself."""
        with self._lock:
            if self._members[key].phase is Phase.RUNNING:
                stop = self._members[key].stop
                self._end(self._members[key], stop[1] if stop is not None else EndCause.EXITED, code, number)

    def prints(self, key: MemberKey, output: bytes) -> None:
        """Let the program write to its output."""
        with self._lock:
            self._members[key].output += output

    def ignores_term(self, key: MemberKey) -> None:
        """Let the program outlive SIGTERM until it is killed."""
        self._members[key].ignores_term = True

    def launch(self, key: MemberKey) -> Launch:
        """Return what a member was launched with."""
        return self._members[key].launch

    def tick(self) -> None:
        """Carry out what time has made due: kills after a grace, deadlines."""
        with self._lock:
            for member in self._members.values():
                if member.phase not in {Phase.HELD, Phase.RUNNING}:
                    continue
                if self._is_over(member):
                    self._end(member, EndCause.LEASE_EXPIRED, None, 9)
                elif member.stop is not None and self._clock.monotonic() >= member.stop[0]:
                    self._end(member, member.stop[1], None, 9)

    # --- the port -----------------------------------------------------------------------------------------------------

    def hold(self, key: MemberKey, launch: Launch) -> int:
        """Start the member's supervisor."""
        with self._lock:
            if self.refuses_setup:
                raise SetupError(f"cannot start the supervisor of {key}: scripted")
            if key in self._started:
                raise AlreadyStartedError(f"{key} was started before")
            self._started.add(key)
            self._members[key] = _Member(launch, self._next_pid)
            self._next_pid += 1
            return self._members[key].pid

    def let_run(self, key: MemberKey) -> None:
        """Let a held program run."""
        with self._lock:
            member = self._members.get(key)
            if member is None or member.phase is not Phase.HELD:
                return
            if self._is_over(member):
                self._end(member, EndCause.LEASE_EXPIRED, None, None)
                return
            member.phase = Phase.RUNNING
            member.started_at = self._clock.now()

    def abandon(self, key: MemberKey) -> None:
        """End a held program without letting it run."""
        with self._lock:
            member = self._members.get(key)
            if member is not None and member.phase is Phase.HELD:
                self._end(member, EndCause.NOT_STARTED, None, None)

    def status(self, key: MemberKey) -> MemberStatus:
        """Return where a member stands."""
        with self._lock:
            self.tick()
            member = self._members.get(key)
            if member is None:
                return MemberStatus(Phase.ABSENT)
            return MemberStatus(member.phase, member.pid, member.started_at, member.exit, len(member.output))

    def stop(self, key: MemberKey, *, grace_s: float, cause: EndCause) -> None:
        """Ask for the end of the run."""
        with self._lock:
            member = self._members.get(key)
            if member is None or member.phase not in {Phase.HELD, Phase.RUNNING}:
                return
            kill_at = self._clock.monotonic() + grace_s
            member.stop = (min(kill_at, member.stop[0]), member.stop[1]) if member.stop else (kill_at, cause)
            if not member.ignores_term:
                self._end(member, member.stop[1], None, 15)

    def end_lost(self, key: MemberKey) -> bool:
        """Write the end of a member without supervisor."""
        with self._lock:
            member = self._members[key]
            if member.phase is Phase.LOST:
                self._end(member, EndCause.LOST, None, None)
            return member.phase is Phase.ENDED

    def kill(self, key: MemberKey) -> None:
        """Kill the supervisor and the run."""
        with self._lock:
            if self._members[key].phase in {Phase.HELD, Phase.RUNNING}:
                self._members[key].phase = Phase.LOST

    def renew(self, *, epoch: int, deadline: float) -> None:
        """Move the deadline on."""
        self._deadline = (epoch, deadline)

    def deadline(self) -> tuple[int, float] | None:
        """Return the deadline last set."""
        return self._deadline

    def kept(self) -> Sequence[MemberKey]:
        """Return the members that are kept."""
        with self._lock:
            return sorted(self._members)

    def pids(self) -> frozenset[int]:
        """Return the processes of living members."""
        with self._lock:
            return frozenset(m.pid for m in self._members.values() if m.phase in {Phase.HELD, Phase.RUNNING})

    def read_spool(self, key: MemberKey, start: int, length: int) -> bytes:
        """Return output bytes from `start`."""
        with self._lock:
            member = self._members.get(key)
            return bytes(member.output[start : start + length]) if member is not None else b""

    def forget(self, key: MemberKey) -> None:
        """Remove an ended member."""
        with self._lock:
            self._members.pop(key, None)

    def _is_over(self, member: _Member) -> bool:
        if self._deadline is None:
            return True
        epoch, deadline = self._deadline
        return epoch != member.launch.lease_epoch or self._clock.monotonic() >= deadline

    def _end(self, member: _Member, cause: EndCause, code: int | None, number: int | None) -> None:
        member.phase = Phase.ENDED
        member.exit = ExitStatus(cause, code, number, member.started_at, self._clock.now())
