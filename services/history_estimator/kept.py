"""What is kept by tenant and key, within a bound for all that one tenant's many keys do not use up for the others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Key = tuple[str, ...]


class Kept(Generic[T]):
    """A table of at most `most` keys. Beyond them the tenant that has the most loses what it has had for the longest time."""

    def __init__(self, make: Callable[[], T], most: int) -> None:
        self._make = make
        self._most = most
        self._keys = 0
        self._own: dict[str, OrderedDict[Key, T]] = {}

    def get(self, tenant: str, key: Key) -> T | None:
        """Return what is kept under a tenant's key, None where nothing is."""
        own = self._own.get(tenant)
        return own.get(key) if own is not None else None

    def at(self, tenant: str, key: Key) -> T:
        """Return what is kept under a tenant's key, made where nothing is."""
        found = self.get(tenant, key)
        if found is None:
            if self._keys >= self._most:
                self._drop()
            found = self._own.setdefault(tenant, OrderedDict())[key] = self._make()
            self._keys += 1
        return found

    def _drop(self) -> None:
        tenant = max(self._own, key=lambda name: len(self._own[name]))
        self._own[tenant].popitem(last=False)
        if not self._own[tenant]:
            del self._own[tenant]
        self._keys -= 1
