"""Which ended jobs a learned model is fitted on, and when. One model a tenant with enough ended jobs; a common one for the others.

A tenant's own model sees nothing of other tenants, so nobody can move its estimates. In the common one no tenant has more rows than its
share. Fits come at fixed counts of ended jobs: after the first, whenever a quarter more have ended, or 1,000 more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from schedmate.services.history_estimator.learned import ROWS_MAX, Model, Sample

COMMON: Final = ""
REFIT_SHARE: Final = 4
REFIT_MAX: Final = 1_000
COMMON_ROWS_EACH: Final = 1_000
TENANTS_MAX: Final = 1_000

Learned = tuple[Sequence[float], float, int]
"""Of an ended job: row, logarithm of its run time, its number among all."""
Running = tuple[str, Sequence[float], float]
"""Of a job that runs: tenant, row, logarithm of its age."""


@dataclass(slots=True)
class _Fits:
    """The fits of one model."""

    ended: int = 0
    next_at: int = 0
    model: Model | None = None
    jobs: int = 0
    wanted: bool = True


@dataclass(slots=True)
class _Tenant:
    rows: deque[Learned] = field(default_factory=lambda: deque(maxlen=ROWS_MAX))


class Samples:
    """The rows of ended jobs by tenant, and the models fitted on them. `least` is the count of ended jobs that a fit needs."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._fits: OrderedDict[str, _Fits] = OrderedDict({COMMON: _Fits(next_at=least, wanted=False)})
        self._seen = 0

    def learn(self, tenant: str, row: Sequence[float], log_s: float) -> None:
        """A job has ended whole."""
        self._seen += 1
        if tenant not in self._tenants and len(self._tenants) >= TENANTS_MAX:
            gone, _ = self._tenants.popitem(last=False)
            self._fits.pop(gone, None)
        self._tenants.setdefault(tenant, _Tenant()).rows.append((row, log_s, self._seen))
        own = self._fits.setdefault(tenant, _Fits(next_at=self._least))
        own.ended += 1
        if own.model is not None:
            own.model.learn(row, log_s)
        self._fits[COMMON].ended += 1

    def due(self) -> str | None:
        """Return the name of a model that is to be fitted, None for none."""
        return next((name for name, fits in self._fits.items() if fits.wanted and fits.ended >= fits.next_at), None)

    def choose(self, tenant: str, *, across_tenants: bool) -> str | None:
        """Return the name of the model that serves a tenant."""
        own = self._fits.get(tenant)
        if own is not None and own.model is not None:
            return tenant
        common = self._fits[COMMON]
        if not across_tenants:
            return None
        common.wanted = True
        return COMMON if common.model is not None else None

    def model(self, name: str) -> Model | None:
        """Return the fitted model of this name."""
        fits = self._fits.get(name)
        return fits.model if fits is not None else None

    def jobs(self, name: str) -> int:
        """Return on how many ended jobs the model of this name was fitted."""
        fits = self._fits.get(name)
        return fits.jobs if fits is not None else 0

    def sample(self, name: str, running: Sequence[Running]) -> Sample:
        """Return what a fit takes."""
        if name == COMMON:
            taken = [row for tenant in self._tenants.values() for row in list(tenant.rows)[-COMMON_ROWS_EACH:]]
            taken = sorted(taken, key=lambda row: row[2])[-ROWS_MAX:]
            open_rows = running
        else:
            taken = list(self._tenants[name].rows)
            open_rows = [r for r in running if r[0] == name]
        return Sample(
            [r[0] for r in taken], [r[1] for r in taken], [r[1] for r in open_rows], [r[2] for r in open_rows],
            shared=name == COMMON,
        )  # fmt: skip

    def install(self, name: str, model: Model | None, jobs: int) -> None:
        """Take a fitted model into use, and say when the next is due."""
        fits = self._fits.get(name)
        if fits is None:
            return
        fits.model, fits.jobs = model, jobs
        fits.next_at = fits.ended + min(max(fits.ended // REFIT_SHARE, self._least // 3, 1), REFIT_MAX)
