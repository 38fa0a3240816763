"""The command line (design §8). Exit codes: 0 done, 1 the thing asked about failed, 2 wrong use."""

from __future__ import annotations

from schedmate.cli.app import main

__all__ = ["main"]
