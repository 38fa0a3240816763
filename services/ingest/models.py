"""What the API answers, field by field: the contract of the command line and of every other client."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from schedmate.schemas.job import GPU_MILLI_WHOLE, Identifier, JobKind, PriorityClass
from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobState

RUN_S_MAX: Final = 366 * 86_400.0
"""No run is said to be longer."""


class Answer(BaseModel):
    """Base of all answers. Fields may be added: clients ignore those that they do not know."""

    model_config = ConfigDict(frozen=True)


class PlacementView(Answer):
    """Where one member runs."""

    member: int
    node: str
    gpus: list[int]


class Predicted(Answer):
    """What was estimated of the run time; `basis` is `unknown` when there are no numbers."""

    p10_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    basis: str
    early_end_risk: float | None = None
    revision: int = Field(description="Grows with each better estimate.")
    similar: list[str] = Field(default_factory=list, description="Past jobs of the tenant that it rests on.")


class ProgressView(Answer):
    """How far the run is, as its log tells."""

    attempt: int
    member: int
    at: float
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    fraction: float | None = None
    steps_per_sec: float | None = None
    eta_s: float | None = None
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    phase: str | None = None
    loss: float | None = None


class EvidenceView(Answer):
    """The line that something rests on."""

    file: str
    line: int | None = None
    text: str


class DiagnosisView(Answer):
    """Why a run ended badly."""

    attempt: int
    category: str
    culpable: str | None = None
    action: str
    evidence: EvidenceView | None = None
    culprit_node: str | None = None
    node_evidence: bool = False
    resume_from: str | None = None
    proposed_change: str | None = None
    work_was_complete: bool = False
    confidence: float
    source: str


class WorkloadValueView(Answer):
    """One field that the job's source told."""

    value: str | float | bool | list[str] | None
    basis: str
    file: str | None = None
    line: int | None = None
    confidence: float


class AnalysisView(Answer):
    """What the job's source says about it."""

    content_hash: str
    fields: dict[str, WorkloadValueView]
    partial_because: str | None = None


class UnblocksView(Answer):
    """What would let a waiting job start."""

    text: str
    waits_for_jobs: list[str] = Field(default_factory=list)
    expected_at: float | None = None


class MemberView(Answer):
    """One member of an attempt, as its worker told."""

    member: int
    node: str | None = None
    gpus: list[int] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    cause: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    log_bytes: int | None = None
    refused: str | None = None
    gpu_utilisation: float | None = Field(
        default=None,
        description="Mean busy share of its GPUs while it had them alone, where that was measured; told at its end.",
    )
    gpu_memory_bytes: int | None = Field(default=None, description="Most memory in use on one of its GPUs then.")
    detail: str = ""


class Call(Answer):
    """A call that was made about this, from the audit."""

    at: float
    principal: str
    call: str
    outcome: str


class CancelView(Answer):
    """That somebody asked for the job to be cancelled."""

    requested_by: str
    why: str = ""
    at: float


class OrderedEstimateView(Answer):
    """An operator's estimate, which stands in the place of all others."""

    p10_s: float | None = None
    p50_s: float
    p90_s: float | None = None
    requested_by: str
    why: str = ""
    at: float


class PinView(Answer):
    """That an operator has pinned the job in its priority class."""

    place: Literal["first", "last"]
    requested_by: str
    why: str = ""
    at: float


