"""BR-13: a job is not killed because nobody can see it; what is really lost is counted and capped."""

from __future__ import annotations

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.liveness import NodeLiveness
from tests.dispatching import PoolUnderTest, cluster, of_kind, report


def seen_again(p: PoolUnderTest) -> None:
    job = p.state.jobs["j"]
    runs = (i.RunSeen("j", job.attempt, 0, ended=False, started=True),)
    p.step(report("n1", applied_seq=job.place[0], applied_index=job.place[1], runs=runs))


def test_false_failure_loop_where_a_pool_waits_for_its_nodes() -> None:
    p = cluster(nodes=2, lease_expires=False)
    p.running("j")
    for _ in range(24):
        p.step(i.NodeSilent("n1", 1), after=90)
        assert (p.state_of("j"), p.reason_of("j")) == ("RUNNING", "NODE_UNREACHABLE")
        seen_again(p)
        assert (p.state_of("j"), p.reason_of("j")) == ("RUNNING", "ALL_MEMBERS_STARTED")
    assert p.state.jobs["j"].attempt == 1
    assert of_kind(p.told, d.Stop) == []


def test_false_failure_loop_an_outage_of_the_bus_restarts_every_count() -> None:
    liveness, now = NodeLiveness(margin_s=1.0, step_max_s=2.0), 0.0
    liveness.reported("n1", 1, lease_s=30.0)
    for _ in range(24):
        for _ in range(29):
            now += 1.0
            assert liveness.at_end(now) == []
        liveness.interrupted()
        now += 600.0
    for _ in range(31):
        now += 1.0
        assert liveness.at_end(now) == []
    liveness.reported("n1", 1, lease_s=30.0)  # the clock of the first silence starts anew after each report
    lost = [entry for _ in range(33) if (entry := liveness.at_end(now := now + 1.0))]
    assert lost == [[("n1", 1)]]


def test_false_failure_loop_real_losses_are_counted_and_capped() -> None:
    p = cluster(gpus=1)
    p.running("j", retries=0)
    for _ in range(40):
        if "j" not in p.state.jobs:
            break
        if p.state_of("j") == "ASSIGNED":
            p.start("j")
            p.exit("j", None, cause="lease_expired")
        p.step(i.Tick(), after=301)
        if p.state.jobs.get("j") and p.state_of("j") == "RUNNING":
            p.exit("j", None, cause="lease_expired")
    [end] = [x for x in of_kind(p.told, d.Moved) if x.event == "FAIL"]
    assert end.reason == "INFRASTRUCTURE_BUDGET_SPENT"
    assert end.attempt == 21
