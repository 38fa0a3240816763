"""BR-06: gangs that together need more than there is: each holds all or nothing, and each has its turn."""

from __future__ import annotations

import pytest

from tests.dispatching import POLICIES, PoolUnderTest, arrived, cluster, next_round
from tests.pool_invariants import check


def holding(p: PoolUnderTest) -> dict[str, int]:
    """Return how many GPUs each job holds."""
    held: dict[str, int] = {}
    for node in p.state.nodes.values():
        for owner in node.owner.values():
            held[owner] = held.get(owner, 0) + 1
    return held


@pytest.mark.parametrize("policy", POLICIES)
def test_gang_deadlock_of_two_gangs_that_each_need_all_of_a_hundred_nodes(policy: str) -> None:
    p = cluster(nodes=100, gpus=1, policy=policy, start_timeout_s=1e6)
    p.step(arrived("one", nodes=100), arrived("two", nodes=100))
    next_round(p)
    assert holding(p) == {"one": 100}
    p.start("one")
    assert p.state_of("two") == "QUEUED"
    p.exit("one")
    next_round(p)
    assert holding(p) == {"two": 100}
    check(p.state)


@pytest.mark.parametrize("policy", POLICIES)
def test_gang_deadlock_of_more_gangs_of_33_than_the_nodes_can_hold(policy: str) -> None:
    p = cluster(nodes=100, gpus=1, policy=policy, start_timeout_s=1e6)
    names = [f"g{number}" for number in range(4)]  # 132 members on 100 nodes
    p.step(*[arrived(name, nodes=33) for name in names])
    next_round(p)
    done: list[str] = []
    while len(done) < len(names):
        held = holding(p)
        assert set(held.values()) == {33}
        name = next(iter(held))
        if p.state_of(name) == "ASSIGNED":
            p.start(name)
        p.exit(name)
        next_round(p)
        done.append(name)
        check(p.state)
    assert {p.state_of(name) for name in names} == {"SUCCEEDED"}
