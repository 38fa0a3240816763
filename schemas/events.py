"""Every event of the system (design §2): frozen models in the past tense, one writer per topic.

A version is never edited: a change of meaning or shape is a new class with the next `VERSION`. All times are Unix
seconds (UTC) as floats, all sizes bytes unless the name says otherwise.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final, Literal

from pydantic import Field

from schedmate.schemas.job import GPU_MILLI_WHOLE, Frozen, Identifier, JobRequest, JobSpec, Sha256
from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobState

LOG_CHUNK_BYTES_MAX: Final = 256 * 1024


class Event(Frozen):
    """Base of all events. `NAME` and `VERSION` give the CloudEvents type, `KEY` the field that is the record's key."""

    NAME: ClassVar[str] = ""
    VERSION: ClassVar[int] = 1
    TOPIC: ClassVar[str] = ""
    KEY: ClassVar[str] = "job_id"

    @classmethod
    def ce_type(cls) -> str:
        """Return the CloudEvents type, e.g. `schedmate.job.assigned.v1`."""
        return f"schedmate.{cls.NAME}.v{cls.VERSION}"

    @property
    def key(self) -> str:
        """The record's key: what the order of events holds for."""
        return str(getattr(self, self.KEY))


# --- requests: written by platforms, read by ingest -----------------------------------------------------------------


class JobRequested(Event):
    """A platform asks for a job through the bus instead of HTTP; `request_id` is its idempotency key.

    Where tenants have tokens, the tenant's goes in the record's header `schedmate-token`.
    """

    NAME = "job.requested"
    TOPIC = "schedmate.requests"
    KEY = "request_id"
    request_id: str = Field(min_length=1, max_length=200)
    request: JobRequest


# --- jobs, commands, audit: written by ingest ------------------------------------------------------------------------


class JobSubmitted(Event):
    """Ingest accepted a job and decided its pool, once."""

    NAME = "job.submitted"
    TOPIC = "schedmate.jobs"
    job_id: str
    pool: Identifier
    spec: JobSpec
    submitted_at: float


class JobCancelRequested(Event):
    """Somebody entitled asked to cancel a job. A request: the pool's log decides what comes of it."""

    NAME = "job.cancel-requested"
    TOPIC = "schedmate.commands"
    job_id: str
    pool: Identifier
    requested_by: str
    why: str = ""


class NodeDrainRequested(Event):
    """Start nothing more on the node; what runs there runs to its end."""

    NAME = "node.drain-requested"
    TOPIC = "schedmate.commands"
    KEY = "node"
    node: Identifier
    pool: Identifier
    requested_by: str
    why: str = ""


class NodeUndrainRequested(Event):
    """The node may be used again: lifts a drain and a cordon."""

    NAME = "node.undrain-requested"
    TOPIC = "schedmate.commands"
    KEY = "node"
    node: Identifier
    pool: Identifier
    requested_by: str
    why: str = ""


class NodeCordonRequested(Event):
    """An operator marks a node unschedulable until it has been checked."""

    NAME = "node.cordon-requested"
    TOPIC = "schedmate.commands"
    KEY = "node"
    node: Identifier
    pool: Identifier
    requested_by: str
    why: str = ""


class NodeDeathDeclared(Event):
    """An operator vouches that nothing runs on the node any more: its runs have ended as lost."""

    NAME = "node.death-declared"
    TOPIC = "schedmate.commands"
    KEY = "node"
    node: Identifier
    pool: Identifier
    requested_by: str
    why: str = ""


class JobEstimateOrdered(Event):
    """An operator says how long a job runs, in the place of every estimate until it is cleared: without p50_s it is."""

    NAME = "job.estimate-ordered"
    TOPIC = "schedmate.commands"
    job_id: str
    pool: Identifier
    p10_s: float | None = Field(default=None, gt=0)
    p50_s: float | None = Field(default=None, gt=0)
    p90_s: float | None = Field(default=None, gt=0)
    requested_by: str
    why: str = ""


