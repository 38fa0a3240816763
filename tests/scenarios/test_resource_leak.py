"""BR-18: what was given up is not given away: GPUs go on only with a proof of death. (The worker's half stands beside.)"""

from __future__ import annotations

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.reasons import why
from tests.dispatching import PoolUnderTest, arrived, cluster, of_kind, report
from tests.pool_invariants import check


def given_up(**config: object) -> PoolUnderTest:
    """A job whose node cannot be reached runs into its time limit; another one wants its GPU."""
    p = cluster(gpus=1, stop_timeout_s=60.0, **config)
    p.running("lost-sight", time_limit_s=100)
    p.step(arrived("next"))
    p.step(i.Tick(), after=101)
    p.step(i.Tick(), after=61)
    check(p.state)
    assert (p.state_of("lost-sight"), p.reason_of("lost-sight")) == ("STOPPING", "STOP_TIMEOUT")
    assert p.state_of("next") == "QUEUED"
    told = why(p.state, p.state.jobs["next"])
    assert told.reason == "GPUS_QUARANTINED"
    assert told.waits_for == ("lost-sight",)
    assert p.state.tenant_gpus == {"team-a": 1}  # it counts until it is proven dead
    return p


def test_resource_leak_nothing_is_handed_on_before_the_kill_is_confirmed() -> None:
    p = given_up()
    for _ in range(10):
        p.step(i.Tick(), after=3600)
    assert p.state_of("next") == "QUEUED"
    p.exit("lost-sight", None, cause="stopped", signal=9)
    assert p.state_of("lost-sight") == "FAILED"
    assert p.state_of("next") == "ASSIGNED"


def test_resource_leak_the_lease_is_a_proof_too() -> None:
    p = given_up()
    p.step(i.NodeSilent("n1", 1))
    assert p.state_of("lost-sight") == "FAILED"
    assert p.state_of("next") == "QUEUED"
    p.step(report("n1", 1, session=2))
    assert p.state_of("next") == "ASSIGNED"


def test_resource_leak_a_zombie_that_comes_back_is_stopped_and_holds_its_gpu_until_then() -> None:
    p = given_up(lease_expires=False)
    p.step(i.NodeSilent("n1", 1))
    assert p.state_of("next") == "QUEUED"
    zombie = i.RunSeen("lost-sight", 1, 0, ended=False, started=True)
    done = p.step(report("n1", 1, session=2, applied_seq=99, runs=(zombie,)))
    assert d.Stop("n1", "lost-sight", 1, 0, 10.0) in done.decisions
    assert p.state_of("next") == "QUEUED"
    p.exit("lost-sight", None, cause="stopped", signal=9)
    assert p.state_of("next") == "ASSIGNED"


def test_resource_leak_a_run_of_a_lost_session_is_stopped_when_its_node_returns() -> None:
    p = cluster(nodes=2, gpus=1)
    p.running("j")
    p.step(i.NodeSilent("n1", 1))
    assert p.seats("j") == [("n2", (0,))]
    zombie = i.RunSeen("j", 1, 0, ended=False, started=True)
    done = p.step(report("n1", 1, session=2, applied_seq=99, runs=(zombie,)))
    assert of_kind(done, d.Stop) == [d.Stop("n1", "j", 1, 0, 10.0)]
    assert p.state.jobs["j"].attempt == 2
