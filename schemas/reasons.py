"""Why a job stands where it stands: constants with a comment each, ranked.

The rank decides which reason is told when several hold: the lowest number is the one whose removal matters first.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """One reason; `EXPLANATIONS` has a sentence for each, `RANK` the order in which they are told."""

    # a waiting job
    EXCEEDS_POOL_LIMITS = "EXCEEDS_POOL_LIMITS"  # admission: more than the pool's configuration ever allows
    NO_LIVE_NODE = "NO_LIVE_NODE"  # no node of the pool reports
    NO_SUCH_GPU_TYPE = "NO_SUCH_GPU_TYPE"  # no node of the pool has the type (or the memory) asked for
    NEVER_FITS = "NEVER_FITS"  # not even the empty pool could hold the gang
    HELD_BY_CORDON = "HELD_BY_CORDON"  # it would fit, were nodes not cordoned or draining
    HELD_BY_RESERVATION = "HELD_BY_RESERVATION"  # it would fit, were nodes not reserved for maintenance
    TENANT_GPU_LIMIT = "TENANT_GPU_LIMIT"  # the tenant holds its limit
    TENANT_QUOTA = "TENANT_QUOTA"  # it would borrow, and may not
    BACKING_OFF = "BACKING_OFF"  # waits before the next attempt
    WAITS_FOR_RECLAIM = "WAITS_FOR_RECLAIM"  # within its quota; borrowed jobs are being stopped for it, or will be
    GPUS_QUARANTINED = "GPUS_QUARANTINED"  # GPUs it needs wait for a proof of death
    INSUFFICIENT_GPUS = "INSUFFICIENT_GPUS"  # fewer GPUs are free than it needs
    FRAGMENTED = "FRAGMENTED"  # enough are free in all, not enough together
    BEHIND_EARLIER_JOBS = "BEHIND_EARLIER_JOBS"  # the policy lets an earlier job go first
    NOT_YET_CONSIDERED = "NOT_YET_CONSIDERED"  # submitted, the dispatcher has not answered yet

    # a job on its way
    STARTING = "STARTING"  # its members were told to start
    ALL_MEMBERS_STARTED = "ALL_MEMBERS_STARTED"
    NODE_UNREACHABLE = "NODE_UNREACHABLE"  # a node is silent in a pool whose leases never expire
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    MEMBER_FAILED = "MEMBER_FAILED"  # a member ended badly, the others are stopped
    MEMBER_LOST = "MEMBER_LOST"  # a report lacks a member that should be there
    NODE_LOST = "NODE_LOST"  # the lease of a node ran out
    NODE_DECLARED_DEAD = "NODE_DECLARED_DEAD"  # an operator said so
    START_REFUSED = "START_REFUSED"  # a worker refused to start a member
    START_TIMEOUT = "START_TIMEOUT"  # not every member started in time
    TIME_LIMIT = "TIME_LIMIT"  # the job's own limit
    PREEMPTED = "PREEMPTED"  # a job of higher priority took the GPUs
    RECLAIMED = "RECLAIMED"  # its tenant had borrowed the GPUs, and a tenant wants its quota back
    PROFILED = "PROFILED"  # its time in the profiler is up: it goes on outside
    UNPACKED = "UNPACKED"  # it does not go with the job that it shared GPUs with
    MAINTENANCE = "MAINTENANCE"  # a node of it is reserved for maintenance from now on
    STOP_TIMEOUT = "STOP_TIMEOUT"  # a member did not end in time; its GPUs are quarantined
    AWAITING_DIAGNOSIS = "AWAITING_DIAGNOSIS"
    RETRYING = "RETRYING"

    # the end
    ALL_MEMBERS_EXITED_ZERO = "ALL_MEMBERS_EXITED_ZERO"
    WORK_WAS_COMPLETE = "WORK_WAS_COMPLETE"  # the crash was in the teardown
    CANCELLED_BY_REQUEST = "CANCELLED_BY_REQUEST"
    DIAGNOSED_PERMANENT = "DIAGNOSED_PERMANENT"  # a retry would fail the same way
    NEEDS_CHANGES = "NEEDS_CHANGES"  # a retry makes sense only with the proposed change
    RETRY_BUDGET_SPENT = "RETRY_BUDGET_SPENT"
    LAUNCH_BUDGET_SPENT = "LAUNCH_BUDGET_SPENT"
    INFRASTRUCTURE_BUDGET_SPENT = "INFRASTRUCTURE_BUDGET_SPENT"


EXPLANATIONS: Final[dict[Reason, str]] = {
    Reason.EXCEEDS_POOL_LIMITS: "the job asks for more than the pool's limits ever allow",
    Reason.NO_LIVE_NODE: "no node of the pool is reporting",
    Reason.NO_SUCH_GPU_TYPE: "no node of the pool has the GPU type or GPU memory asked for",
    Reason.NEVER_FITS: "not even the empty pool could hold the job",
    Reason.HELD_BY_CORDON: "the nodes that could hold the job are cordoned or draining",
    Reason.HELD_BY_RESERVATION: "the nodes that could hold the job are reserved for maintenance before it is expected to end",
    Reason.TENANT_GPU_LIMIT: "the tenant already holds its limit of GPUs",
    Reason.TENANT_QUOTA: "the job would go over its tenant's quota of GPUs, and may not borrow",
    Reason.WAITS_FOR_RECLAIM: "the job is within its tenant's quota and waits for GPUs that others have borrowed",
    Reason.BACKING_OFF: "the job waits before its next attempt",
    Reason.GPUS_QUARANTINED: "GPUs that the job needs wait for the proof that their last run is dead",
    Reason.INSUFFICIENT_GPUS: "fewer GPUs are free than the job needs",
    Reason.FRAGMENTED: "enough GPUs are free in all, but not enough together",
    Reason.BEHIND_EARLIER_JOBS: "earlier jobs go first",
    Reason.NOT_YET_CONSIDERED: "the dispatcher has not seen the job yet",
    Reason.STARTING: "its members have been told to start",
    Reason.ALL_MEMBERS_STARTED: "every member has started",
    Reason.NODE_UNREACHABLE: "a node of the job is silent; the pool waits for it",
    Reason.CANCEL_REQUESTED: "the job is being cancelled",
    Reason.MEMBER_FAILED: "a member ended badly",
    Reason.MEMBER_LOST: "a member disappeared from its node",
    Reason.NODE_LOST: "a node's lease ran out",
    Reason.NODE_DECLARED_DEAD: "an operator declared a node dead",
    Reason.START_REFUSED: "a worker refused to start a member",
    Reason.START_TIMEOUT: "not every member started in time",
    Reason.TIME_LIMIT: "the job reached its time limit",
    Reason.PREEMPTED: "a job of higher priority took its GPUs",
    Reason.RECLAIMED: "its tenant had borrowed its GPUs, and another one wanted its quota back",
    Reason.PROFILED: "its time in the profiler is up; it goes on outside",
    Reason.UNPACKED: "it does not go with the job that it shared its GPUs with",
    Reason.MAINTENANCE: "a node of the job is reserved for maintenance from now on",
    Reason.STOP_TIMEOUT: "a member did not end in time; its GPUs are held back until it does",
    Reason.AWAITING_DIAGNOSIS: "the job ended badly; the cause is being looked for",
    Reason.RETRYING: "the job will be tried again",
    Reason.ALL_MEMBERS_EXITED_ZERO: "every member exited with 0",
    Reason.WORK_WAS_COMPLETE: "the work was complete; only the shutdown failed",
    Reason.CANCELLED_BY_REQUEST: "the job was cancelled on request",
    Reason.DIAGNOSED_PERMANENT: "a retry would fail in the same way",
    Reason.NEEDS_CHANGES: "a retry makes sense only after a change",
    Reason.RETRY_BUDGET_SPENT: "the job's retries are used up",
    Reason.LAUNCH_BUDGET_SPENT: "the job could not be started often enough to give up",
    Reason.INFRASTRUCTURE_BUDGET_SPENT: "the infrastructure failed the job too often",
}

RANK: Final[dict[Reason, int]] = {reason: rank for rank, reason in enumerate(Reason)}
