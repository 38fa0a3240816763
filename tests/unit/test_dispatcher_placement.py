"""Where jobs go: leaf groups, what a gang must share, and Kant's packing and spreading."""

from __future__ import annotations

import random  # noqa: TID251 - seeded
from itertools import combinations

import pytest

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.capacity import Group
from schedmate.services.dispatcher.core.reasons import why
from schedmate.services.dispatcher.core.topology import Topology, fewest_leaves
from tests.dispatching import START, PoolUnderTest, arrived, of_kind, report
from tests.pool_invariants import check


def racked(
    racks: dict[str, int], gpus: int = 8, spines: dict[str, str] | None = None, **config: object
) -> PoolUnderTest:
    """Return a pool whose racks have so many nodes: RACK-1, RACK-2 and so on, joined in turn over the racks."""
    p = PoolUnderTest(**config)
    names = [(n, rack) for rack, count in racks.items() for n in range(1, count + 1)]
    p.step(*[report(f"{r}-{n}", gpus, rack=r, spine=(spines or {}).get(r)) for n, r in sorted(names)])
    return p


def racks_of(p: PoolUnderTest, job: str) -> set[str]:
    return {node.rsplit("-", 1)[0] for node, _ in p.seats(job)}


# --- leaf groups ---


def test_a_gang_goes_into_one_rack_where_one_holds_it_and_into_the_smallest_that_does() -> None:
    p = racked({"a": 4, "b": 2, "c": 3})
    p.running("pair", gpus=8, nodes=2)
    assert racks_of(p, "pair") == {"b"}
    p.running("three", gpus=8, nodes=3)
    assert racks_of(p, "three") == {"c"}
    p.running("four", gpus=8, nodes=4)
    assert racks_of(p, "four") == {"a"}
    check(p.state)


def test_a_gang_that_no_rack_holds_takes_the_fewest() -> None:
    p = racked({"a": 3, "b": 1, "c": 2, "d": 3})
    p.running("wide", gpus=8, nodes=5)
    assert racks_of(p, "wide") in ({"a", "c"}, {"d", "c"})  # the largest, then the smallest that is enough
    check(p.state)


def test_of_equal_choices_the_one_within_a_spine_is_taken() -> None:
    p = racked({"a": 2, "b": 2, "c": 2}, spines={"a": "s1", "b": "s2", "c": "s2"})
    p.running("wide", gpus=8, nodes=4)
    assert racks_of(p, "wide") == {"b", "c"}


def test_without_labels_a_gang_goes_where_it_went_before() -> None:
    p = PoolUnderTest()
    p.step(*[report(f"n{n}", 8) for n in range(1, 5)])
    p.running("gang", gpus=8, nodes=3)
    assert [node for node, _ in p.seats("gang")] == ["n1", "n2", "n3"]
    assert p.state.capacity.leaf_free == {}


def test_a_label_that_comes_later_counts_from_then_on_and_chatter_does_not() -> None:
    p = PoolUnderTest()
    p.step(*[report(f"n{n}", 8) for n in range(1, 5)])
    p.step(*[report(f"n{n}", 8, rack="r1" if n in (1, 4) else "r2") for n in range(1, 5)])
    p.running("gang", gpus=8, nodes=2)
    assert [node for node, _ in p.seats("gang")] == ["n1", "n4"]
    assert sum(p.state.capacity.leaf_free.values()) == 16
    p.step(*[report(f"n{n}", 8) for n in range(1, 5)], i.Tick())
    assert not p.state.topology.given


@pytest.mark.parametrize("nodes", [2, 3, 5, 8])
def test_no_choice_of_nodes_has_fewer_leaf_groups(nodes: int, seed: int) -> None:
    rng = random.Random(seed + nodes)
    for _ in range(30):
        topology = Topology()
        groups = [Group(n, f"n{n}", ("gpu", 0), 8, list(range(8)), "x") for n in range(9)]
        for group in groups:
            topology.set_node(group.node, rng.choice(["a", "b", "c", "d"]), rng.choice([None, "s1", "s2"]))
        chosen = fewest_leaves(topology, groups, nodes)
        assert len({g.node for g in chosen}) == nodes
        least = min(len({topology.leaf(g.node) for g in some}) for some in combinations(groups, nodes))
        assert len({topology.leaf(g.node) for g in chosen}) == least


