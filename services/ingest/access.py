"""Who asks, and what they may: principals, scopes, and the check of Host and Origin on the loopback (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

DEFAULT_TENANT: Final = "default"
LOCAL_USER: Final = "local"


class Scope(StrEnum):
    """What a token allows."""

    SUBMIT = "submit"  # submit, upload bundles, cancel one's own jobs
    READ = "read"  # see one's own jobs, logs and the nodes
    OPERATE = "operate"  # see every tenant; drain, cordon, declare dead, resend
    BUNDLES = "bundles"  # fetch bundles by hash and nothing else: what workers and the analyzer hold


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who asks: a token's subject, or whoever is on this machine."""

    name: str
    tenant: str
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        """Tell whether the principal holds a scope."""
        return scope in self.scopes

    def sees(self, tenant: str) -> bool:
        """Tell whether the principal may see and touch what belongs to this tenant."""
        return tenant == self.tenant or Scope.OPERATE in self.scopes


LOCAL: Final = Principal(LOCAL_USER, DEFAULT_TENANT, frozenset(Scope))
"""Whoever is on this machine, where the loopback needs no token."""


def is_loopback(host: str) -> bool:
    """Tell whether a host to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """Return the host of a Host header, without port and brackets; lower case."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def is_our_host(header: str | None, also: Iterable[str]) -> bool:
    """Tell whether a Host header names this machine: a page that rebinds its name to 127.0.0.1 sends its own name."""
    if not header:
        return False
    host = host_of(header)
    return is_loopback(host) or host in {name.lower() for name in also}


def is_our_origin(header: str | None, also: Iterable[str]) -> bool:
    """Tell whether a request comes from no web page, or from a page of this machine.

    A page elsewhere can send a form to 127.0.0.1 with the right Host; browsers then name the page in Origin.
    """
    if header is None:
        return True
    try:
        host = urlsplit(header).hostname
    except ValueError:
        return False
    return host is not None and is_our_host(host if ":" not in host else f"[{host}]", also)
