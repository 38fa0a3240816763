"""The parts of the scheduling pass: queue, capacity index, fit, preemption; and what a pass may remember from the last one."""

from __future__ import annotations

import random  # noqa: TID251 - seeded

import pytest

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.capacity import Capacity
from schedmate.services.dispatcher.core.policy import UnknownPolicyError, policy_named
from schedmate.services.dispatcher.core.queue import WaitingQueue
from tests.dispatching import START, PoolUnderTest, arrived, of_kind, report
from tests.pool_invariants import check


def pool(nodes: int = 1, gpus: int = 4, **config: object) -> PoolUnderTest:
    under_test = PoolUnderTest(**config)
    under_test.step(*[report(f"n{n + 1}", gpus) for n in range(nodes)])
    return under_test


# --- what a pass remembers ---


def test_a_head_that_is_cancelled_lets_go_of_those_behind_it() -> None:
    p = pool()
    p.running("first", gpus=2)
    p.step(arrived("wide", gpus=4, submitted_at=START + 1))
    p.step(arrived("narrow", gpus=1, submitted_at=START + 2))
    assert p.state_of("narrow") == "QUEUED"
    done = p.step(i.CancelRequested("wide", "ann"))
    assert p.state_of("narrow") == "ASSIGNED"
    check(p.state, done.decisions)


def test_a_limit_that_is_reached_while_nothing_is_freed_is_noticed_in_the_next_pass() -> None:
    p = pool(gpus=8, tenant_gpus={"team-a": 10})
    p.running("other", tenant="team-b", gpus=2)
    p.step(arrived("wide", gpus=8, submitted_at=START + 1))
    assert p.state_of("wide") == "QUEUED"  # no room: the head blocks
    p.step(arrived("urgent", gpus=4, priority=3, submitted_at=START + 2))
    assert p.state_of("urgent") == "ASSIGNED"
    p.step(arrived("late", tenant="team-b", gpus=1, submitted_at=START + 3))
    assert p.state_of("late") == "ASSIGNED"  # the head is at its limit by now, and holds nobody back
    check(p.state)


def test_an_entry_stops_at_its_bound_and_the_next_one_goes_on() -> None:
    p = pool(gpus=8, decisions_max=6)
    p.step(*[arrived(f"j{n}") for n in range(5)])
    assert p.state.more
    for _ in range(5):
        p.step(i.Tick())
    assert not p.state.more
    assert {p.state_of(f"j{n}") for n in range(5)} == {"ASSIGNED"}


def test_a_wide_gang_counts_its_seats_against_the_bound() -> None:
    p = pool(nodes=8, decisions_max=12)
    done = p.step(arrived("a", nodes=8), arrived("b", nodes=8), arrived("c", nodes=8))
    assert len(of_kind(done, d.Placed)) == 1
    assert p.state.more


# --- preemption ---


def test_nobody_is_stopped_where_the_preemptor_would_not_go() -> None:
    """It avoids the node on which it was lost, as the other could hold it: room made there would be made in vain."""
    p = pool(nodes=2, gpus=2, policy="fifo-skip", preemption=True, preemption_min_run_s=0.0)
    p.running("high", gpus=2, priority=3)
    p.running("late", gpus=2, priority=2)
    p.exit("late", None, cause="lost")
    assert p.state.jobs["late"].avoid == ("n2",)
    p.running("low", gpus=2, priority=0)
    p.step(i.Tick(), after=100)
    assert p.state_of("low") == "RUNNING"
    assert of_kind(p.told, d.Stop) == []
    p.exit("high")
    assert p.seats("late")[0][0] == "n1"


def test_victims_whose_stop_outlasts_its_bound_are_not_counted_on() -> None:
    p = pool(nodes=2, gpus=2, policy="fifo-skip", preemption=True, preemption_min_run_s=0.0, stop_timeout_s=10.0)
    p.running("stuck", gpus=2, priority=0)
    p.running("other", gpus=2, priority=1)
    p.step(arrived("urgent", gpus=2, priority=3))
    assert [x.job for x in of_kind(p.told, d.Stop)] == ["stuck"]
    p.step(i.Tick(), after=11)  # it does not die
    assert p.reason_of("stuck") == "STOP_TIMEOUT"
    assert [x.job for x in of_kind(p.told, d.Stop)][-1] == "other"
    p.exit("other", None, cause="stopped")
    assert p.state_of("urgent") == "ASSIGNED"


def test_while_victims_leave_nobody_else_is_stopped_for_the_same_job() -> None:
    p = pool(nodes=2, gpus=2, preemption=True, preemption_min_run_s=0.0)
    p.running("a", gpus=2, priority=0)
    p.running("b", gpus=2, priority=0)
    p.step(arrived("urgent", gpus=2, priority=3))
    for n in range(5):
        p.step(arrived(f"small{n}", gpus=1, priority=2), after=1)
    assert len({x.job for x in of_kind(p.told, d.Stop)}) == 1


