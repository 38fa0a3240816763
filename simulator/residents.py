"""Jobs that share GPUs in a simulation: what each is drawn to be, how much slower two are together, and what it comes to.

No public trace says how its jobs use their GPUs, so each job draws a profile from the table here, by a seed: a declared synthetic layer.
The figures are ours, rounded, of the kinds of training that Lucid (Hu et al., ASPLOS'23) measured on GPUs of 24 GiB. So is the model of
interference: two jobs share the GPU's time when together they ask for more than there is, and slow each other down by what both
ask of its memory. It keeps what the paper found: jobs of little use run side by side at nearly full speed, two heavy ones at less
than half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from schedmate.schemas.sharing import CLASS_NAMES
from schedmate.services.dispatcher.core.sharing import Profile
from schedmate.simulator.draws import drawn_from

HOUR_S: Final = 3600.0
MEMORY_SLOWDOWN: Final = 0.15

TABLE: Final[dict[str, tuple[Profile, int]]] = {
    "recommendation": (Profile(0.10, 0.02, 2_100), 4),
    "reinforcement": (Profile(0.13, 0.01, 2_100), 6),
    "point-cloud": (Profile(0.08, 0.07, 5_000), 6),
    "small-vision": (Profile(0.30, 0.08, 2_400), 10),
    "small-vision-large-batch": (Profile(0.50, 0.20, 2_800), 10),
    "mobile-vision": (Profile(0.48, 0.18, 2_700), 6),
    "generative-vision": (Profile(0.65, 0.25, 2_500), 6),
    "generative-vision-large-batch": (Profile(0.94, 0.41, 3_100), 4),
    "recurrent-language": (Profile(0.78, 0.63, 4_600), 6),
    "residual-vision": (Profile(0.95, 0.66, 3_100), 4),
    "large-vision": (Profile(1.00, 0.80, 9_000), 8),
    "translation": (Profile(0.64, 0.25, 11_900), 4),
    "large-language": (Profile(1.00, 0.68, 18_000), 4),
}
"""Profile and weight of each kind of job."""


def drawn(jobs: int, seed: int) -> list[Profile]:
    """Return a profile a job, in the order of the trace."""
    kinds = list(TABLE.values())
    return drawn_from(seed, "profiles").choices([p for p, _ in kinds], [weight for _, weight in kinds], k=jobs)


def speed_beside(job: Profile, other: Profile) -> float:
    """Return how fast a job of a pair runs, as a share of its speed alone; it is the same for both."""
    time = max(1.0, job.utilisation + other.utilisation)
    memory = min(1.0, job.memory_utilisation + other.memory_utilisation)
    return 1.0 / (time + MEMORY_SLOWDOWN * memory)


@dataclass(slots=True)
class Residents:
    """The profiles of a trace's jobs, and figures of the profiler and of the pairs. Jobs by their place in the trace."""

    profiles: Sequence[Profile]
    seed: int = 0
    profiled: int = 0
    ended_there: int = 0
    profiler_gpu_s: float = 0.0
    profiler_wait_s: float = 0.0
    profiler_run_s: float = 0.0
    recalled: int = 0
    recalled_wrong: int = 0
    pairs: int = 0
    shared_gpu_s: float = 0.0
    slowed_gpu_s: float = 0.0
    _joined: set[int] = field(default_factory=set)

    def joined(self, number: int, other: int) -> float:
        """The two are on the same GPUs from now on: return their speed."""
        self._joined |= {number, other}
        self.pairs += 1
        return speed_beside(self.profiles[number], self.profiles[other])

    def known(self, told: str, truly: int) -> None:
        """Of a job that arrives its past tells this sharing class; truly it is of that one."""
        self.recalled += 1
        self.recalled_wrong += told != CLASS_NAMES[truly]

    def left_profiler(self, gpus: int, ran_s: float, wait_s: float, *, ended: bool) -> None:
        """A job has left the profiler, or ended in it."""
        self.profiled += 1
        self.ended_there += ended
        self.profiler_gpu_s += gpus * ran_s
        self.profiler_run_s += ran_s
        self.profiler_wait_s += wait_s

    def shared(self, gpus: int, lasted_s: float, speed: float) -> None:
        """A job of a pair has run at this speed."""
        self.shared_gpu_s += gpus * lasted_s
        self.slowed_gpu_s += gpus * lasted_s * speed

    def figures(self) -> dict[str, Any]:
        """Return the figures, as `docs/metrics-glossary.md` names them."""
        return {
            "profiling": {
                "jobs": self.profiled,
                "ended_there": self.ended_there,
                "gpu_h": self.profiler_gpu_s / HOUR_S,
                "job_s": self.profiler_run_s,
                "recalled": self.recalled,
                "recalled_wrong": self.recalled_wrong,
                "avg_wait_s": self.profiler_wait_s / self.profiled if self.profiled else None,
            },
            "packing": {
                "profiles_seed": self.seed,
                "pairs": self.pairs,
                "jobs": len(self._joined),
                "gpu_h": self.shared_gpu_s / HOUR_S,
                "avg_speed": self.slowed_gpu_s / self.shared_gpu_s if self.shared_gpu_s else None,
            },
        }
