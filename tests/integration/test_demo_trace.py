"""The demo's traces in the real Collector and Zipkin: one tree a job, from the submit to its last event."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedmate.infra.telemetry.recorded import Edge, edges, roots
from tests.acceptance.demo import run_demo
from tests.servers import shared
from tests.zipkin import Zipkin

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(240)]

SERVICES = {
    ("ingest", "dispatcher"),
    ("dispatcher", "worker"),
    ("worker", "log-monitor"),
    ("worker", "ingest"),
    ("worker", "history-estimator"),
    ("ingest", "code-analyzer"),
    ("code-analyzer", "history-estimator"),
    ("log-monitor", "ingest"),
}


async def test_a_jobs_whole_life_is_one_tree(tmp_path: Path) -> None:
    account = run_demo(tmp_path / "state", environment={"OTEL_EXPORTER_OTLP_ENDPOINT": shared("SCHEDMATE_TEST_OTLP")})
    jobs = {job["name"]: job for job in account["jobs"]}
    zipkin = Zipkin()
    for name in ("driver-fault", "gang-average", "regression-wide"):
        spans = await zipkin.trace(jobs[name]["trace_id"], until=lambda found: zipkin.services(found) >= SERVICES)
        assert [(root.service, root.name) for root in roots(spans)] == [("ingest", "post /v1/jobs")], name
        found = edges(spans)
        assert Edge("ingest", "post /v1/jobs", "dispatcher", "decide") in found
        assert Edge("dispatcher", "decide", "worker", "process schedmate.assignments") in found
        assert Edge("worker", "process schedmate.assignments", "worker", "start member") in found
        assert Edge("log-monitor", "process schedmate.logs", "log-monitor", "track progress") in found
        assert Edge("code-analyzer", "process schedmate.jobs", "code-analyzer", "analyze") in found
    fault = await zipkin.trace(jobs["driver-fault"]["trace_id"], until=lambda found: len(found) > 0)
    names = [(span.service, span.name) for span in fault]
    assert names.count(("worker", "start member")) == 2  # both attempts, in the same tree
    assert ("log-monitor", "diagnose") in names
