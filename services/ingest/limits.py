"""The rate of each tenant: a token bucket (pure: the time is told)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float


class RateLimiter:
    """Token buckets by key; at most `keys_max` are remembered, those unused longest are forgotten (and so full again)."""

    def __init__(self, rate_per_s: float, burst: float, keys_max: int = 10_000) -> None:
        if rate_per_s <= 0 or burst < 1:
            raise ValueError("a rate limit needs a rate above 0 and a burst of at least 1")
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._keys_max = keys_max
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, key: str, now_s: float) -> float:
        """Take one token; return 0, or the seconds until there is one (and take none)."""
        bucket = self._buckets.pop(key, None) or _Bucket(self._burst, now_s)
        self._buckets[key] = bucket
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        bucket.level = min(self._burst, bucket.level + max(0.0, now_s - bucket.at) * self._rate_per_s)
        bucket.at = now_s
        if bucket.level >= 1:
            bucket.level -= 1
            return 0.0
        return (1 - bucket.level) / self._rate_per_s