class JobPinRequested(Event):
    """An operator puts a waiting job first or last in its priority class, or back where the policy has it."""

    NAME = "job.pin-requested"
    TOPIC = "schedmate.commands"
    job_id: str
    pool: Identifier
    place: Literal["first", "last", "none"]
    requested_by: str
    why: str = ""


class ReservationRequested(Event):
    """An operator wants nodes free for maintenance in [start_at, end_at): those named, or so many of the pool's."""

    NAME = "reservation.requested"
    TOPIC = "schedmate.commands"
    KEY = "reservation_id"
    reservation_id: Identifier
    pool: Identifier
    nodes: tuple[Identifier, ...] = Field(default=(), max_length=1000)
    count: int = Field(default=0, ge=0, description="So many nodes, chosen by the pool, where none is named.")
    start_at: float
    end_at: float
    requested_by: str
    why: str = ""


class ReservationWithdrawalRequested(Event):
    """An operator takes a reservation back: its nodes take jobs again."""

    NAME = "reservation.withdrawal-requested"
    TOPIC = "schedmate.commands"
    KEY = "reservation_id"
    reservation_id: Identifier
    pool: Identifier
    requested_by: str
    why: str = ""


class CallAudited(Event):
    """Who called what, and what came of it."""

    NAME = "call.audited"
    TOPIC = "schedmate.audit"
    KEY = "principal"
    principal: str
    tenant: str | None
    scope: str
    call: str
    target: str
    outcome: Literal["accepted", "refused"]
    at: float


# --- analyses: written by code-analyzer ------------------------------------------------------------------------------

WORKLOAD_FIELDS: Final = (
    "framework", "task", "model_family", "model_name", "model_params", "dataset", "batch_size_per_device",
    "global_batch_size", "epochs", "max_steps", "total_steps", "optimizer", "precision", "strategy", "launcher",
    "gpus_per_node", "nodes", "grad_accum", "grad_checkpointing", "saves_checkpoints", "resume_supported", "logging",
)  # fmt: skip

WorkloadValue = str | int | float | bool | tuple[str, ...] | None


class Basis(StrEnum):
    """What a value of a workload rests on."""

    EXPLICIT = "explicit"
    COMPUTED = "computed"
    LIBRARY_DEFAULT = "library_default"
    INFERRED = "inferred"
    MODEL_SUGGESTED = "model_suggested"


class WorkloadField(Frozen):
    """One field of a workload: a value with the line it rests on. Unknown fields are absent, never invented."""

    value: WorkloadValue
    basis: Basis
    file: str | None = None
    line: int | None = Field(default=None, ge=1)
    confidence: float = Field(ge=0, le=1)


class JobAnalyzed(Event):
    """What the job's source says about it."""

    NAME = "job.analyzed"
    TOPIC = "schedmate.analyses"
    job_id: str
    pool: Identifier
    content_hash: Sha256
    fields: dict[str, WorkloadField]
    partial_because: str | None = Field(
        default=None, description="Why not everything could be read; null when it could."
    )


# --- estimates: written by history-estimator -------------------------------------------------------------------------


class EstimateBasis(StrEnum):
    """How an estimate was obtained; `unknown` carries no numbers."""

    EXACT_PRIOR = "exact_prior"
    USER_MEDIAN = "user_median"
    SIMILAR_JOBS = "similar_jobs"
    LEARNED = "learned"
    STEPS = "steps"
    PROGRESS = "progress"
    POOL_PRIOR = "pool_prior"
    UNKNOWN = "unknown"