# --- what a gang must share ---


def test_a_gang_that_must_share_a_rack_waits_for_one_though_others_have_room() -> None:
    p = racked({"a": 2, "b": 2}, policy="fifo-skip")
    p.running("x", gpus=8)
    p.running("y", gpus=8, nodes=2)
    assert (racks_of(p, "x"), racks_of(p, "y")) == ({"a"}, {"b"})
    p.running("z", gpus=8)
    p.exit("y")
    p.running("one", gpus=8)
    assert racks_of(p, "one") == {"b"}
    p.exit("z")  # a node is free in either rack
    p.step(arrived("pair", gpus=8, nodes=2, within="rack"))
    assert p.state_of("pair") == "QUEUED"
    p.step(arrived("torn", gpus=4, nodes=2, submitted_at=START + 1))
    assert racks_of(p, "torn") == {"a", "b"}  # it may be anywhere
    p.start("torn")
    p.exit("torn")
    assert p.state_of("pair") == "QUEUED"
    p.exit("x")
    assert racks_of(p, "pair") == {"a"}
    check(p.state)


def test_a_gang_larger_than_every_rack_never_fits_and_the_reason_says_so() -> None:
    p = racked({"a": 2, "b": 2}, spines={"a": "s1", "b": "s1"})
    p.step(arrived("wide", gpus=8, nodes=3, within="rack"))
    said = why(p.state, p.state.jobs["wide"])
    assert said.reason == "NEVER_FITS"
    assert "no rack has more than 2" in said.detail
    p.step(arrived("narrow", gpus=8, submitted_at=START + 1))
    assert p.state_of("narrow") == "ASSIGNED"  # nobody waits behind it
    p.step(arrived("spined", gpus=4, nodes=3, within="spine", submitted_at=START + 2))
    assert p.state_of("spined") == "ASSIGNED"


def test_nodes_without_a_label_hold_no_gang_that_must_share_one() -> None:
    p = PoolUnderTest()
    p.step(report("n1", 8), report("n2", 8))
    p.step(arrived("pair", gpus=8, nodes=2, within="rack"))
    assert p.state_of("pair") == "QUEUED"
    p.step(report("n1", 8, rack="r"), report("n2", 8, rack="r"))
    assert p.state_of("pair") == "ASSIGNED"


def test_a_single_node_shares_with_itself_and_a_wish_that_nobody_knows_is_refused() -> None:
    p = PoolUnderTest()
    p.step(report("n1", 8))
    p.step(arrived("one", gpus=8, within="rack"))
    assert p.state_of("one") == "ASSIGNED"
    done = p.step(arrived("odd", within="row"))
    assert "may share a rack or a spine" in done.refused[0]


def test_nobody_is_stopped_for_a_gang_that_would_not_be_in_one_rack() -> None:
    p = racked({"a": 2, "b": 2}, policy="fifo-skip", preemption=True, preemption_min_run_s=0.0)
    p.running("firm", gpus=8, priority=3)
    p.running("firm2", gpus=8, nodes=2, priority=3)
    p.running("weak", gpus=8, priority=0)
    racks = {job: racks_of(p, job) for job in ("firm", "firm2", "weak")}
    assert racks == {"firm": {"a"}, "firm2": {"b"}, "weak": {"a"}}
    p.step(arrived("urgent", gpus=8, nodes=2, priority=2, within="rack"))
    p.step(i.Tick(), after=100)
    assert p.state_of("weak") == "RUNNING"
    assert of_kind(p.told, d.Stop) == []


