"""The simulator's speed as a ratio to a bare event loop of the same run, and its memory by what it keeps: a busy machine moves neither."""

from __future__ import annotations

import importlib.util
import time
import tomllib
import tracemalloc
from pathlib import Path
from types import ModuleType
from typing import Any

from schedmate.simulator.engine import Simulation

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RANGES = tomllib.loads(Path(__file__).with_name("ranges.toml").read_text())["simulator"]
JOBS = 4000


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulator_benchmark", BENCHMARKS / "simulator.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulated_s(trace: Any, cluster: Any) -> float:
    simulation = Simulation(trace.jobs, cluster, "fifo")
    began = time.process_time()
    simulation.run()
    return time.process_time() - began


def test_a_simulation_takes_a_bounded_multiple_of_the_bare_event_loop():
    measure = benchmark()
    trace, cluster = measure.generated(JOBS)
    bare = min(measure.bare_loop_s(trace) for _ in range(5))
    ours = min(simulated_s(trace, cluster) for _ in range(3))
    assert ours / bare <= RANGES["bare_loop_ratio_max"], f"{ours / bare:.0f} times the bare loop"


def test_what_a_simulation_keeps_of_an_ended_job_is_a_few_numbers():
    measure = benchmark()
    kept = []
    for jobs in (1000, 3000):
        trace, cluster = measure.generated(jobs)
        tracemalloc.start()
        outcome = Simulation(trace.jobs, cluster, "fifo").run()
        kept.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert all(end is not None for end in outcome.end_s)
    per_job = (kept[1] - kept[0]) / 2000
    assert per_job <= RANGES["bytes_per_ended_job_max"], f"{per_job:.0f} bytes a further job"
