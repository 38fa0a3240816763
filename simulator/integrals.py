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
        self.start_s, self.end_s = start_s, end_s
        self.allocated = 0
        self.partial = 0  # nodes with 0 < free < all
        self.partial_free = 0  # free GPUs on them
        self._at = start_s
        self.down = 0  # GPUs of nodes that are lost
        self._allocated_s: dict[int, float] = {}  # allocated GPUs -> seconds, with all nodes up
        self._reduced_s: dict[tuple[int, int], float] = {}  # (allocated, down) -> seconds, with nodes down
        self._partial_s = 0.0
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

    def change(self, used_before: int, used_after: int, all_gpus: int) -> None:
        """A node's used GPUs have changed."""
        self.allocated += used_after - used_before
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
        half, passed = self.window_s / 2, 0.0
        shares = [(n / self.gpus, s) for n, s in self._allocated_s.items()]
        shares += [(n / max(self.gpus - down, 1), s) for (n, down), s in self._reduced_s.items()]
        for share, lasted in sorted(shares):
            passed += lasted
            if passed >= half:
                return share
        return self.allocated / self.gpus

    @property
    def sor(self) -> float:
        """Time mean of allocated / schedulable GPUs."""
        if self.window_s <= 0:
            return self.allocated / self.gpus
        allocated = sum(n * s for n, s in sorted(self._allocated_s.items()))
        if not self._reduced_s:
            return allocated / self.window_s / self.gpus
        reduced = sorted(self._reduced_s.items())
        down = sum(down * s for (_, down), s in reduced)
        return (allocated + sum(n * s for (n, _), s in reduced)) / (self.window_s * self.gpus - down)

    @property
    def gfr(self) -> float:
        """Time mean of the share of nodes with 0 < free < all."""
        return self._partial_s / self.window_s / self.nodes if self.window_s > 0 else self.partial / self.nodes

    @property
    def stranded_gpus(self) -> float:
        """Time mean of the free GPUs that no job of a whole node could use."""
        free = self._partial_free_s / self.window_s if self.window_s > 0 else float(self.partial_free)
        return free / self.unit

    @property
    def peak(self) -> float:
        """The largest share of the GPUs that was allocated at once."""
        return self.allocated_max / self.gpus
