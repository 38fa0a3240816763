"""Simulated node failures: what ends with a node, what comes back, what it costs, and that the same seed fails the same."""

from __future__ import annotations

from itertools import islice, pairwise
from math import inf
from pathlib import Path

import pytest

from schedmate.services.dispatcher.core.config import Budget, PoolConfig
from schedmate.services.dispatcher.core.policy import policies
from schedmate.simulator.cluster import Cluster, NodeSpec, uniform
from schedmate.simulator.engine import Simulation
from schedmate.simulator.faults import Faults, Outages, read_faults
from schedmate.simulator.measures import measured
from schedmate.simulator.outcome import Costs, Outcome
from schedmate.simulator.trace import TraceError, TraceJob


def jobs_of(*jobs: tuple[float, int, float]) -> list[TraceJob]:
    return [TraceJob(f"j{n}", submit, gpus, run) for n, (submit, gpus, run) in enumerate(jobs)]


def failing(*spans: tuple[str, float, float]) -> Faults:
    nodes = dict.fromkeys(name for name, _, _ in spans)
    return Faults(tuple((("default", one), tuple((a, b) for name, a, b in spans if name == one)) for one in nodes))


def simulate(jobs: list[TraceJob], cluster: Cluster, faults: Faults, policy: str = "fifo", **more) -> Outcome:
    return Simulation(jobs, cluster, policy, faults=faults, **more).run()


def test_what_ran_on_a_lost_node_goes_on_when_the_node_is_back():
    outcome = simulate(jobs_of((0, 8, 100)), uniform(1, 8), failing(("n0", 50, 80)))
    assert outcome.end_s == [80 + 50 + 40]
    assert (outcome.node_failures, outcome.failures, outcome.preemptions) == (1, 1, 0)
    assert outcome.wait_s == [30]
    assert outcome.lost_gpu_s == outcome.lost_to_failures_gpu_s == 40 * 8


def test_it_goes_on_at_once_where_another_node_is_free_and_then_keeps_away_from_the_lost_one():
    jobs = jobs_of((0, 8, 100), (0, 8, 1000))
    outcome = simulate(jobs, uniform(3, 8), failing(("n0", 50, 60), ("n1", 70, 80)), keep_seats=True)
    assert outcome.end_s[0] == 100 + 40
    assert outcome.end_s[1] == 1000 + 40
    assert [seats[0].node for seats in outcome.seats or []] == ["n2", "n0"]


def test_work_since_the_last_checkpoint_is_done_again():
    outcome = simulate(jobs_of((0, 16, 100)), uniform(2, 8), failing(("n1", 50, 60)), costs=Costs(40, 60, 30))
    assert outcome.end_s == [60 + 100 - 30 + 60]
    assert outcome.lost_gpu_s == (20 + 60) * 16


def test_a_job_that_cannot_resume_begins_anew_and_all_that_it_did_is_lost():
    jobs = [TraceJob("j0", 0, 8, 100, resumable=False)]
    outcome = simulate(jobs, uniform(1, 8), failing(("n0", 50, 60), ("n0", 160, 170)))
    assert outcome.end_s == [170 + 40 + 100]
    assert (
        outcome.lost_gpu_s == (50 + 40 + 60 + 40) * 8
    )  # in its second run it had restarted for 40 s and worked for 60 s


def test_the_rest_of_a_gang_ends_with_its_lost_member_and_its_gpus_are_free_at_once():
    outcome = simulate(jobs_of((0, 16, 100), (10, 8, 5)), uniform(2, 8), failing(("n1", 50, inf)))
    assert outcome.start_s == [0, 50]
    assert outcome.end_s == [None, 55]


def test_a_job_that_ends_as_its_node_is_lost_has_ended():
    outcome = simulate(jobs_of((0, 8, 50)), uniform(1, 8), failing(("n0", 50, 60)))
    assert (outcome.end_s, outcome.failures, outcome.node_failures) == ([50], 0, 1)


def test_a_job_is_requeued_within_its_budget_with_the_back_off_and_then_has_failed_for_nothing():
    """The first loss waits nothing, the second 1 s; the third is one too many."""
    spans = [("n0", float(at), at + 0.5) for at in (10, 20, 30)]
    config = PoolConfig(infrastructure=Budget(cap=2, base_s=1.0, cap_s=300.0, free=1))
    outcome = simulate(jobs_of((0, 4, 100), (5, 8, 7)), uniform(1, 8), failing(*spans), config=config)
    assert outcome.end_s[0] is None
    assert outcome.failed == 1
    assert outcome.end_s[1] == 20.5 + 7  # it goes first while the other backs off
    assert outcome.lost_gpu_s == pytest.approx(4 * (10 + 9.5 + 2.5))
    assert outcome.failures == 3