class JobView(Answer):
    """One job: what was asked, where it stands and why, what was foretold, what came of it."""

    job_id: str
    name: str
    tenant: str
    user: str
    pool: str
    state: JobState
    reason: Reason = Field(description="Why it stands there; the newest of the decision's and the leader's.")
    detail: str = Field(description="The reason in a sentence.")
    queue_position: int | None = Field(
        default=None, description="Jobs before it, when it waits and the leader has told."
    )
    unblocks: UnblocksView | None = Field(default=None, description="What would let it start, when it waits.")
    attempt: int = Field(description="The attempt that it is at; 0 before the first.")
    run_id: str | None = None
    submitted_at: float
    started_at: float | None = Field(default=None, description="Start of the newest attempt that started.")
    ended_at: float | None = Field(default=None, description="The job's end.")
    not_before: float | None = Field(default=None, description="Earliest next attempt, while it backs off.")
    wait_s: float = Field(description="Seconds spent waiting or being started, over all attempts, until now.")
    run_s: float | None = Field(default=None, description="Seconds that the newest started attempt ran, until now.")
    gpus: int = Field(description="GPUs per node.")
    nodes: int
    gpus_total: int
    gpu_type: str | None = None
    gpu_memory_gib: float | None = None
    priority: PriorityClass
    time_limit_s: int | None = None
    kind: JobKind = JobKind.TRAINING
    within: str | None = None
    gpu_milli: int = Field(default=GPU_MILLI_WHOLE, description="Thousandths of a GPU that it asks for, of one GPU.")
    retries: int
    command: list[str] | None = None
    script_bytes: int | None = None
    env_names: list[str] = Field(default_factory=list, description="Names only: values may be secrets.")
    workdir: str | None = None
    bundle: str | None = None
    entry: str | None = None
    checkpoint_dir: str | None = None
    placements: list[PlacementView] = Field(default_factory=list)
    why_there: str | None = None
    policy: str | None = None
    resume_from: str | None = None
    predicted: Predicted | None = Field(
        default=None, description="The newest estimate; progress refines it while the job runs."
    )
    foretold: Predicted | None = Field(
        default=None,
        description="The newest estimate that does not rest on the job's own progress: to compare with what came true.",
    )
    progress: ProgressView | None = None
    diagnosis: DiagnosisView | None = None
    analysis: AnalysisView | None = None
    category: str | None = Field(default=None, description="The failure's category, once the job has failed.")
    proposed_change: str | None = None
    members: list[MemberView] = Field(
        default_factory=list, description="Members of the newest attempt that was told of."
    )
    exit_codes: dict[str, int | None] = Field(default_factory=dict, description="Of those members that have ended.")
    cancel: CancelView | None = None
    ordered_estimate: OrderedEstimateView | None = Field(
        default=None, description="The operator's, as asked; a time limit of the job bounds it."
    )
    pin: PinView | None = None
    trace_id: str | None = None


class JobPage(Answer):
    """Jobs, newest first. `next_cursor` asks for the next page; null at the end."""

    jobs: list[JobView]
    next_cursor: str | None = None


class DecisionView(Answer):
    """One decision about a job, from its pool's log; further fields depend on the type."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str
    type: str = Field(description="CloudEvents type, e.g. schedmate.job.assigned.v1.")
    seq: int
    index: int
    decided_at: float
    attempt: int
    state: JobState
    reason: Reason
    detail: str = ""


class JobHistory(Answer):
    """A job's decisions in the order of the pool's log; of very many the middle is left out."""

    job_id: str
    decisions: list[DecisionView]
    calls: list[Call] = Field(default_factory=list)


class Why(Answer):
    """Why a job stands where it stands, and what would change that."""

    job_id: str
    pool: str
    state: JobState
    reason: Reason
    detail: str
    queue_position: int | None = None
    unblocks: UnblocksView | None = None
    at: float = Field(description="When this was so.")
    source: str = Field(description="`leader`: asked just now; `recorded`: the newest that was told.")


class OrderAnswer(Answer):
    """That an order about a job is on its way: the pool's log decides."""

    job_id: str
    state: JobState


class CancelAnswer(Answer):
    """What came of asking to cancel: the pool's log decides, `requested` says that it was asked."""

    job_id: str
    state: JobState
    requested: bool = Field(description="False when the job had ended already.")


class LogGap(Answer):
    """Bytes [start, end) of the output that will never come."""

    start: int
    end: int


class LogPage(Answer):
    """Output of a member. `text` is the bytes [offset, end); `gaps` lie between what was asked for and `offset`."""

    job_id: str
    run_id: str
    attempt: int
    member: int
    offset: int
    end: int = Field(description="Ask for this offset next.")
    total: int = Field(description="How far the output is known.")
    gaps: list[LogGap]
    complete: bool = Field(description="The member has ended and there is nothing after `end`.")
    text: str = Field(description="UTF-8; invalid bytes are replaced, a character is never cut.")


class GpuView(Answer):
    """One GPU as its worker sees it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    index: int
    type: str
    memory_mib: int | None = None
    healthy: bool
    busy_external: bool
    held: bool
    utilisation: float | None = None
    memory_used_mib: int | None = None
    job_id: str | None = Field(
        default=None, description="The job that was first on it; null also when it is another tenant's."
    )
    jobs: list[str] = Field(
        default_factory=list, description="The jobs on it, the first one first, without those of other tenants."
    )
    busy: bool = Field(description="A run of ours is on it.")


class FaultView(Answer):
    """Something that the node's own side said about its hardware."""

    at: float
    origin: str
    text: str
    gpu: int | None = None
    xid: int | None = None


