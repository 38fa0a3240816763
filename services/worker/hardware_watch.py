"""Watches the node's hardware: GPUs come, go, fill and empty; the driver and the kernel report faults."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Literal

import structlog

from schedmate.infra.gpus.port import Gpus
from schedmate.schemas.events import NodeFaultObserved
from schedmate.services.worker.announcements import node_fault
from schedmate.services.worker.kernel_log import KernelLog
from schedmate.services.worker.launcher import Launcher
from schedmate.services.worker.node import Node

KERNEL_POLL_S: Final = 0.5
FINDINGS_MAX: Final = 50  # of one look at the kernel's log

_log = structlog.get_logger()


class HardwareWatch:
    """A change of a GPU's standing is reported at once, its figures with the next report."""

    def __init__(self, node: Node, gpus: Gpus, launcher: Launcher) -> None:
        self._node = node
        self._gpus = gpus
        self._launcher = launcher

    async def watch_gpus(self) -> None:
        """Watch until cancelled."""
        while True:
            before = self._node.watch.standing()
            await self._launcher.observe_gpus()
            for fault in await asyncio.to_thread(self._gpus.faults):
                self._report_fault("nvml", fault.text, gpu=fault.gpu, xid=fault.xid)
            if self._node.watch.standing() != before:
                self._node.edge()
            else:
                self._node.refresh()
            await self._node.clock.sleep(self._node.settings.gpu_poll_s)

    async def watch_kernel(self, path: Path) -> None:
        """Follow the kernel's log until cancelled."""
        kernel_log = await asyncio.to_thread(KernelLog, path)
        while True:
            findings = await asyncio.to_thread(kernel_log.findings)
            if len(findings) > FINDINGS_MAX:
                dropped = len(findings) - FINDINGS_MAX
                _log.warning("kernel findings dropped", action="worker.faults-dropped", count=dropped)
            for finding in findings[:FINDINGS_MAX]:
                self._report_fault("kernel", finding.text, gpu=None, xid=finding.xid)
            await self._node.clock.sleep(KERNEL_POLL_S)

    def _report_fault(self, origin: Literal["kernel", "nvml"], text: str, *, gpu: int | None, xid: int | None) -> None:
        _log.warning("fault of the node", action="worker.fault-observed", origin=origin, gpu=gpu, xid=xid, text=text)
        event = NodeFaultObserved(
            node=self._node.settings.node,
            pool=self._node.settings.pool,
            session=self._node.session,
            origin=origin,
            gpu=gpu,
            xid=xid,
            text=text,
            at=self._node.clock.now(),
        )
        self._node.outbox.put(node_fault(event))
