"""Reads the knowledge files, once."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def knowledge(name: str) -> dict[str, Any]:
    """Return a knowledge file's tables. They are shared: nobody changes them."""
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text("utf-8"))
