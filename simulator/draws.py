"""Randomness from a seed, the same on every machine; the only place of the simulator that imports `random`."""

from __future__ import annotations

import random  # noqa: TID251 - seeded draws; nothing here is a secret


def drawn_from(seed: int, *parts: str) -> random.Random:
    """Return the generator of a seed and a purpose: two purposes of one seed do not share their draws."""
    return random.Random("/".join((str(seed), *parts)))  # noqa: S311
