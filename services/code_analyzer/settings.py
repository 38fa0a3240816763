"""Settings of code-analyzer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from schedmate.infra.settings import ServiceSettings, health_port_field


class CodeAnalyzerSettings(ServiceSettings):
    """What code-analyzer can be told. Frozen; printed masked at start."""

    health_port: int = health_port_field(8472)
    bundles_from: Literal["blobs", "ingest"] = Field(
        default="blobs", description="Where bundles are fetched: the blob store itself, or ingest's API."
    )
    api: str = Field(default="http://127.0.0.1:8470", description="Ingest's address, for bundles_from=ingest.")
    api_token: SecretStr | None = Field(default=None, description="Token with the scope to read bundles.")
    read_workdirs: bool = Field(
        default=False,
        description="Read the working directory of jobs without a bundle; only where this service and the jobs share a machine and a user.",
    )
    bundle_bytes_max: int = Field(default=512 * 1024 * 1024, ge=1, description="A larger bundle is not analysed.")
    fetch_timeout_s: float = Field(default=60.0, gt=0, le=3600, description="Time that fetching a bundle may take.")
    analysis_timeout_s: float = Field(default=20.0, gt=0, le=600, description="Time that one analysis may take.")
    work_processes: int = Field(default=1, ge=1, le=64, description="Processes that analyse.")
    work_memory_bytes_max: int = Field(
        default=2 << 30, ge=256 << 20, description="Address space that such a process may have."
    )
    model_votes: int = Field(
        default=3, ge=0, le=9, description="How often a model is asked about open fields; 0: never."
    )
    model_steps_max: int = Field(
        default=4, ge=1, le=20, description="Looks at the source that a model may take a vote."
    )
    model_tokens_max: int = Field(default=12_000, ge=1000, description="Tokens that one vote may cost.")
    model_seconds_max: float = Field(
        default=60.0, gt=0, le=3600, description="Time that asking about one job may take."
    )
    model_jobs_per_hour: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="About how many jobs an hour a model is asked, the most worthwhile first; 0: about as many as it has time for. "
        "Each instance has its own.",
    )
    model_reset_s: float = Field(
        default=86_400.0,
        ge=3_600,
        le=366 * 86_400,
        description="After so long a kind of jobs of which a model could say nothing is asked about again.",
    )
    concurrency: int = Field(default=8, ge=1, le=1000, description="Jobs that are handled at once.")