def test_a_victim_must_have_run_for_a_while() -> None:
    p = pool(preemption=True, preemption_min_run_s=60.0)
    p.running("low", gpus=4, priority=0)
    p.step(arrived("high", gpus=4, priority=3), after=30)
    assert of_kind(p.told, d.Stop) == []
    p.step(i.Tick(), after=31)
    assert len(of_kind(p.told, d.Stop)) == 1


def test_victims_that_hold_nothing_of_use_stay() -> None:
    p = PoolUnderTest(policy="fifo-skip", preemption=True, preemption_min_run_s=0.0)
    p.step(report("old", 2, gpu_type="v100", memory_mib=16384), report("new", 2, gpu_type="h100", memory_mib=81920))
    p.running("on-old", gpus=2, priority=0, gpu_type="v100")
    p.running("on-new", gpus=2, priority=1, gpu_type="h100")
    p.step(arrived("urgent", gpus=1, priority=3, gpu_type="h100"))
    assert [x.job for x in of_kind(p.told, d.Stop)] == ["on-new"]


def test_a_gang_preempts_on_as_many_nodes_as_it_needs() -> None:
    p = pool(nodes=3, gpus=2, preemption=True, preemption_min_run_s=0.0)
    for n in range(3):
        p.running(f"low{n}", gpus=2, priority=0)
    p.step(arrived("gang", gpus=2, nodes=2, priority=2))
    stopped = {x.job for x in of_kind(p.told, d.Stop)}
    assert len(stopped) == 2
    for name in sorted(stopped):
        p.exit(name, None, cause="stopped")
    assert p.state_of("gang") == "ASSIGNED"


# --- the queue ---


def test_the_queue_keeps_the_order_of_keys_over_all_kinds(seed: int) -> None:
    rng = random.Random(seed)
    queue, entries = WaitingQueue(), []
    kinds = [(g, 1, None, 0, None, ()) for g in (1, 2, 4)]
    for number in range(200):
        entry = (rng.choice(kinds), (rng.randint(0, 3), number), f"j{number}")
        queue.add(*entry)
        entries.append(entry)
    for entry in rng.sample(entries, 80):
        queue.remove(*entry)
        entries.remove(entry)
    wanted = [job for _, _, job in sorted(entries, key=lambda e: e[1])]
    assert [job for job, _ in queue.in_order()] == wanted
    assert len(queue) == len(wanted)
    for key, job, kind in queue.heads():
        assert queue.head_of(kind) == (key, job, kind)
        assert job == next(j for j in wanted if any(e[2] == j and e[0] == kind for e in entries))
    assert queue.head_of((9, 9, None, 0, None, ())) is None


def test_a_queue_that_lost_a_job_says_so() -> None:
    queue = WaitingQueue()
    kind = (1, 1, None, 0, None, ())
    queue.add(kind, (1,), "a")
    with pytest.raises(AssertionError, match="lost a job"):
        queue.remove(kind, (1,), "A")


# --- the index ---


def test_the_capacity_index_is_what_a_recount_gives(seed: int) -> None:
    rng, capacity = random.Random(seed), Capacity()
    free: dict[str, set[int]] = {}
    classes: dict[str, dict[int, tuple[str, int]]] = {}
    for _ in range(400):
        node = rng.choice(("a", "b", "c"))
        match rng.choice(("set", "claim", "give", "gone")):
            case "set":
                classes[node] = {g: rng.choice((("x", 16), ("y", 16), ("x", 32))) for g in range(rng.randint(1, 8))}
                free[node] = {g for g in classes[node] if rng.random() < 0.7}
                capacity.set_node(node, ord(node), classes[node], free[node])
            case "gone":
                classes.pop(node, None)
                free.pop(node, None)
                capacity.set_node(node, ord(node), {}, set())
            case "claim":
                taken = tuple(g for g in sorted(free.get(node, ())) if rng.random() < 0.5)
                free.get(node, set()).difference_update(taken)
                capacity.claim(node, taken)
            case "give":
                back = tuple(g for g in classes.get(node, ()) if g not in free[node] and rng.random() < 0.5)
                free.get(node, set()).update(back)
                capacity.give(node, back)
        counted = {
            (n, c): sorted(g for g, k in gpus.items() if k == c and g in free[n])
            for n, gpus in classes.items()
            for c in set(gpus.values())
        }
        assert {(g.node, g.gpu_class): g.free for g in capacity.groups()} == counted
        assert capacity.free_gpus == sum(len(f) for f in counted.values())
        for wanted in (1, 2, 4):
            for gpu_class in (("x", 16), ("y", 16), ("x", 32)):
                enough = [f for (_, c), f in counted.items() if c == gpu_class and len(f) >= wanted]
                if gpu_class in capacity.classes_for(None, 0):
                    best = capacity.best(gpu_class, wanted)
                    assert (len(best.free) if best else None) == (min(map(len, enough)) if enough else None)
            could = any(
                sum(1 for n, gpus in classes.items() if any(sum(1 for k in gpus.values() if k == c) >= wanted for c in set(gpus.values()) if c[0] == kind)) >= 2
                for kind in ("x", "y")
            )  # fmt: skip
            assert capacity.could_hold(wanted, 2, None, 0) == could


def test_a_policy_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(UnknownPolicyError, match="fifo, fifo-skip"):
        policy_named("magic")
