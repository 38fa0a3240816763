"""THE registry of telemetry: every span name, attribute key and metric. What is not here is not emitted (a test holds this).

Keys follow OpenTelemetry's semantic conventions where there are some; ours begin with `schedmate.`, metrics with `schedmate_`.
docs/tracing.md and docs/metrics.md are written from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

# --- spans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpanName:
    """A span: its name, who opens it, and what it covers."""

    name: str
    services: tuple[str, ...]
    kind: Literal["server", "client", "producer", "consumer", "internal"]
    covers: str


HTTP_SERVER: Final = "http"
PUBLISH: Final = "publish"
PROCESS: Final = "process"
DECIDE_BATCH: Final = "decide batch"
DECIDE: Final = "decide"
APPEND: Final = "append pool log"
START_MEMBER: Final = "start member"
EXIT_MEMBER: Final = "member exited"
ANALYZE: Final = "analyze"
ESTIMATE: Final = "estimate"
TRACK: Final = "track progress"
DIAGNOSE: Final = "diagnose"
STORE_CALL: Final = "store"
LLM_CALL: Final = "chat"

_GROUPED: Final = ("ingest", "code-analyzer", "history-estimator", "log-monitor")

SPANS: Final[tuple[SpanName, ...]] = (
    SpanName(
        HTTP_SERVER,
        ("ingest",),
        "server",
        "One HTTP request; renamed to `METHOD ROUTE` once the route is known.",
    ),
    SpanName(
        PUBLISH,
        ("ingest",),
        "producer",
        "Publishing what a request or a batch gave, until the bus has acknowledged it; named `publish TOPIC`.",
    ),
    SpanName(
        PROCESS,
        (*_GROUPED, "worker"),
        "consumer",
        "Handling one record, named `process TOPIC`; its parent is the record's traceparent.",
    ),
    SpanName(
        DECIDE_BATCH,
        ("dispatcher",),
        "internal",
        "One batch of a pool: fold, decide, append; links to the traces of its jobs.",
    ),
    SpanName(
        DECIDE,
        ("dispatcher",),
        "internal",
        "One assignment or end of a job, in the job's own trace; links to its batch.",
    ),
    SpanName(APPEND, ("dispatcher",), "client", "Appending one entry to the pool's log."),
    SpanName(
        START_MEMBER, ("worker",), "internal", "From a member's assignment to its process running under a supervisor."
    ),
    SpanName(EXIT_MEMBER, ("worker",), "internal", "Taking note of a member's end and reporting it."),
    SpanName(ANALYZE, ("code-analyzer",), "internal", "Reading one job's source."),
    SpanName(ESTIMATE, ("history-estimator",), "internal", "Estimating one job's run time."),
    SpanName(TRACK, ("log-monitor",), "internal", "Reading progress from one chunk of a log."),
    SpanName(DIAGNOSE, ("log-monitor",), "internal", "Diagnosing one failed run."),
    SpanName(
        STORE_CALL, (*_GROUPED, "dispatcher"), "client", "One call to the document store, named `OPERATION COLLECTION`."
    ),
    SpanName(LLM_CALL, ("whoever asks a model",), "client", "One question to the language model, named `chat MODEL`."),
)

# --- attributes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of spans. `free_text` may hold what users wrote: it is redacted."""

    key: str
    means: str
    free_text: bool = False


MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_DESTINATION_PARTITION_ID: Final = "messaging.destination.partition.id"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_CONSUMER_GROUP_NAME: Final = "messaging.consumer.group.name"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
MESSAGING_KAFKA_OFFSET: Final = "messaging.kafka.offset"
MESSAGING_KAFKA_MESSAGE_KEY: Final = "messaging.kafka.message.key"
HTTP_REQUEST_METHOD: Final = "http.request.method"
HTTP_RESPONSE_STATUS_CODE: Final = "http.response.status_code"
HTTP_ROUTE: Final = "http.route"
DB_SYSTEM_NAME: Final = "db.system.name"
DB_COLLECTION_NAME: Final = "db.collection.name"
DB_OPERATION_NAME: Final = "db.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"
EVENT_TYPE: Final = "cloudevents.event_type"
JOB_ID: Final = "schedmate.job.id"
TENANT: Final = "schedmate.tenant"
POOL: Final = "schedmate.pool"
RUN_ID: Final = "schedmate.run.id"
ATTEMPT: Final = "schedmate.attempt"
MEMBER: Final = "schedmate.member"
NODE: Final = "schedmate.node"
SEQ: Final = "schedmate.seq"
TERM: Final = "schedmate.term"
STATE: Final = "schedmate.state"
REASON: Final = "schedmate.reason"
DECISIONS: Final = "schedmate.decisions"
INPUTS: Final = "schedmate.inputs"
POLICY: Final = "schedmate.policy"
EXIT_CODE: Final = "schedmate.exit_code"
BASIS: Final = "schedmate.basis"
CATEGORY: Final = "schedmate.category"
DETAIL: Final = "schedmate.detail"

