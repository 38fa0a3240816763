"""`schedmate up`: every service and local workers in one process, on the embedded default."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from schedmate.infra.adapters import make_blobs, make_bus, make_llm, make_store
from schedmate.infra.clock import SystemClock
from schedmate.infra.health import StartError
from schedmate.infra.llm.queue import ModelQueue
from schedmate.infra.service import Component, serve
from schedmate.infra.settings import ServiceSettings, health_port_field, make_state_dir
from schedmate.infra.setup import setup
from schedmate.schemas.job import Identifier
from schedmate.services.code_analyzer.settings import CodeAnalyzerSettings
from schedmate.services.code_analyzer.wiring import build as build_analyzer
from schedmate.services.dispatcher.settings import DispatcherSettings
from schedmate.services.dispatcher.wiring import build as build_dispatcher
from schedmate.services.history_estimator.settings import HistoryEstimatorSettings
from schedmate.services.history_estimator.wiring import build as build_estimator
from schedmate.services.ingest.settings import IngestSettings
from schedmate.services.ingest.wiring import build as build_ingest
from schedmate.services.log_monitor.settings import LogMonitorSettings
from schedmate.services.log_monitor.wiring import build as build_monitor
from schedmate.services.worker.settings import WorkerSettings
from schedmate.services.worker.wiring import build as build_worker

PORTS_PER_NODE = 1000
FIRST_PORT = 20000


class UpSettings(ServiceSettings):
    """The single process."""

    SERVICE = "up"

    health_port: int = health_port_field(8471)
    nodes: int = Field(default=2, ge=1, le=32, description="Local workers, each a node of its own.")
    gpus: int = Field(
        default=4,
        ge=0,
        le=1024,
        description="GPUs that each node declares; a single node has those of NVML where it shows any.",
    )
    gpu_type: Identifier = Field(default="gpu", description="Type of the declared GPUs.")
    gpu_memory_mib: int | None = Field(default=None, ge=1, description="Memory of each declared GPU, MiB.")
    api_host: str = Field(default="127.0.0.1", description="Address of the API.")
    api_port: int = Field(default=8470, ge=0, le=65535, description="Port of the API; 0 takes a free one and logs it.")
    lease_s: float = Field(default=600.0, ge=0, description="Lease of the local nodes.")
    policy: str = Field(default="fifo", description="Policy of the default pool.")
    kernel_logs: Path | None = Field(
        default=None, description="Directory with a kernel log NODE.log for each node; without it, none is followed."
    )


def dispatcher_settings(settings: UpSettings, common: dict[str, Any]) -> DispatcherSettings:
    """Return the dispatcher's settings: host and port of the API are the API's, and `why` is asked from within."""
    return DispatcherSettings(**common, policy=settings.policy, api_host="127.0.0.1", api_port=0)


def up_components(settings: UpSettings, parts: Parts) -> list[Component]:
    """Return the components of the single process, advisors and workers included."""
    own = ("health_port", "health_host", "start_timeout_s", "drain_timeout_s")  # the process's, not a service's
    common: dict[str, Any] = {name: getattr(settings, name) for name in ServiceSettings.model_fields if name not in own}
    shared: dict[str, Any] = {"bus": parts.bus, "store": parts.store, "clock": parts.clock}
    ingest = IngestSettings(**common, api_host=settings.api_host, api_port=settings.api_port)
    components: list[Component] = [
        build_ingest(ingest, blobs=parts.blobs, **shared),
        build_dispatcher(dispatcher_settings(settings, common), **shared),
        build_analyzer(CodeAnalyzerSettings(**common, read_workdirs=True), blobs=parts.blobs, llm=parts.llm, **shared),
        build_estimator(HistoryEstimatorSettings(**common), **shared),
        build_monitor(LogMonitorSettings(**common), llm=parts.llm, **shared),
    ]
    for number in range(settings.nodes):
        node = f"n{number + 1}"
        first = FIRST_PORT + number * PORTS_PER_NODE
        worker = WorkerSettings(
            **common,
            node=node,
            gpus=settings.gpus,
            gpu_source="auto" if settings.nodes == 1 else "declared",  # several nodes must not each claim the machine's
            gpu_type=settings.gpu_type,
            gpu_memory_mib=settings.gpu_memory_mib,
            address="127.0.0.1",
            port_min=first,
            port_max=first + PORTS_PER_NODE - 1,
            lease_s=settings.lease_s,
            stop_runs=True,
            same_user=True,
            jobs_dir=settings.state_dir / "jobs",
            kernel_log=settings.kernel_logs / f"{node}.log" if settings.kernel_logs is not None else None,
        )
        components.append(
            build_worker(
                worker,
                bus=parts.bus,
                lease_bus=partial(make_bus, worker, parts.clock),
                blobs=parts.blobs,
                clock=parts.clock,
            )
        )
    return components


class Parts:
    """The adapters that all services of the single process share."""

    def __init__(self, settings: UpSettings) -> None:
        self.clock = SystemClock()
        self.bus = make_bus(settings, self.clock)
        self.store = make_store(settings)
        self.blobs = make_blobs(settings, self.clock)
        self.llm = ModelQueue(make_llm(settings), self.clock)  # one queue: whoever waits for an answer goes first

    async def start(self, stack: AsyncExitStack) -> None:
        """Start each and have the stack stop it."""
        for part in (self.store, self.bus, self.blobs):
            await part.start()
            stack.push_async_callback(part.stop)
        stack.push_async_callback(self.llm.stop)
        await setup(self.bus, self.store)


async def run_up(
    settings: UpSettings,
    *,
    stop: asyncio.Event | None = None,
    handle_signals: bool = True,
    on_components: Callable[[Sequence[Component]], None] | None = None,
) -> int:
    """Run everything until SIGTERM, Ctrl-C or `stop`; return the exit code. A second Ctrl-C ends at once."""
    make_state_dir(settings)
    async with AsyncExitStack() as stack:
        parts = Parts(settings)
        try:
            async with asyncio.timeout(settings.start_timeout_s):
                await parts.start(stack)
        except TimeoutError as error:
            raise StartError(f"the bus or the store did not start within {settings.start_timeout_s:g} s") from error
        components = up_components(settings, parts)
        if on_components is not None:
            on_components(components)
        return await serve(components, settings, stop=stop, handle_signals=handle_signals)
