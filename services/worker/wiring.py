"""Builds a worker: the only place that makes its clients."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import httpx

from schedmate.infra.adapters import make_bus
from schedmate.infra.blobs.port import Blobs
from schedmate.infra.bus.port import EventBus
from schedmate.infra.clock import Clock, Random, SystemClock, SystemRandom
from schedmate.infra.gpus.declared import DeclaredGpus
from schedmate.infra.gpus.nvml import NvmlGpus, NvmlUnavailableError
from schedmate.infra.gpus.port import Gpus, GpuState
from schedmate.infra.processes.port import Processes
from schedmate.infra.processes.real import RealProcesses
from schedmate.infra.settings import SettingsError
from schedmate.services.worker.agent import Parts, Worker
from schedmate.services.worker.launch import Base
from schedmate.services.worker.settings import WorkerSettings
from schedmate.services.worker.sources import Bundles, BundlesFromBlobs, BundlesOverHttp, Sources

LOOPBACK: Final = "127.0.0.1"
GPU_TYPE: Final = "gpu"


def build(
    settings: WorkerSettings,
    *,
    bus: EventBus | None = None,
    lease_bus: Callable[[], EventBus] | None = None,
    blobs: Blobs | None = None,
    gpus: Gpus | None = None,
    processes: Processes | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
) -> Worker:
    """Return a worker. What is handed in is the caller's to start and stop.

    `lease_bus` makes the bus of the thread that renews the lease. With a `bus` handed in and no `lease_bus`, reports share
    that bus and its loop: fit for tests, where nothing else takes long on the loop.
    """
    the_clock = clock or SystemClock()
    make_lease_bus = lease_bus
    if bus is None and lease_bus is None:
        make_lease_bus = partial(make_bus, settings, the_clock)
    client = _api_client(settings)
    bundles: Bundles | None = None
    if blobs is not None:
        bundles = BundlesFromBlobs(blobs)
    elif client is not None:
        bundles = BundlesOverHttp(client)

    async def close_sources() -> None:
        if client is not None:
            await client.aclose()

    parts = Parts(
        bus=bus or make_bus(settings, the_clock),
        owns_bus=bus is None,
        make_lease_bus=make_lease_bus,
        processes=processes or RealProcesses(settings.node_dir, cgroup_root=settings.cgroup_root),
        make_gpus=(lambda: gpus) if gpus is not None else partial(_make_gpus, settings),
        expected_gpus=_expected(settings),
        sources=Sources(
            settings.node_dir / "bundles",
            bundles,
            bytes_max=settings.bundle_bytes_max,
            timeout_s=settings.bundle_timeout_s,
            cache_bytes=settings.bundle_cache_bytes,
            owner=settings.run_user,
        ),
        close_sources=close_sources,
        base=_base(settings),
        address=settings.address or _own_address(settings),
        clock=the_clock,
        random=random or SystemRandom(),
    )
    return Worker(settings, parts)


def _make_gpus(settings: WorkerSettings) -> Gpus:
    """Return the driver's GPUs where there is one and nothing else is set, the declared ones otherwise."""
    missing = "set gpu_source=auto"
    if settings.gpu_source != "declared":
        try:
            return NvmlGpus(gpu_type=settings.gpu_type, expected=settings.gpus)
        except NvmlUnavailableError as error:
            if settings.gpu_source == "nvml":
                raise SettingsError(f"SCHEDMATE_GPU_SOURCE: {error}") from error
            missing = str(error)
    if settings.gpus is None:
        raise SettingsError(f"SCHEDMATE_GPUS: say how many GPUs this node has, e.g. --gpus 4 ({missing})")
    return DeclaredGpus(settings.gpus, settings.gpu_type or GPU_TYPE, settings.gpu_memory_mib)


def _expected(settings: WorkerSettings) -> list[GpuState]:
    return [
        GpuState(index, settings.gpu_type or GPU_TYPE, settings.gpu_memory_mib, healthy=False)
        for index in range(settings.gpus or 0)
    ]


def _api_client(settings: WorkerSettings) -> httpx.AsyncClient | None:
    if settings.api is None:
        return None
    headers = {}
    if settings.api_token is not None:
        headers["Authorization"] = f"Bearer {settings.api_token.get_secret_value()}"
    return httpx.AsyncClient(base_url=settings.api, headers=headers, timeout=settings.bundle_timeout_s)


def _base(settings: WorkerSettings) -> Base:
    """Return what the node gives every job. PATH, language and time zone are the worker's own; nothing else of its environment is."""
    try:
        account = pwd.getpwnam(settings.run_user) if settings.run_user is not None else pwd.getpwuid(os.getuid())
    except KeyError as error:
        if settings.run_user is not None:
            raise SettingsError(f"SCHEDMATE_RUN_USER: there is no account {settings.run_user}") from error
        user, home = str(os.getuid()), str(settings.job_root.absolute())
    else:
        user, home = account.pw_name, account.pw_dir
    if settings.run_user is not None and os.geteuid() != 0:
        raise SettingsError("SCHEDMATE_RUN_USER: only a worker run by root can switch to another account")
    return Base(
        path=settings.run_path or os.environ.get("PATH", os.defpath),
        home=home,
        lang=os.environ.get("LANG", "C.UTF-8"),
        tz=os.environ.get("TZ", "UTC"),
        user=user,
    )


def _own_address(settings: WorkerSettings) -> str:
    """Return the address that leads to the bus; the loopback on an embedded one. Nothing is sent."""
    if not settings.bus.startswith("kafka://"):
        return LOOPBACK
    first = urlsplit("//" + settings.bus.removeprefix("kafka://").split(",")[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((first.hostname or LOOPBACK, first.port or 9092))
            return str(probe.getsockname()[0])
    except OSError:
        return LOOPBACK
