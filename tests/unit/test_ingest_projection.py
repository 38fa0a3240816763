"""The read model of jobs: the same document whatever repeats and however topics interleave."""

from __future__ import annotations

import random  # noqa: TID251 - seeded shuffles
from collections.abc import Sequence

import pytest

from schedmate.cli import rendering
from schedmate.schemas import events as e
from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobState
from schedmate.schemas.wire import Envelope
from schedmate.services.ingest import presentation
from schedmate.services.ingest.models import JobView
from schedmate.services.ingest.projection import HISTORY_LEN_MAX, View, fold, is_known
from tests.ingesting import START, decided, enveloped, exited, started, submitted

JOB_ID = "11111111-1111-5111-8111-111111111111"
S = JobState


def folded(envelopes: Sequence[Envelope[e.Event]]) -> View:
    view: View | None = None
    for envelope in envelopes:
        view = fold(view, JOB_ID, envelope)
    assert view is not None
    return view


def estimate(revision: int, p50_s: float) -> Envelope[e.Event]:
    event = e.RunTimeEstimated(
        job_id=JOB_ID,
        pool="default",
        revision=revision,
        p10_s=1.0,
        p50_s=p50_s,
        p90_s=99.0,
        basis=e.EstimateBasis.EXACT_PRIOR,
    )
    return enveloped(event)


def progress(offset: int, step: int, *, attempt: int = 1, member: int = 0) -> Envelope[e.Event]:
    event = e.ProgressObserved(
        job_id=JOB_ID,
        pool="default",
        run_id="r",
        attempt=attempt,
        member=member,
        log_offset=offset,
        step=step,
        total_steps=100,
    )
    return enveloped(event, START + offset)


def diagnosis(category: str, *, attempt: int = 1, confidence: float = 0.9) -> Envelope[e.Event]:
    event = e.RunDiagnosed(
        job_id=JOB_ID, pool="default", run_id="r", attempt=attempt, category=category, culpable=None,
        action=e.Action.DO_NOT_RETRY, confidence=confidence,
    )  # fmt: skip
    return enveloped(event)


def reasoned(seq: int, reason: Reason, *, at: float = START, detail: str = "") -> Envelope[e.Event]:
    return enveloped(
        e.JobReasoned(job_id=JOB_ID, pool="default", seq=seq, at=at, reason=reason, detail=detail, queue_position=3)
    )


LIFE = [
    submitted(JOB_ID),
    decided(JOB_ID, S.QUEUED, 1, attempt=0),
    reasoned(1, Reason.INSUFFICIENT_GPUS, detail="needs 2"),
    decided(JOB_ID, S.ASSIGNED, 10),
    started(JOB_ID, at=START + 11),
    decided(JOB_ID, S.RUNNING, 12),
    progress(100, 10),
    progress(200, 20),
    exited(JOB_ID, 1, at=START + 30, log_bytes=200),
    decided(JOB_ID, S.DIAGNOSING, 31),
    diagnosis("OOM"),
    decided(JOB_ID, S.QUEUED, 32, reason=Reason.RETRYING),
    decided(JOB_ID, S.ASSIGNED, 40, attempt=2),
    started(JOB_ID, attempt=2, at=START + 41),
    decided(JOB_ID, S.RUNNING, 42, attempt=2),
    estimate(1, 50.0),
    estimate(2, 60.0),
    exited(JOB_ID, 0, attempt=2, at=START + 70, log_bytes=10),
    decided(JOB_ID, S.SUCCEEDED, 71, attempt=2),
]  # fmt: skip


def test_a_jobs_life_is_told_from_its_events() -> None:
    view = presentation.job_view(folded(LIFE), START + 1000)
    assert (view.state, view.reason, view.attempt) == (S.SUCCEEDED, Reason.ALL_MEMBERS_EXITED_ZERO, 2)
    assert view.wait_s == pytest.approx(12 + (42 - 32))
    assert (view.started_at, view.ended_at) == (START + 41, START + 71)
    assert view.run_s == pytest.approx(29)
    assert view.predicted is not None
    assert (view.predicted.p50_s, view.predicted.basis) == (60.0, "exact_prior")
    assert view.foretold == view.predicted
    assert view.progress is not None
    assert view.progress.step == 20
    assert view.diagnosis is not None
    assert view.diagnosis.category == "OOM"
    assert view.exit_codes == {"0": 0}
    assert view.why_there == "the only node that fits"
    assert [p.node for p in view.placements] == ["n1"]
    history = presentation.history(folded(LIFE))
    assert [d.state for d in history.decisions] == [
        S.QUEUED, S.ASSIGNED, S.RUNNING, S.DIAGNOSING, S.QUEUED, S.ASSIGNED, S.RUNNING, S.SUCCEEDED,
    ]  # fmt: skip


