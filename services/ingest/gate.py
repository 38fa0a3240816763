"""The gate: who is asking, and is it often enough for now."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from schedmate.infra.clock import Clock
from schedmate.infra.store.port import Store
from schedmate.services.ingest import tokens
from schedmate.services.ingest.access import LOCAL, Principal
from schedmate.services.ingest.limits import RateLimiter
from schedmate.services.ingest.problems import Kind, Problem, rate_limited

_CACHE_LEN_MAX: Final = 10_000
_BEARER: Final = "bearer "


@dataclass(frozen=True, slots=True)
class _Checked:
    principal: Principal
    at: float


class Gate:
    """Turns tokens into principals and holds each tenant to its rate."""

    def __init__(
        self, store: Store, clock: Clock, limiter: RateLimiter, *, tokens_required: bool, cache_s: float
    ) -> None:
        self._store = store
        self._clock = clock
        self._limiter = limiter
        self._tokens_required = tokens_required
        self._cache_s = cache_s
        self._checked: OrderedDict[str, _Checked] = OrderedDict()

    async def enter(self, authorization: str | None, peer: str) -> Principal:
        """Return who asks with this Authorization header from this peer.

        Raises:
            Problem: no valid token where one is needed, or too many calls.
            StoreError: tokens cannot be checked now.
        """
        if authorization is None and not self._tokens_required:
            principal: Principal | None = LOCAL
        else:
            principal = await self.holder(_token_of(authorization))
        # tenants' names have no colon: a peer that guesses tokens has a bucket of its own
        self._take(principal.tenant if principal is not None else f"peer:{peer}")
        if principal is None:
            raise Problem(
                Kind.UNAUTHORIZED,
                "Send a token of your tenant in the Authorization header, as Bearer; an operator makes one (SCHEDMATE_API_TOKEN for the command line).",
                headers={"WWW-Authenticate": 'Bearer realm="schedmate"'},
            )
        return principal

    async def holder(self, text: str) -> Principal | None:
        """Return who holds a token, or None; remembered for a few seconds.

        Raises:
            StoreError: the store did not answer.
        """
        key = tokens.token_hash(text)
        now = self._clock.monotonic()
        checked = self._checked.get(key)
        if checked is not None and now - checked.at < self._cache_s:
            return checked.principal
        self._checked.pop(key, None)
        token = await tokens.find_token(self._store, text)
        if token is None:
            return None
        principal = token.principal()
        self._checked[key] = _Checked(principal, now)
        if len(self._checked) > _CACHE_LEN_MAX:
            self._checked.popitem(last=False)
        return principal

    async def requester(self, header: bytes | None) -> Principal | None:
        """Return who asks on the topic `requests`, by its token header; None when that is missing or wrong."""
        if header is not None:
            return await self.holder(header.decode("utf-8", "replace"))
        return None if self._tokens_required else LOCAL

    def _take(self, key: str) -> None:
        wait_s = self._limiter.take(key, self._clock.monotonic())
        if wait_s > 0:
            raise rate_limited(wait_s)


def _token_of(authorization: str | None) -> str:
    text = authorization or ""
    return text[len(_BEARER) :].strip() if text.lower().startswith(_BEARER) else ""
