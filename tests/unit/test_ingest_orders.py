"""What an operator orders of one job, through the API: events, audit, views, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schedmate.schemas import events as e
from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.intake import to_input
from schedmate.services.ingest.access import Scope
from tests.ingesting import decided, ingesting

REASON = "a demo waits for it"


async def test_an_estimate_goes_to_the_pool_and_into_the_audit_and_shows_until_it_is_cleared(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        job_id = (await under_test.submit(time_limit_s=8000))["job_id"]
        path = f"/v1/jobs/{job_id}/estimate"
        answer = await under_test.http.post(path, json={"p50_s": 7200, "p90_s": 9000, "why": "as last week"})
        assert (answer.status_code, answer.json()) == (202, {"job_id": job_id, "state": "SUBMITTED"})
        [asked] = under_test.published("schedmate.commands")
        assert asked.event == e.JobEstimateOrdered(
            job_id=job_id, pool="default", p10_s=None, p50_s=7200, p90_s=9000, requested_by="local", why="as last week"
        )
        assert asked.event.key == job_id
        assert to_input(asked) == i.EstimateOrdered(job_id, None, 7200.0, 9000.0, "local", "as last week")
        [audited] = under_test.published("schedmate.audit")
        await under_test.fold(asked, audited)
        view = (await under_test.http.get(f"/v1/jobs/{job_id}")).json()
        ordered = {name: view["ordered_estimate"][name] for name in ("p50_s", "p90_s", "requested_by", "why")}
        assert ordered == {"p50_s": 7200.0, "p90_s": 8000, "requested_by": "local", "why": "as last week"}
        assert (view["predicted"]["p50_s"], view["predicted"]["basis"]) == (7200.0, "operator")
        calls = (await under_test.http.get(f"/v1/jobs/{job_id}/events")).json()["calls"]
        assert [(call["principal"], call["call"], call["outcome"]) for call in calls] == [
            ("local", "estimate", "accepted")
        ]

        assert (await under_test.http.post(path, json={"clear": True})).status_code == 202
        cleared = under_test.published("schedmate.commands")[1]
        assert to_input(cleared) == i.EstimateOrdered(job_id, None, None, None, "local", "")
        assert under_test.published("schedmate.audit")[1].event.call == "clear-estimate"
        await under_test.fold(cleared, asked)  # what comes late changes nothing
        view = (await under_test.http.get(f"/v1/jobs/{job_id}")).json()
        assert (view["ordered_estimate"], view["predicted"]) == (None, None)


async def test_a_pin_goes_to_the_pool_and_into_the_audit_and_shows_until_it_is_let_go(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        job_id = (await under_test.submit())["job_id"]
        for place, call in (("first", "pin-first"), ("last", "pin-last"), ("none", "unpin")):
            answer = await under_test.http.post(f"/v1/jobs/{job_id}/pin", json={"place": place, "why": REASON})
            assert answer.status_code == 202, answer.text
            asked, audited = (under_test.published(f"schedmate.{topic}")[-1] for topic in ("commands", "audit"))
            assert asked.event == e.JobPinRequested(
                job_id=job_id, pool="default", place=place, requested_by="local", why=REASON
            )
            assert to_input(asked) == i.JobPinned(job_id, place, "local", REASON)
            assert (audited.event.call, audited.event.target) == (call, f"job/{job_id}")
            await under_test.fold(asked, audited)
            pin = (await under_test.http.get(f"/v1/jobs/{job_id}")).json()["pin"]
            assert pin is None if place == "none" else (pin["place"], pin["why"]) == (place, REASON)


@pytest.mark.parametrize(
    ("order", "body"),
    [
        ("estimate", {}),
        ("estimate", {"p50_s": 0}),
        ("estimate", {"p50_s": -5}),
        ("estimate", {"p50_s": "long"}),
        ("estimate", {"p50_s": 1e12}),
        ("estimate", {"p50_s": 60, "p10_s": 70}),
        ("estimate", {"p50_s": 60, "p90_s": 50}),
        ("estimate", {"p90_s": 50}),
        ("estimate", {"clear": True, "p50_s": 60}),
        ("estimate", {"p50_s": 60, "because": "x"}),
        ("pin", {}),
        ("pin", {"place": "second", "why": REASON}),
        ("pin", {"place": "first"}),
        ("pin", {"place": "last", "why": "  "}),
    ],
)
async def test_what_makes_no_sense_is_refused_and_names_the_field(
    tmp_path: Path, order: str, body: dict[str, Any]
) -> None:
    async with ingesting(tmp_path) as under_test:
        job_id = (await under_test.submit())["job_id"]
        answer = await under_test.http.post(f"/v1/jobs/{job_id}/{order}", json=body)
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"]
        assert under_test.published("schedmate.commands") == []


BODIES = {"estimate": {"p50_s": 60}, "pin": {"place": "first", "why": REASON}}


@pytest.mark.parametrize("order", sorted(BODIES))
async def test_without_the_scope_to_operate_it_is_refused_and_the_attempt_is_audited(
    tmp_path: Path, order: str
) -> None:
    async with ingesting(tmp_path, api_tokens_required=True) as under_test:
        owner = await under_test.token("vision", Scope.SUBMIT, Scope.READ, subject="ada")
        made = await under_test.http.post("/v1/jobs", json={"name": "t", "command": ["true"]}, headers=owner)
        job_id = made.json()["job_id"]
        other = await under_test.token("speech", Scope.SUBMIT, Scope.READ, subject="sam")
        for headers, name in ((owner, "ada"), (other, "sam")):
            answer = await under_test.http.post(f"/v1/jobs/{job_id}/{order}", json=BODIES[order], headers=headers)
            assert answer.status_code == 403, answer.text
            assert "operate" in answer.json()["detail"]
            audited = [one.event for one in under_test.published("schedmate.audit")]
            assert (name, order, "refused") in [(a.principal, a.call, a.outcome) for a in audited]
        assert under_test.published("schedmate.commands") == []
        operator = await under_test.token("ops", Scope.OPERATE, subject="olga")
        answer = await under_test.http.post(f"/v1/jobs/{job_id}/{order}", json=BODIES[order], headers=operator)
        assert answer.status_code == 202, answer.text
        assert under_test.published("schedmate.commands")[0].event.requested_by == "olga"


@pytest.mark.parametrize("order", sorted(BODIES))
async def test_nothing_is_ordered_of_a_job_that_has_ended_or_is_not_there(tmp_path: Path, order: str) -> None:
    async with ingesting(tmp_path) as under_test:
        job_id = (await under_test.submit())["job_id"]
        await under_test.fold(decided(job_id, JobState.CANCELLED, 1))
        answer = await under_test.http.post(f"/v1/jobs/{job_id}/{order}", json=BODIES[order])
        assert answer.status_code == 409, answer.text
        assert "has ended (CANCELLED)" in answer.json()["detail"]
        for unknown in ("11111111-1111-5111-8111-111111111111", "no-id"):
            answer = await under_test.http.post(f"/v1/jobs/{unknown}/{order}", json=BODIES[order])
            assert answer.status_code == 404, answer.text
        assert under_test.published("schedmate.commands") == []
