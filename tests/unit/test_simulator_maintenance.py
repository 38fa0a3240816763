"""Simulated maintenance: jobs give way to it and come back, what is reserved does not count as schedulable, and files are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.inputs import ReservationMade
from schedmate.services.dispatcher.core.policy import policies
from schedmate.simulator.cluster import Cluster, NodeSpec, uniform
from schedmate.simulator.engine import Simulation, SimulationError
from schedmate.simulator.faults import Faults
from schedmate.simulator.maintenance import read_reservations
from schedmate.simulator.measures import measured
from schedmate.simulator.trace import TraceError, TraceJob


def jobs_of(*jobs: tuple[float, int, float]) -> list[TraceJob]:
    return [TraceJob(f"j{n}", submit, gpus, run) for n, (submit, gpus, run) in enumerate(jobs)]


def reserved(*given: tuple[str, float, float]) -> dict[str, tuple[ReservationMade, ...]]:
    made = (ReservationMade(f"r{n}", (node,), 0, start, end, "op", "") for n, (node, start, end) in enumerate(given))
    return {"default": tuple(made)}


def test_a_job_whose_end_nobody_knows_is_stopped_as_maintenance_begins_and_goes_on_when_it_has_ended():
    jobs, cluster = jobs_of((0, 8, 100), (200, 1, 1)), uniform(1, 8)
    outcome = Simulation(jobs, cluster, "fifo", reservations=reserved(("n0", 60, 90))).run()
    assert outcome.end_s == [90 + 40 + 40, 201]
    assert (outcome.maintenance_stops, outcome.preemptions, outcome.lost_gpu_s) == (1, 0, 40 * 8)
    told = measured(jobs, cluster, outcome)
    assert told["maintenance_stops"] == 1
    assert told["sor"] == pytest.approx((8 * 60 + 8 * 80) / (8 * 200 - 8 * 30))


def test_a_job_that_is_known_to_be_too_long_waits_and_a_short_one_goes_before_it():
    class Knows:
        basis = "knows"

        def estimate_s(self, number: int, pool: str) -> float:  # noqa: ARG002
            return 10.0

        def quantiles(self, number: int) -> tuple[float | None, float | None, str]:
            return None, (100.0, 20.0)[number], self.basis

        def started(self, number: int, at: float) -> None:
            """Nothing is learned."""

        def finished(self, number: int, pool: str, at: float) -> None:
            """Nothing is learned."""

    jobs = jobs_of((0, 8, 100), (0, 8, 20))
    taken = PoolConfig(advice="raw")  # as it is, whatever it has been worth
    simulation = Simulation(jobs, uniform(1, 8), "fifo", Knows(), config=taken, reservations=reserved(("n0", 60, 90)))
    outcome = simulation.run()
    assert outcome.start_s == [90, 0]
    assert outcome.maintenance_stops == 0


def test_a_node_that_fails_during_its_maintenance_is_away_once():
    jobs, cluster = jobs_of((0, 8, 10), (100, 8, 10)), uniform(2, 8)
    faults = Faults(((("default", "n1"), ((20.0, 40.0),)),))
    outcome = Simulation(jobs, cluster, "fifo", faults=faults, reservations=reserved(("n1", 10, 30))).run()
    assert outcome.integrals.down == 0
    assert measured(jobs, cluster, outcome)["sor"] == pytest.approx(8 * 10 / (16 * 100 - 8 * 30))


@pytest.mark.parametrize("policy", sorted(policies()))
def test_everything_is_run_around_maintenance_under_every_policy(policy: str):
    jobs = jobs_of(*[(n * 40.0, 1 + n % 9, 300.0 + 17 * n) for n in range(30)])
    rolling = reserved(*[(f"n{n}", 500.0 + 400 * n, 900.0 + 400 * n) for n in range(4)], ("n0", 5000.0, 6000.0))
    outcome = Simulation(jobs, uniform(4, 4), policy, reservations=rolling).run()
    assert all(end is not None for end in outcome.end_s)
    assert outcome.maintenance_stops > 0


TWO_POOLS = Cluster({"p": (NodeSpec("n0", 8),), "q": (NodeSpec("n0", 8), NodeSpec("n1", 8))}, one_pool=False)


def test_a_file_of_reservations_is_read(tmp_path: Path):
    path = tmp_path / "maintenance.csv"
    path.write_text("node,from_s,until_s,count,pool\nn1,10,20,,\n,5,9,2,q\n")
    assert read_reservations(path, TWO_POOLS) == {
        "q": (
            ReservationMade("r2", ("n1",), 0, 10, 20, "trace", ""),
            ReservationMade("r3", (), 2, 5, 9, "trace", ""),
        )
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("node,from_s\nn1,1\n", "it needs the columns"),
        ("node,from_s,until_s\nn9,1,2\n", "the cluster has no such node or pool"),
        ("node,from_s,until_s\nn0,1,2\n", "several pools"),
        ("node,from_s,until_s\nn1,5,5\n", "it must be after from_s"),
        ("node,from_s,until_s,pool\n,1,5,q\n", "count is"),
    ],
)
def test_a_file_of_reservations_that_makes_no_sense_is_refused(tmp_path: Path, text: str, told: str):
    path = tmp_path / "maintenance.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=told):
        read_reservations(path, TWO_POOLS)


def test_more_nodes_than_there_are_cannot_be_reserved():
    made = {"default": (ReservationMade("r", (), 3, 10, 20, "op", ""),)}
    with pytest.raises(SimulationError, match="asks for 3 nodes"):
        Simulation(jobs_of((0, 1, 1)), uniform(2, 8), "fifo", reservations=made)
