"""Ids follow from causes, and the same ones for ever: other versions of the program must recognise a repeat."""

from __future__ import annotations

from uuid import UUID

from schedmate.schemas import ids

JOB = "d2e3feb9-f4d0-5cd7-9592-56aab30e3387"
RUN = "877f28a9-4f38-5d8f-9ac8-4bac56a7f4e6"


def test_the_ids_are_those_that_they_always_were():
    assert ids.job_id("vision", "resnet-2026-01-01") == JOB
    assert ids.run_id(JOB, 1) == RUN
    assert ids.decision_id("default", 7, 0) == "776cfe73-5b3f-5994-8d27-4a1246f6b76b"
    assert ids.member_event_id(RUN, 1, "started") == "23337219-a97d-5376-8d60-80d3fcf6c743"
    assert ids.log_chunk_id(RUN, 1, 0, 27) == "640cbc8a-30b4-5fe8-adb3-369618040668"


def test_an_id_is_a_uuid_of_version_5():
    assert UUID(ids.derived("anything")).version == 5


def test_neighbouring_causes_have_different_ids():
    made = [
        *(ids.job_id("a", key) for key in ("", "b", "bc")),
        ids.job_id("ab", "c"),
        ids.job_id("A", "b"),
        *(ids.run_id("a", attempt) for attempt in range(30)),
        *(ids.decision_id("a", seq, index) for seq in range(12) for index in range(12)),
        *(ids.member_event_id("a", member, kind) for member in (1, 11) for kind in ("started", "exited", "refused")),
        *(ids.log_chunk_id("a", member, start, start + 1) for member in (1, 11) for start in (1, 11, 111)),
        ids.derived("a", "b"),
        ids.derived("ab"),
        ids.derived("a", "b", ""),
    ]
    assert len(set(made)) == len(made)
