"""BR-34: one member fails, the others hang: they are stopped, and every GPU is free at once."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from tests.dispatching import arrived, cluster, ends_of, of_kind


@pytest.mark.parametrize("failing", [0, 1])
def test_partial_failure_stops_the_others_and_frees_all_at_once(failing: int) -> None:
    p = cluster(nodes=2, gpus=4)
    p.running("gang", gpus=4, nodes=2, retries=0)
    p.step(arrived("next", gpus=4, nodes=2))
    done = p.exit("gang", 1, member=failing, after=20)
    assert [(x.node, x.member) for x in of_kind(done, d.Stop)] == [(f"n{2 - failing}", 1 - failing)]
    assert p.state_of("next") == "QUEUED"  # half of the gang still lives
    p.exit("gang", None, member=1 - failing, cause="stopped", signal=15, after=5)
    assert p.state_of("gang") == "DIAGNOSING"
    assert p.state_of("next") == "ASSIGNED"  # a diagnosis holds no GPU
    p.step(i.Tick(), after=10)
    assert ends_of(p, "gang") == ["FAIL"]


def test_partial_failure_of_a_member_before_the_other_has_started() -> None:
    p = cluster(nodes=2, gpus=4)
    p.step(arrived("gang", gpus=4, nodes=2, retries=0))
    p.start("gang", 0)
    done = p.exit("gang", 1, member=0, after=1)
    assert [x.member for x in of_kind(done, d.Stop)] == [1]
    p.exit("gang", None, member=1, cause="stopped", after=1)
    p.step(i.Tick(), after=10)
    assert ends_of(p, "gang") == ["FAIL"]
    assert p.state.capacity.free_gpus == 8
