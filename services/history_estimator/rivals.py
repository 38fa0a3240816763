"""Which of two ways to know a job was nearer for the last jobs of its class: its likes, or the learned model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KEPT: Final = 0.98
OFF_MAX: Final = 4.0


@dataclass(slots=True)
class Rivals:
    """The fading mean misjudgements of the likes and of the model, in logarithms, over the ended jobs of which both had spoken."""

    alike: float = 0.0
    learned: float = 0.0

    @property
    def model_is_nearer(self) -> bool:
        """Was the model nearer? The tie goes to the likes."""
        return self.learned < self.alike

    def learn(self, said: tuple[float, float], log_s: float) -> None:
        """A job has ended of which the likes and the model had said this."""
        alike, learned = (min(abs(one - log_s), OFF_MAX) for one in said)
        self.alike = KEPT * self.alike + (1.0 - KEPT) * alike
        self.learned = KEPT * self.learned + (1.0 - KEPT) * learned
