"""A distribution of a run time as one way to know it tells it, before calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

from schedmate.schemas.events import EstimateBasis
from schedmate.services.history_estimator.estimate import quantile


@dataclass(frozen=True, slots=True)
class Told:
    """A distribution before calibration; logarithms of seconds."""

    basis: EstimateBasis
    low: float
    middle: float
    high: float
    similar: tuple[str, ...] = ()
    elsewhere: int = 0
    points: tuple[float, ...] = ()  # what the middle was chosen from
    judged: str = ""  # apart from others of its basis
    rivals: tuple[tuple[str, float], ...] = ()  # the middles of all who spoke, where several did


def of_logs(basis: EstimateBasis, logs: Sequence[float], similar: tuple[str, ...], elsewhere: int = 0) -> Told:
    """Return the distribution of run times: few observations hide the spread, so the outer quantiles move out, by half for one."""
    ordered = sorted(logs)
    widening = log(1.0 + 0.5 / sqrt(len(ordered)))
    return Told(
        basis, quantile(ordered, 0.1) - widening, quantile(ordered, 0.5), quantile(ordered, 0.9) + widening, similar, elsewhere
    )  # fmt: skip