def test_shares_are_of_the_gpus_that_were_there():
    cluster = uniform(2, 8)
    jobs = jobs_of((0, 8, 100), (100, 1, 1))
    outcome = simulate(jobs, cluster, failing(("n1", 0, 50)))
    told = measured(jobs, cluster, outcome)
    assert told["sor"] == pytest.approx(8 * 100 / (8 * 50 + 16 * 50))
    assert told["gar"] == pytest.approx(0.5)
    assert (told["node_failures"], told["failures"], told["failed"], told["lost_to_failures_gpu_h"]) == (1, 0, 0, 0)


@pytest.mark.parametrize("policy", sorted(policies()))
def test_drawn_failures_are_the_same_for_the_same_seed_and_come_to_an_end(policy: str, seed: int):
    print(f"seed {seed}")
    jobs = jobs_of(*[(n * 40.0, 1 + n % 9, 300.0 + 17 * n) for n in range(30)])
    config = PoolConfig(infrastructure=Budget(cap=10_000, base_s=1.0, cap_s=10.0, free=1))
    faults = Faults(mtbf_s=3000.0, mttr_s=300.0, seed=seed)
    one, two = (simulate(jobs, uniform(4, 4), faults, policy, config=config) for _ in range(2))
    assert (one.start_s, one.end_s, one.lost_gpu_s) == (two.start_s, two.end_s, two.lost_gpu_s)
    assert all(end is not None for end in one.end_s)
    assert one.node_failures > 0


def test_a_job_that_never_fits_is_not_waited_for_though_nodes_fail_for_ever():
    outcome = simulate(jobs_of((0, 64, 10), (1, 1, 5)), uniform(2, 4), Faults(mtbf_s=10.0, mttr_s=10.0))
    assert outcome.end_s[0] is None
    assert outcome.end_s[1] is not None


def test_drawn_failures_have_the_mean_times_asked_for(seed: int):
    spans = list(islice(Faults(mtbf_s=1000.0, mttr_s=100.0, seed=seed).of(("p", "n"), 50.0), 4000))
    starts, ends = [a for a, _ in spans], [b for _, b in spans]
    up = [a - b for a, b in zip(starts, [50.0, *ends], strict=False)]
    assert all(u > 0 for u in up)
    assert sum(up) / len(up) == pytest.approx(1000, rel=0.1)
    assert sum(b - a for a, b in spans) / len(spans) == pytest.approx(100, rel=0.1)


def test_listed_and_drawn_outages_are_joined():
    listed = Faults(((("p", "n"), ((0.0, 10.0), (5.0, 20.0), (20.0, 30.0), (40.0, inf))),))
    assert list(listed.of(("p", "n"), 0.0)) == [(0.0, 30.0), (40.0, inf)]
    assert list(listed.of(("p", "other"), 0.0)) == []
    both = Faults(listed.listed, 15.0, 5.0, 3)
    spans = list(islice(both.of(("p", "n"), 0.0), 3))
    assert spans[0][0] == 0.0
    assert spans[0][1] >= 30.0
    assert all(a[1] < b[0] for a, b in pairwise(spans))


def test_outages_tell_what_was_lost_and_what_is_back():
    outages = Outages(failing(("a", 5, 10), ("b", 7, inf)), [("default", "a"), ("default", "b")], 0.0)
    assert outages.next_at() == 5
    assert [(c.node[1], c.lost) for c in outages.take(7, idle=False)] == [("a", True), ("b", True)]
    assert outages.returns
    assert [(c.node[1], c.lost) for c in outages.take(100, idle=True)] == [("a", False)]
    assert not outages.returns
    assert outages.next_at() == inf
    assert not Outages(Faults(), [("default", "a")], 0.0)


TWO_POOLS = Cluster({"p": (NodeSpec("n0", 8),), "q": (NodeSpec("n0", 8), NodeSpec("n1", 8))}, one_pool=False)


def test_a_file_of_failures_is_read(tmp_path: Path):
    path = tmp_path / "failures.csv"
    path.write_text("node,at_s,until_s,pool\nn1,10,20,\nn0,5,,q\nn1,1,2,q\n")
    assert read_faults(path, TWO_POOLS) == ((("q", "n0"), ((5, inf),)), (("q", "n1"), ((1, 2), (10, 20))))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("node,at_s\nn1,1\n", "it needs the columns"),
        ("node,at_s,until_s\nn9,1,2\n", "line 2: node is 'n9', the cluster has no such node"),
        ("node,at_s,until_s\nn0,1,2\n", "several pools"),
        ("node,at_s,until_s\nn1,5,5\n", "it must be after at_s"),
        ("node,at_s,until_s\nn1,soon,5\n", "not a number"),
        ("node,at_s,until_s,pool\nn1,1,5,p\n", "no such node"),
    ],
)
def test_a_file_of_failures_that_makes_no_sense_is_refused(tmp_path: Path, text: str, told: str):
    path = tmp_path / "failures.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=told):
        read_faults(path, TWO_POOLS)
