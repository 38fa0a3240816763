"""How much GPU time the finished jobs of a pool took, and the Gittins index that follows from it.

The GPU time S of a finished job counts in a bin between two of `EDGES_GPU_S`, each twice the one before. For a live job that has had the
GPU time a (taken as the lower edge of its bin) the index is

    G(a) = max over edges b > a of  P(S <= b | S > a) / E[min(S, b) - a | S > a]

the chance to end within a further b - a of GPU time, over what that is expected to take (Tiresias, NSDI'19, section 3.2, equation 2: the
attained service is two-dimensional, GPUs times time; b - a is its service quantum). In the first queue b goes up to where the queue ends.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, Final, Self

_FIRST_GPU_S: Final = 18_000.0 / 256
_DOUBLINGS: Final = 24
EDGES_GPU_S: Final = tuple(_FIRST_GPU_S * 2.0**n for n in range(_DOUBLINGS))
BINS: Final = _DOUBLINGS + 1
FINISHED_MIN: Final = 100
"""So many jobs have to have finished before anything follows from them."""
REFRESHED_EVERY: Final = 50
"""The order of the bins is found anew after so many more."""


def bin_of(gpu_s: float) -> int:
    """Return the bin of an attained GPU time: on an edge it is the one below."""
    return bisect_left(EDGES_GPU_S, gpu_s)


def next_edge(gpu_s: float) -> float | None:
    """Return the GPU time above which a job leaves its bin, None in the last one."""
    at = bin_of(gpu_s)
    return EDGES_GPU_S[at] if at < len(EDGES_GPU_S) else None


@dataclass(slots=True)
class Attained:
    """Counts and sums by bin, and `places`: for each bin of live jobs its place by the index, lowest first; empty while too few are known."""

    counts: list[int] = field(default_factory=lambda: [0] * BINS)
    sums: list[float] = field(default_factory=lambda: [0.0] * BINS)
    finished: int = 0
    places: list[int] = field(default_factory=list)

    def learn(self, gpu_s: float, level_gpu_s: float) -> bool:
        """A job has finished; return whether that moves anybody. `level_gpu_s` is where the first queue ends."""
        at = bin_of(gpu_s)
        self.counts[at] += 1
        self.sums[at] += gpu_s
        self.finished += 1
        if self.finished < FINISHED_MIN or self.finished % REFRESHED_EVERY:
            return False
        before, self.places = self.places, _places(self.indices(level_gpu_s))
        return self.places != before

    def place(self, gpu_s: float) -> int:
        """Return the place of a job that has had so much GPU time, 0 for all while too few are known."""
        return self.places[bin_of(gpu_s)] if self.places else 0

    def indices(self, level_gpu_s: float) -> list[float]:
        """Return the Gittins index of each bin; 0 where nobody has been seen to end."""
        return [self._index(at, level_gpu_s) for at in range(BINS)]

    def _index(self, at: int, level_gpu_s: float) -> float:
        low = EDGES_GPU_S[at - 1] if at else 0.0
        alive = sum(self.counts[at:])
        best, ended, spent = 0.0, 0, 0.0
        for upper in range(at, BINS):
            edge = EDGES_GPU_S[upper] if upper < len(EDGES_GPU_S) else None
            if edge is not None and low < level_gpu_s < edge and upper > at:
                break  # beyond the end of the first queue
            ended += self.counts[upper]
            spent += self.sums[upper] - low * self.counts[upper]
            quantum = spent + ((edge - low) * (alive - ended) if edge is not None else 0.0)
            if quantum > 0.0:
                best = max(best, ended / quantum)
        return best

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "counts": list(self.counts),
            "sums": list(self.sums),
            "finished": self.finished,
            "places": list(self.places),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return it from a JSON object."""
        return cls(list(value["counts"]), list(value["sums"]), value["finished"], list(value["places"]))


def _places(indices: list[float]) -> list[int]:
    """Return each bin's place by its index, the highest first; bins of the same index share a place."""
    order = sorted(set(indices), reverse=True)
    return [order.index(one) for one in indices]