def test_a_gang_that_must_share_a_rack_takes_the_gpus_of_one() -> None:
    p = racked({"a": 2, "b": 2}, policy="srtf", advice="raw", preemption_min_run_s=0.0)
    for n in range(4):
        p.step(
            arrived(f"long{n}", gpus=8, resumable=True), i.EstimateArrived(f"long{n}", 1, None, 1000.0 + n, None, "x")
        )
        p.start(f"long{n}")
    p.step(arrived("short", gpus=8, nodes=2, within="rack", resumable=True), i.EstimateArrived("short", 1, None, 10.0, None, "x"))  # fmt: skip
    stopped = {stop.node.rsplit("-", 1)[0] for stop in of_kind(p.told, d.Stop)}
    assert len(stopped) == 1


def test_backfilling_reserves_a_rack_for_a_gang_that_must_share_one() -> None:
    p = racked({"a": 2, "b": 2}, policy="easy", advice="raw")
    for n in range(3):
        p.step(arrived(f"r{n}", gpus=8), i.EstimateArrived(f"r{n}", 1, None, 1000.0 * (n + 1), None, "x"))
        p.start(f"r{n}")
    assert [p.seats(f"r{n}")[0][0] for n in range(3)] == ["a-1", "b-1", "a-2"]
    p.step(arrived("pair", gpus=8, nodes=2, within="rack", submitted_at=START + 1))
    p.step(arrived("long", gpus=8, submitted_at=START + 2), i.EstimateArrived("long", 1, None, 9000.0, None, "x"))
    assert p.state_of("long") == "QUEUED"  # rack b is whole first, and its free node is kept for the pair
    p.step(arrived("brief", gpus=8, submitted_at=START + 3), i.EstimateArrived("brief", 1, None, 100.0, None, "x"))
    assert p.state_of("brief") == "ASSIGNED"
    p.start("brief")
    p.exit("brief")
    p.exit("r1")
    assert racks_of(p, "pair") == {"b"}


# --- Kant ---


def test_kant_breaks_a_node_of_the_fullest_rack_and_keeps_the_others_whole() -> None:
    p = racked({"a": 2, "b": 2}, policy="kant-binpack")
    p.running("first", gpus=8)
    (full,) = racks_of(p, "first")
    p.running("small", gpus=2)
    assert racks_of(p, "small") == {full}
    p.running("pair", gpus=8, nodes=2)
    assert racks_of(p, "pair") == {"a", "b"} - {full}
    check(p.state)


def test_plain_best_fit_breaks_the_first_node_and_the_gang_is_torn() -> None:
    p = racked({"a": 2, "b": 2}, policy="fifo-skip")
    p.running("first", gpus=8)
    p.running("small", gpus=2)
    p.running("pair", gpus=8, nodes=2)
    assert racks_of(p, "pair") == {"a", "b"}


def test_kant_fills_the_node_with_the_least_room_before_it_looks_at_racks() -> None:
    p = racked({"a": 2, "b": 1}, policy="kant-binpack")
    p.running("a1", gpus=6)
    p.running("one", gpus=2)
    assert p.seats("one")[0][0] == p.seats("a1")[0][0]


def test_who_does_not_fit_under_kant_is_passed_over_by_priority_then_submission() -> None:
    p = racked({"a": 1}, policy="kant-binpack")
    p.running("r", gpus=6)
    p.step(
        arrived("wide", gpus=8),
        arrived("late", gpus=2, submitted_at=START + 2),
        arrived("urgent", gpus=2, priority=2, submitted_at=START + 3),
    )
    assert [p.state_of(j) for j in ("wide", "late", "urgent")] == ["QUEUED", "QUEUED", "ASSIGNED"]


def test_inference_is_spread_over_its_zone_and_training_packed_outside() -> None:
    p = racked({"a": 2, "z": 3}, policy="kant-spread", inference_zone="z")
    for n in range(3):
        p.running(f"serve{n}", gpus=1, inference=True)
    assert {p.seats(f"serve{n}")[0][0] for n in range(3)} == {"z-1", "z-2", "z-3"}
    for n in range(3):
        p.running(f"train{n}", gpus=2)
    assert {p.seats(f"train{n}")[0][0] for n in range(3)} == {"a-1"}
    check(p.state)


