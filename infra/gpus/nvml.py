"""GPUs as NVIDIA's management library shows them: memory, utilisation, processes, Xid events."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any, Final

import pynvml

from schedmate.infra.gpus.port import GpuFault, GpuState

MIB: Final = 1024 * 1024
FAULTS_MAX: Final = 100
TYPE_LEN_MAX: Final = 63
TYPE_UNKNOWN: Final = "gpu"


class NvmlUnavailableError(Exception):
    """This machine has no NVIDIA driver that answers."""


class NvmlGpus:
    """The GPUs of this machine. One that the driver has lost stays in the list, unhealthy.

    `expected` is how many the node should have: those that the driver does not show at all are told as unhealthy too.
    `gpu_type` overrides the name that is made from the driver's (`h100-80gb-hbm3`).
    """

    def __init__(self, *, gpu_type: str | None = None, expected: int | None = None, library: Any = pynvml) -> None:
        self._nvml = library
        try:
            self._nvml.nvmlInit()
            shown = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            raise NvmlUnavailableError(f"NVML does not answer: {error}") from error
        self._type = gpu_type
        self._last: dict[int, GpuState] = {
            index: GpuState(index, gpu_type or TYPE_UNKNOWN, healthy=False)
            for index in range(max(shown, expected or 0))
        }
        self._shown = shown
        self._events = self._subscribe()

    def states(self) -> Sequence[GpuState]:
        """Return every GPU, in the order of indices."""
        for index in range(self._shown):
            self._last[index] = self._state(index)
        return [self._last[index] for index in sorted(self._last)]

    def faults(self) -> Sequence[GpuFault]:
        """Return the Xid events since the last call, at most `FAULTS_MAX` of them."""
        faults: list[GpuFault] = []
        while self._events is not None and len(faults) < FAULTS_MAX:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # most often: nothing has happened
                break
            faults.append(self._fault(event))
        return faults

    def close(self) -> None:
        """Let go of the driver."""
        with contextlib.suppress(self._nvml.NVMLError):
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()
        self._events = None

    def _subscribe(self) -> Any | None:
        """Ask for Xid events; None where the driver or the device has none."""
        wanted = self._nvml.nvmlEventTypeXidCriticalError | self._nvml.nvmlEventTypeDoubleBitEccError
        try:
            events = self._nvml.nvmlEventSetCreate()
        except self._nvml.NVMLError:
            return None
        for index in range(self._shown):
            with contextlib.suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                supported = self._nvml.nvmlDeviceGetSupportedEventTypes(handle)
                self._nvml.nvmlDeviceRegisterEvents(handle, wanted & supported, events)
        return events

    def _state(self, index: int) -> GpuState:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            gpu_type = self._type or _type_of(self._nvml.nvmlDeviceGetName(handle))
        except self._nvml.NVMLError:
            last = self._last[index]
            return GpuState(index, last.type, last.memory_mib, healthy=False)
        busy, memory_busy = self._utilisation(handle)
        return GpuState(
            index=index,
            type=gpu_type,
            memory_mib=int(memory.total) // MIB,
            utilisation=busy,
            memory_used_mib=int(memory.used) // MIB,
            pids=self._pids(handle),
            memory_utilisation=memory_busy,
        )

    def _utilisation(self, handle: Any) -> tuple[float | None, float | None]:
        try:
            rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
        except self._nvml.NVMLError:  # not every device measures it
            return None, None
        return float(rates.gpu) / 100, float(rates.memory) / 100

    def _pids(self, handle: Any) -> tuple[int, ...] | None:
        try:
            processes = [
                *self._nvml.nvmlDeviceGetComputeRunningProcesses(handle),
                *self._nvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
            ]
        except self._nvml.NVMLError:
            return None
        return tuple(sorted({int(process.pid) for process in processes}))

    def _fault(self, event: Any) -> GpuFault:
        try:
            gpu: int | None = int(self._nvml.nvmlDeviceGetIndex(event.device))
        except self._nvml.NVMLError:
            gpu = None
        if event.eventType == self._nvml.nvmlEventTypeXidCriticalError:
            xid = int(event.eventData)
            return GpuFault(gpu, xid, f"NVML: Xid {xid} on GPU {'?' if gpu is None else gpu}")
        return GpuFault(gpu, None, f"NVML: double-bit ECC error on GPU {'?' if gpu is None else gpu}")


def _type_of(name: str | bytes) -> str:
    """Return a type that can be a label: `NVIDIA H100 80GB HBM3` is `h100-80gb-hbm3`."""
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    plain = re.sub(r"[^a-z0-9._]+", "-", text.lower().removeprefix("nvidia")).strip("-._")
    return plain[:TYPE_LEN_MAX] or TYPE_UNKNOWN
