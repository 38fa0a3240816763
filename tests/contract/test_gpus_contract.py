"""What every adapter of `Gpus` owes its callers; NVML on a library of ours, since no test machine has its driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from schedmate.infra.gpus.declared import DeclaredGpus
from schedmate.infra.gpus.nvml import NvmlGpus, NvmlUnavailableError
from schedmate.infra.gpus.port import GpuFault, Gpus
from schedmate.infra.gpus.scripted import ScriptedGpus

GIB = 1 << 30


class NvmlError(Exception):
    """As NVMLError of the library."""


class Library:
    """The calls of `pynvml` that are used, with devices that a test changes."""

    NVMLError = NvmlError
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 - the library's name
    nvmlEventTypeDoubleBitEccError = 2  # noqa: N815

    def __init__(self, count: int = 4, name: str | bytes = "NVIDIA H100 80GB HBM3") -> None:
        self.count = count
        self.name = name
        self.has_driver = True
        self.lost: set[int] = set()
        self.used: dict[int, int] = {}
        self.pids: dict[int, list[int]] = {}
        self.events: list[Any] = []
        self.supported = 10
        self.registered: list[tuple[int, int]] = []
        self.is_shut = False

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the adapter calls {name}, which this library does not have")

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.has_driver:
            raise NvmlError("driver not loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_shut = True

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index in self.lost:
            raise NvmlError("GPU is lost")
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=80 * GIB, used=self.used.get(handle, 0))

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:  # noqa: ARG002, N802
        return self.name

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        if handle == 3:
            raise NvmlError("not supported")
        return SimpleNamespace(gpu=37, memory=12)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids.get(handle, [])]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        if handle == 3:
            raise NvmlError("not supported")
        return []

    def nvmlDeviceGetIndex(self, handle: int) -> int:  # noqa: N802
        return self.nvmlDeviceGetHandleByIndex(handle)

    def nvmlDeviceGetSupportedEventTypes(self, handle: int) -> int:  # noqa: ARG002, N802
        return self.supported

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        return "events"

    def nvmlEventSetFree(self, events: str) -> None:  # noqa: N802
        assert events == "events"

    def nvmlDeviceRegisterEvents(self, handle: int, types: int, events: str) -> None:  # noqa: ARG002, N802
        self.registered.append((handle, types))

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:  # noqa: ARG002, N802
        assert timeout_ms == 0
        if not self.events:
            raise NvmlError("timeout")
        return self.events.pop(0)

    def happens(self, kind: int, value: int, device: int) -> None:
        self.events.append(SimpleNamespace(eventType=kind, eventData=value, device=device))


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture(params=["declared", "scripted", "nvml"])
def gpus(request: pytest.FixtureRequest, library: Library) -> Gpus:
    made: dict[str, Gpus] = {
        "declared": DeclaredGpus(4, "h100-80gb-hbm3", 81920),
        "scripted": ScriptedGpus(4, "h100-80gb-hbm3"),
        "nvml": NvmlGpus(library=library),
    }
    return made[request.param]


def test_every_gpu_is_told_in_the_order_of_indices(gpus: Gpus) -> None:
    states = gpus.states()
    assert [(s.index, s.type, s.memory_mib, s.healthy) for s in states] == [
        (i, "h100-80gb-hbm3", 81920, True) for i in range(4)
    ]


def test_nothing_has_happened_yet(gpus: Gpus) -> None:
    assert list(gpus.faults()) == []
    gpus.close()


def test_nvml_tells_memory_use_and_processes(library: Library) -> None:
    library.used, library.pids = {1: 5 * GIB}, {1: [70, 71]}
    state = NvmlGpus(library=library).states()[1]
    assert (state.memory_used_mib, state.pids, state.utilisation, state.memory_utilisation) == (
        5120,
        (70, 71),
        0.37,
        0.12,
    )


def test_nvml_says_where_it_does_not_know(library: Library) -> None:
    state = NvmlGpus(library=library).states()[3]
    assert (state.utilisation, state.memory_utilisation, state.pids, state.healthy) == (None, None, None, True)


def test_a_gpu_that_the_driver_has_lost_stays_in_the_list(library: Library) -> None:
    gpus = NvmlGpus(library=library)
    gpus.states()
    library.lost.add(2)
    assert [(s.index, s.healthy, s.type) for s in gpus.states()][2] == (2, False, "h100-80gb-hbm3")


def test_gpus_that_should_be_there_and_are_not_shown_are_unhealthy(library: Library) -> None:
    states = NvmlGpus(library=library, expected=8, gpu_type="h100").states()
    assert [s.healthy for s in states] == [True] * 4 + [False] * 4
    assert {s.type for s in states} == {"h100"}


def test_xid_and_ecc_events_are_faults_once(library: Library) -> None:
    gpus = NvmlGpus(library=library)
    assert library.registered == [(0, 10), (1, 10), (2, 10), (3, 10)]
    library.happens(8, 79, 2)
    library.happens(2, 0, 1)
    library.lost.add(3)
    library.happens(8, 48, 3)
    assert gpus.faults() == [
        GpuFault(2, 79, "NVML: Xid 79 on GPU 2"),
        GpuFault(1, None, "NVML: double-bit ECC error on GPU 1"),
        GpuFault(None, 48, "NVML: Xid 48 on GPU ?"),
    ]
    assert list(gpus.faults()) == []
    gpus.close()
    assert library.is_shut


def test_a_machine_without_driver_says_so(library: Library) -> None:
    library.has_driver = False
    with pytest.raises(NvmlUnavailableError, match="driver not loaded"):
        NvmlGpus(library=library)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"Tesla V100-SXM2-32GB", "tesla-v100-sxm2-32gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
        ("???", "gpu"),
    ],
)
def test_a_type_can_be_a_label(name: str | bytes, expected: str) -> None:
    assert NvmlGpus(library=Library(1, name)).states()[0].type == expected


def test_scripted_gpus_show_what_a_test_says() -> None:
    gpus = ScriptedGpus(2)
    gpus.shows(1, memory_used_mib=900, pids=(7,))
    gpus.loses(0)
    gpus.reports_fault(GpuFault(1, 31, "x"))
    assert [(s.index, s.memory_used_mib, s.pids) for s in gpus.states()] == [(1, 900, (7,))]
    assert gpus.faults() == [GpuFault(1, 31, "x")]
    assert gpus.faults() == []
