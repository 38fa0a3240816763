"""The openb pods on a part of their nodes until nothing more fits, beside a best fit that is written down in the benchmark.

The traces are looked for in the folder that SCHEDMATE_TRACES names. On all nodes: benchmarks/saturation.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.saturation import filling, placed, reference
from schedmate.simulator.cluster import Cluster, from_list
from schedmate.simulator.readers import read_trace

OPENB = Path(os.environ.get("SCHEDMATE_TRACES", "/nowhere"), "openb-2023")
pytestmark = pytest.mark.skipif(
    not OPENB.is_dir(), reason="no traces: set SCHEDMATE_TRACES to the folder that has openb-2023"
)


@pytest.mark.parametrize("policy", ["fifo-skip", "fgd"])
def test_at_saturation_no_less_is_given_out_than_by_best_fit_on_the_same_order(policy: str):
    ((pool, specs),) = from_list(OPENB / "openb_node_list_gpu_node.csv").pools.items()
    cluster = Cluster({pool: specs[::4]}, one_pool=True)
    jobs = filling(read_trace(OPENB / "openb_pod_list_default.csv").jobs, cluster, 1.3)
    assert placed(jobs, cluster, policy) >= reference(jobs, cluster) > 0.95