class RunTimeEstimated(Event):
    """A distribution of a job's run time. A better one is a new `revision` of the same job."""

    NAME = "job.run-time-estimated"
    TOPIC = "schedmate.estimates"
    job_id: str
    pool: Identifier
    revision: int = Field(ge=1)
    p10_s: float | None = Field(default=None, ge=0)
    p50_s: float | None = Field(default=None, ge=0)
    p90_s: float | None = Field(default=None, ge=0)
    early_end_risk: float | None = Field(default=None, ge=0, le=1)
    gpu_utilisation: float | None = Field(default=None, ge=0, le=1)
    gpu_memory_bytes: int | None = Field(default=None, ge=0)
    basis: EstimateBasis
    similar: tuple[str, ...] = Field(default=(), max_length=20, description="Past jobs of the same tenant behind it.")
    similar_elsewhere: int = Field(default=0, ge=0, description="How many past jobs of other tenants stand behind it.")
    worth_probing: bool | None = Field(
        default=None,
        exclude_if=lambda word: word is None,
        description="Whether measuring this job (the profiler's time) would sharpen the estimates of its kind. Left out when nothing is said.",
    )
    sharing_class: str | None = Field(
        default=None,
        pattern="^(tiny|medium|jumbo)$",
        exclude_if=lambda known: known is None,
        description="How the same job, or ones like it, shared a GPU before: with its utilisation and memory it saves profiling it again. Left out when not known.",
    )


# --- progress, diagnoses: written by log-monitor ---------------------------------------------------------------------


class Phase(StrEnum):
    """What a job is doing, as far as its log tells."""

    LOAD = "load"
    DATA_PREP = "data_prep"
    COMPILE = "compile"
    TRAIN = "train"
    EVAL = "eval"
    SAVE = "save"
    GENERATE = "generate"
    INFERENCE = "inference"
    SERVING = "serving"
    DONE = "done"


class ProgressObserved(Event):
    """How far a run is, read from its log up to `log_offset`."""

    NAME = "run.progress-observed"
    TOPIC = "schedmate.progress"
    job_id: str
    pool: Identifier
    run_id: str
    attempt: int
    member: int
    log_offset: int
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    fraction: float | None = Field(default=None, ge=0, le=1)
    steps_per_sec: float | None = None
    eta_s: float | None = None
    phase: Phase | None = None
    loss: float | None = None


class ProgressObservedV2(ProgressObserved):
    """How far a run is, with the interval that its remaining time lies in.

    A reader that does not ask for the interval reads it as the version before; `of` reads the version before as this one.
    """

    VERSION = 2
    eta_low_s: float | None = None
    eta_high_s: float | None = None

    @classmethod
    def of(cls, event: ProgressObserved) -> ProgressObservedV2:
        """Return an event of either version as one of this: of the version before, the interval is unknown."""
        return event if isinstance(event, cls) else cls.model_validate(event.model_dump())


class RunSlowed(Event):
    """A run is slower than its own past (interference, or a sick device), read from its log up to `log_offset`; or no longer."""

    NAME = "run.slowed"
    TOPIC = "schedmate.progress"
    job_id: str
    pool: Identifier
    run_id: str
    attempt: int
    member: int
    log_offset: int
    slowdown: float = Field(
        gt=0, description="How many times longer a step takes than before; 1 when it has recovered."
    )
    steps_per_sec: float
    steps_per_sec_before: float = Field(description="Its pace before the onset, steps a second.")
    since_step: int = Field(description="The step at which it began.")
    slow_for_s: float = Field(ge=0, description="For how long it has been so by now, in the log's own time.")


class Action(StrEnum):
    """What should happen after a failure (taxonomy §3)."""

    RETRY_ELSEWHERE_CORDON = "retry_elsewhere_cordon"
    RETRY_FROM_CHECKPOINT = "retry_from_checkpoint"
    RETRY_WITH_CHANGES = "retry_with_changes"
    DO_NOT_RETRY = "do_not_retry"


class Culpable(StrEnum):
    """The side that a failure is laid to (taxonomy §2)."""

    USER_CODE = "user_code"
    USER_CONFIG = "user_config"
    FRAMEWORK = "framework"
    INFRA_HARDWARE = "infra_hardware"
    INFRA_NETWORK = "infra_network"
    STORAGE = "storage"
    SCHEDULER = "scheduler"


