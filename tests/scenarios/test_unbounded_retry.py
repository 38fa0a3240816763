"""BR-36: a job that always fails is tried a counted number of times, with growing waits, whoever leads meanwhile."""

from __future__ import annotations

import json

import pytest

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.state import PoolState
from tests.dispatching import arrived, cluster, ends_of, of_kind


@pytest.mark.parametrize("diagnosed", [True, False])
@pytest.mark.parametrize("retries", [0, 1, 4])
def test_unbounded_retry_is_bounded_and_the_budget_survives_restarts(retries: int, diagnosed: bool) -> None:
    p = cluster(nodes=2, gpus=1, diagnosis_wait_s=5.0)
    p.step(arrived("j", retries=retries))
    waits: list[float] = []
    for _ in range(20):
        p.state = PoolState.from_json(json.loads(json.dumps(p.state.to_json())), policy_named)  # another leader
        if "j" not in p.state.jobs:
            break
        p.start("j")
        p.exit("j", 1, after=1)
        if diagnosed:
            p.diagnose("j", "retry_from_checkpoint")
        else:
            p.step(i.Tick(), after=5)
        waits.extend(x.not_before - p.now for x in of_kind(p.told, d.Moved)[-1:] if x.event == "REQUEUE")
        p.step(i.Tick(), after=61)
    assert ends_of(p, "j") == ["FAIL"]
    assert len(of_kind(p.told, d.Placed)) == retries + 1
    assert waits == [float(2**n) for n in range(retries)]
    assert p.state.capacity.free_gpus == 2
    assert of_kind(p.told, d.Moved)[-1].reason == "RETRY_BUDGET_SPENT"
