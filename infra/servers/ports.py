"""Ports on the loopback, and whether something there answers."""

from __future__ import annotations

import secrets
import socket
import urllib.error
import urllib.request
from pathlib import Path

__all__ = ["HOST", "answers_http", "answers_tcp", "bindable", "free_port"]

HOST = "127.0.0.1"
_LOWEST = 20_000
_TRIES = 200


def free_port() -> int:
    """A free port below the range of outgoing connections.

    Not the kernel's choice for port 0: that lies inside the range, where a client that keeps calling a stopped server
    may be given the server's own port, connect to itself, and so keep the server from coming back.
    """
    highest = _first_outgoing_port() - 1
    for _ in range(_TRIES):
        port = _LOWEST + secrets.randbelow(highest - _LOWEST + 1)
        if bindable(port):
            return port
    message = f"no free port found between {_LOWEST} and {highest}"
    raise OSError(message)


def bindable(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def answers_tcp(port: int, timeout_s: float = 2.0) -> bool:
    """Whether the port accepts a connection."""
    try:
        with socket.create_connection((HOST, port), timeout_s):
            return True
    except OSError:
        return False


def answers_http(port: int, path: str, timeout_s: float = 2.0) -> bool:
    """Whether GET answers with a status below 400."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=timeout_s) as response:
            response.read()
            return True
    except (OSError, urllib.error.URLError):
        return False


def _first_outgoing_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
