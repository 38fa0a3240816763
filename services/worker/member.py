"""One run member as this node knows it: assigned, started, stopped, ended. Values in, values out."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_serializer, field_validator

from schedmate.infra.processes.port import EndCause, ExitStatus, MemberKey
from schedmate.schemas.events import ExitCause, MemberAssigned, MemberAssignedV2, RunUsage
from schedmate.schemas.job import Frozen

_CAUSES = {
    EndCause.EXITED: ExitCause.EXITED,
    EndCause.STOPPED: ExitCause.STOPPED,
    EndCause.LEASE_EXPIRED: ExitCause.LEASE_EXPIRED,
    EndCause.LAUNCH_FAILED: ExitCause.LAUNCH_FAILED,
    EndCause.WORKER_STOPPED: ExitCause.WORKER_STOPPED,
    EndCause.NOT_STARTED: ExitCause.WORKER_STOPPED,  # the worker went away before it let the program run
    EndCause.LOST: ExitCause.LOST,
}


HELD_AS: Final = ("gpu_milli", "packable", "packed_with")
"""The fields of an order that say how its GPUs are held: left out of files where they are held whole and alone."""
_WHOLE: Final = {name: MemberAssignedV2.model_fields[name].default for name in HELD_AS}


class Start(Frozen):
    """The journalled start. `started_at` is None until the program was seen to run."""

    pid: int
    session: int
    started_at: float | None = None


class End(Frozen):
    """The journalled end; `log_bytes` is the final length of the output."""

    session: int
    cause: ExitCause
    exit_code: int | None
    signal: int | None
    started_at: float | None
    ended_at: float
    log_bytes: int
    detail: str = ""
    usage: RunUsage | None = Field(default=None, exclude_if=lambda usage: usage is None)


class Member(Frozen):
    """A member from its acceptance until it is released. Immutable; each step returns a new one."""

    assigned: MemberAssignedV2
    traceparent: str | None
    start: Start | None = None
    stop_grace_s: float | None = None
    end: End | None = None

    @field_validator("assigned", mode="before")
    @classmethod
    def _in_this_version(cls, value: object) -> object:
        return MemberAssignedV2.of(value) if isinstance(value, MemberAssigned) else value

    @field_serializer("assigned", mode="wrap")
    def _as_before(self, value: MemberAssignedV2, dumped: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write a member that holds its GPUs whole and alone as earlier workers did: they read it."""
        out: dict[str, Any] = dumped(value)
        return {name: item for name, item in out.items() if name not in HELD_AS or item != _WHOLE[name]}

    @property
    def key(self) -> MemberKey:
        """Identity of the member."""
        return key_of(self.assigned)

    @property
    def state(self) -> Literal["starting", "running", "stopping", "ended"]:
        """Where it stands, in the words of a node report."""
        if self.end is not None:
            return "ended"
        if self.stop_grace_s is not None:
            return "stopping"
        return "running" if self.start is not None and self.start.started_at is not None else "starting"

    @property
    def is_living(self) -> bool:
        """Tell whether it holds its GPUs."""
        return self.end is None

    def started(self, *, pid: int, session: int) -> Member:
        """Return the member with its journalled start."""
        return self.model_copy(update={"start": Start(pid=pid, session=session)})

    def seen_running(self, started_at: float) -> Member:
        """Return the member whose program was seen to run."""
        if self.start is None:
            raise ValueError(f"{self.key} runs without a journalled start")
        return self.model_copy(update={"start": self.start.model_copy(update={"started_at": started_at})})

    def stopped(self, grace_s: float) -> Member:
        """Return the member with an order to stop."""
        return self.model_copy(update={"stop_grace_s": grace_s})

    def ended(self, status: ExitStatus, *, session: int, log_bytes: int, usage: RunUsage | None = None) -> Member:
        """Return the member at its end, as its supervisor (or the clean-up after it) wrote it."""
        end = End(
            session=session,
            cause=_CAUSES[status.cause],
            exit_code=status.exit_code,
            signal=status.signal,
            started_at=status.started_at,
            ended_at=status.ended_at,
            log_bytes=log_bytes,
            detail=status.detail,
            usage=usage,
        )
        return self.model_copy(update={"end": end})

    def ended_before_start(self, cause: ExitCause, *, session: int, at: float, detail: str) -> Member:
        """Return the member that was ended before anything was started for it."""
        end = End(
            session=session,
            cause=cause,
            exit_code=None,
            signal=None,
            started_at=None,
            ended_at=at,
            log_bytes=0,
            detail=detail,
        )
        return self.model_copy(update={"end": end})


def key_of(event: MemberAssigned) -> MemberKey:
    """Return the key of the member that an assignment names."""
    return MemberKey(event.run_id, event.member)