def test_every_prefix_of_a_life_can_be_shown() -> None:
    for length in range(1, len(LIFE) + 1):
        presentation.job_view(folded(LIFE[:length]), START + 500)


def test_repeats_and_any_order_change_nothing(seed: int) -> None:
    """Topics interleave, records repeat, and handlers run at once: the document is the same in the end."""
    expected = folded(LIFE)
    rolls = random.Random(seed)
    for _ in range(300):
        shuffled = [*LIFE, *rolls.choices(LIFE, k=5)]
        rolls.shuffle(shuffled)
        assert folded(shuffled) == expected


def test_a_repeat_gives_the_very_same_document() -> None:
    view = folded(LIFE)
    for envelope in LIFE:
        assert fold(view, JOB_ID, envelope) is view


def test_a_view_that_starts_from_a_decision_is_held_until_its_job_comes() -> None:
    held = folded([decided(JOB_ID, S.QUEUED, 1, attempt=0), decided(JOB_ID, S.ASSIGNED, 2)])
    assert not is_known(held)
    assert "sort_key" not in held
    known = fold(held, JOB_ID, submitted(JOB_ID))
    assert is_known(known)
    assert known["state"] == "ASSIGNED"
    assert "open_key" in known


def test_a_late_decision_takes_its_place_in_the_history_and_moves_nothing() -> None:
    view = folded([submitted(JOB_ID), decided(JOB_ID, S.ASSIGNED, 5)])
    late = fold(view, JOB_ID, decided(JOB_ID, S.QUEUED, 4))
    assert (late["state"], [d["seq"] for d in late["history"]]) == ("ASSIGNED", [4, 5])
    assert fold(late, JOB_ID, decided(JOB_ID, S.QUEUED, 5, index=0)) is late  # a place is taken once
    assert fold(late, JOB_ID, decided(JOB_ID, S.RUNNING, 5, index=1))["state"] == "RUNNING"


def test_an_ended_job_is_not_among_the_unfinished() -> None:
    assert "open_key" in folded(LIFE[:-1])
    assert "open_key" not in folded(LIFE)


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ([reasoned(1, Reason.FRAGMENTED)], None, Reason.FRAGMENTED),
        ([reasoned(5, Reason.FRAGMENTED, at=2), reasoned(4, Reason.INSUFFICIENT_GPUS, at=9)], None, Reason.FRAGMENTED),
        ([reasoned(5, Reason.FRAGMENTED, at=2), reasoned(5, Reason.HELD_BY_CORDON, at=3)], None, Reason.HELD_BY_CORDON),
        ([reasoned(1, Reason.FRAGMENTED)], decided(JOB_ID, S.ASSIGNED, 2), Reason.STARTING),
        ([reasoned(1, Reason.FRAGMENTED)], decided(JOB_ID, S.SUCCEEDED, 1, index=9), Reason.ALL_MEMBERS_EXITED_ZERO),
    ],
)
def test_the_reason_is_the_newest_about_where_the_job_stands(
    before: list[Envelope[e.Event]], after: Envelope[e.Event] | None, shown: Reason
) -> None:
    events = [submitted(JOB_ID), decided(JOB_ID, S.QUEUED, 1, attempt=0), *before, *([after] if after else [])]
    view = presentation.job_view(folded(events), START + 5)
    assert view.reason is shown
    assert view.queue_position == (3 if after is None else None)


@pytest.mark.parametrize(
    ("events", "category"),
    [
        ([diagnosis("UNKNOWN", confidence=1.0), diagnosis("OOM", confidence=0.2)], "OOM"),
        ([diagnosis("OOM", confidence=0.2), diagnosis("UNKNOWN", confidence=1.0)], "OOM"),
        ([diagnosis("OOM", attempt=2), diagnosis("NCCL", attempt=1, confidence=1.0)], "OOM"),
        ([diagnosis("OOM"), diagnosis("NCCL")], "OOM"),
    ],
)
def test_the_diagnosis_shown_is_the_newest_attempts_and_the_surest(
    events: list[Envelope[e.Event]], category: str
) -> None:
    assert folded(events)["diagnosis"]["category"] == category