class Evidence(Frozen):
    """The line that a diagnosis rests on."""

    file: str
    line: int | None = Field(default=None, ge=1)
    text: str = Field(max_length=400)


class RunDiagnosed(Event):
    """Why a run ended badly and what should be done about it."""

    NAME = "run.diagnosed"
    TOPIC = "schedmate.diagnoses"
    job_id: str
    pool: Identifier
    run_id: str
    attempt: int
    category: str = Field(description="One of the failure categories of the taxonomy, or UNKNOWN.")
    culpable: Culpable | None
    action: Action
    evidence: Evidence | None = None
    culprit_node: Identifier | None = None
    node_evidence: bool = Field(
        default=False, description="True when the node's own side (kernel log, NVML, two tenants) bears it out."
    )
    resume_from: str | None = None
    proposed_change: str | None = None
    work_was_complete: bool = False
    confidence: float = Field(ge=0, le=1)
    source: Literal["rules", "retrieval", "model"] = "rules"


# --- decisions, assignments, reasons: written by dispatcher ----------------------------------------------------------


class Placement(Frozen):
    """Where one member of a gang runs."""

    member: int
    node: Identifier
    gpus: tuple[int, ...]


class JobDecision(Event):
    """Base of what the pool's log decided about a job.

    `(pool, seq, index)` is its place; a consumer applies only a higher place per job.
    """

    TOPIC = "schedmate.decisions"
    pool: Identifier
    seq: int
    index: int
    decided_at: float
    job_id: str
    attempt: int = Field(description="The attempt that this is about; 0 before the first.")
    state: JobState
    reason: Reason
    detail: str = ""


class JobQueued(JobDecision):
    """Admission found a pool that could run the job."""

    NAME = "job.queued"


class JobRejected(JobDecision):
    """Admission: the pool's limits exclude the job for ever."""

    NAME = "job.rejected"


class JobAssigned(JobDecision):
    """All GPUs of the gang are leased and every member is told to start."""

    NAME = "job.assigned"
    run_id: str
    placements: tuple[Placement, ...]
    policy: str
    passed_over: int = Field(ge=0, description="Kinds of waiting jobs that it passed over because they did not fit.")
    why_there: str
    predicted_p50_s: float | None = None
    predicted_basis: str | None = None
    resume_from: str | None = None


class JobStarted(JobDecision):
    """Every member of the gang has started."""

    NAME = "job.started"
    run_id: str


class JobStopping(JobDecision):
    """Members are being stopped."""

    NAME = "job.stopping"
    run_id: str
    intent: str


class JobReachabilityChanged(JobDecision):
    """A node of the job fell silent or came back, in a pool whose leases never expire; the job's state stays."""

    NAME = "job.reachability-changed"
    run_id: str


class JobDiagnosing(JobDecision):
    """The run ended badly, holds no GPU, and waits (bounded) for a diagnosis."""

    NAME = "job.diagnosing"
    run_id: str


class JobRequeued(JobDecision):
    """The job waits for another attempt, not before `not_before`."""

    NAME = "job.requeued"
    not_before: float
    resume_from: str | None = None


class JobSucceeded(JobDecision):
    """The end: the work is done."""

    NAME = "job.succeeded"


class JobFailed(JobDecision):
    """The end: no further attempt."""

    NAME = "job.failed"
    category: str | None = None
    proposed_change: str | None = None


class JobCancelled(JobDecision):
    """The end: cancelled on request."""

    NAME = "job.cancelled"


class NodeDecision(Event):
    """Base of what the pool's log decided about a node."""

    TOPIC = "schedmate.decisions"
    KEY = "node"
    pool: Identifier
    seq: int
    index: int
    decided_at: float
    node: Identifier
    why: str = ""


class NodeCordoned(NodeDecision):
    """Nothing more is started on the node until it has been checked."""

    NAME = "node.cordoned"


