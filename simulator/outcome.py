"""What a simulation is told beside the trace and the policy, and what becomes of its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from schedmate.services.dispatcher.core.decisions import Seat
from schedmate.services.dispatcher.core.sharing import Profile
from schedmate.simulator.integrals import Integrals
from schedmate.simulator.residents import Residents

RESTART_S, RESTART_LARGE_S, LARGE_GPUS = 40.0, 60.0, 8


class Advisor(Protocol):
    """A source of advice. `basis` is what the estimate is said to rest on."""

    basis: str

    def estimate_s(self, number: int, pool: str) -> float | None:
        """Return the estimated run time of the job at this place of the trace, asked once, as it arrives."""
        ...

    def quantiles(self, number: int) -> tuple[float | None, float | None, str]:
        """Return the 10 % and 90 % quantile that belong to the estimate, in seconds, and what it rests on; asked after `estimate_s`."""
        ...

    def started(self, number: int, at: float) -> None:
        """The job runs, for the first time."""
        ...

    def finished(self, number: int, pool: str, at: float) -> None:
        """The job has ended: its run time is known from now on."""
        ...


Traits = tuple[float | None, int | None, str | None]
"""Utilisation, memory of a GPU in MiB and sharing class."""


@runtime_checkable
class Informant(Advisor, Protocol):
    """A source that also knows how jobs use their GPUs, and reads the progress of those that run (`simulator/informed.py`)."""

    def traits(self, number: int) -> Traits:
        """Return how the same job, or one like it, used its GPUs before; asked after `estimate_s`."""
        ...

    def seen(self, number: int, profile: Profile) -> None:
        """A profiler has seen how the job uses its GPUs."""
        ...

    def reads_at_s(self, number: int) -> float | None:
        """Return after how much of its run the job's own progress is believed, None where it prints none."""
        ...

    def read(self, number: int, run_s: float) -> tuple[float | None, float | None, float | None, str]:
        """Return the 10, 50 and 90 % quantile of the run time that its progress tells after so long a run, and what it rests on."""
        ...


@dataclass(frozen=True, slots=True)
class Costs:
    """What the end of a run costs that was stopped for another job or lost with its node.

    A restart of `restart_s`, of `restart_large_s` above 8 GPUs, and the work since the last checkpoint, one every `checkpoint_s` of the run
    (0: none is lost); all of it where the job cannot resume.
    """

    restart_s: float = RESTART_S
    restart_large_s: float = RESTART_LARGE_S
    checkpoint_s: float = 0.0

    def restart(self, gpus: int) -> float:
        """Return the seconds that a restart adds."""
        return self.restart_large_s if gpus > LARGE_GPUS else self.restart_s


@dataclass(slots=True)
class Outcome:
    """What became of each job, by its place in the trace; None: not started, not ended."""

    start_s: list[float | None]
    end_s: list[float | None]
    wait_s: list[float]  # all the time that it held no GPU
    nodes_used: list[int]
    nodes_least: list[int]
    leaves_used: list[int]  # leaf groups of the last placement, 0 without a topology
    leaves_least: list[int]
    integrals: Integrals
    seats: list[tuple[Seat, ...]] | None  # the last ones of each job, where they were asked for
    runs: list[tuple[int, float, float, tuple[Seat, ...]]] | None = (
        None  # (job, from, until, seats) of each run, in the order of their ends
    )
    preemptions: int = 0
    profiled: int = 0  # runs that ended because their time in the profiler was up
    lost_gpu_s: float = 0.0  # restarts, and work that was done again or for nothing
    lost_to_failures_gpu_s: float = 0.0  # of these, what node failures cost
    maintenance_stops: int = 0  # runs that were stopped for the maintenance of a node
    node_failures: int = 0
    failures: int = 0  # runs that ended because a node was lost
    failed: int = 0  # jobs whose budget for such ends was spent
    instants: int = 0
    residents: Residents | None = None
    utilisation: float | None = None  # measured busy share of the GPUs that were held; a simulation measures none
