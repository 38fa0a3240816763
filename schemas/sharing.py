"""How heavily a job uses a GPU, in three classes: what decides with whom it may share one.

Hu et al., "Lucid: A Non-Intrusive, Scalable and Interpretable Scheduler for Deep Learning Training Jobs", ASPLOS'23, section 3.3, has the
classes; the thresholds are ours (docs/policies/lucid.md): the paper's come out of a decision tree learnt on one machine.
"""

from __future__ import annotations

from typing import Final

TINY, MEDIUM, JUMBO = 0, 1, 2
CLASS_NAMES: Final = ("tiny", "medium", "jumbo")

TINY_UTILISATION_MAX: Final = 0.35
TINY_MEMORY_UTILISATION_MAX: Final = 0.15
MEDIUM_UTILISATION_MAX: Final = 0.7
MEDIUM_MEMORY_UTILISATION_MAX: Final = 0.4
MEDIUM_MEMORY_MAX: Final = 0.4  # of the GPU's


def sharing_class(utilisation: float, memory_utilisation: float, memory: float, memory_of_gpu: float) -> int:
    """Return the class of a job by its mean shares (0 to 1) of a GPU's time and of its memory's time, and the memory it uses, of how much.

    The two amounts of memory are in one unit, whichever.
    """
    if utilisation <= TINY_UTILISATION_MAX and memory_utilisation <= TINY_MEMORY_UTILISATION_MAX:
        return TINY
    fits = memory <= MEDIUM_MEMORY_MAX * memory_of_gpu
    if utilisation <= MEDIUM_UTILISATION_MAX and memory_utilisation <= MEDIUM_MEMORY_UTILISATION_MAX and fits:
        return MEDIUM
    return JUMBO