ATTRIBUTES: Final[tuple[Attribute, ...]] = (
    Attribute(MESSAGING_SYSTEM, "`kafka`, on the embedded bus too: it has the same topics, partitions and offsets."),
    Attribute(MESSAGING_DESTINATION_NAME, "Topic."),
    Attribute(MESSAGING_DESTINATION_PARTITION_ID, "Partition."),
    Attribute(MESSAGING_OPERATION_NAME, "`publish` or `process`."),
    Attribute(MESSAGING_OPERATION_TYPE, "`send` or `process`."),
    Attribute(MESSAGING_CONSUMER_GROUP_NAME, "Consumer group."),
    Attribute(MESSAGING_MESSAGE_ID, "The event's id."),
    Attribute(MESSAGING_KAFKA_OFFSET, "Offset."),
    Attribute(MESSAGING_KAFKA_MESSAGE_KEY, "The record's key: a job id or a node's name."),
    Attribute(HTTP_REQUEST_METHOD, "Method."),
    Attribute(HTTP_RESPONSE_STATUS_CODE, "Status."),
    Attribute(HTTP_ROUTE, "The route's template, never the path as sent."),
    Attribute(DB_SYSTEM_NAME, "`mongodb` or `sqlite`."),
    Attribute(DB_COLLECTION_NAME, "Collection."),
    Attribute(DB_OPERATION_NAME, "The store's operation, e.g. `insert`."),
    Attribute(GEN_AI_PROVIDER_NAME, "`ollama`."),
    Attribute(GEN_AI_OPERATION_NAME, "`chat`."),
    Attribute(GEN_AI_REQUEST_MODEL, "Model."),
    Attribute(GEN_AI_USAGE_INPUT_TOKENS, "Tokens of the prompt."),
    Attribute(GEN_AI_USAGE_OUTPUT_TOKENS, "Tokens of the answer."),
    Attribute(ERROR_TYPE, "Class of the error that ended the span."),
    Attribute(EVENT_TYPE, "CloudEvents type."),
    Attribute(JOB_ID, "Job."),
    Attribute(TENANT, "Tenant."),
    Attribute(POOL, "Pool."),
    Attribute(RUN_ID, "Run: one attempt of a job."),
    Attribute(ATTEMPT, "Number of the attempt."),
    Attribute(MEMBER, "Member of the gang."),
    Attribute(NODE, "Node."),
    Attribute(SEQ, "Place in the pool's log."),
    Attribute(TERM, "Term of the pool's leader."),
    Attribute(STATE, "A job's state."),
    Attribute(REASON, "Reason of a state or a decision."),
    Attribute(DECISIONS, "Decisions of a batch."),
    Attribute(INPUTS, "Events folded in by a batch."),
    Attribute(POLICY, "Policy that ordered the queue."),
    Attribute(EXIT_CODE, "Exit status of a member."),
    Attribute(BASIS, "What an estimate or an analysis rests on."),
    Attribute(CATEGORY, "Failure category of a diagnosis."),
    Attribute(DETAIL, "Words for people.", free_text=True),
)

FREE_TEXT: Final = frozenset(a.key for a in ATTRIBUTES if a.free_text)
ATTRIBUTE_OF_KEYWORD: Final = {
    **{a.key.replace(".", "_"): a.key for a in ATTRIBUTES},
    **{a.key.removeprefix("schedmate.").replace(".", "_"): a.key for a in ATTRIBUTES if a.key.startswith("schedmate.")},
}
"""Keyword of `span(…)` → attribute key: `messaging_system` → `messaging.system`, `job_id` → `schedmate.job.id`."""

# --- metrics ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric. Counters end in `_total`; a unit stands last in the name."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()


_SHORT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 7 * 86400.0)
_COUNTS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)

