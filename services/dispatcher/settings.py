"""Settings of the dispatcher."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from schedmate.infra.settings import ServiceSettings, health_port_field


class DispatcherSettings(ServiceSettings):
    """What a dispatcher is told. Limits of a pool stand in its configuration document, not here."""

    health_port: int = health_port_field(8475)
    pools: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("default",), description="Pools that this instance may lead, separated by commas."
    )
    instance: str = Field(
        default="", max_length=200, description="Name of this instance; host name and process id when empty."
    )
    policy: str = Field(default="fifo", description="Policy of a pool that has no configuration document of its own.")
    preemption: bool = Field(
        default=False, description="May higher priority classes preempt lower ones, where the pool does not say?"
    )
    lease_s: float = Field(
        default=10.0, gt=0, le=600, description="A standby takes over after the lease stood still for so long."
    )
    lease_margin_s: float = Field(
        default=5.0,
        ge=0,
        le=600,
        description="Added to a node's lease before it is called lost: clock rate and the kill.",
    )
    api_host: str = Field(default="127.0.0.1", description="Address that the leader answers `why` on.")
    api_port: int = Field(default=0, ge=0, le=65535, description="Port for `why`; 0 takes a free one.")
    api_advertise: str = Field(
        default="", description="HOST:PORT told to ingest for `why`; the address listened on when empty."
    )
    batch_max: int = Field(default=500, ge=1, le=5000, description="Most events folded into one entry.")
    batch_bytes_max: int = Field(
        default=1_000_000, ge=10_000, le=3_000_000, description="Most bytes of events folded into one entry."
    )
    snapshot_every: int = Field(default=2000, ge=10, description="Entries between two snapshots of a pool's state.")
    checkpoint_every_s: float = Field(
        default=300.0,
        gt=0,
        description="A quiet pool appends an entry so often, so that its offsets stay within retention.",
    )
    profile_after_s: float = Field(
        default=20.0,
        ge=0,
        description="A run is profiled once its worker has measured it for so long alone on its GPUs.",
    )
    config_every_s: float = Field(
        default=5.0, gt=0, description="How often the leader looks whether a pool's configuration document has changed."
    )
    reasons_every_s: float = Field(
        default=0.5, gt=0, description="Reasons of waiting jobs are published at most so often."
    )
    reasons_max: int = Field(
        default=200, ge=1, description="Jobs at the head of the queue whose reasons are kept up to date."
    )

    @field_validator("pools", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value
