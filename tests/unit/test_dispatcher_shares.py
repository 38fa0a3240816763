"""Parts of GPUs: a pool that gives them out, and one that does not."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.fragmentation import after, unusable
from schedmate.services.dispatcher.core.reasons import why
from tests.dispatching import PoolUnderTest, arrived, cluster, of_kind, report
from tests.pool_invariants import check


def shared(nodes: int = 1, gpus: int = 2, **config) -> PoolUnderTest:
    return cluster(nodes, gpus, **{"gpu_sharing": True, "policy": "fifo-skip", **config})


def run(p: PoolUnderTest, job: str, **asks) -> tuple[str, tuple[int, ...]]:
    p.running(job, **asks)
    check(p.state)
    (seat,) = p.seats(job)
    return seat


def test_shares_of_one_gpu_lie_side_by_side_and_the_least_left_is_taken_first():
    p = shared(2, 2)
    assert run(p, "a", gpu_milli=600) == ("n1", (0,))
    assert run(p, "b", gpu_milli=700) == ("n1", (1,))
    assert run(p, "c", gpu_milli=300) == ("n1", (1,))  # 0.3 left there, 0.4 on the other: the tighter fit
    assert run(p, "d", gpu_milli=400) == ("n1", (0,))
    assert run(p, "e", gpu_milli=1) == ("n2", (0,))


def test_a_gpu_held_in_part_is_no_whole_jobs_until_its_last_share_has_come_back():
    p = shared(1, 1)
    p.running("a", gpu_milli=100)
    p.running("b", gpu_milli=100)
    p.step(arrived("whole"))
    p.exit("a")
    check(p.state)
    assert p.state_of("whole") == "QUEUED"
    p.exit("b")
    check(p.state)
    assert p.seats("whole") == [("n1", (0,))]


def test_the_shares_of_a_gpu_never_come_to_more_than_the_whole():
    p = shared(1, 1)
    p.running("a", gpu_milli=600)
    p.step(arrived("b", gpu_milli=500))
    assert p.state_of("b") == "QUEUED"
    found = why(p.state, p.state.jobs["b"])
    assert (found.reason, found.detail) == (
        "INSUFFICIENT_GPUS",
        "needs 0.5 of a GPU on one node; the most left of one is 0.4 on n1",
    )
    p.step(arrived("c", gpu_milli=400))
    assert p.state_of("c") == "ASSIGNED"
    check(p.state)


def test_a_pool_that_does_not_share_gives_a_whole_gpu_to_whoever_asks_for_a_part():
    p = cluster(1, 2)
    p.running("a", gpu_milli=100)
    p.running("b", gpu_milli=100)
    assert [p.seats(j) for j in "ab"] == [[("n1", (0,))], [("n1", (1,))]]
    assert [x.gpu_milli for x in of_kind(p.told, d.Placed)] == [1000, 1000]
    check(p.state)


def test_the_setting_may_change_while_shares_are_held():
    p = shared(1, 2)
    p.running("a", gpu_milli=100)
    p.step(i.ConfigChanged(p.state.config.to_json() | {"gpu_sharing": False}))
    p.running("b", gpu_milli=100)
    assert p.seats("b") == [("n1", (1,))]
    p.exit("a")
    p.exit("b")
    check(p.state)
    assert p.state.capacity.free_gpus == 2


@pytest.mark.parametrize("asks", [{"gpu_milli": 0}, {"gpu_milli": -1}, {"gpu_milli": 1001}, {"gpu_milli": 500, "gpus": 2},
                                  {"gpu_milli": 500, "nodes": 2}])  # fmt: skip
def test_a_share_is_a_part_of_one_gpu_and_anything_else_is_refused(asks: dict):
    p = shared()
    assert list(p.step(arrived("a", **asks)).refused) == [0]


def test_several_types_may_do_and_no_other_is_taken():
    p = shared(0, policy="fifo-skip")
    p.step(report("n1", 1, gpu_type="t4"), report("n2", 1, gpu_type="a10"), report("n3", 1, gpu_type="v100"))
    p.running("a", gpu_type="v100|a10")
    p.running("b", gpu_type="v100|a10", gpu_milli=500)
    p.step(arrived("c", gpu_type="v100|a10"), arrived("d", gpu_type="t4x|v10"))
    assert [p.seats(j)[0][0] for j in "ab"] == ["n2", "n3"]
    assert why(p.state, p.state.jobs["c"]).reason == "INSUFFICIENT_GPUS"
    assert why(p.state, p.state.jobs["d"]).reason == "NO_SUCH_GPU_TYPE"


def test_shares_neither_stop_others_nor_are_stopped():
    p = shared(1, 1, preemption=True, preemption_min_run_s=0.0)
    p.running("part", gpu_milli=500, priority=0)
    p.step(arrived("whole", priority=3), after=100.0)
    assert (p.state_of("part"), p.state_of("whole")) == ("RUNNING", "QUEUED")
    p.exit("part")
    p.start("whole")
    p.step(arrived("above", gpu_milli=500, priority=3), after=100.0)
    assert (p.state_of("whole"), p.state_of("above")) == ("RUNNING", "QUEUED")


def test_a_node_that_is_lost_takes_its_shares_with_it_and_comes_back_whole():
    p = shared(1, 1)
    p.running("a", gpu_milli=300)
    p.running("b", gpu_milli=300)
    p.step(i.NodeSilent("n1", 1))
    check(p.state)
    assert p.state.nodes["n1"].shares == {}
    p.step(report("n1", 1, session=2), after=400.0)
    check(p.state)


def test_what_was_recorded_before_there_were_shares_is_read_as_whole():
    old = i.to_json(arrived("a"))
    del old["gpu_milli"]
    assert i.from_json(old) == arrived("a")
    p = cluster(1, 1)
    p.running("a")
    placed = d.to_json(of_kind(p.told, d.Placed)[0])
    assert "gpu_milli" not in placed


@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1300), st.integers(1, 3)), min_size=1, max_size=14),
    policy=st.sampled_from(["fifo-skip", "fgd", "easy", "srtf", "tiresias"]),
)
@settings(max_examples=40, deadline=None)
def test_no_gpu_is_given_out_twice_whatever_comes_and_goes(steps: list[tuple[int, int, int]], policy: str):
    p = shared(2, 2, policy=policy, preemption=True, preemption_min_run_s=0.0)
    for number, (kind, milli, gpus) in enumerate(steps):
        live = [j.id for j in p.state.jobs.values() if j.state in ("ASSIGNED", "RUNNING")]
        if kind < 4 or not live:
            whole = {"gpus": gpus, "nodes": 1 + milli % 2} if milli > 1000 else {}
            job = arrived(f"j{number}", priority=kind, resumable=True, gpu_milli=min(milli, 1000), **whole)
            p.step(job, after=61.0)
        elif kind == 4:
            p.start(live[milli % len(live)], after=61.0)
        else:
            p.exit(live[milli % len(live)])
        check(p.state)


def test_what_a_job_cannot_use_of_a_node_is_counted_by_hand():
    kind, lefts = ("t4", 0), (2, (200, 500))
    assert unusable(kind, lefts, (1, 300, None)) == 200
    assert unusable(kind, (0, (200, 500)), (1, 600, None)) == 700
    assert unusable(kind, lefts, (2, 1000, None)) == 700
    assert unusable(kind, lefts, (4, 1000, None)) == 2700
    assert unusable(kind, lefts, (1, 300, "a100|v100")) == 2700
    assert after(lefts, 1, 300) == (2, (200, 200))
    assert after(lefts, 1, 600) == (1, (200, 400, 500))
    assert after(lefts, 1, 200) == (2, (500,))
    assert after(lefts, 2, 1000) == (0, (200, 500))


def test_the_gradient_keeps_whole_what_others_have_asked_for():
    """Best fit breaks the pair of n1 for a single GPU; whoever counts what has been asked for takes the other node's third."""
    seats = {}
    for policy in ("fifo-skip", "fgd"):
        p = shared(0, policy=policy)
        p.step(report("n1", 2), report("n2", 3))
        for number in range(3):
            p.running(f"pair{number}", gpus=2)
            p.exit(f"pair{number}")
        p.running("single")
        seats[policy] = p.seats("single")[0][0]
    assert seats == {"fifo-skip": "n1", "fgd": "n2"}


def test_a_snapshot_keeps_what_has_been_asked_for():
    p = shared(policy="fgd")
    p.step(arrived("a", gpu_milli=300), arrived("b", gpus=2), arrived("c", gpu_milli=300, gpu_type="t4"))
    body = json.loads(json.dumps(p.state.to_json()))
    assert body["demand"] == [[1, 300, None, 1], [2, 1000, None, 1], [1, 300, "t4", 1]]
