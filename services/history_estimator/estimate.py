"""A distribution of the run time, and how progress makes it one of its own. Pure. Nothing known gives `unknown`, without numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schedmate.schemas.events import EstimateBasis


@dataclass(frozen=True, slots=True)
class Estimate:
    """A distribution of the run time, in seconds, and what it rests on."""

    basis: EstimateBasis
    p10_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    early_end_risk: float | None = None
    similar: tuple[str, ...] = ()
    similar_elsewhere: int = 0
    gpu_utilisation: float | None = None
    gpu_memory_bytes: int | None = None
    sharing_class: str | None = None


UNKNOWN: Final = Estimate(EstimateBasis.UNKNOWN)


def from_progress(before: Estimate | None, *, elapsed_s: float, eta_s: float, fraction: float | None) -> Estimate:
    """Estimate the whole run time from how far a run is; what is left is the less certain the less is done."""
    doubt = 1.0 - (fraction if fraction is not None else 0.0)
    return Estimate(
        EstimateBasis.PROGRESS,
        p10_s=elapsed_s + eta_s / (1.0 + 0.5 * doubt),
        p50_s=elapsed_s + eta_s,
        p90_s=elapsed_s + eta_s * (1.0 + doubt),
        early_end_risk=before.early_end_risk if before is not None else None,
        similar=before.similar if before is not None else (),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of ordered values, linear between them (Hyndman and Fan 1996, type 7)."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
