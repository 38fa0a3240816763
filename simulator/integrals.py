"""Time integrals of a cluster, from counters that change per event: nothing is sampled.

All averages are over [first submit, last submit]: the drain after the last submission is up to 42 % of a makespan.
"""

from __future__ import annotations


class Integrals:
    """Allocated GPUs, their median, and fragmentation, over the window."""

    def __init__(self, gpus: int, nodes: int, start_s: float, end_s: float, unit: int = 1) -> None:
        """Everything is counted in GPUs, or in parts of them: so many `unit`s are a GPU."""
        self.unit, self.gpus, self.nodes = unit, gpus * unit, nodes
        self.allocated_max = 0
        self._peak = 0.0  # of earlier sizes
        self.start_s, self.end_s = start_s, end_s
        self.allocated = 0
        self.partial = 0  # nodes with 0 < free < all
        self.partial_free = 0  # free GPUs on them
        self._at = start_s
        self.down = 0  # GPUs of nodes that are lost
        self._allocated_s: dict[int, float] = {}  # allocated GPUs -> seconds, with all nodes up
        self._reduced_s: dict[tuple[int, int], float] = {}  # (allocated, down) -> seconds, with nodes down
        self._earlier: list[tuple[int, int, float]] = []  # (allocated, schedulable, seconds) of earlier sizes
        self._partial_s = 0.0
        self._partial_share_s = 0.0  # of earlier sizes
        self._partial_free_s = 0.0

    def until(self, at: float) -> None:
        """Everything stood as it stands from the last change to now."""
        last = self._at
        at = min(at, self.end_s)
        if at > last:
            lasted = at - last
            if self.down:
                self._reduced_s[self.allocated, self.down] = (
                    self._reduced_s.get((self.allocated, self.down), 0.0) + lasted
                )
            else:
                self._allocated_s[self.allocated] = self._allocated_s.get(self.allocated, 0.0) + lasted
            self._partial_s += self.partial * lasted
            self._partial_free_s += self.partial_free * lasted
            self._at = at

    def resize(self, gpus: int, nodes: int) -> None:
        """From now on the cluster has so many GPUs (of which those that are held count, wherever they are) and nodes."""
        if (gpus * self.unit, nodes) == (self.gpus, self.nodes):
            return
        self._peak = self.peak
        self.allocated_max = self.allocated
        self._earlier = self._parts()
        self._partial_share_s += self._partial_s / self.nodes if self.nodes else 0.0
        self._allocated_s, self._reduced_s, self._partial_s = {}, {}, 0.0
        self.gpus, self.nodes = gpus * self.unit, nodes

    def change(self, used_before: int, used_after: int, all_gpus: int) -> None:
        """A node's used GPUs have changed."""
        self.allocated += used_after - used_before
        if used_after > used_before:
            self.allocated_max = max(self.allocated_max, self.allocated)
        if 0 < used_before < all_gpus:
            self.partial -= 1
            self.partial_free -= all_gpus - used_before
        if 0 < used_after < all_gpus:
            self.partial += 1
            self.partial_free += all_gpus - used_after

    def lose(self, gpus: int) -> None:
        """A node with so many GPUs is lost; or is back, with a negative number."""
        self.down += gpus

    @property
    def window_s(self) -> float:
        """Length of the window."""
        return self.end_s - self.start_s

    @property
    def gar(self) -> float:
        """Median over time of allocated / schedulable GPUs."""
        parts = self._parts()
        half, passed = sum(s for _, gpus, s in parts if gpus) / 2, 0.0
        for share, lasted in sorted((n / gpus, s) for n, gpus, s in parts if gpus):
            passed += lasted
            if passed >= half > 0:
                return share
        return self._now

    @property
    def sor(self) -> float:
        """Allocated GPU time / schedulable GPU time."""
        if self.window_s <= 0:
            return self._now
        if not self._reduced_s and not self._earlier:
            allocated = sum(n * s for n, s in sorted(self._allocated_s.items()))
            return allocated / self.window_s / self.gpus if self.gpus else 0.0
        parts = sorted(self._parts())
        schedulable = sum(gpus * s for _, gpus, s in parts)
        return sum(n * s for n, _, s in parts) / schedulable if schedulable else 0.0

    def _parts(self) -> list[tuple[int, int, float]]:
        """Return (allocated, schedulable, seconds)."""
        now = [(n, self.gpus, s) for n, s in self._allocated_s.items()]
        return [*self._earlier, *now, *((n, self.gpus - down, s) for (n, down), s in self._reduced_s.items())]

    @property
    def _now(self) -> float:
        return self.allocated / self.gpus if self.gpus else 0.0

    @property
    def gfr(self) -> float:
        """Time mean of the share of nodes with 0 < free < all."""
        if self.window_s <= 0:
            return self.partial / self.nodes if self.nodes else 0.0
        return (self._partial_share_s + (self._partial_s / self.nodes if self.nodes else 0.0)) / self.window_s

    @property
    def stranded_gpus(self) -> float:
        """Time mean of the free GPUs that no job of a whole node could use."""
        free = self._partial_free_s / self.window_s if self.window_s > 0 else float(self.partial_free)
        return free / self.unit

    @property
    def peak(self) -> float:
        """The largest share of the GPUs that was allocated at once."""
        return max(self._peak, self.allocated_max / self.gpus if self.gpus else 0.0)
