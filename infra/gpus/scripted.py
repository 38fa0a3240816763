"""GPUs of a test: it says what they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from schedmate.infra.gpus.port import GpuFault, GpuState


class ScriptedGpus:
    """`count` idle GPUs whose memory, processes and health a test sets."""

    def __init__(self, count: int, gpu_type: str = "scripted", memory_mib: int = 81920) -> None:
        self._states = {
            index: GpuState(
                index, gpu_type, memory_mib, utilisation=0.0, memory_used_mib=0, pids=(), memory_utilisation=0.0
            )
            for index in range(count)
        }
        self._faults: list[GpuFault] = []

    def shows(self, index: int, **changes: Any) -> None:
        """Change what one GPU shows: `memory_used_mib`, `pids`, `healthy`, `utilisation`, `memory_utilisation`."""
        self._states[index] = replace(self._states[index], **changes)

    def loses(self, index: int) -> None:
        """Let a GPU vanish."""
        del self._states[index]

    def reports_fault(self, fault: GpuFault) -> None:
        """Let the device's side report a fault."""
        self._faults.append(fault)

    def states(self) -> Sequence[GpuState]:
        """Return every GPU."""
        return [self._states[index] for index in sorted(self._states)]

    def faults(self) -> Sequence[GpuFault]:
        """Return the faults since the last call."""
        seen, self._faults = self._faults, []
        return seen

    def close(self) -> None:
        """Nothing to let go of."""
