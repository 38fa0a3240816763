"""Bodies of requests, but for the job itself (`schemas/job.py`)."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from schedmate.schemas.job import Identifier

RUN_S_MAX: Final = 366 * 86_400.0
"""No run is said to be longer."""


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
