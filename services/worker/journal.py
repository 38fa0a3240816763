"""The journal: one line an effect, synced before the effect is reported (design §8). Lines in, history out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from schedmate.infra.processes.port import MemberKey
from schedmate.schemas.events import ExitCause, MemberAssigned, MemberAssignedV2
from schedmate.services.worker.holding import is_share
from schedmate.services.worker.member import HELD_AS, Member

KEYS: Final = (
    "t", "node", "session", "pool", "seq", "term", "job_id", "run_id", "attempt", "member", "gpus", "event", "pid", "exit_code",
)  # fmt: skip
SHARED_KEYS: Final = HELD_AS
"""Further keys of a line: the thousandths that a share holds; that another run may be packed onto the GPUs, and with whom this one is. A
line without them is of a member that holds its GPUs whole and alone."""


class Effect(StrEnum):
    """What a line says."""

    STARTED = "started"
    EXITED = "exited"
    KILLED = "killed"
    REFUSED = "refused"


class JournalError(Exception):
    """A line of the journal is none that this program writes."""


@dataclass(slots=True)
class History:
    """What the journal tells: who was ever started here, and who has not ended."""

    started: dict[MemberKey, int] = field(default_factory=dict)
    """Every start ever, with the pid."""
    ended: set[MemberKey] = field(default_factory=set)

    @property
    def living(self) -> frozenset[MemberKey]:
        """Members with a start and no end."""
        return frozenset(self.started.keys() - self.ended)


def fold(lines: Iterable[bytes]) -> History:
    """Return the history of these lines. Raises JournalError with the line's number."""
    history = History()
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
            key = MemberKey(str(value["run_id"]), int(value["member"]))
            effect = Effect(value["event"])
            pid = value["pid"]
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"line {number} of the journal cannot be read: {error}") from error
        if effect is Effect.STARTED:
            history.started[key] = int(pid)
        elif effect in {Effect.EXITED, Effect.KILLED}:
            history.ended.add(key)
    return history


def started_line(member: Member, *, at: float) -> bytes:
    """Return the line of a start. `at` is a moment before the program runs."""
    assert member.start is not None
    return _line(member.assigned, Effect.STARTED, at=at, session=member.start.session, pid=member.start.pid)


def ended_line(member: Member, *, at: float) -> bytes:
    """Return the line of an end; `killed` when it was the node's doing. `at` is when nothing of it was left."""
    assert member.end is not None
    by_itself = member.end.cause in {ExitCause.EXITED, ExitCause.LAUNCH_FAILED}
    return _line(
        member.assigned,
        Effect.EXITED if by_itself else Effect.KILLED,
        at=at,
        session=member.end.session,
        pid=member.start.pid if member.start is not None else None,
        exit_code=member.end.exit_code,
    )


def refused_line(assigned: MemberAssigned, *, at: float, session: int) -> bytes:
    """Return the line of a refusal: nothing was started."""
    return _line(assigned, Effect.REFUSED, at=at, session=session)


def _line(
    assigned: MemberAssigned,
    effect: Effect,
    *,
    at: float,
    session: int,
    pid: int | None = None,
    exit_code: int | None = None,
) -> bytes:
    held = MemberAssignedV2.of(assigned)
    line: dict[str, Any] = {
        "t": at,
        "node": assigned.node,
        "session": session,
        "pool": assigned.pool,
        "seq": assigned.seq,
        "term": assigned.term,
        "job_id": assigned.job_id,
        "run_id": assigned.run_id,
        "attempt": assigned.attempt,
        "member": assigned.member,
        "gpus": list(assigned.gpus),
        "event": effect.value,
        "pid": pid,
        "exit_code": exit_code,
    }
    if is_share(held):
        line["gpu_milli"] = held.gpu_milli
    if held.packable:
        line |= {"packable": True, "packed_with": held.packed_with}
    return json.dumps(line, separators=(",", ":")).encode()
