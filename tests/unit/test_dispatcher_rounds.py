"""Rounds in a live pool: what a round depends on, and that whoever recovers the pool holds the same one."""

from __future__ import annotations

from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core import inputs as i
from tests.dispatching import START, arrived, cluster


def test_a_round_has_others_to_give_gpus_to_as_soon_as_a_holder_is_on_its_way_out() -> None:
    """GPUs are given out by their number: while a stopped job still holds its GPU, a smaller job gets what is free."""
    p = cluster(gpus=2, policy="tiresias")
    p.step(arrived("holder", gpus=1), after=60)
    p.step(i.Tick(), after=60)
    assert p.state_of("holder") == JobState.ASSIGNED
    p.start("holder")
    p.step(
        arrived("large", gpus=2, submitted_at=START - 50),
        arrived("small", gpus=1, submitted_at=START + 200),
        after=60,
    )
    p.step(i.Tick(), after=60)
    assert (p.state_of("large"), p.state_of("small")) == (JobState.QUEUED, JobState.QUEUED)
    p.step(i.CancelRequested("holder", "ann"), after=1)
    assert p.state_of("holder") == JobState.STOPPING
    p.step(i.Tick(), after=60)
    assert (p.state_of("large"), p.state_of("small")) == (JobState.QUEUED, JobState.ASSIGNED)


def test_a_round_places_whom_it_can_once_a_stop_has_outlasted_its_bound() -> None:
    p = cluster(gpus=2, policy="tiresias")
    p.step(arrived("holder", gpus=1, resumable=True), after=60)
    p.step(i.Tick(), after=60)
    p.start("holder")
    p.step(i.Tick(), after=20_000)
    p.step(arrived("large", gpus=2), arrived("small", gpus=1), after=30)
    p.step(i.Tick(), after=60)
    assert p.state_of("holder") == JobState.STOPPING
    p.step(i.Tick(), after=59)
    assert (p.state_of("large"), p.state_of("small")) == (JobState.QUEUED, JobState.QUEUED)
    p.step(i.Tick(), after=70)
    assert (p.reason_of("holder"), p.state_of("small")) == ("STOP_TIMEOUT", JobState.ASSIGNED)


def test_whom_its_wait_brought_in_is_ranked_without_it_in_the_next_round() -> None:
    p = cluster(gpus=1, policy="tiresias", ageing_s=50.0, preemption_min_run_s=0.0)
    p.step(arrived("holder"), after=60)
    p.step(i.Tick(), after=60)
    p.start("holder")
    p.step(arrived("low", priority=0, resumable=True), after=60)
    p.step(arrived("high", priority=2), after=600)
    p.exit("holder")
    assert (p.state_of("low"), p.state_of("high")) == (JobState.ASSIGNED, JobState.QUEUED)
    p.step(i.Tick(), after=60)
    assert p.state_of("low") == JobState.STOPPING
