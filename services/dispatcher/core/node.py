"""A node of a pool, as a plain value. Changed by `fold` and by applied decisions only."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from schedmate.services.dispatcher.core.capacity import GpuClass


@dataclass(slots=True)
class Node:
    """One node. `owner` maps a GPU index to the job that holds the whole of it, whether or not the node still reports that GPU."""

    name: str
    order: int
    session: int = 0
    boot_id: str = ""
    rack: str | None = None
    spine: str | None = None
    applied: tuple[int, int] = (-1, -1)
    lease_s: float = 0.0
    address: str = ""
    port_min: int = 0
    port_max: int = 0
    port_next: int = 0
    gpus: dict[int, GpuClass] = field(default_factory=dict)  # usable ones
    gpus_reported: int = 0
    owner: dict[int, str] = field(default_factory=dict)
    guests: dict[int, str] = field(default_factory=dict)  # GPUs that a second job shares with their owner
    shares: dict[int, dict[str, int]] = field(default_factory=dict)  # GPUs held in part: by whom, thousandths
    ports: dict[int, str] = field(default_factory=dict)
    alive: bool = False
    unreachable: bool = False
    stopping: bool = False
    draining: bool = False
    cordoned: str | None = None
    cordon_wanted: str | None = None
    reserved: str | None = None  # the reservation whose maintenance it is in
    reserved_told: bool = False  # as last decided
    strikes: tuple[str, ...] = ()
    told: tuple[bool, bool, bool, bool] = (
        False,
        False,
        False,
        False,
    )  # alive, draining, cordoned, unreachable as last decided

    @property
    def owners(self) -> tuple[str, ...]:
        """The jobs that hold its GPUs, in the order of the GPUs: `owner` itself is in another order after a recovery."""
        whole = dict.fromkeys(job for _, job in sorted(self.owner.items()))
        whole |= dict.fromkeys(job for _, job in sorted(self.guests.items()))
        return tuple(whole | dict.fromkeys(job for _, held in sorted(self.shares.items()) for job in sorted(held)))

    @property
    def schedulable(self) -> bool:
        """May something be started on it?"""
        held = self.unreachable or self.stopping or self.draining
        return self.alive and not (held or self.cordoned is not None or self.reserved is not None)


_NODE_FIELDS: Final = tuple(f.name for f in fields(Node))


def node_to_json(node: Node) -> dict[str, Any]:
    """Return a node as a JSON object; who owns its GPUs follows from the jobs."""
    out = {name: getattr(node, name) for name in _NODE_FIELDS}
    out["applied"] = list(node.applied)
    out["gpus"] = [[i, c[0], c[1]] for i, c in node.gpus.items()]
    out["owner"], out["guests"], out["shares"], out["ports"] = {}, {}, {}, {}
    out["strikes"], out["told"] = list(node.strikes), list(node.told)
    return out


def node_from_json(value: dict[str, Any]) -> Node:
    """Return the node of a JSON object, with nobody on it."""
    given = dict(value)
    given["applied"] = tuple(given["applied"])
    given["gpus"] = {i: (kind, memory) for i, kind, memory in given["gpus"]}
    given["owner"], given["guests"], given["shares"], given["ports"] = {}, {}, {}, {}
    given["strikes"], given["told"] = tuple(given["strikes"]), tuple(given["told"])
    return Node(**given)