class NodeDrained(NodeDecision):
    """Nothing more is started on the node; what runs there runs to its end."""

    NAME = "node.drained"


class NodeUncordoned(NodeDecision):
    """The node is used again."""

    NAME = "node.uncordoned"


class NodeLost(NodeDecision):
    """The node's lease ran out, or it was declared dead: its runs have ended as lost."""

    NAME = "node.lost"


class NodeJoined(NodeDecision):
    """The node reports (again) and is used."""

    NAME = "node.joined"


class NodeReserved(NodeDecision):
    """The node's maintenance has begun: nothing more is started on it, and who can go on elsewhere is stopped."""

    NAME = "node.reserved"


class NodeUnreserved(NodeDecision):
    """The node's maintenance has ended, or was taken back: it is used again."""

    NAME = "node.unreserved"


class NodeUnreachable(NodeDecision):
    """The node is silent in a pool whose leases never expire: its runs are taken to go on."""

    NAME = "node.unreachable"


class MemberAssigned(Event):
    """To one node: start this member. Fenced by `(pool, seq, index)` and the node's `session`."""

    NAME = "member.assigned"
    TOPIC = "schedmate.assignments"
    KEY = "node"
    pool: Identifier
    seq: int
    index: int
    term: int
    node: Identifier
    session: int
    job_id: str
    run_id: str
    attempt: int
    member: int
    members: int
    gpus: tuple[int, ...]
    spec: JobSpec
    master_addr: str
    master_port: int
    resume_from: str | None = None


class MemberAssignedV2(MemberAssigned):
    """The same with how the member holds its GPUs: whole and alone (as the version before says), by a share, or open to another run.

    Published only where a member does not hold its GPUs whole and alone; `of` reads the version before as this one.
    """

    VERSION = 2
    gpu_milli: int = Field(
        default=GPU_MILLI_WHOLE,
        ge=1,
        le=GPU_MILLI_WHOLE,
        description="Thousandths of each of its GPUs that it holds; less than the whole only of one GPU.",
    )
    packable: bool = Field(
        default=False,
        description="The dispatcher may pack one other run onto its GPUs, which names it in `packed_with`.",
    )
    packed_with: str | None = Field(
        default=None,
        description="The run that holds these very GPUs already, when it is packed with one.",
    )

    @classmethod
    def of(cls, event: MemberAssigned) -> MemberAssignedV2:
        """Return an event of either version as one of this: one of the version before holds its GPUs whole and alone."""
        return event if isinstance(event, cls) else cls(**dict(event))


class MemberStopOrdered(Event):
    """To one node: end this member (SIGTERM, grace, SIGKILL to the group)."""

    NAME = "member.stop-ordered"
    TOPIC = "schedmate.assignments"
    KEY = "node"
    pool: Identifier
    seq: int
    index: int
    term: int
    node: Identifier
    job_id: str
    run_id: str
    attempt: int
    member: int
    grace_s: float


class MemberReleased(Event):
    """To one node: the end of this member is in the log, it need not be reported any more."""

    NAME = "member.released"
    TOPIC = "schedmate.assignments"
    KEY = "node"
    pool: Identifier
    seq: int
    index: int
    term: int
    node: Identifier
    job_id: str
    run_id: str
    attempt: int
    member: int


class Unblocks(Frozen):
    """What would let a waiting job start, as far as the leader knows."""

    text: str
    waits_for_jobs: tuple[str, ...] = ()
    expected_at: float | None = None


class JobReasoned(Event):
    """Why a job waits (or a running one is unreachable), and what would change that."""

    NAME = "job.reasoned"
    TOPIC = "schedmate.reasons"
    job_id: str
    pool: Identifier
    seq: int
    at: float
    reason: Reason
    detail: str
    queue_position: int | None = None
    unblocks: Unblocks | None = None


# --- runs, nodes, logs: written by worker ----------------------------------------------------------------------------


