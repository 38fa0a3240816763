"""The job: one schema for HTTP, YAML file, flags and the `requests` topic (design §3)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

NAME_LEN_MAX: Final = 200
SCRIPT_BYTES_MAX: Final = 64 * 1024
ENV_BYTES_MAX: Final = 32 * 1024
COMMAND_BYTES_MAX: Final = 32 * 1024
SPEC_BYTES_MAX: Final = 128 * 1024
GPU_MILLI_WHOLE: Final = 1000
"""Thousandths of a GPU that are all of it."""

IDENTIFIER_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
Identifier = Annotated[str, StringConstraints(pattern=IDENTIFIER_PATTERN)]
"""A tenant, pool or node name: it becomes part of paths, keys and labels."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""Text that can be passed to a process: no NUL (lone surrogates are refused by the model itself)."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_LEN_MAX, pattern=r"^[^\x00-\x1f\x7f]+$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class PriorityClass(StrEnum):
    """Priority classes, lowest first. Order inside a class is the policy's."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"


class JobKind(StrEnum):
    """What a job is for; where it is placed may follow from it."""

    TRAINING = "training"
    INFERENCE = "inference"


PRIORITY_RANK: Final[dict[PriorityClass, int]] = {p: i for i, p in enumerate(PriorityClass)}


class Frozen(BaseModel):
    """Base of every value on the wire: immutable, strict about unknown fields."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        ser_json_bytes="base64",  # bytes are raw in Python and base64 (URL-safe alphabet) in JSON
        val_json_bytes="base64",
        hide_input_in_errors=True,  # errors are logged and dead-lettered; values may be secrets
    )


class JobFields(Frozen):
    """What a user says about a job. Sizes are per node unless the name says otherwise."""

    name: Name = Field(description="A human name; recurring jobs keep theirs.")
    command: tuple[Text, ...] | None = Field(
        default=None, description="argv; exactly one of command and script.", max_length=1000
    )
    script: Text | None = Field(
        default=None, description="A shell script, run with /bin/sh -e.", max_length=SCRIPT_BYTES_MAX
    )
    gpus: int = Field(default=1, ge=1, le=1024, description="GPUs per node.")
    nodes: int = Field(default=1, ge=1, le=4096, description="Nodes of the gang; one member runs on each.")
    gpu_type: Identifier | None = Field(default=None, description="The GPU type it must have; any when absent.")
    gpu_memory_gib: float | None = Field(default=None, gt=0, le=4096, description="Least memory of each GPU, GiB.")
    time_limit_s: int | None = Field(
        default=None, ge=1, le=366 * 86400, description="Ends the run after so many seconds."
    )
    priority: PriorityClass = Field(default=PriorityClass.NORMAL, description="Priority class.")
    env: dict[EnvName, Text] = Field(default_factory=dict, description="Environment of the job.", max_length=500)
    workdir: Text | None = Field(
        default=None, max_length=4096, description="Directory the run starts in, without a bundle."
    )
    bundle: Sha256 | None = Field(default=None, description="sha256 of an uploaded source bundle.")
    entry: Text | None = Field(
        default=None, max_length=4096, description="The file of the bundle that is launched, for analysis."
    )
    retries: int = Field(default=1, ge=0, le=100, description="Further attempts that the job's own failures may cost.")
    checkpoint_dir: Text | None = Field(default=None, max_length=4096, description="Where the job keeps checkpoints.")
    resume_flag: Text | None = Field(
        default=None, max_length=200, description="Flag that takes the checkpoint to resume from."
    )

    kind: JobKind = Field(
        default=JobKind.TRAINING,
        exclude_if=lambda kind: kind is JobKind.TRAINING,
        description="What the job is for: a policy may spread inference where it packs training. Left out when it is training.",
    )
    within: Literal["rack", "spine"] | None = Field(
        default=None,
        exclude_if=lambda within: within is None,
        description="All nodes of the gang in one rack, or under one spine; without it that is a preference only. Left out when absent.",
    )
    gpu_milli: int = Field(
        default=GPU_MILLI_WHOLE,
        ge=1,
        le=GPU_MILLI_WHOLE,
        exclude_if=lambda milli: milli == GPU_MILLI_WHOLE,
        description="Thousandths of a GPU that it asks for, with gpus=1 and nodes=1; a pool that does not share gives the whole. Left out when whole.",
    )

    @model_validator(mode="after")
    def _is_one_whole_job(self) -> Self:
        if (self.command is None) == (self.script is None):
            raise ValueError("give exactly one of command and script")
        if self.command is not None:
            if not self.command or not self.command[0]:
                raise ValueError("command must name a program")
            if sum(len(a.encode()) + 1 for a in self.command) > COMMAND_BYTES_MAX:
                raise ValueError(f"command is longer than {COMMAND_BYTES_MAX} bytes; put it in a script or a bundle")
        if self.script is not None and (not self.script.strip() or len(self.script.encode()) > SCRIPT_BYTES_MAX):
            raise ValueError(f"script must hold 1 to {SCRIPT_BYTES_MAX} bytes; put a longer one in a bundle")
        if sum(len(k) + len(v.encode()) + 2 for k, v in self.env.items()) > ENV_BYTES_MAX:
            raise ValueError(f"env is larger than {ENV_BYTES_MAX} bytes; put it in a file of the bundle")
        if self.gpu_milli < GPU_MILLI_WHOLE and (self.gpus, self.nodes) != (1, 1):
            raise ValueError("gpu_milli is a part of one GPU: it goes with gpus=1 and nodes=1")
        if self.entry is not None and self.bundle is None and self.workdir is None:
            raise ValueError("entry needs a bundle or a workdir that it lies in")
        return self


class JobRequest(JobFields):
    """A job as a user asks for it; whatever the token or the tenant decides may be left out."""

    tenant: Identifier | None = Field(default=None, description="Default: the token's tenant.")
    user: Name | None = Field(default=None, description="Default: the token's subject.")
    pool: Identifier | None = Field(default=None, description="Default: the tenant's pool, then `default`.")


class JobSpec(JobFields):
    """A job as ingest accepted it: every default is decided, and stays so."""

    tenant: Identifier
    user: Name
    pool: Identifier

    @property
    def gpus_total(self) -> int:
        """GPUs of the whole gang."""
        return self.gpus * self.nodes
