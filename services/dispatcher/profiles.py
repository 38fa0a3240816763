"""What a node's report says of how its runs use their GPUs, as far as it is news: chatter stays out of the log."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Final

from schedmate.schemas.events import NodeReported, NodeReportedV3, RunUsage
from schedmate.services.dispatcher.core.inputs import ProfileArrived
from schedmate.services.dispatcher.core.state import PoolState

SHARE_EDGE: Final = 0.05
MEMORY_EDGE_RATIO: Final = 0.05
DIGITS: Final = 3
_BYTES_PER_MIB: Final = 1 << 20


def profiles_of(state: PoolState, report: NodeReported, measured_min_s: float) -> Iterator[ProfileArrived]:
    """Yield the profiles that a report brings.

    A gang's first member speaks for all of it. A run counts once it was measured for `measured_min_s` alone on its GPUs; after that
    when a mean has moved by `SHARE_EDGE`, or the peak of the memory has grown by `MEMORY_EDGE_RATIO`: what a job was once seen to need
    it may need again. Nobody is profiled in a pool whose policy packs nobody.
    """
    if not isinstance(report, NodeReportedV3) or not state.policy.packs:
        return
    jobs = {run.run_id: run for run in report.runs if run.member == 0 and run.state in ("running", "stopping")}
    for one in report.measured:
        run = jobs.get(one.run_id) if one.member == 0 else None
        job = state.jobs.get(run.job_id) if run is not None else None
        if run is None or job is None or job.attempt != run.attempt or one.usage.measured_s < measured_min_s:
            continue
        seen = _profile(job.id, one.usage, job.profile)
        if seen is not None:
            yield seen


def _profile(job: str, usage: RunUsage, known: tuple[float, float, int] | None) -> ProfileArrived | None:
    used, memory_used, memory_bytes = usage.gpu_utilisation, usage.gpu_memory_utilisation, usage.gpu_memory_bytes
    if used is None or memory_used is None or memory_bytes is None:
        return None
    memory_mib = ceil(memory_bytes / _BYTES_PER_MIB)
    if known is not None:
        moved = max(abs(used - known[0]), abs(memory_used - known[1]))
        if moved < SHARE_EDGE and memory_mib <= known[2] * (1 + MEMORY_EDGE_RATIO):
            return None
        memory_mib = max(memory_mib, known[2])
    return ProfileArrived(job, round(used, DIGITS), round(memory_used, DIGITS), memory_mib)
