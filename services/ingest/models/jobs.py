"""Answers about jobs: what was asked, decided and foretold, what came of it, and its output."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from schedmate.schemas.job import GPU_MILLI_WHOLE, JobKind, PriorityClass
from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobState
from schedmate.services.ingest.models.answer import Answer, Call


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
