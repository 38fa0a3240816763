"""What runs do with their GPUs: means and peaks of what the GPUs show while they run. Pure: observations in, figures out.

A GPU shows what all who hold it do together. So a run's own means and peaks are of the time in which it was alone on its GPUs; the
busy time of a GPU that n runs hold goes to each by an nth, so that the sums over runs are those of the GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schedmate.infra.gpus.port import GpuState
from schedmate.infra.processes.port import MemberKey
from schedmate.schemas.events import MeasuredRun, RunUsage

GAP_MAX_S: Final = 60.0
"""Between two observations that lie further apart nobody knows what the GPUs did."""
_BYTES_PER_MIB: Final = 1 << 20


@dataclass(slots=True)
class _Seen:
    """Of one run. Sums weigh each observation by the time since the one before."""

    measured_s: float = 0.0
    busy: float = 0.0
    memory_measured_s: float = 0.0
    memory_busy: float = 0.0
    memory_mib: int | None = None
    memory_total_mib: int | None = None
    gpu_held_s: float = 0.0
    gpu_busy_s: float = 0.0


class Usages:
    """Remembers what was measured of each run from its start until it is forgotten."""

    def __init__(self) -> None:
        self._seen: dict[MemberKey, _Seen] = {}
        self._at: float | None = None
        self._holders: dict[int, frozenset[MemberKey]] = {}

    def observe(self, states: Sequence[GpuState], running: Mapping[MemberKey, Sequence[int]], now: float) -> None:
        """Take in what the GPUs show; `running` are the members whose program runs, with their GPUs.

        What a GPU shows counts for the time since the last observation, and only for those that held it then too.
        """
        holders: dict[int, frozenset[MemberKey]] = {}
        for key, gpus in running.items():
            for gpu in gpus:
                holders[gpu] = holders.get(gpu, frozenset()) | {key}
        past_s = now - self._at if self._at is not None else 0.0
        shown = {state.index: state for state in states if state.healthy and state.utilisation is not None}
        if 0 < past_s <= GAP_MAX_S:
            for key, gpus in running.items():
                if gpus and all(gpu in shown and key in self._holders.get(gpu, ()) for gpu in gpus):
                    alone = all(self._holders[gpu] == holders[gpu] == {key} for gpu in gpus)
                    parts = [len(self._holders[gpu] | holders[gpu]) for gpu in gpus]
                    self._add(key, [shown[gpu] for gpu in gpus], parts, past_s, alone=alone)
        self._at, self._holders = now, holders

    def of(self, key: MemberKey) -> RunUsage | None:
        """Return what was measured of a run, None when nothing was."""
        seen = self._seen.get(key)
        if seen is None:
            return None
        memory, total = seen.memory_mib, seen.memory_total_mib
        return RunUsage(
            measured_s=seen.measured_s,
            gpu_utilisation=_share(seen.busy, seen.measured_s),
            gpu_memory_utilisation=_share(seen.memory_busy, seen.memory_measured_s),
            gpu_memory_bytes=memory * _BYTES_PER_MIB if memory is not None else None,
            gpu_memory_total_bytes=total * _BYTES_PER_MIB if total else None,
            gpu_held_s=seen.gpu_held_s,
            gpu_busy_s=seen.gpu_busy_s,
        )

    def of_all(self, keys: Sequence[MemberKey]) -> tuple[MeasuredRun, ...]:
        """Return what was measured of these runs, as far as anything was."""
        return tuple(
            MeasuredRun(run_id=key.run_id, member=key.member, usage=usage)
            for key in keys
            if (usage := self.of(key)) is not None
        )

    def forget(self, key: MemberKey) -> None:
        """The run is nobody's business any more."""
        self._seen.pop(key, None)

    def _add(
        self, key: MemberKey, states: Sequence[GpuState], parts: Sequence[int], past_s: float, *, alone: bool
    ) -> None:
        seen = self._seen.setdefault(key, _Seen())
        shares = [state.utilisation or 0.0 for state in states]
        seen.gpu_held_s += sum(past_s / n for n in parts)
        seen.gpu_busy_s += sum(share * past_s / n for share, n in zip(shares, parts, strict=True))
        if not alone:
            return
        seen.measured_s += past_s
        seen.busy += past_s * sum(shares) / len(shares)
        memory_shares = [state.memory_utilisation for state in states if state.memory_utilisation is not None]
        if len(memory_shares) == len(states):
            seen.memory_measured_s += past_s
            seen.memory_busy += past_s * sum(memory_shares) / len(states)
        used = [state.memory_used_mib for state in states if state.memory_used_mib is not None]
        if used:
            seen.memory_mib = max(seen.memory_mib or 0, *used)
        sizes = [state.memory_mib for state in states if state.memory_mib]
        if sizes:
            seen.memory_total_mib = min(sizes)


def _share(part_s: float, whole_s: float) -> float | None:
    """Return a mean share, kept within what a share can be; None of no time."""
    return min(max(part_s / whole_s, 0.0), 1.0) if whole_s > 0 else None