def test_training_waits_rather_than_take_the_zone_unless_nothing_else_could_ever_hold_it() -> None:
    p = racked({"a": 1, "z": 2}, policy="kant-spread", inference_zone="z")
    p.running("r", gpus=8)
    p.step(arrived("waits", gpus=4))
    assert p.state_of("waits") == "QUEUED"
    p.step(arrived("wide", gpus=8, nodes=2))
    assert racks_of(p, "wide") == {"z"}


def test_inference_that_the_zone_has_no_room_for_is_packed_elsewhere() -> None:
    p = racked({"a": 2, "z": 1}, gpus=4, policy="kant-spread", inference_zone="z")
    p.running("train", gpus=2)
    p.running("s1", gpus=4, inference=True)
    p.running("s2", gpus=2, inference=True)
    assert racks_of(p, "s1") == {"z"}
    assert p.seats("s2")[0][0] == p.seats("train")[0][0]


def test_replicas_of_one_service_go_to_different_racks() -> None:
    p = racked({"a": 2, "b": 2, "c": 2}, policy="kant-spread")
    p.running("service", gpus=1, nodes=3, inference=True)
    assert racks_of(p, "service") == {"a", "b", "c"}
    p.running("together", gpus=1, nodes=2, inference=True, within="rack")
    assert len(racks_of(p, "together")) == 1


def test_without_a_zone_training_goes_anywhere() -> None:
    p = racked({"a": 1}, policy="kant-spread")
    p.running("t", gpus=8)
    assert racks_of(p, "t") == {"a"}


# --- a pool's own placer ---


def test_a_pool_may_name_another_placer_and_change_it() -> None:
    p = racked({"a": 3}, placer="freest")
    p.running("one", gpus=2)
    p.running("two", gpus=2)
    assert {p.seats(j)[0][0] for j in ("one", "two")} == {"a-1", "a-2"}
    p.running("gang", gpus=2, nodes=2)
    assert [node for node, _ in p.seats("gang")] == ["a-3", "a-1"]
    p.running("packed", gpus=13, nodes=0)
    assert [(node, len(gpus)) for node, gpus in p.seats("packed")] == [("a-2", 6), ("a-3", 6), ("a-1", 1)]
    p.step(i.ConfigChanged(p.state.config.to_json() | {"placer": ""}))
    p.running("three", gpus=1)
    assert p.seats("three")[0][0] == "a-1"


def test_a_placer_that_nobody_knows_is_refused() -> None:
    p = racked({"a": 1})
    done = p.step(i.ConfigChanged(p.state.config.to_json() | {"placer": "luckiest"}))
    assert "no placer is called 'luckiest'" in done.refused[0]


def test_the_freest_nodes_of_one_rack_where_a_gang_must_share_it() -> None:
    p = racked({"a": 2, "b": 2}, placer="freest")
    p.running("gang", gpus=8, nodes=2, within="rack")
    assert len(racks_of(p, "gang")) == 1
    p.step(arrived("wide", gpus=8, nodes=3))
    assert p.state_of("wide") == "QUEUED"


@pytest.mark.parametrize("quota", [{}, {"team-a": 16}])
def test_a_gang_that_never_fits_takes_nobody_s_share_of_a_round(quota: dict[str, int]) -> None:
    p = racked({"a": 1, "b": 1}, policy="tiresias", tenant_quota=quota)
    p.step(arrived("never", gpus=8, nodes=2, within="rack"))
    p.step(arrived("next", gpus=8, submitted_at=START + 1))
    for _ in range(2):
        p.step(i.Tick(), after=60)
    assert (p.state_of("never"), p.state_of("next")) == ("QUEUED", "ASSIGNED")


def test_training_is_told_what_is_kept_for_inference_and_not_that_it_failed_there() -> None:
    p = racked({"a": 1, "z": 1}, policy="kant-spread", inference_zone="z")
    p.running("r", gpus=8)
    p.step(arrived("waits", gpus=4))
    said = why(p.state, p.state.jobs["waits"])
    assert said.detail.endswith("; z-1 is kept for inference")
    assert said.waits_for == ("r",)
