"""What runs do with their GPUs, from what the GPUs show."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from schedmate.infra.gpus.port import GpuState
from schedmate.infra.processes.port import MemberKey
from schedmate.services.worker.usage import GAP_MAX_S, Usages

A, B = MemberKey("a", 0), MemberKey("b", 0)
MIB = 1 << 20


def gpu(
    index: int = 0, used: float | None = 0.5, memory: float | None = 0.2, mib: int | None = 100, **more: object
) -> GpuState:
    return GpuState(index, "t", 1000, utilisation=used, memory_utilisation=memory, memory_used_mib=mib, **more)  # type: ignore[arg-type]


def test_means_weigh_each_observation_by_its_time_and_the_peak_is_the_most_seen():
    usages = Usages()
    usages.observe([gpu(used=1.0)], {A: (0,)}, 0.0)  # what was before it was seen to run counts for nobody
    usages.observe([gpu(used=0.2, memory=0.1, mib=300)], {A: (0,)}, 1.0)
    usages.observe([gpu(used=0.6, memory=0.5, mib=200)], {A: (0,)}, 4.0)
    seen = usages.of(A)
    assert seen is not None
    assert (seen.measured_s, seen.gpu_memory_bytes, seen.gpu_memory_total_bytes) == (4.0, 300 * MIB, 1000 * MIB)
    assert seen.gpu_utilisation == pytest.approx((0.2 + 3 * 0.6) / 4)
    assert seen.gpu_memory_utilisation == pytest.approx((0.1 + 3 * 0.5) / 4)
    assert (seen.gpu_held_s, seen.gpu_busy_s) == (4.0, pytest.approx(2.0))


def test_several_gpus_count_by_their_mean_and_the_fullest():
    usages = Usages()
    for at in (0.0, 2.0):
        usages.observe([gpu(0, 0.2, mib=10), gpu(1, 0.6, mib=70)], {A: (0, 1)}, at)
    seen = usages.of(A)
    assert seen is not None
    assert (seen.gpu_utilisation, seen.gpu_memory_bytes) == (pytest.approx(0.4), 70 * MIB)
    assert (seen.gpu_held_s, seen.gpu_busy_s) == (4.0, pytest.approx(1.6))


def test_what_two_do_together_is_neither_s_mean_and_each_one_s_half():
    usages = Usages()
    usages.observe([gpu()], {A: (0,)}, 0.0)
    usages.observe([gpu(used=0.4, mib=10)], {A: (0,)}, 1.0)
    both = {A: (0,), B: (0,)}
    usages.observe([gpu(used=0.9, mib=900)], both, 2.0)  # it came some time before
    usages.observe([gpu(used=0.8, mib=900)], both, 4.0)
    first, second = usages.of(A), usages.of(B)
    assert first is not None
    assert second is not None
    assert (first.measured_s, first.gpu_utilisation, first.gpu_memory_bytes) == (1.0, pytest.approx(0.4), 10 * MIB)
    assert (second.measured_s, second.gpu_utilisation, second.gpu_memory_bytes) == (0.0, None, None)
    assert second.gpu_busy_s == pytest.approx(0.8)
    assert first.gpu_busy_s == pytest.approx(0.4 + 0.45 + 0.8)


@pytest.mark.parametrize(
    "shown", [[gpu(used=None)], [], [gpu(healthy=False)], [gpu(1)]], ids=["declared", "gone", "ill", "another"]
)
def test_of_a_gpu_that_nothing_measures_nothing_is_said(shown: list[GpuState]):
    usages = Usages()
    for at in (0.0, 1.0, 2.0):
        usages.observe(shown, {A: (0,)}, at)
    assert usages.of(A) is None
    assert usages.of_all([A, B]) == ()


def test_memory_that_is_not_measured_leaves_the_rest():
    usages = Usages()
    for at in (0.0, 1.0):
        usages.observe([gpu(memory=None, mib=None)], {A: (0,)}, at)
    seen = usages.of(A)
    assert seen is not None
    assert (seen.gpu_utilisation, seen.gpu_memory_utilisation, seen.gpu_memory_bytes) == (0.5, None, None)


def test_a_gap_says_nothing():
    usages = Usages()
    usages.observe([gpu()], {A: (0,)}, 0.0)
    usages.observe([gpu()], {A: (0,)}, GAP_MAX_S + 1)
    assert usages.of(A) is None
    usages.observe([gpu()], {A: (0,)}, GAP_MAX_S + 2)
    assert [(one.run_id, one.member) for one in usages.of_all([A])] == [("a", 0)]
    usages.forget(A)
    assert usages.of(A) is None


@given(
    st.lists(
        st.tuples(st.floats(0.1, 5), st.floats(0, 1), st.sets(st.sampled_from([A, B, MemberKey("c", 0)]))),
        min_size=2,
        max_size=30,
    )
)
def test_what_is_given_to_runs_is_never_more_than_the_gpu_was_busy(seen: list[tuple[float, float, set[MemberKey]]]):
    usages, now, busy_s, lasted_s = Usages(), 0.0, 0.0, 0.0
    everybody = set()
    for n, (past_s, used, running) in enumerate(seen):
        now += past_s
        usages.observe([gpu(used=used)], dict.fromkeys(sorted(running), (0,)), now)
        everybody |= running
        if n:
            busy_s, lasted_s = busy_s + used * past_s, lasted_s + past_s
    found = [one.usage for one in usages.of_all(sorted(everybody))]
    assert sum(one.gpu_busy_s for one in found) <= busy_s + 1e-9
    assert sum(one.gpu_held_s for one in found) <= lasted_s + 1e-9
    assert all(one.gpu_utilisation is None or 0 <= one.gpu_utilisation <= 1 for one in found)