class RunStarted(Event):
    """A member's process runs."""

    NAME = "run.started"
    TOPIC = "schedmate.runs"
    job_id: str
    pool: Identifier
    run_id: str
    attempt: int
    member: int
    node: Identifier
    session: int
    pid: int
    gpus: tuple[int, ...]
    started_at: float


class ExitCause(StrEnum):
    """How a member came to its end."""

    EXITED = "exited"  # by itself, with a code or by a signal not ours
    STOPPED = "stopped"  # on an order to stop
    LEASE_EXPIRED = "lease_expired"  # its supervisor ended it: the worker did not renew
    LAUNCH_FAILED = "launch_failed"  # its program could not be started
    WORKER_STOPPED = "worker_stopped"  # the worker ended with its runs
    LOST = "lost"  # nothing is left that could tell


class RunExited(Event):
    """A member has ended and its process group is empty. `log_bytes` is the final length of its output."""

    NAME = "run.exited"
    TOPIC = "schedmate.runs"
    job_id: str
    pool: Identifier
    run_id: str
    attempt: int
    member: int
    node: Identifier
    session: int
    cause: ExitCause
    exit_code: int | None = Field(description="Exit status 0..255, or null when a signal ended it or it is unknown.")
    signal: int | None = None
    log_bytes: int = Field(ge=0)
    started_at: float | None
    ended_at: float
    detail: str = ""


class RunUsage(Frozen):
    """What a worker measured of a member's GPUs. What a GPU shows while others hold it too is nobody's mean and nobody's peak."""

    measured_s: float = Field(ge=0, description="Seconds for which it was measured while it was alone on its GPUs.")
    gpu_utilisation: float | None = Field(
        default=None, ge=0, le=1, description="Mean share of that time in which its GPUs were busy."
    )
    gpu_memory_utilisation: float | None = Field(
        default=None, ge=0, le=1, description="Mean share of that time in which its GPUs' memory was read or written."
    )
    gpu_memory_bytes: int | None = Field(default=None, ge=0, description="Most memory in use on one of its GPUs then.")
    gpu_memory_total_bytes: int | None = Field(default=None, ge=1, description="Memory of the smallest of its GPUs.")
    gpu_held_s: float = Field(
        ge=0, description="GPU seconds that were measured in all; of a GPU that n runs hold each has an nth."
    )
    gpu_busy_s: float = Field(ge=0, description="Of these, the GPU seconds in which the GPU was busy.")


class RunExitedV2(RunExited):
    """The same of a member whose GPUs were measured."""

    VERSION = 2
    usage: RunUsage


class CheckpointEntry(Frozen):
    """A file or a directory in a job's checkpoint directory."""

    name: str = Field(max_length=200, description="Its name in the directory.")
    size_bytes: int = Field(ge=0, description="Its size; of a directory, that of the files in it.")
    files: int | None = Field(
        default=None, ge=0, description="Of a directory, how many files are in it; null for a file."
    )
    modified_at: float
    marker: str | None = Field(
        default=None, max_length=64, description="Text of a small file that names the last complete checkpoint."
    )


class CheckpointsListed(Event):
    """What the job's checkpoint directory held when a member had ended badly; said before its exit."""

    NAME = "run.checkpoints-listed"
    TOPIC = "schedmate.runs"
    job_id: str
    pool: Identifier
    run_id: str
    attempt: int
    member: int
    node: Identifier
    directory: str = Field(max_length=4096, description="The directory, as the job knows it.")
    entries: tuple[CheckpointEntry, ...] = Field(max_length=200)
    at: float


