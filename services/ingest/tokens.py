"""API tokens: made once, shown once, kept as a hash.

A token is 256 random bits, so its SHA-256 needs no salt. A token's id (the start of that hash) is no secret: it names the
token in lists, in the audit and when it is revoked.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from schedmate.infra.clock import Clock
from schedmate.infra.store.port import Json, Store, scan_all
from schedmate.services.ingest.access import Principal, Scope

COLLECTION: Final = "tokens"
PREFIX: Final = "smt_"
ENTROPY_BYTES: Final = 32
TEXT_LEN_MAX: Final = 200
_ID_HEX: Final = 16


@dataclass(frozen=True, slots=True)
class Token:
    """A stored token, without its text."""

    id: str
    sha256: str
    tenant: str
    subject: str
    scopes: frozenset[Scope]
    created_at: float

    def principal(self) -> Principal:
        """Return who holds this token."""
        return Principal(self.subject, self.tenant, self.scopes)


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token just made: `text` is told this once."""

    text: str
    token: Token


def token_hash(text: str) -> str:
    """Return the hash that is kept of a token."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def token_id(digest: str) -> str:
    """Return the public id of the token with this hash."""
    return f"tok_{digest[:_ID_HEX]}"


def looks_like_a_token(text: str) -> bool:
    """Tell whether a text could be a token, before any store is asked."""
    return text.startswith(PREFIX) and len(text) <= TEXT_LEN_MAX and text.isascii() and text.isprintable()


def matches(token: Token, text: str) -> bool:
    """Tell whether a text is this token; takes the same time either way."""
    return hmac.compare_digest(token.sha256, token_hash(text))


def to_body(token: Token) -> dict[str, Json]:
    """Return the document of a token."""
    return {
        "sha256": token.sha256,
        "tenant": token.tenant,
        "subject": token.subject,
        "scopes": sorted(scope.value for scope in token.scopes),
        "created_at": token.created_at,
    }


def from_body(doc_id: str, body: Mapping[str, Json]) -> Token:
    """Return the token of a document."""
    return Token(
        id=doc_id,
        sha256=str(body["sha256"]),
        tenant=str(body["tenant"]),
        subject=str(body["subject"]),
        scopes=frozenset(Scope(scope) for scope in body["scopes"]),
        created_at=float(body["created_at"]),
    )


async def create_token(
    store: Store,
    clock: Clock,
    *,
    tenant: str,
    subject: str,
    scopes: Iterable[Scope],
    entropy: Callable[[int], bytes] = secrets.token_bytes,
) -> NewToken:
    """Make a token and keep its hash. The text is in the result and nowhere else.

    Raises:
        StoreError: the store did not take it; the text is then worthless.
    """
    text = PREFIX + urlsafe_b64encode(entropy(ENTROPY_BYTES)).rstrip(b"=").decode()
    return NewToken(text, await keep_token(store, clock, text, tenant, subject, frozenset(scopes)))


async def keep_token(
    store: Store, clock: Clock, text: str, tenant: str, subject: str, scopes: frozenset[Scope]
) -> Token:
    """Keep the hash of a token that was made before."""
    digest = token_hash(text)
    token = Token(token_id(digest), digest, tenant, subject, scopes, clock.now())
    await store.put(COLLECTION, token.id, to_body(token))
    return token


async def revoke_token(store: Store, doc_id: str) -> bool:
    """Forget a token by its id; False when there was none. Instances notice within their cache's seconds."""
    return await store.delete(COLLECTION, doc_id)


async def list_tokens(store: Store) -> list[Token]:
    """Return all tokens, without their texts."""
    return [from_body(d.id, d.body) async for d in scan_all(store, COLLECTION, low="", high="\U0010ffff")]


async def find_token(store: Store, text: str) -> Token | None:
    """Return the token of this text, or None.

    Raises:
        StoreError: the store did not answer.
    """
    if not looks_like_a_token(text):
        return None
    document = await store.get(COLLECTION, token_id(token_hash(text)))
    if document is None:
        return None
    token = from_body(document.id, document.body)
    return token if matches(token, text) else None
