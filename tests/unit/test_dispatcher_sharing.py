"""Two jobs on the same GPUs, and the profiler: whom Lucid's rules pack, and what a pool does with them."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from schedmate.schemas.sharing import CLASS_NAMES
from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.reasons import why
from schedmate.services.dispatcher.core.sharing import (
    JUMBO,
    MEDIUM,
    TINY,
    Profile,
    Tenancy,
    class_of,
    objection,
    recalled,
)
from tests.dispatching import PoolUnderTest, arrived, cluster, of_kind, report
from tests.pool_invariants import check

GPU_MIB = 24_000
TINY_JOB = Profile(0.10, 0.02, 2_000)
TINY_BIG = Profile(0.08, 0.07, 10_000)  # little use, much memory
MEDIUM_JOB = Profile(0.50, 0.20, 3_000)
MEDIUM_BIG = Profile(0.60, 0.30, 9_500)
JUMBO_JOB = Profile(1.00, 0.80, 9_000)
JUMBO_BIG = Profile(1.00, 0.70, 18_000)

TOO_MUCH = "together they would use too much of the GPU"
MEMORY = "they do not fit into the GPU's memory together"
NUMBERS = "they ask for different numbers of GPUs"
NODES = "they take several nodes"
UNKNOWN = "one of them was not profiled"
TAKEN = "two jobs are on these GPUs already"
GONE = "the other one is expected to be gone long before"


def side(
    profile: Profile | None, gpus: int = 1, nodes: int = 1, time_s: float = 100.0, *, alone: bool = True
) -> Tenancy:
    return Tenancy(gpus, nodes, profile, time_s, alone=alone)


@pytest.mark.parametrize(
    ("job", "host", "expected"),
    [
        # Lucid, ASPLOS'23, section 3.3: Tiny counts 0, Medium 1, Jumbo 2; a pair may come to 2
        (side(TINY_JOB), side(TINY_JOB), None),  # 0 + 0
        (side(TINY_JOB), side(MEDIUM_JOB), None),  # 0 + 1
        (side(MEDIUM_JOB), side(TINY_JOB), None),  # the same the other way round
        (side(MEDIUM_JOB), side(MEDIUM_JOB), None),  # 1 + 1
        (side(TINY_JOB), side(JUMBO_JOB), None),  # 0 + 2
        (side(MEDIUM_JOB), side(JUMBO_JOB), TOO_MUCH),  # 1 + 2
        (side(JUMBO_JOB), side(MEDIUM_JOB), TOO_MUCH),
        (side(JUMBO_JOB), side(JUMBO_JOB), TOO_MUCH),  # 2 + 2
        # both must fit into the GPU's memory, whatever they use of its time
        (side(TINY_BIG), side(TINY_BIG), None),  # 20,000 of 24,000 MiB
        (side(TINY_BIG), side(JUMBO_BIG), MEMORY),  # 28,000
        (side(MEDIUM_BIG), side(MEDIUM_BIG), None),  # 19,000
        (side(MEDIUM_BIG), side(JUMBO_BIG), MEMORY),  # 27,500: memory is looked at first
        # the same number of GPUs, so that no rank waits for another
        (side(TINY_JOB, gpus=2), side(TINY_JOB, gpus=2), None),
        (side(TINY_JOB, gpus=1), side(TINY_JOB, gpus=2), NUMBERS),
        # never over several nodes
        (side(TINY_JOB, gpus=8, nodes=2), side(TINY_JOB, gpus=8, nodes=2), NODES),
        # whoever was not profiled is not packed, on either side
        (side(None), side(TINY_JOB), UNKNOWN),
        (side(TINY_JOB), side(None), UNKNOWN),
        # never more than two
        (side(TINY_JOB), side(TINY_JOB, alone=False), TAKEN),
        # time-aware: whoever runs much longer than the other would soon be alone on GPUs chosen for a pair
        (side(TINY_JOB, time_s=200.0), side(TINY_JOB, time_s=100.0), None),
        (side(TINY_JOB, time_s=201.0), side(TINY_JOB, time_s=100.0), GONE),
    ],
)
def test_twenty_pairs_are_packed_or_not_by_the_papers_rules(job: Tenancy, host: Tenancy, expected: str | None):
    assert objection(job, host, GPU_MIB) == expected


def test_a_capacity_of_one_packs_light_pairs_only_and_several_nodes_only_where_that_is_allowed():
    assert objection(side(MEDIUM_JOB), side(MEDIUM_JOB), GPU_MIB, score_max=1) == TOO_MUCH
    assert objection(side(TINY_JOB), side(MEDIUM_JOB), GPU_MIB, score_max=1) is None
    two = side(TINY_JOB, gpus=8, nodes=2)
    assert objection(two, two, GPU_MIB, several_nodes=True) is None


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_what_is_recalled_of_a_class_is_of_that_class(name: str):
    seen = recalled({"tiny": 0.2, "medium": 0.5, "jumbo": 0.1}[name], 3_000, name)
    assert seen is not None
    assert CLASS_NAMES[class_of(Profile(*seen), GPU_MIB)] == name


@pytest.mark.parametrize(
    "told", [(None, 1, "tiny"), (0.1, None, "tiny"), (0.1, 1, "huge"), (1.1, 1, "tiny"), (-0.1, 1, "tiny"), (0.1, -1, "tiny"), (float("nan"), 1, "tiny")]
)  # fmt: skip
def test_what_is_missing_or_makes_no_sense_recalls_nothing(told: tuple[float | None, int | None, str]):
    assert recalled(*told) is None


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (TINY_JOB, TINY), (TINY_BIG, TINY), (Profile(0.35, 0.15, 1), TINY), (Profile(0.36, 0.15, 1), MEDIUM),
        (Profile(0.35, 0.16, 1), MEDIUM), (Profile(0.70, 0.40, 9_600), MEDIUM), (Profile(0.71, 0.40, 1), JUMBO),
        (Profile(0.70, 0.41, 1), JUMBO), (Profile(0.70, 0.40, 9_601), JUMBO), (None, JUMBO),
    ],
)  # fmt: skip
def test_the_classes_go_by_use_of_the_gpu_of_its_memory_and_by_memory(profile: Profile | None, expected: int):
    assert class_of(profile, GPU_MIB) == expected


def lucid(nodes: int = 1, gpus: int = 1, **config) -> PoolUnderTest:
    return cluster(nodes, gpus, **{"policy": "lucid", "gpu_sharing": True, "gpu_memory_mib": 40_960, **config})


def profile(job: str, seen: Profile = TINY_JOB) -> i.ProfileArrived:
    return i.ProfileArrived(job, seen.utilisation, seen.memory_utilisation, seen.memory_mib)


def run_profiled(p: PoolUnderTest, job: str, seen: Profile = TINY_JOB, **asks) -> None:
    p.step(arrived(job, **asks), profile(job, seen))
    check(p.state)


def known(job: str, revision: int = 1) -> i.EstimateArrived:
    return i.EstimateArrived(
        job, revision, None, 600.0, None, "exact_prior", gpu_utilisation=0.2, gpu_memory_mib=3_000, sharing_class="tiny"
    )


def test_a_job_that_is_known_from_its_past_is_not_profiled_again():
    p = lucid(2, profiler_nodes=1)
    p.step(arrived("new", resumable=True))
    p.step(arrived("again", resumable=True), known("again"))
    assert p.state.jobs["new"].profiling
    assert not p.state.jobs["again"].profiling
    assert p.state.jobs["again"].profile == (0.2, 0.15, 3_000)
    p.step(known("new", 2))
    assert p.state.jobs["new"].profile is None  # it is being profiled: what is seen counts
    check(p.state)


@pytest.mark.parametrize("advice", ["shadow", "off"])
def test_a_pool_that_does_not_act_on_advice_profiles_everybody(advice: str):
    p = lucid(2, profiler_nodes=1, advice=advice)
    p.step(arrived("again", resumable=True), known("again"))
    assert p.state.jobs["again"].profiling


def test_what_was_measured_counts_more_than_what_the_past_tells():
    p = lucid()
    p.step(arrived("a", resumable=True), profile("a", TINY_JOB), known("a"))
    assert p.state.jobs["a"].profile == (TINY_JOB.utilisation, TINY_JOB.memory_utilisation, TINY_JOB.memory_mib)


def test_a_job_that_does_not_fit_joins_one_that_it_goes_with():
    p = lucid()
    run_profiled(p, "a")
    run_profiled(p, "b")
    assert p.seats("a") == p.seats("b") == [("n1", (0,))]
    assert [x.beside for x in of_kind(p.told, d.Placed)] == [None, "a"]
    run_profiled(p, "c")
    assert p.state_of("c") == "QUEUED"  # never more than two


@pytest.mark.parametrize("first", ["a", "b"])
def test_whoever_stays_has_the_gpus_alone_and_may_be_joined_again(first: str):
    p = lucid()
    for job in "abc":
        run_profiled(p, job)
    p.start("a")
    p.start("b")
    p.exit(first)
    check(p.state)
    other = "b" if first == "a" else "a"
    assert (p.state.jobs["c"].beside, p.state.jobs[other].beside) == (other, "c")
    assert p.state.nodes["n1"].owner == {0: other}
    p.exit(other)
    assert p.state.nodes["n1"].owner == {0: "c"}
    p.exit("c")
    assert p.state.capacity.free_gpus == 1


def test_nobody_is_packed_where_the_pool_does_not_share_its_gpus():
    p = lucid(gpu_sharing=False)
    run_profiled(p, "a")
    run_profiled(p, "b")
    assert p.state_of("b") == "QUEUED"


def test_heavy_pairs_are_packed_only_where_much_waits():
    p = lucid(gpus=2)
    for job in "ab":
        run_profiled(p, job, MEDIUM_JOB)
    run_profiled(p, "c", MEDIUM_JOB)  # three GPUs are asked for of two: the eager mode begins
    assert p.state.jobs["c"].beside == "a"
    p = lucid(gpus=4)
    for job in "abcde":
        run_profiled(p, job, MEDIUM_JOB)
    assert p.state_of("e") == "QUEUED"  # five of four: only light pairs


def test_a_pair_is_taken_apart_when_one_of_it_turns_out_to_be_heavier():
    p = lucid()
    for job in "ab":
        run_profiled(p, job, resumable=True)
        p.start(job)
    p.step(profile("a", JUMBO_JOB))
    check(p.state)
    assert (p.state_of("b"), p.state_of("a")) == ("RUNNING", "RUNNING")  # a Tiny one may stay beside it
    p.step(profile("b", MEDIUM_JOB))
    check(p.state)
    assert (p.state_of("b"), p.reason_of("b")) == ("STOPPING", "UNPACKED")
    p.exit("b", None, cause="stopped", after=1.0)
    check(p.state)
    assert (p.state_of("a"), p.state_of("b"), p.state.jobs["a"].beside) == ("RUNNING", "QUEUED", None)


def test_a_lost_node_takes_both_of_a_pair():
    p = lucid(2)
    run_profiled(p, "a")
    p.step(i.NodeCommanded("n2", "drain", "op", ""))
    run_profiled(p, "b")
    assert p.state.jobs["b"].beside == "a"
    p.step(i.NodeSilent("n1", 1))
    check(p.state)
    assert {p.state_of("a"), p.state_of("b")} == {"QUEUED"}
    assert p.state.nodes["n1"].guests == p.state.nodes["n1"].owner == {}


def test_nobody_is_stopped_for_the_gpus_of_a_pair():
    p = lucid(preemption=True, preemption_min_run_s=0.0)
    for job in "ab":
        run_profiled(p, job, priority=0)
        p.start(job)
    p.step(arrived("urgent", priority=3), after=100.0)
    check(p.state)
    assert [p.state_of(j) for j in ("a", "b", "urgent")] == ["RUNNING", "RUNNING", "QUEUED"]


def test_a_job_runs_in_the_profiler_first_for_its_time_and_goes_on_outside():
    p = lucid(3, 2, profiler_nodes=1, profiler_gpus_max=1)
    p.running("a", resumable=True)
    assert p.seats("a") == [("n3", (0,))]
    assert [x.profiling for x in of_kind(p.told, d.Placed)] == [True]
    assert p.state.next_timer() == p.now + 80.0
    p.step(i.Tick(), after=80.0)
    assert (p.state_of("a"), p.reason_of("a")) == ("STOPPING", "PROFILED")
    p.exit("a", None, cause="stopped", after=1.0)
    check(p.state)
    assert p.seats("a") == [("n1", (0,))]
    assert not p.state.jobs["a"].profiling


@pytest.mark.parametrize("asks", [{"resumable": False}, {"gpus": 2}, {"nodes": 2}])
def test_whoever_cannot_resume_or_is_large_is_not_profiled_and_keeps_out_of_the_profiler(asks: dict):
    p = lucid(3, 2, profiler_nodes=1, profiler_gpus_max=1)
    p.running("a", **{"resumable": True, **asks})
    assert all(node in ("n1", "n2") for node, _ in p.seats("a"))


def worth(job: str, word: bool | None, revision: int = 1) -> i.EstimateArrived:
    return i.EstimateArrived(job, revision, 10.0, 100.0, 900.0, "learned", word)


def test_a_job_whose_measuring_would_teach_nothing_goes_past_the_profiler_and_an_unsaid_word_changes_nothing():
    for word, node in ((False, "n1"), (None, "n3"), (True, "n3")):
        p = lucid(3, 2, profiler_nodes=1)
        p.step(worth("a", word))  # before its job
        p.step(arrived("a", resumable=True))
        assert [m.node for m in p.state.jobs["a"].members] == [node]
        check(p.state)


def test_in_the_profiler_those_worth_it_go_before_the_others_whatever_their_size():
    p = lucid(2, 2, profiler_nodes=1)
    p.running("first", gpus=2, resumable=True)
    p.step(arrived("unsaid", resumable=True), arrived("large", gpus=2, resumable=True), worth("large", word=True))
    p.step(i.EstimateArrived("large", 2, 10.0, 90.0, 900.0, "learned"))  # a revision that says nothing leaves the word
    p.step(i.Tick(), after=80.0)
    p.exit("first", None, cause="stopped", after=1.0)
    check(p.state)
    assert [m.node for m in p.state.jobs["large"].members] == ["n2"]
    assert not p.state.jobs["unsaid"].members


@pytest.mark.parametrize("advice", ["shadow", "off"])
def test_a_pool_that_does_not_act_on_advice_profiles_as_if_nothing_were_said(advice: str):
    p = lucid(3, 2, profiler_nodes=1, advice=advice)
    p.step(arrived("a", resumable=True), worth("a", word=False))
    assert [m.node for m in p.state.jobs["a"].members] == ["n3"]


def test_whoever_waits_is_told_which_nodes_are_the_profilers():
    p = lucid(2, 1, profiler_nodes=1)
    for number in range(2):
        p.step(arrived(f"short{number}", resumable=True), arrived(f"fixed{number}"))
    found = why(p.state, p.state.jobs["short1"])
    assert found.detail.endswith("the largest free is 0 on n2; it runs first in the profiler, on n2")
    found = why(p.state, p.state.jobs["fixed1"])
    assert found.detail.endswith("the largest free is 0 on n1; n2 is kept for the profiler")


def test_a_job_that_no_node_of_the_profiler_could_hold_goes_past_it():
    p = lucid(0, profiler_nodes=1)
    p.step(report("n1", 4), report("n2", 1))
    p.running("a", gpus=2, resumable=True)
    assert p.seats("a")[0][0] == "n1"
    assert not p.state.jobs["a"].profiling


def test_a_job_that_only_the_whole_pool_can_hold_may_use_the_profiler_too():
    p = lucid(2, 2, profiler_nodes=1)
    p.running("a", gpus=2, nodes=2)
    assert {node for node, _ in p.seats("a")} == {"n1", "n2"}


def test_the_profiler_never_takes_the_whole_pool_and_grows_while_many_wait():
    p = lucid(1, 2, profiler_nodes=1)
    p.running("a", resumable=True)
    assert not p.state.jobs["a"].profiling
    p = lucid(4, 1, profiler_nodes=1)
    p.step(*[arrived(f"j{n}", resumable=True) for n in range(14)])
    check(p.state)
    assert sorted(j.members[0].node for j in p.state.jobs.values() if j.members) == ["n3", "n4"]


def test_a_time_limit_within_the_profilers_time_is_the_jobs_own_end():
    p = lucid(2, 1, profiler_nodes=1)
    p.running("a", resumable=True, time_limit_s=60)
    p.step(i.Tick(), after=60.0)
    assert p.reason_of("a") == "TIME_LIMIT"


@pytest.mark.parametrize("seen", [(1.1, 0.0, 1), (0.5, -0.1, 1), (0.5, 0.5, -1)])
def test_a_profile_that_makes_no_sense_is_refused(seen: tuple[float, float, int]):
    p = lucid()
    assert list(p.step(arrived("a"), i.ProfileArrived("a", *seen)).refused) == [1]


@given(
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=16),
    nodes=st.integers(1, 3),
    profiler=st.sampled_from([None, 1]),
)
@settings(max_examples=60, deadline=None)
def test_no_gpu_has_three_jobs_and_no_pair_more_memory_than_there_is(steps: list, nodes: int, profiler: int | None):
    profiles = (TINY_JOB, TINY_BIG, MEDIUM_JOB, MEDIUM_BIG, JUMBO_JOB, JUMBO_BIG)
    p = PoolUnderTest(policy="lucid", gpu_sharing=True, gpu_memory_mib=24_000, profiler_nodes=profiler, preemption=True)
    p.step(*[report(f"n{number}", 2, memory_mib=0) for number in range(nodes)])
    for number, (kind, which, gpus) in enumerate(steps):
        held = [j.id for j in p.state.jobs.values() if j.state in ("ASSIGNED", "RUNNING")]
        leaving = [j.id for j in p.state.jobs.values() if j.state == "STOPPING"]
        if leaving and kind % 2:
            p.exit(leaving[0], None, cause="stopped", after=1.0)
        elif kind < 5 or not held:
            job = arrived(f"j{number}", gpus=min(gpus, 2), resumable=bool(which % 3), priority=kind % 3)
            p.step(job, profile(f"j{number}", profiles[which]), after=61.0) if kind else p.step(job)
        elif kind == 5:
            p.step(profile(held[which % len(held)], profiles[gpus]))
        elif kind == 6:
            p.start(held[which % len(held)], after=20.0)
        elif kind == 7:
            p.step(i.CancelRequested(held[which % len(held)], "ann"), after=100.0)
        else:
            p.exit(held[which % len(held)])
        check(p.state)
