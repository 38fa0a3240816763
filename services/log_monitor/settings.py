"""Settings of log-monitor."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schedmate.infra.settings import ServiceSettings, health_port_field


class LogMonitorSettings(ServiceSettings):
    """What log-monitor can be told. Frozen; printed masked at start."""

    health_port: int = health_port_field(8474)
    stream: Literal["auto", "faust", "runner"] = Field(
        default="auto",
        description="How the stream runs: `faust` (Kafka only), `runner` (any bus), or `auto`: Faust on Kafka, else the runner.",
    )
    progress_interval_s: float = Field(
        default=1.0, ge=0, le=3600, description="Least time between two events of progress of a run."
    )
    progress_fraction: float = Field(
        default=0.01, gt=0, le=1, description="Progress by this fraction is said at once, whatever the interval."
    )
    tail_wait_s: float = Field(
        default=3.0,
        gt=0,
        le=60,
        description="How long a diagnosis waits after a bad exit for the log's last bytes and the node's own side; below the dispatcher's diagnosis_wait_s.",
    )
    opinion_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=600,
        description="How long a language model may take over a failure that nothing explains.",
    )
    proposal_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=600,
        description="How long a language model may take to propose a pattern for a log in which nothing shows a position.",
    )
    two_tenants_within_s: float = Field(
        default=86_400.0,
        gt=0,
        description="Within this time the same hardware fault in runs of two tenants counts as the node's own evidence.",
    )
    node_history_records: int = Field(
        default=5000, ge=0, description="How many of the last records of each partition of `nodes` are read at start."
    )
    track_age_max_s: float = Field(
        default=8 * 86_400.0, gt=0, description="State of a job of which nothing was heard for so long is forgotten."
    )
    concurrency: int = Field(default=32, ge=1, le=1000, description="Jobs that are handled at once (runner).")
    work_processes: int = Field(default=1, ge=1, le=64, description="Processes that read large chunks.")
    work_inline_bytes: int = Field(
        default=16 * 1024, ge=0, description="Chunks up to this size are read on the loop, larger ones in a process."
    )
    work_timeout_s: float = Field(default=20.0, gt=0, le=600, description="Time that reading one chunk may take.")