READY: Final = MetricName("schedmate_ready", "gauge", "1 when the check of readiness passes, else 0.", ("check",))
BUS_LAG: Final = MetricName(
    "schedmate_bus_lag_records", "gauge", "Records not yet handled.", ("topic", "group"), "records"
)
BUS_PUBLISHED: Final = MetricName(
    "schedmate_bus_published_total", "counter", "Records published and acknowledged.", ("topic",)
)
BUS_ERRORS: Final = MetricName("schedmate_bus_errors_total", "counter", "Publish calls that failed.", ("error",))
RUNNER_IN_FLIGHT: Final = MetricName("schedmate_runner_in_flight", "gauge", "Records being handled.", ("group",))
RUNNER_HANDLED: Final = MetricName(
    "schedmate_runner_handled_total", "counter", "Records handled, by outcome.", ("topic", "outcome")
)
RUNNER_RETRIES: Final = MetricName(
    "schedmate_runner_retries_total", "counter", "Handler errors that were tried again.", ("topic",)
)
RUNNER_HANDLE_S: Final = MetricName(
    "schedmate_runner_handle_seconds",
    "histogram",
    "Time to handle a record and publish what came of it.",
    ("topic",),
    "seconds",
    _SHORT_S,
)
RUNNER_REBALANCES: Final = MetricName(
    "schedmate_runner_rebalances_total", "counter", "Times that partitions were handed over.", ("group",)
)
DEAD_LETTERS: Final = MetricName(
    "schedmate_dead_letters_total", "counter", "Records that were dead-lettered.", ("topic",)
)
HTTP_REQUESTS: Final = MetricName(
    "schedmate_http_requests_total", "counter", "HTTP requests answered.", ("method", "route", "status")
)
HTTP_REQUEST_S: Final = MetricName(
    "schedmate_http_request_seconds", "histogram", "Time to answer a request.", ("method", "route"), "seconds", _SHORT_S
)
JOBS_ACCEPTED: Final = MetricName("schedmate_jobs_accepted_total", "counter", "Jobs accepted.", ("pool", "door"))
JOBS_REFUSED: Final = MetricName("schedmate_jobs_refused_total", "counter", "Submissions refused.", ("why",))
OUTBOX_JOBS: Final = MetricName(
    "schedmate_outbox_jobs", "gauge", "Job documents not known to be on the bus.", (), "jobs"
)
QUEUE_DEPTH: Final = MetricName("schedmate_queue_depth_jobs", "gauge", "Jobs that wait.", ("pool",), "jobs")
JOBS: Final = MetricName("schedmate_jobs", "gauge", "Jobs not yet at their end, by state.", ("pool", "state"), "")
DECISIONS_TOTAL: Final = MetricName(
    "schedmate_decisions_total", "counter", "Decisions of the pool's log.", ("pool", "kind")
)
DECIDE_S: Final = MetricName(
    "schedmate_decide_seconds", "histogram", "Time of one batch in the core.", ("pool",), "seconds", _SHORT_S
)
BATCH_INPUTS: Final = MetricName(
    "schedmate_batch_inputs", "histogram", "Events folded in by one batch.", ("pool",), "", _COUNTS
)
APPEND_S: Final = MetricName(
    "schedmate_append_seconds", "histogram", "Time of one append to the pool's log.", ("pool",), "seconds", _SHORT_S
)
LEADING: Final = MetricName("schedmate_leading", "gauge", "1 where this instance leads the pool, else 0.", ("pool",))
TERM_NUMBER: Final = MetricName(
    "schedmate_term", "gauge", "Term of the pool's log as this instance knows it.", ("pool",)
)
LOG_SEQ: Final = MetricName(
    "schedmate_pool_log_seq", "gauge", "Last entry of the pool's log as this instance knows it.", ("pool",)
)
REFUSED_INPUTS: Final = MetricName(
    "schedmate_refused_inputs_total", "counter", "Inputs that the fold refused.", ("pool",)
)
REPEATED_INPUTS: Final = MetricName(
    "schedmate_repeated_inputs_total", "counter", "Inputs that were recognised as repeats, or came too late.", ("pool",)
)
JOB_WAIT_S: Final = MetricName(
    "schedmate_job_wait_seconds", "histogram", "From a job's queueing to its start.", ("pool",), "seconds", _LONG_S
)
JOB_RUN_S: Final = MetricName(
    "schedmate_job_run_seconds", "histogram", "A run's time, by how it ended.", ("pool", "state"), "seconds", _LONG_S
)
GPUS: Final = MetricName(
    "schedmate_gpus",
    "gauge",
    "GPUs of a pool by state: free, leased, held, unhealthy, cordoned.",
    ("pool", "state"),
    "",
)
POOL_UTILISATION: Final = MetricName(
    "schedmate_pool_utilisation_ratio",
    "gauge",
    "Mean busy share of a pool's leased GPUs as last reported, 0 to 1; there where some are measured.",
    ("pool",),
    "ratio",
)
NODES: Final = MetricName(
    "schedmate_nodes", "gauge", "Nodes of a pool by state: up, silent, drained, cordoned.", ("pool", "state"), ""
)
RUNS: Final = MetricName("schedmate_runs", "gauge", "Run members of this worker by state.", ("state",), "")
RUN_ENDS: Final = MetricName("schedmate_run_ends_total", "counter", "Run members that ended, by cause.", ("cause",))
RUN_REFUSALS: Final = MetricName(
    "schedmate_run_refusals_total", "counter", "Assignments that were refused, by cause.", ("cause",)
)
LEASE_LEFT_S: Final = MetricName(
    "schedmate_lease_left_seconds", "gauge", "Time until this node's lease runs out.", (), "seconds"
)
GPU_UTILISATION: Final = MetricName(
    "schedmate_gpu_utilisation_ratio", "gauge", "Use of a GPU, 0 to 1, where it is measured.", ("gpu",), "ratio"
)
GPU_MEMORY_BYTES: Final = MetricName(
    "schedmate_gpu_memory_used_bytes", "gauge", "Memory used on a GPU, where it is measured.", ("gpu",), "bytes"
)
LOG_SHIPPED: Final = MetricName("schedmate_log_shipped_bytes_total", "counter", "Output of runs that was sent.", ())
LOG_GAPS: Final = MetricName("schedmate_log_gap_bytes_total", "counter", "Output of runs that will never be sent.", ())
ANALYSES: Final = MetricName("schedmate_analyses_total", "counter", "Analyses, by outcome.", ("outcome",))
ANALYSIS_S: Final = MetricName(
    "schedmate_analysis_seconds", "histogram", "Time of one analysis.", (), "seconds", _SHORT_S
)
ANALYSIS_FILES: Final = MetricName(
    "schedmate_analysis_files_total",
    "counter",
    "Files of jobs that analyses rest on: read anew, or reused from an earlier analysis because they have not changed.",
    ("outcome",),
)
PROPOSALS: Final = MetricName(
    "schedmate_proposals_total", "counter", "Patterns that a model was asked for, by what came of it.", ("outcome",)
)
ANALYSIS_MODEL_CALLS: Final = MetricName(
    "schedmate_analysis_model_calls_total", "counter", "Questions about open fields of analyses.", ()
)
ANALYSIS_MODEL_TOKENS: Final = MetricName(
    "schedmate_analysis_model_tokens_total", "counter", "Tokens that such questions may have cost, at most.", ()
)
ESTIMATES: Final = MetricName("schedmate_estimates_total", "counter", "Estimates, by what they rest on.", ("basis",))
TRACKERS: Final = MetricName("schedmate_trackers", "gauge", "Runs whose log is followed.", (), "")
PROGRESS: Final = MetricName("schedmate_progress_total", "counter", "Events of progress published.", ())
DIAGNOSES: Final = MetricName("schedmate_diagnoses_total", "counter", "Diagnoses, by action.", ("action",))
STORE_CALLS: Final = MetricName(
    "schedmate_store_calls_total", "counter", "Calls to the document store.", ("operation", "outcome")
)
STORE_CALL_S: Final = MetricName(
    "schedmate_store_call_seconds",
    "histogram",
    "Time of a call to the document store.",
    ("operation",),
    "seconds",
    _SHORT_S,
)
LLM_CALLS: Final = MetricName(
    "schedmate_llm_calls_total", "counter", "Questions to the language model, by outcome.", ("outcome",)
)
LLM_CALL_S: Final = MetricName(
    "schedmate_llm_call_seconds", "histogram", "Time of a question to the language model.", (), "seconds", _LONG_S
)
LLM_TOKENS: Final = MetricName(
    "schedmate_llm_tokens_total", "counter", "Tokens of prompts and answers.", ("direction",)
)
METRICS_DROPPED: Final = MetricName(
    "schedmate_metrics_dropped_total",
    "counter",
    "Samples left out because a metric has too many label values.",
    ("metric",),
)