class RefusalCause(StrEnum):
    """Why a worker starts nothing for an assignment."""

    STALE_SESSION = "stale_session"  # made for an earlier session of the node
    SUPERSEDED = "superseded"  # not above the highest that the worker applied, and unknown to it
    GPU_IN_USE = "gpu_in_use"  # a living run holds a GPU of it
    GPU_BUSY_EXTERNAL = "gpu_busy_external"  # a process from outside holds memory of a GPU
    GPU_MISSING = "gpu_missing"  # the node has no such healthy GPU
    STOPPING = "stopping"  # the worker is going away
    BUNDLE_UNAVAILABLE = "bundle_unavailable"  # the source could not be fetched or unpacked
    SETUP_FAILED = "setup_failed"  # directories, spool or supervisor could not be made


class RunRefused(Event):
    """A worker started nothing for this assignment."""

    NAME = "run.refused"
    TOPIC = "schedmate.runs"
    job_id: str
    pool: Identifier
    run_id: str
    attempt: int
    member: int
    node: Identifier
    session: int
    seq: int
    index: int
    cause: RefusalCause
    detail: str = ""
    at: float


class GpuReport(Frozen):
    """One GPU of a node, as its worker sees it."""

    index: int = Field(ge=0)
    type: Identifier
    memory_mib: int | None = None
    healthy: bool = True
    busy_external: bool = Field(default=False, description="A process that is not a run of ours holds memory on it.")
    held: bool = Field(
        default=False, description="Memory has not come back after the last run; nothing is started on it."
    )
    utilisation: float | None = Field(default=None, ge=0, le=1)
    memory_used_mib: int | None = None


class RunReport(Frozen):
    """One run member of a node, living or ended and not yet released."""

    job_id: str
    run_id: str
    attempt: int
    member: int
    pool: Identifier
    seq: int
    index: int
    gpus: tuple[int, ...]
    state: Literal["starting", "running", "stopping", "ended"]
    cause: ExitCause | None = None
    exit_code: int | None = None
    signal: int | None = None
    log_bytes: int = 0
    started_at: float | None = None
    ended_at: float | None = None


class NodeReported(Event):
    """The full truth about a node. Sent regularly: each one renews the node's lease."""

    NAME = "node.reported"
    TOPIC = "schedmate.nodes"
    KEY = "node"
    node: Identifier
    pool: Identifier
    boot_id: str
    session: int = Field(ge=1, description="Grows at each start of the worker and at each lapse of its lease.")
    report_no: int = Field(ge=1, description="Grows by one a report within a session.")
    applied_seq: int = Field(ge=-1, description="Highest (seq, index) of the pool's log that the worker applied.")
    applied_index: int = Field(ge=-1)
    address: str
    port_min: int
    port_max: int
    gpus: tuple[GpuReport, ...]
    runs: tuple[RunReport, ...]
    stopping: bool = False
    same_user: bool = Field(default=False, description="Jobs run under the worker's own user.")
    lease_s: float = Field(gt=0)
    at: float


class NodeReportedV2(NodeReported):
    """The same of a node that says where it stands in the network."""

    VERSION = 2
    rack: Identifier | None = None
    spine: Identifier | None = None


class MeasuredRun(Frozen):
    """What was measured of a living run member so far."""

    run_id: str
    member: int
    usage: RunUsage


class NodeReportedV3(NodeReportedV2):
    """The same of a node that measures what its runs do with their GPUs."""

    VERSION = 3
    measured: tuple[MeasuredRun, ...]


class NodeFaultObserved(Event):
    """Something that the node's own side says about its hardware: a kernel line, an NVML event."""

    NAME = "node.fault-observed"
    TOPIC = "schedmate.nodes"
    KEY = "node"
    node: Identifier
    pool: Identifier
    session: int
    origin: Literal["kernel", "nvml"]
    gpu: int | None = None
    xid: int | None = None
    text: str = Field(max_length=2000)
    at: float


class LogChunked(Event):
    """Bytes [start, end) of a member's output; a gap says which bytes will never come."""

    NAME = "log.chunked"
    TOPIC = "schedmate.logs"
    job_id: str
    pool: Identifier
    run_id: str
    attempt: int
    member: int
    node: Identifier
    start: int = Field(ge=0)
    end: int = Field(ge=0)
    gap: bool = False
    content: bytes = b""


