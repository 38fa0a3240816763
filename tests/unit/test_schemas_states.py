"""The table of transitions: every pair of state and event, allowed and refused."""

from __future__ import annotations

import itertools

import pytest

from schedmate.schemas.states import (
    EVENT_MEANINGS,
    HOLDS_GPUS,
    STATE_MEANINGS,
    TERMINAL,
    TRANSITIONS,
    IllegalTransitionError,
    JobEvent,
    JobState,
    StopIntent,
    transition,
)

# Written out a second time on purpose: a slip in the table is a difference between the two.
ALLOWED = """
SUBMITTED   ADMIT      QUEUED
SUBMITTED   REJECT     REJECTED
SUBMITTED   CANCEL     CANCELLED
QUEUED      PLACE      ASSIGNED
QUEUED      CANCEL     CANCELLED
ASSIGNED    START      RUNNING
ASSIGNED    STOP       STOPPING
ASSIGNED    END_BADLY  DIAGNOSING
RUNNING     STOP       STOPPING
RUNNING     END_BADLY  DIAGNOSING
RUNNING     COMPLETE   SUCCEEDED
STOPPING    REQUEUE    QUEUED
STOPPING    END_BADLY  DIAGNOSING
STOPPING    CANCEL     CANCELLED
STOPPING    FAIL       FAILED
STOPPING    COMPLETE   SUCCEEDED
DIAGNOSING  REQUEUE    QUEUED
DIAGNOSING  FAIL       FAILED
DIAGNOSING  CANCEL     CANCELLED
DIAGNOSING  COMPLETE   SUCCEEDED
"""

ARROWS = {
    (JobState(state), JobEvent(event)): JobState(target)
    for state, event, target in (line.split() for line in ALLOWED.strip().splitlines())
}
PAIRS = list(itertools.product(JobState, JobEvent))


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_a_pair_leads_where_the_protocol_says_or_is_refused(state: JobState, event: JobEvent):
    if (state, event) in ARROWS:
        assert transition(state, event) is ARROWS[state, event]
        return
    with pytest.raises(IllegalTransitionError, match=f"a job that is {state} cannot {event}") as caught:
        transition(state, event)
    assert (caught.value.state, caught.value.event) == (state, event)


def test_the_table_has_no_arrow_beyond_the_protocol():
    assert TRANSITIONS == ARROWS


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_terminal_state_has_no_way_out(state: JobState):
    assert not [event for event in JobEvent if (state, event) in TRANSITIONS]


@pytest.mark.parametrize("state", [state for state in JobState if state not in TERMINAL])
def test_every_other_state_has_a_way_in_and_a_way_to_an_end(state: JobState):
    reached, edge = {state}, [state]
    while edge:
        origin = edge.pop()
        for (start, _), target in TRANSITIONS.items():
            if start is origin and target not in reached:
                reached.add(target)
                edge.append(target)
    assert reached & TERMINAL
    assert state is JobState.SUBMITTED or state in TRANSITIONS.values()


def test_a_job_leaves_its_gpus_only_by_way_of_states_that_hold_them():
    into = {state for (state, _), target in TRANSITIONS.items() if target in HOLDS_GPUS}
    assert into == {JobState.QUEUED, JobState.ASSIGNED, JobState.RUNNING}
    assert {event for (_, event), target in TRANSITIONS.items() if target is JobState.ASSIGNED} == {JobEvent.PLACE}


def test_every_event_moves_something():
    assert {event for _, event in TRANSITIONS} == set(JobEvent)


def test_a_cancel_takes_effect_wherever_no_member_can_be_running():
    assert {state for state, event in TRANSITIONS if event is JobEvent.CANCEL} == {
        JobState.SUBMITTED,
        JobState.QUEUED,
        JobState.STOPPING,
        JobState.DIAGNOSING,
    }


def test_intents_are_ordered_requeue_diagnose_fail_cancel():
    assert [intent.name for intent in sorted(StopIntent)] == ["REQUEUE", "DIAGNOSE", "FAIL", "CANCEL"]


def test_every_state_and_every_event_is_explained():
    assert set(STATE_MEANINGS) == set(JobState)
    assert set(EVENT_MEANINGS) == set(JobEvent)