METRICS: Final[tuple[MetricName, ...]] = (
    READY, BUS_LAG, BUS_PUBLISHED, BUS_ERRORS, RUNNER_IN_FLIGHT, RUNNER_HANDLED, RUNNER_RETRIES, RUNNER_HANDLE_S, RUNNER_REBALANCES,
    DEAD_LETTERS, HTTP_REQUESTS, HTTP_REQUEST_S, JOBS_ACCEPTED, JOBS_REFUSED, OUTBOX_JOBS, QUEUE_DEPTH, JOBS, DECISIONS_TOTAL, DECIDE_S,
    BATCH_INPUTS, APPEND_S, LEADING, TERM_NUMBER, LOG_SEQ, REFUSED_INPUTS, REPEATED_INPUTS, JOB_WAIT_S, JOB_RUN_S, GPUS, POOL_UTILISATION, NODES, RUNS, RUN_ENDS,
    RUN_REFUSALS, LEASE_LEFT_S, GPU_UTILISATION, GPU_MEMORY_BYTES, LOG_SHIPPED, LOG_GAPS, ANALYSES, ANALYSIS_S, ANALYSIS_FILES, ANALYSIS_MODEL_CALLS, ANALYSIS_MODEL_TOKENS, ESTIMATES, TRACKERS,
    PROGRESS, PROPOSALS, DIAGNOSES, STORE_CALLS, STORE_CALL_S, LLM_CALLS, LLM_CALL_S, LLM_TOKENS, METRICS_DROPPED,
)  # fmt: skip
