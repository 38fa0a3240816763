"""The API against its own OpenAPI document: no 5xx, and no answer that the document does not allow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import seed as hypothesis_seed
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from schedmate.infra.blobs.memory import MemoryBlobs
from schedmate.infra.bus.memory import MemoryBus
from schedmate.infra.clock import VirtualClock
from schedmate.infra.deadletters import dead_letter
from schedmate.infra.store.memory import MemoryStore
from schedmate.schemas.states import JobState
from schedmate.schemas.wire import Delivery, Record
from schedmate.services.ingest.settings import IngestSettings
from schedmate.services.ingest.wiring import build
from tests.ingesting import START, IngestUnderTest, chunk, decided, exited, reported, serving, started, submitted
from tests.waiting import eventually_sync

pytestmark = [
    pytest.mark.localhost,
    pytest.mark.slow,
    # the server runs in a thread of this process and draws trace ids, which Hypothesis takes for its strategies' doing
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]

EXAMPLES = 200
SEED = 20_251_130
STREAMS = ["follow_job_log", "follow_events"]
JOB_ID = "11111111-1111-5111-8111-111111111111"
ENDED_ID = "22222222-2222-5222-8222-222222222222"
LETTER = dead_letter(
    Delivery(Record("schedmate.runs", b"key", b"poison\xff", (("ce_id", b"1"),)), 3, 14),
    "dispatcher",
    "no event",
    5,
    START,
)
KNOWN = {
    "job_id": [JOB_ID, ENDED_ID, "33333333-3333-5333-8333-333333333333"],
    "node": ["n1", "n2"],
    "pool": ["default", "nowhere"],
    "letter_id": [f"{int(START * 1000):015d}-{LETTER.id}"],
    "sha256": ["0" * 64],
}


async def _prepare(under_test: IngestUnderTest) -> None:
    for job in (JOB_ID, ENDED_ID):
        await under_test.publish(
            submitted(job),
            decided(job, JobState.QUEUED, 1, attempt=0),
            decided(job, JobState.ASSIGNED, 2),
            started(job),
            decided(job, JobState.RUNNING, 3),
        )
        await under_test.context.logs.add(chunk(job, 0, "Schritt 1/10: größer\n".encode() + b"\xff"))
    await under_test.publish(exited(ENDED_ID), decided(ENDED_ID, JobState.SUCCEEDED, 9), reported(), LETTER)


@pytest.fixture(scope="module")
def api_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    generous = {"rate_per_s": 1e6, "rate_burst": 1e6, "why_timeout_s": 0.2}
    with serving(tmp_path_factory.mktemp("api"), _prepare, **generous) as url:
        eventually_sync(lambda: len(httpx.get(f"{url}/v1/jobs").json()["jobs"]) == 2)
        yield url


def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Name things that exist half of the time: made-up ids only ever find nothing."""
    if not path_parameters:
        return path_parameters
    return {name: _known(name, value) for name, value in path_parameters.items()}


def _known(name: str, value: Any) -> Any:
    known = KNOWN.get(name, [])
    choice = sum(str(value).encode("utf-8", "replace"))
    return known[choice // 2 % len(known)] if known and choice % 2 else value


def _document() -> dict[str, Any]:
    """Return the OpenAPI document of an application over nothing: pytest wants the operations before there is a server."""
    clock = VirtualClock()
    settings_ = IngestSettings(state_dir=Path("nowhere"))
    ingest = build(settings_, bus=MemoryBus(clock), store=MemoryStore(), blobs=MemoryBlobs(clock), clock=clock)
    document: dict[str, Any] = ingest.app.openapi()
    return document


schema = schemathesis.openapi.from_dict(_document())
schema.hook(map_path_parameters)


@schema.exclude(operation_id=STREAMS).parametrize()
@hypothesis_seed(SEED)
@settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_no_answer_is_beyond_what_the_document_allows(case: schemathesis.Case, api_url: str) -> None:
    # what makes bytes an archive cannot be said in a schema, so valid by the schema may still be refused
    brings_bundle = (
        case.operation.definition.raw.get("operationId") == "put_bundle" or case.media_type == "multipart/form-data"
    )
    # nor that quantiles ascend, that a reason is more than blanks, and that a reservation ends after it begins
    orders = case.operation.definition.raw.get("operationId") in ("order_estimate", "pin_job", "reserve_nodes")
    unfit = [positive_data_acceptance] if brings_bundle or orders else []
    response = case.call(base_url=api_url, timeout=20)
    if (
        response.status_code == 503
    ):  # no dispatcher leads these pools: the document has this answer where a leader is asked
        assert response.json()["type"] == "urn:schedmate:problem:unavailable"
        unfit.append(not_a_server_error)
    case.validate_response(response, excluded_checks=unfit)