# --- dead letters: written by any reader -----------------------------------------------------------------------------


class DeadLettered(Event):
    """A record that could not be processed, whole, with what went wrong. It can be sent back."""

    NAME = "record.dead-lettered"
    TOPIC = "schedmate.dead-letters"
    KEY = "original_key"
    original_topic: str
    original_partition: int
    original_offset: int
    original_key: str
    original_value: bytes
    original_headers: tuple[tuple[str, str], ...]
    service: str
    error: str = Field(max_length=4000)
    attempts: int
    at: float

    @property
    def key(self) -> str:
        """The original key; a dash where that is empty, because a CloudEvent's subject and a partition key never are."""
        return self.original_key or "-"


EVENTS: Final[tuple[type[Event], ...]] = (
    JobRequested, JobSubmitted, JobCancelRequested, JobEstimateOrdered, JobPinRequested, NodeDrainRequested, NodeUndrainRequested, NodeCordonRequested,
    NodeDeathDeclared, ReservationRequested, ReservationWithdrawalRequested, CallAudited, JobAnalyzed, RunTimeEstimated, ProgressObserved, ProgressObservedV2, RunSlowed, RunDiagnosed, JobQueued, JobRejected,
    JobAssigned, JobStarted, JobStopping, JobReachabilityChanged, JobDiagnosing, JobRequeued, JobSucceeded, JobFailed, JobCancelled, NodeCordoned,
    NodeDrained, NodeUncordoned, NodeLost, NodeJoined, NodeUnreachable, NodeReserved, NodeUnreserved, MemberAssigned, MemberAssignedV2, MemberStopOrdered, MemberReleased, JobReasoned, RunStarted,
    RunExited, RunExitedV2, CheckpointsListed, RunRefused, NodeReported, NodeReportedV2, NodeReportedV3, NodeFaultObserved, LogChunked, DeadLettered,
)  # fmt: skip

BY_TYPE: Final[dict[str, type[Event]]] = {e.ce_type(): e for e in EVENTS}

WRITERS: Final[dict[str, str]] = {
    "schedmate.requests": "platforms",
    "schedmate.jobs": "ingest",
    "schedmate.commands": "ingest",
    "schedmate.audit": "ingest",
    "schedmate.analyses": "code-analyzer",
    "schedmate.estimates": "history-estimator",
    "schedmate.progress": "log-monitor",
    "schedmate.diagnoses": "log-monitor",
    "schedmate.decisions": "dispatcher",
    "schedmate.assignments": "dispatcher",
    "schedmate.reasons": "dispatcher",
    "schedmate.runs": "worker",
    "schedmate.nodes": "worker",
    "schedmate.logs": "worker",
    "schedmate.dead-letters": "any reader",
}

READERS: Final[dict[str, tuple[str, ...]]] = {
    "schedmate.requests": ("ingest",),
    "schedmate.jobs": ("ingest", "code-analyzer", "history-estimator", "log-monitor", "dispatcher"),
    "schedmate.commands": ("ingest", "dispatcher"),
    "schedmate.audit": ("ingest",),
    "schedmate.analyses": ("ingest", "history-estimator", "log-monitor"),
    "schedmate.estimates": ("ingest", "dispatcher"),
    "schedmate.progress": ("ingest", "history-estimator", "dispatcher"),
    "schedmate.diagnoses": ("ingest", "dispatcher"),
    "schedmate.decisions": ("ingest", "history-estimator"),
    "schedmate.assignments": ("ingest", "worker"),
    "schedmate.reasons": ("ingest",),
    "schedmate.runs": ("ingest", "history-estimator", "log-monitor", "dispatcher"),
    "schedmate.nodes": ("ingest", "log-monitor", "dispatcher"),
    "schedmate.logs": ("ingest", "log-monitor"),
    "schedmate.dead-letters": ("ingest",),
}
