"""A job's states and the one table of transitions (protocol §4).

`TRANSITIONS` is data; `transition` is the only function that applies it. Whatever is not in the table is refused.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final


class JobState(StrEnum):
    """Where a job stands; the reason for standing there is a second enum (`schedmate.schemas.reasons`)."""

    SUBMITTED = "SUBMITTED"  # accepted by ingest, not yet seen by the dispatcher's core
    QUEUED = "QUEUED"  # waits in its pool
    ASSIGNED = "ASSIGNED"  # GPUs leased, every member told to start
    RUNNING = "RUNNING"  # every member of the gang has started
    STOPPING = "STOPPING"  # members are being stopped
    DIAGNOSING = "DIAGNOSING"  # ended badly, holds no GPU, waits (bounded) for a diagnosis
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REJECTED = "REJECTED"  # admission: nothing could ever run it


STATE_MEANINGS: Final[dict[JobState, str]] = {
    JobState.SUBMITTED: "accepted by ingest, not yet seen by the dispatcher",
    JobState.QUEUED: "waits in its pool; has a reason",
    JobState.ASSIGNED: "GPUs leased, every member told to start; bounded by `start_timeout_s`",
    JobState.RUNNING: "every member of the gang has started",
    JobState.STOPPING: "members are being stopped, with an intent that only rises; bounded",
    JobState.DIAGNOSING: "ended badly, holds no GPU; until the first diagnosis or `diagnosis_wait_s`",
    JobState.SUCCEEDED: "the end: the work is done",
    JobState.FAILED: "the end: no further attempt",
    JobState.CANCELLED: "the end: cancelled on request",
    JobState.REJECTED: "the end: admission found that nothing could ever run it",
}

TERMINAL: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.REJECTED})
HOLDS_GPUS: Final = frozenset({JobState.ASSIGNED, JobState.RUNNING, JobState.STOPPING})


class JobEvent(StrEnum):
    """What moves a job from one state to another; named from the job's point of view."""

    ADMIT = "ADMIT"
    REJECT = "REJECT"
    PLACE = "PLACE"
    START = "START"  # every member has started
    STOP = "STOP"  # members are told to stop, with an intent
    END_BADLY = "END_BADLY"  # the last member ended, at least one of them badly
    COMPLETE = "COMPLETE"  # every member exited 0, or the diagnosis says that the work was complete
    REQUEUE = "REQUEUE"
    FAIL = "FAIL"
    CANCEL = "CANCEL"


EVENT_MEANINGS: Final[dict[JobEvent, str]] = {
    JobEvent.ADMIT: "admission finds that the pool could run it",
    JobEvent.REJECT: "the pool's limits exclude it for ever",
    JobEvent.PLACE: "all GPUs of the gang are leased at once",
    JobEvent.START: "the last member has started",
    JobEvent.STOP: "members are told to stop, with an intent",
    JobEvent.END_BADLY: "the last member has ended, at least one of them badly",
    JobEvent.COMPLETE: "every member exited 0, or the diagnosis says that the work was complete",
    JobEvent.REQUEUE: "another attempt, within the budget of its cause",
    JobEvent.FAIL: "no further attempt",
    JobEvent.CANCEL: "a cancel takes effect: no member is left",
}


class StopIntent(IntEnum):
    """Why members are being stopped. An intent only ever rises."""

    REQUEUE = 1
    DIAGNOSE = 2
    FAIL = 3
    CANCEL = 4


_S, _E = JobState, JobEvent

TRANSITIONS: Final[dict[tuple[JobState, JobEvent], JobState]] = {
    (_S.SUBMITTED, _E.ADMIT): _S.QUEUED,  # admission finds a pool that could run it
    (_S.SUBMITTED, _E.REJECT): _S.REJECTED,  # the pool's limits exclude it for ever
    (_S.SUBMITTED, _E.CANCEL): _S.CANCELLED,  # cancelled before the core saw it
    (_S.QUEUED, _E.PLACE): _S.ASSIGNED,  # all GPUs of the gang leased at once
    (_S.QUEUED, _E.CANCEL): _S.CANCELLED,
    (_S.ASSIGNED, _E.START): _S.RUNNING,  # the last member reported its start
    (_S.ASSIGNED, _E.STOP): _S.STOPPING,  # cancel, refusal, start timeout, lost member, preemption
    (_S.ASSIGNED, _E.END_BADLY): _S.DIAGNOSING,  # every member ended before all had started
    (_S.RUNNING, _E.STOP): _S.STOPPING,
    (_S.RUNNING, _E.END_BADLY): _S.DIAGNOSING,
    (_S.RUNNING, _E.COMPLETE): _S.SUCCEEDED,
    (_S.STOPPING, _E.REQUEUE): _S.QUEUED,
    (_S.STOPPING, _E.END_BADLY): _S.DIAGNOSING,
    (_S.STOPPING, _E.CANCEL): _S.CANCELLED,
    (_S.STOPPING, _E.FAIL): _S.FAILED,
    (_S.STOPPING, _E.COMPLETE): _S.SUCCEEDED,  # every member had exited 0 unasked
    (_S.DIAGNOSING, _E.REQUEUE): _S.QUEUED,
    (_S.DIAGNOSING, _E.FAIL): _S.FAILED,
    (_S.DIAGNOSING, _E.CANCEL): _S.CANCELLED,
    (_S.DIAGNOSING, _E.COMPLETE): _S.SUCCEEDED,  # the work was complete, its teardown failed
}


class IllegalTransitionError(Exception):
    """The table of transitions has no such arrow."""

    def __init__(self, state: JobState, event: JobEvent) -> None:
        super().__init__(f"a job that is {state.value} cannot {event.value}")
        self.state = state
        self.event = event


def transition(state: JobState, event: JobEvent) -> JobState:
    """Return the state that `event` leads to from `state`.

    Raises:
        IllegalTransitionError: the table has no such arrow.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(state, event) from None
