"""Settings of ingest."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import Field

from schedmate.infra.settings import ServiceSettings, health_port_field
from schedmate.schemas.job import Identifier

_MIB: Final = 1024 * 1024


class IngestSettings(ServiceSettings):
    """Everything that ingest can be told."""

    health_port: int = health_port_field(8471)
    api_host: str = Field(
        default="127.0.0.1",
        description="Address of the API. Anything but the loopback needs tokens and refuses to start without any.",
    )
    api_port: int = Field(default=8470, ge=0, le=65535, description="Port of the API; 0 takes a free one and logs it.")
    api_hosts_allowed: tuple[str, ...] = Field(
        default=(), description="Further names that Host and Origin may carry, where the loopback needs no token."
    )
    api_tokens_required: bool = Field(
        default=False, description="Ask for a token on the loopback too (several users on one machine)."
    )
    api_token_file: Path | None = Field(
        default=None, description="Where the first operator's token is written (0600); default STATE_DIR/api-token."
    )
    default_pool: Identifier = Field(
        default="default", description="Pool of jobs that name none and whose tenant has none."
    )

    rate_per_s: float = Field(
        default=200.0, gt=0, description="Calls a second that a tenant may make of one instance, on average."
    )
    rate_burst: float = Field(default=1000.0, ge=1, description="Calls that a tenant may make at once.")
    body_bytes_max: int = Field(default=_MIB, ge=1024, description="Largest request without a bundle.")
    bundle_bytes_max: int = Field(
        default=256 * _MIB, ge=1024, description="Largest source bundle, as uploaded; what it may unpack to is fixed."
    )
    log_bytes_max: int = Field(
        default=64 * _MIB, ge=_MIB, description="Output kept of one run member; its head and its newest part stay."
    )
    blobs_keep_s: float = Field(default=30 * 86400.0, ge=3600, description="How long bundles and log chunks are kept.")

    request_timeout_s: float = Field(default=30.0, gt=0, description="Longest that a call (not a stream) may take.")
    receive_timeout_s: float = Field(default=20.0, gt=0, description="Longest silence of a client that sends a body.")
    publish_timeout_s: float = Field(default=5.0, gt=0, description="How long a call waits for the bus.")
    why_timeout_s: float = Field(default=1.0, gt=0, description="How long `why` waits for the pool's leader.")
    sweep_every_s: float = Field(default=5.0, gt=0, description="How often the outbox is swept.")
    sweep_after_s: float = Field(
        default=5.0, ge=0, description="How long a job may lie unpublished before a sweep takes it."
    )
    streams_max: int = Field(default=200, ge=1, description="Most event streams that are open at once.")
    stream_poll_s: float = Field(
        default=1.0, gt=0, description="How often a followed log is looked at when nothing is told."
    )
    stream_keep_alive_s: float = Field(
        default=15.0, gt=0, description="Longest silence on a stream before a comment is sent."
    )
    projection_concurrency: int = Field(
        default=500, ge=1, le=10_000, description="Events that the read model handles at once."
    )
    token_cache_s: float = Field(
        default=5.0, ge=0, description="How long a token's check is remembered, and a revoked one still works."
    )
    connections_max: int = Field(default=1000, ge=1, description="Most requests in hand at once, streams included.")

    def token_file(self) -> Path:
        """Return where the first operator's token is written."""
        return self.api_token_file if self.api_token_file is not None else self.state_dir / "api-token"
