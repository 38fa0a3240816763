"""How ended jobs used their GPUs, and what that tells of a job whose estimate rests on them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from schedmate.schemas.events import EstimateBasis
from schedmate.services.history_estimator.groups import median
from schedmate.services.history_estimator.jobs import Ended

JOBS_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class _Used:
    gpu_utilisation: float | None
    gpu_memory_bytes: int | None
    sharing_class: str | None


class Traits:
    """What is known of the newest ended jobs."""

    def __init__(self) -> None:
        self._used: OrderedDict[str, _Used] = OrderedDict()

    def learn(self, ended: Ended) -> None:
        """A job has ended."""
        used = _Used(ended.gpu_utilisation, ended.gpu_memory_bytes, ended.sharing_class)
        if used == _NOTHING:
            return
        self._used[ended.job.id] = used
        if len(self._used) > JOBS_MAX:
            self._used.popitem(last=False)

    def of(self, basis: EstimateBasis, similar: Sequence[str]) -> dict[str, Any]:
        """Return what is known of the jobs behind an estimate, by the names of its fields.

        The sharing class is acted on: only the same job's past tells it, or like jobs that are all of one.
        """
        known = [used for job in similar if (used := self._used.get(job)) is not None]
        utilisation = sorted(u.gpu_utilisation for u in known if u.gpu_utilisation is not None)
        memory = [u.gpu_memory_bytes for u in known if u.gpu_memory_bytes is not None]
        return {
            "gpu_utilisation": median(utilisation) if utilisation else None,
            "gpu_memory_bytes": max(memory) if memory else None,
            "sharing_class": _sharing_class(basis, [u.sharing_class for u in known if u.sharing_class is not None]),
        }


_NOTHING: Final = _Used(None, None, None)


def _sharing_class(basis: EstimateBasis, seen: Sequence[str]) -> str | None:
    agree = basis is EstimateBasis.SIMILAR_JOBS and len(set(seen)) == 1
    if not seen or not (agree or basis is EstimateBasis.EXACT_PRIOR):
        return None
    return max(sorted(set(seen)), key=seen.count)
