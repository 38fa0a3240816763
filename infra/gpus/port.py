"""The port `Gpus`: which GPUs a node has, how they fare, and who uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU now. `memory_used_mib` and the shares of time (0 to 1) in which it and its memory are busy are None where nothing measures them."""

    index: int
    type: str
    memory_mib: int | None = None
    healthy: bool = True
    utilisation: float | None = None
    memory_used_mib: int | None = None
    pids: tuple[int, ...] | None = None  # processes with memory on it, None where nothing tells
    memory_utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A fault that the device's side reported (an Xid from NVML)."""

    gpu: int | None
    xid: int | None
    text: str


class Gpus(Protocol):
    """The GPUs of this node. Calls are synchronous and quick (milliseconds); the worker runs them off its loop."""

    def states(self) -> Sequence[GpuState]:
        """Return every GPU, in the order of indices."""
        ...

    def faults(self) -> Sequence[GpuFault]:
        """Return the faults seen since the last call."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...