class NodeView(Answer):
    """One node. `state`: up, silent (no report for its lease), stopping, drained, cordoned, reserved (in maintenance), lost, unknown."""

    node: str
    pool: str
    state: str
    why: str = ""
    gpus: list[GpuView] = Field(default_factory=list)
    gpus_total: int
    gpus_busy: int
    runs: int
    rack: str | None = Field(default=None, description="The nodes under one leaf switch, where it says so.")
    spine: str | None = None
    address: str | None = None
    session: int | None = None
    boot_id: str | None = None
    lease_s: float | None = None
    same_user: bool | None = None
    reported_at: float | None = None
    orders_behind: bool = Field(description="The worker has not yet confirmed the newest order of the pool's log.")
    faults: list[FaultView] = Field(default_factory=list)
    calls: list[Call] = Field(default_factory=list)


class NodeList(Answer):
    """All nodes by name."""

    nodes: list[NodeView]


class CommandAnswer(Answer):
    """An operator's call was put on the bus; the pool's log decides."""

    node: str
    pool: str
    command: str
    requested: bool = True


class CommandRequest(BaseModel):
    """Why an operator calls; goes into the pool's log and the audit."""

    model_config = ConfigDict(extra="forbid")

    why: str = Field(default="", max_length=1000, pattern=r"^[^\x00]*$")


class EstimateOrder(BaseModel):
    """How long a job runs, in the place of every estimate; or that this is cleared."""

    model_config = ConfigDict(extra="forbid")

    p10_s: float | None = Field(default=None, gt=0, le=RUN_S_MAX)
    p50_s: float | None = Field(default=None, gt=0, le=RUN_S_MAX, description="Needed unless `clear` is true.")
    p90_s: float | None = Field(default=None, gt=0, le=RUN_S_MAX)
    clear: bool = Field(default=False, description="Take the order back; no numbers then.")
    why: str = Field(default="", max_length=1000, pattern=r"^[^\x00]*$")


class PinOrder(BaseModel):
    """Where a job shall wait in its priority class."""

    model_config = ConfigDict(extra="forbid")

    place: Literal["first", "last", "none"] = Field(description="`none`: where the policy has it.")
    why: str = Field(default="", max_length=1000, pattern=r"^[^\x00]*$", description="Needed for `first` and `last`.")


class ReservationRequest(BaseModel):
    """Nodes that are wanted free for maintenance: those named, or so many of the pool's. Times in Unix seconds."""

    model_config = ConfigDict(extra="forbid")

    nodes: list[Identifier] = Field(default_factory=list, max_length=1000)
    count: int = Field(
        default=0, ge=0, le=100_000, description="So many nodes, chosen by the pool; where none is named."
    )
    start_at: float | None = Field(default=None, ge=0, le=1e11, description="Now when absent.")
    end_at: float = Field(ge=0, le=1e11)
    why: str = Field(default="", max_length=1000, pattern=r"^[^\x00]*$")


class ReservationView(Answer):
    """A reservation that has not ended. Times in Unix seconds."""

    reservation_id: str
    pool: str
    nodes: list[str]
    start_at: float
    end_at: float
    requested_by: str
    why: str = ""
    begun: bool


class ReservationList(Answer):
    """The reservations of a pool that have not ended, in the order of their beginnings."""

    reservations: list[ReservationView]


class ReservationAnswer(Answer):
    """A reservation was asked for (or taken back); the pool's log decides."""

    reservation_id: str
    pool: str
    requested: bool = True


class Leader(Answer):
    """Who leads a pool."""

    holder: str
    term: int
    address: str | None = None


class PoolView(Answer):
    """A pool at a glance."""

    pool: str
    leader: Leader | None = None
    nodes: int
    nodes_by_state: dict[str, int]
    gpus_total: int
    gpus_busy: int
    gpus_by_type: dict[str, int]
    jobs_by_state: dict[str, int] = Field(description="Jobs that have not ended.")
    config: dict[str, Any] = Field(default_factory=dict, description="The pool's limits and settings, as configured.")


class BundleAnswer(Answer):
    """A stored bundle."""

    sha256: str
    size_bytes: int
    entries: int


class DeadLetterView(Answer):
    """A record that could not be processed."""

    id: str
    original_topic: str
    original_partition: int
    original_offset: int
    original_key: str
    service: str
    error: str
    attempts: int
    at: float
    value_bytes: int
    value_preview: str = Field(description="The beginning of the value; invalid UTF-8 is replaced.")
    resends: int


class DeadLetterPage(Answer):
    """Dead letters, newest first."""

    dead_letters: list[DeadLetterView]
    next_cursor: str | None = None


class ResendAnswer(Answer):
    """A dead letter was sent back."""

    id: str
    topic: str
    resends: int
    job_id: str | None = Field(default=None, description="For a request: the job that it became.")