def test_what_was_foretold_stays_beside_what_progress_tells() -> None:
    by_progress = e.RunTimeEstimated(
        job_id=JOB_ID, pool="default", revision=3, p50_s=70.0, basis=e.EstimateBasis.PROGRESS
    )
    events = [submitted(JOB_ID), enveloped(by_progress), estimate(2, 60.0), estimate(1, 50.0)]
    for order in (events, [*reversed(events[1:]), events[0]]):
        view = presentation.job_view(folded(order), START)
        assert view.predicted is not None
        assert view.foretold is not None
        assert (view.predicted.p50_s, view.foretold.p50_s) == (70.0, 60.0)


def test_progress_is_the_first_ranks_furthest() -> None:
    events = [progress(50, 5, member=1), progress(10, 1), progress(30, 3), progress(20, 2), progress(900, 90, member=1)]
    assert folded(events)["progress"]["step"] == 3
    assert folded([*events, progress(1, 7, attempt=2, member=1)])["progress"]["step"] == 7


def test_the_remaining_times_interval_is_shown_and_unknown_in_progress_of_the_version_before() -> None:
    before = progress(30, 3)
    assert isinstance(before.event, e.ProgressObserved)
    told = before.event.model_copy(update={"log_offset": 35, "eta_s": 600.0})
    newer = e.ProgressObservedV2.of(told).model_copy(update={"log_offset": 40, "eta_low_s": 500.0, "eta_high_s": 900.0})
    shown = []
    for event in (told, newer):
        view = presentation.job_view(folded([submitted(JOB_ID), before, enveloped(event, START + 50)]), START)
        job = JobView.model_validate(view.model_dump(mode="json") | {"state": "RUNNING", "attempt": 1})
        assert view.progress is not None
        shown.append((view.progress.eta_low_s, view.progress.eta_high_s, rendering.left_words(job)))
    assert shown == [(None, None, "10m00s"), (500.0, 900.0, "10m00s (8m20s-15m00s)")]


def test_values_of_the_environment_are_not_in_the_read_model() -> None:
    view = folded([submitted(JOB_ID, env={"WANDB_API_KEY": "very-secret"})])
    assert "very-secret" not in repr(view)
    assert presentation.job_view(view, START).env_names == ["WANDB_API_KEY"]


def test_a_very_long_history_keeps_its_beginning_and_its_newest_in_any_order(seed: int) -> None:
    decisions = [decided(JOB_ID, S.QUEUED, n) for n in range(1, 1000)]
    in_order = folded([submitted(JOB_ID), *decisions])
    history = in_order["history"]
    assert len(history) == HISTORY_LEN_MAX
    assert (history[0]["seq"], history[99]["seq"], history[100]["seq"], history[-1]["seq"]) == (1, 100, 900, 999)
    assert all(fold(in_order, JOB_ID, one) is in_order for one in decisions)
    random.Random(seed).shuffle(decisions)
    shuffled = folded([submitted(JOB_ID), *decisions])
    assert shuffled["state"] == in_order["state"]
    assert len(shuffled["history"]) <= HISTORY_LEN_MAX
    assert shuffled["history"][-1]["seq"] == 999


def test_placements_are_kept_of_the_newest_assignment_only(seed: int) -> None:
    decisions = [decided(JOB_ID, S.ASSIGNED, n, attempt=n) for n in range(1, 6)]
    random.Random(seed).shuffle(decisions)
    history = folded([submitted(JOB_ID), *decisions])["history"]
    assert ["placements" in one for one in history] == [False, False, False, False, True]


def test_who_called_is_told_by_time_and_once() -> None:
    calls = [
        enveloped(
            e.CallAudited(
                principal=p,
                tenant="t",
                scope="submit",
                call="cancel",
                target=f"job/{JOB_ID}",
                outcome="accepted",
                at=at,
            )
        )
        for p, at in (("ann", 2.0), ("bob", 1.0))
    ]
    view = folded([submitted(JOB_ID), *calls, *calls])
    assert [c["principal"] for c in view["calls"]] == ["bob", "ann"]
