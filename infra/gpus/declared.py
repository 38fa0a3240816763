"""GPUs that the settings declare: nothing is measured, all are healthy."""

from __future__ import annotations

from collections.abc import Sequence

from schedmate.infra.gpus.port import GpuFault, GpuState


class DeclaredGpus:
    """`count` GPUs of one type."""

    def __init__(self, count: int, gpu_type: str, memory_mib: int | None = None) -> None:
        self._states = tuple(GpuState(index, gpu_type, memory_mib) for index in range(count))

    def states(self) -> Sequence[GpuState]:
        """Return every GPU."""
        return self._states

    def faults(self) -> Sequence[GpuFault]:
        """Nothing reports faults."""
        return ()

    def close(self) -> None:
        """Nothing to let go of."""
