"""Topics and collections, read from the one file that decides them (`topology.toml`)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. `retention_s` counts for cleanup `delete` only."""

    name: str
    partitions: int
    retention_s: int
    cleanup: Literal["delete", "compact"]
    record_bytes_max: int


@dataclass(frozen=True, slots=True)
class Index:
    """An index on a top-level field of a collection's documents."""

    field: str
    unique: bool


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection: documents with an id and a version, and further indexes."""

    name: str
    indexes: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """All topics and all collections, by name."""

    topics: dict[str, Topic]
    collections: dict[str, Collection]


@cache
def topology() -> Topology:
    """Return the topology that this version of the program was built with."""
    table = tomllib.loads(resources.files("schedmate.schemas").joinpath("topology.toml").read_text("utf-8"))
    defaults = table["defaults"]
    return Topology(
        topics={name: Topic(name=name, **{**defaults, **given}) for name, given in table["topics"].items()},
        collections={
            name: Collection(name, tuple(Index(**i) for i in given.get("indexes", ())))
            for name, given in table["collections"].items()
        },
    )
