"""Who uses the node's GPUs besides its runs, and whether memory came back after one. Pure: observations in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from schedmate.infra.gpus.port import GpuState
from schedmate.schemas.events import GpuReport


class Use(StrEnum):
    """Whether a GPU may be started on."""

    READY = "ready"
    MISSING = "missing"  # the node has no such GPU, or it is not healthy
    EXTERNAL = "external"  # a process from outside holds memory
    SETTLING = "settling"  # the last run has ended, its memory is not back yet
    HELD = "held"  # and did not come back within the bound


@dataclass(slots=True)
class _Watched:
    state: GpuState
    is_present: bool = True
    was_occupied: bool = False
    settling_since: float | None = None
    use: Use = Use.READY


class GpuWatch:
    """Remembers every GPU ever seen: one that vanishes is reported unhealthy, never left out."""

    def __init__(self, *, idle_memory_mib: int, settle_s: float, expected: Iterable[GpuState] = ()) -> None:
        self._idle_memory_mib = idle_memory_mib
        self._settle_s = settle_s
        self._watched = {state.index: _Watched(state, is_present=False, use=Use.MISSING) for state in expected}

    def observe(
        self, states: Sequence[GpuState], *, ours: AbstractSet[int], occupied: AbstractSet[int], now: float
    ) -> None:
        """Take in what the GPUs show: `ours` are the pids of living runs, `occupied` the GPUs that they hold."""
        seen = {state.index: state for state in states}
        for index, watched in self._watched.items():
            watched.is_present = index in seen
        for index, state in seen.items():
            watched = self._watched.setdefault(index, _Watched(state))
            watched.state = state
            watched.is_present = True
        for index, watched in self._watched.items():
            self._judge(watched, ours, is_occupied=index in occupied, now=now)

    def use(self, index: int) -> Use:
        """Return whether a GPU may be started on, as last observed."""
        return self._watched[index].use if index in self._watched else Use.MISSING

    def present(self) -> frozenset[int]:
        """Return the healthy GPUs."""
        return frozenset(i for i, w in self._watched.items() if w.is_present and w.state.healthy)

    def standing(self) -> tuple[tuple[int, Use], ...]:
        """Return how every GPU stands: a change of it is worth a report at once."""
        return tuple((index, self._watched[index].use) for index in sorted(self._watched))

    def reports(self) -> tuple[GpuReport, ...]:
        """Return what a node report says of each GPU, by index."""
        return tuple(_report(self._watched[index]) for index in sorted(self._watched))

    def _judge(self, watched: _Watched, ours: AbstractSet[int], *, is_occupied: bool, now: float) -> None:
        foreign = set(watched.state.pids or ()) - ours
        if not watched.is_present or not watched.state.healthy:
            watched.use = Use.MISSING
        elif is_occupied:
            watched.settling_since = None
            watched.use = Use.EXTERNAL if foreign else Use.READY
        elif self._is_idle(watched.state, foreign):
            watched.settling_since = None
            watched.use = Use.READY
        elif watched.was_occupied or watched.settling_since is not None:
            watched.settling_since = now if watched.settling_since is None else watched.settling_since
            watched.use = Use.HELD if now - watched.settling_since >= self._settle_s else Use.SETTLING
        else:
            watched.use = Use.EXTERNAL
        watched.was_occupied = is_occupied

    def _is_idle(self, state: GpuState, foreign: AbstractSet[int]) -> bool:
        if foreign:
            return False
        return state.memory_used_mib is None or state.memory_used_mib <= self._idle_memory_mib


def _report(watched: _Watched) -> GpuReport:
    state = watched.state
    return GpuReport(
        index=state.index,
        type=state.type,
        memory_mib=state.memory_mib,
        healthy=watched.is_present and state.healthy,
        busy_external=watched.use is Use.EXTERNAL,
        held=watched.use is Use.HELD,
        utilisation=state.utilisation,
        memory_used_mib=state.memory_used_mib,
    )


def worst(uses: Mapping[int, Use]) -> tuple[int, Use] | None:
    """Return the GPU that most forbids a start, or None when all are ready."""
    for forbidding in (Use.MISSING, Use.EXTERNAL, Use.HELD, Use.SETTLING):
        for index in sorted(uses):
            if uses[index] is forbidding:
                return index, forbidding
    return None
