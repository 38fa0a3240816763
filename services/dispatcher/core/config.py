"""A pool's settings, as the core sees them. A change of settings is an input, so that a replay knows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from typing import Any, Final, Self

from schedmate.services.dispatcher.core.placement import PLACERS


@dataclass(frozen=True, slots=True)
class Budget:
    """How often a cause may cost a job another attempt, and how long it waits before it.

    Back-off of the n-th time (from 1): min(base_s * 2**(n-1), cap_s); the first `free` times wait nothing.
    """

    cap: int
    base_s: float
    cap_s: float
    free: int = 0

    def backoff_s(self, times: int) -> float:
        """Return the wait before the attempt that this cause costs for the `times`-th time."""
        if times <= self.free:
            return 0.0
        return float(min(self.base_s * 2.0 ** min(times - self.free - 1, 30), self.cap_s))


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Limits and bounds of a pool. Times in seconds."""

    policy: str = "fifo"
    start_timeout_s: float = 120.0
    stop_grace_s: float = 10.0
    stop_timeout_s: float = 60.0
    diagnosis_wait_s: float = 10.0
    lease_expires: bool = True  # False: a silent node keeps its runs until it returns or is declared dead
    gpus_per_job_max: int | None = None
    time_limit_s_max: int | None = None
    tenant_gpus_max: int | None = None  # for every tenant not named below
    tenant_gpus: dict[str, int] = field(default_factory=dict)
    tenant_quota: dict[str, int] = field(default_factory=dict)  # nominal GPUs; none named: no quotas (core/quota.py)
    borrowers: str = "any"  # who may go over its tenant's quota: "any", "resumable" (jobs that can resume), "none"
    reclaim_min_run_s: float = 60.0  # so long runs whoever borrows before its GPUs are taken back
    preemption: bool = False  # may a job of a higher priority class take the GPUs of lower ones?
    preemption_min_run_s: float = 60.0
    ageing_s: float = 0.0  # so much waiting ranks a job one class higher; 0: none does (core/ageing.py)
    ageing_classes_max: int = 3  # by so many classes at most, and never above the highest
    reservation_horizon_s: float = (
        86_400.0  # so long before one begins nobody starts of whom it is not known when he ends
    )
    reservation_stops: str = (
        "resumable"  # who is stopped as one begins: "resumable" (jobs that can resume), "all", "none"
    )
    fast_failure_s: float = 10.0
    strikes_max: int = 3  # so many jobs in a row fail fast on a node and nowhere else: it is cordoned
    infrastructure: Budget = Budget(cap=20, base_s=1.0, cap_s=300.0, free=1)
    launch: Budget = Budget(cap=5, base_s=1.0, cap_s=60.0)
    preempted: Budget = Budget(cap=100, base_s=0.0, cap_s=0.0)
    user_backoff_s: float = 1.0
    user_backoff_cap_s: float = 60.0
    advice: str = "weighed"  # "shadow": scored without acting; "off": neither; "raw": taken as it is (core/advice.py)
    advice_rule: str = "p50"  # by what of an estimate jobs are ordered: "p50", or "quantiles" (core/advice.py)
    advice_ratio_max: float = 10_000.0  # no estimate counts for more than so many times more, or less, than none
    wait_max_s: float = 0.0  # whoever has waited so long goes first under any policy; 0: advice alone is bounded so
    advice_wait_max_s: float = 14 * 86_400.0  # whoever has waited so long goes first, whatever advice says
    gpu_sharing: bool = (
        False  # may jobs hold parts of a GPU, or be packed? Without, who asks for a part gets a whole one
    )
    placer: str = ""  # the name of a placer (core/placement.py) that stands in for the policy's own
    level_gpu_s: float = 0.0  # attained GPU time above which `tiresias` ranks a job lower; 0: the policy's own
    inference_zone: str = ""  # the nodes, racks and spines (with commas) that `kant-spread` keeps for inference
    gpu_memory_mib: int = (
        24_576  # of a GPU that does not tell its own; two jobs that share must fit into it (core/sharing.py)
    )
    sharing_score_max: int = (
        2  # what the sharing classes of two jobs on the same GPUs may come to: Tiny 0, Medium 1, Jumbo 2
    )
    packs_several_nodes: bool = False  # may two jobs of several nodes share?
    profiler_nodes: int | None = None  # nodes on which jobs run first, where the policy profiles (core/profiling.py)
    profiler_s: float = 80.0  # for at most so long
    profiler_gpus_max: int = 8  # jobs of at most so many GPUs
    early_max: int = 10_000  # events held for jobs not seen yet
    decisions_max: int = 2_000  # decisions and seats: a step stops there and goes on in the next one

    def user_budget(self, retries: int) -> Budget:
        """Return the budget of a job's own failures."""
        return Budget(cap=retries, base_s=self.user_backoff_s, cap_s=self.user_backoff_cap_s)

    def tenant_limit(self, tenant: str) -> int | None:
        """Return how many GPUs the tenant may hold at once, None for no limit."""
        return self.tenant_gpus.get(tenant, self.tenant_gpus_max)

    def nominal(self, tenant: str) -> int:
        """Return the tenant's quota of GPUs."""
        return self.tenant_quota.get(tenant, 0)

    def may_borrow(self, *, resumable: bool) -> bool:
        """Tell whether a job may go over its tenant's quota."""
        return self.borrowers == "any" or (self.borrowers == "resumable" and resumable)

    def most(self, tenant: str, *, borrows: bool) -> int | None:
        """Return how many GPUs the tenant may hold with a job that may borrow, or may not; None for no limit."""
        limit = self.tenant_limit(tenant)
        if borrows or not self.tenant_quota:
            return limit
        nominal = self.nominal(tenant)
        return nominal if limit is None else min(nominal, limit)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the settings of a JSON object; unknown names and values that make no sense are refused (TypeError)."""
        given = dict(value)
        for budget in ("infrastructure", "launch", "preempted"):
            if isinstance(given.get(budget), dict):
                given[budget] = Budget(**given[budget])
        unknown = set(given) - {f.name for f in fields(cls)}
        if unknown:
            raise TypeError(f"unknown pool settings: {', '.join(sorted(unknown))}")
        made = cls(**given)
        for f in fields(cls):
            _check(f.name, getattr(made, f.name), getattr(cls(), f.name))
        for name, choices in _CHOICES.items():
            if getattr(made, name) not in choices:
                raise TypeError(f"pool setting {name} is one of {', '.join(choices)}, not {getattr(made, name)!r}")
        if made.placer and made.placer not in PLACERS:
            raise TypeError(f"no placer is called {made.placer!r}; there are {', '.join(PLACERS)}")
        for f in fields(Budget):
            for name in ("infrastructure", "launch", "preempted"):
                _check(f"{name}.{f.name}", getattr(getattr(made, name), f.name), 0.0 if f.name.endswith("_s") else 0)
        return made


WITHHELD: Final = frozenset({"shadow", "off"})
"""Advice moves nobody: every job stands where it stands without."""
UNSCORED: Final = frozenset({"raw", "off"})
"""Advice is not scored: it is the truth, or nobody asks."""
_CHOICES: Final = {
    "advice": ("weighed", "shadow", "off", "raw"),
    "advice_rule": ("p50", "quantiles"),
    "borrowers": ("any", "resumable", "none"),
    "reservation_stops": ("resumable", "all", "none"),
}


def _check(name: str, value: object, default: object) -> None:
    """Refuse a value of another kind than its default's; numbers are finite and not negative, where none is a limit it may be one."""
    if value is None and default is None:
        return
    if isinstance(default, (str, bool, Budget)):
        good = isinstance(value, type(default))
    elif isinstance(default, dict):
        good = isinstance(value, dict) and all(isinstance(k, str) and _is_count(v) for k, v in value.items())
    elif isinstance(default, float):
        good = _is_count(value) or (isinstance(value, float) and isfinite(value) and value >= 0)
    else:
        good = _is_count(value)
    if not good:
        raise TypeError(f"pool setting {name} cannot be {value!r}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
