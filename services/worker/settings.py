"""Settings of the worker."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from schedmate.infra.settings import ServiceSettings, health_port_field
from schedmate.schemas.events import LOG_CHUNK_BYTES_MAX
from schedmate.schemas.job import IDENTIFIER_PATTERN, Identifier

NEVER_S: Final = 10 * 365 * 86400.0
"""What the report of a node whose lease never runs out says, in seconds."""
REPORT_INTERVAL_MAX_S: Final = 5.0
REPORTS_PER_LEASE: Final = 6


def _host_name() -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", platform.node()).lstrip("._-")[:63]
    return name or "node"


class WorkerSettings(ServiceSettings):
    """One node agent. A node is in one pool."""

    health_port: int = health_port_field(8476)

    node: Identifier = Field(
        default="", description="Name of this node, unique in the cluster; without it, the host's name."
    )
    pool: Identifier = Field(default="default", description="Pool that the node belongs to.")
    rack: str | None = Field(
        default=None,
        pattern=IDENTIFIER_PATTERN,
        description="Rack that the node stands in: the nodes under one leaf switch.",
    )
    spine: str | None = Field(default=None, pattern=IDENTIFIER_PATTERN, description="Spine that the rack hangs on.")
    address: str | None = Field(
        default=None,
        description="Address at which other nodes of a gang reach this one; without it, the one that leads to the bus.",
    )
    port_min: int = Field(default=20000, ge=1024, le=65535, description="First port that gangs may meet at.")
    port_max: int = Field(default=29999, ge=1024, le=65535, description="Last port that gangs may meet at.")

    gpus: int | None = Field(
        default=None, ge=0, le=1024, description="GPUs of the node; without it, those that NVML shows."
    )
    gpu_source: Literal["auto", "nvml", "declared"] = Field(
        default="auto", description="Where GPUs are seen: `auto` is NVML where its driver answers, else as declared."
    )
    gpu_type: str | None = Field(
        default=None, pattern=IDENTIFIER_PATTERN, description="Type of the GPUs; without it, what NVML says, or `gpu`."
    )
    gpu_memory_mib: int | None = Field(default=None, ge=1, description="Memory of each declared GPU, MiB.")
    gpu_idle_memory_mib: int = Field(
        default=1024, ge=0, description="A GPU that uses no more than this is idle (where memory is measured)."
    )
    gpu_settle_s: float = Field(
        default=15.0, ge=0, description="How long a GPU's memory may take to come back after a run; then it is held."
    )
    gpu_poll_s: float = Field(default=2.0, gt=0, description="How often the GPUs are looked at.")
    kernel_log: Path | None = Field(
        default=None,
        description="Kernel log to follow for faults (Xid, NVRM, ECC, out of memory), e.g. /var/log/kern.log.",
    )

    lease_s: float = Field(
        default=600.0,
        ge=0,
        description="How long runs live on without an acknowledged report; 0 or `never`: for ever. The pool must agree.",
    )
    report_interval_s: float | None = Field(
        default=None, gt=0, description="How often the node reports; without it, a sixth of the lease, at most 5 s."
    )
    tick_s: float = Field(default=0.1, gt=0, le=10, description="How often members are looked at.")

    jobs_dir: Path | None = Field(
        default=None,
        description="Root of the jobs' directories, kept across attempts; shared storage lets other nodes resume. Default STATE_DIR/NODE/jobs.",
    )
    run_user: str | None = Field(default=None, description="Account that jobs run under; needs a worker run by root.")
    same_user: bool = Field(
        default=False, description="Let jobs run under the worker's own user although it holds credentials."
    )
    run_path: str | None = Field(default=None, description="PATH of the jobs; without it, the worker's own.")
    cgroup_root: Path | None = Field(
        default=None, description="A cgroup v2 directory in which the worker may make one group a run."
    )
    stop_runs: bool = Field(default=False, description="End the runs when the worker ends, instead of leaving them.")
    stop_grace_s: float = Field(default=10.0, ge=0, le=3600, description="Grace of runs that end with the worker.")

    api: str | None = Field(default=None, description="URL of ingest, where source bundles are fetched.")
    api_token: SecretStr | None = Field(default=None, description="Token for fetching bundles, scoped to that.")
    bundle_bytes_max: int = Field(default=1 << 30, ge=1, description="Largest source bundle that is fetched.")
    bundle_cache_bytes: int = Field(
        default=10 << 30,
        ge=0,
        description="Bundles kept on this node for further jobs; what was used longest ago goes first.",
    )
    bundle_timeout_s: float = Field(default=120.0, gt=0, description="How long fetching a bundle may take.")

    spool_bytes_max: int = Field(
        default=1 << 30, ge=1 << 16, description="Disk that one member's output may take; beyond it the middle goes."
    )
    log_chunk_bytes: int = Field(
        default=65536, ge=1024, le=LOG_CHUNK_BYTES_MAX, description="Largest chunk of output on the bus."
    )
    log_run_bytes_s: int = Field(default=1 << 20, ge=1024, description="Output shipped per second and member.")
    log_node_bytes_s: int = Field(default=4 << 20, ge=1024, description="Output shipped per second and node.")
    log_backlog_bytes: int = Field(
        default=4 << 20, ge=4096, description="Output of a member that may wait; beyond it the middle becomes a gap."
    )

    @field_validator("node", mode="before")
    @classmethod
    def _host_by_default(cls, value: object) -> object:
        return value or _host_name()

    @field_validator("lease_s", mode="before")
    @classmethod
    def _never_is_zero(cls, value: object) -> object:
        return 0.0 if isinstance(value, str) and value.strip().lower() == "never" else value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.port_min > self.port_max:
            raise ValueError("port_min must not be above port_max")
        if self.holds_credentials() and self.run_user is None and not self.same_user:
            raise ValueError(
                "this worker holds credentials, and jobs under its own user could read them: "
                "set run_user (as root), or same_user to accept that"
            )
        return self

    def holds_credentials(self) -> bool:
        """Tell whether these settings hold a secret of a service."""
        secrets = any(isinstance(getattr(self, name), SecretStr) for name in type(self).model_fields)
        urls = any("@" in url for url in (self.bus, self.store, self.blobs, self.api or ""))
        return secrets or urls or self.kafka_key_file is not None or self.mongo_certificate_file is not None

    @property
    def node_dir(self) -> Path:
        """Directory of this node's journal, members and spools."""
        return self.state_dir / self.node

    @property
    def job_root(self) -> Path:
        """Root of the jobs' directories."""
        return self.jobs_dir if self.jobs_dir is not None else self.node_dir / "jobs"

    @property
    def reported_lease_s(self) -> float:
        """The lease as reports tell it."""
        return self.lease_s if self.lease_s > 0 else NEVER_S

    @property
    def interval_s(self) -> float:
        """Seconds between two reports."""
        if self.report_interval_s is not None:
            return self.report_interval_s
        return min(self.reported_lease_s / REPORTS_PER_LEASE, REPORT_INTERVAL_MAX_S)
