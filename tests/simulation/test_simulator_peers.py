"""Equal to the peers, exactly, on the real traces: the figures of the tables in the traces' README.

The traces are looked for in the folder that SCHEDMATE_TRACES names.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from schedmate.simulator.cluster import Cluster, from_table, uniform
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import Setting, run_one, usable
from schedmate.simulator.trace import Trace

TRACES = os.environ.get("SCHEDMATE_TRACES", "")
pytestmark = pytest.mark.skipif(
    not Path(TRACES, "philly-2017").is_dir() if TRACES else True,
    reason="no traces: set SCHEDMATE_TRACES to the folder that has philly-2017, philly-week-peer and published-summaries",
)
PREDICTIONS = f"column:{TRACES}/philly-2017/qssf_predictions_oct.csv:pred_noise_s"

# node factor, policy, advice -> average JCT, average wait, p50 JCT, p99 JCT, p99.9 wait, makespan
OCTOBER = [
    (1.0, "fifo", "none", 25_622.1, 1_397.8, 1_958.0, 528_154, 241_119, 4_608_484),
    (1.0, "sjf", "oracle", 24_817.7, 593.3, 1_885.0, 528_306, 107_031, 4_608_484),
    (1.0, "qssf", PREDICTIONS, 25_152.0, 927.6, 1_906.0, 527_402, 166_934, 4_608_484),
    (0.75, "fifo", "none", 49_538.3, 25_313.9, 4_794.5, 582_601, 416_161, 4_608_484),
    (0.75, "sjf", "oracle", 28_469.5, 4_245.1, 2_501.5, 598_353, 326_481, 4_643_031),
    (0.75, "qssf", PREDICTIONS, 32_583.1, 8_358.7, 2_748.0, 582_466, 344_571, 4_633_985),
    (0.5, "fifo", "none", 362_524.2, 338_299.8, 264_241.5, 1_325_408, 1_529_812, 5_885_910),
    (0.5, "sjf", "oracle", 44_153.3, 19_928.9, 4_186.5, 874_359, 1_467_302, 6_710_028),
    (0.5, "qssf", PREDICTIONS, 51_904.5, 27_680.1, 5_237.5, 1_017_548, 1_963_019, 6_866_176),
]


# workload -> average JCT under Tiresias as its authors publish it (the sixth was run again: equal)
POLLUX = {1: 2473.65, 2: 5144.9625, 3: 3876.25625, 4: 3280.2625, 5: 3501.0125, 6: 3469.69375}


@cache
def october(factor: float) -> tuple[Trace, Cluster]:
    trace = read_trace(Path(TRACES, "philly-2017", "philly_2017_aug-oct.csv")).window("2017-10-01", "2017-11-01")
    cluster = from_table(Path(TRACES, "published-summaries", "philly_vc.csv"), factor, trace)
    return usable(trace, cluster), cluster


@cache
def week() -> Trace:
    return read_trace(Path(TRACES, "philly-week-peer", "philly_week_20171001.csv"))


@pytest.mark.parametrize(("factor", "policy", "advice", *(f"v{n}" for n in range(6))), OCTOBER)
def test_philly_october_equals_the_re_check(factor: float, policy: str, advice: str, v0, v1, v2, v3, v4, v5):
    trace, cluster = october(factor)
    got = run_one(trace, cluster, Setting(policy, advice))
    assert (got["jobs"], got["finished"]) == (58_360, 58_360)
    assert got["avg_jct_s"] == pytest.approx(v0, abs=0.1)
    assert got["avg_wait_s"] == pytest.approx(v1, abs=0.1)
    assert got["p50_jct_s"] == pytest.approx(v2, abs=0.5)
    assert got["p99_jct_s"] == pytest.approx(v3, abs=1)
    assert got["p999_wait_s"] == pytest.approx(v4, abs=1)
    assert got["makespan_s"] == v5


def test_fifo_queues_every_job_of_the_peer_week_exactly_as_long_as_the_peer(tmp_path: Path):
    out = tmp_path / "jobs.csv"
    trace = week()
    got = run_one(trace, uniform(54, 8), Setting("fifo", "none", jobs_out=out))
    waits = [int(line.split(",")[4]) for line in out.read_text().splitlines()[1:]]
    assert waits == trace.numbers("fifo_queue_s")
    assert got["avg_jct_s"] == pytest.approx(66_675.7, abs=0.1)


PEER_WEEK = [
    (54, "sjf", "oracle", 12_991.0, 0.1),
    (72, "fifo", "none", 16_500.4, 0.1),
    (72, "sjf", "oracle", 8_718.0, 0.1),
    (54, "tiresias", "none", 10_436.2, 0.02 * 10_436.2),
    (72, "tiresias", "none", 8_082.1, 0.02 * 8_082.1),
]


@pytest.mark.parametrize(("nodes", "policy", "advice", "avg_jct_s", "within"), PEER_WEEK)
def test_the_peer_week_equals_the_peers(nodes: int, policy: str, advice: str, avg_jct_s: float, within: float):
    got = run_one(week(), uniform(nodes, 8), Setting(policy, advice))
    assert got["finished"] == 10_650
    assert got["avg_jct_s"] == pytest.approx(avg_jct_s, abs=within)


@pytest.mark.parametrize(("policy", "avg_jct_s"), [("smallest", 31_757.0), ("fifo-skip", 33_230.6)])
def test_what_size_and_skipping_gain_on_philly_october(policy: str, avg_jct_s: float):
    trace, cluster = october(0.75)
    assert run_one(trace, cluster, Setting(policy, "none"))["avg_jct_s"] == pytest.approx(avg_jct_s, abs=0.1)


@pytest.mark.parametrize("policy", ["sjf", "qssf", "srtf", "easy"])
def test_random_advice_moves_nobody(policy: str):
    """Trust never rises: the outcome is the one without advice (20 seeds, and October: benchmarks/robustness.py)."""
    none, *random = (
        run_one(week(), uniform(54, 8), Setting(policy, advice, seed))
        for advice, seed in (("none", 0), ("random", 3), ("random", 4))
    )
    for got in random:
        assert got["avg_jct_s"] <= 1.02 * none["avg_jct_s"]
        assert got["p999_wait_s"] <= 1.02 * none["p999_wait_s"]


@pytest.mark.parametrize("policy", ["sjf", "qssf"])
def test_the_average_rises_with_the_noise_from_that_of_the_truth_toward_none(policy: str):
    """Weighed by the trust that it earns: the truth does as well as taken as it is, and what is half noise still better than nothing."""
    asked = ("oracle", "noisy:0", "noisy:1", "noisy:4", "none")
    raw, *weighed, none = (run_one(week(), uniform(54, 8), Setting(policy, a, 1))["avg_jct_s"] for a in asked)
    assert weighed[0] <= 1.01 * raw
    assert weighed == sorted(weighed)
    assert weighed[-1] < none


@pytest.mark.parametrize(("number", "published"), POLLUX.items())
def test_pollux_s_workloads_under_tiresias_come_to_what_is_published(number: int, published: float):
    trace = read_trace(Path(TRACES, "pollux-osdi21", f"workload-{number}.csv"))
    got = run_one(trace, uniform(16, 4), Setting("tiresias", "none"))
    assert (got["jobs"], got["finished"]) == (160, 160)
    assert got["avg_jct_s"] == pytest.approx(published, rel=0.02)  # docs/pollux.md: from -1.0 % to +1.1 %
