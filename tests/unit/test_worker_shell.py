"""The worker's shell: reports on their thread, the outbox, shipping, sources, settings."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import pwd
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import ValidationError

from schedmate.infra.blobs.memory import MemoryBlobs
from schedmate.infra.bus.port import BusUnavailableError
from schedmate.infra.bus.sqlite import SqliteBus
from schedmate.infra.clock import SystemClock
from schedmate.infra.gpus.nvml import NvmlUnavailableError
from schedmate.infra.gpus.scripted import ScriptedGpus
from schedmate.infra.processes.real import RealProcesses
from schedmate.infra.settings import SettingsError
from schedmate.infra.telemetry.tracing import Tracing
from schedmate.schemas.codec import decode
from schedmate.schemas.events import LogChunked, NodeReported, RunExited
from schedmate.schemas.topology import topology
from schedmate.services.worker.settings import NEVER_S, WorkerSettings
from schedmate.services.worker.sources import BundlesFromBlobs, BundlesOverHttp, SourceError, Sources
from schedmate.services.worker.wiring import _make_gpus, build
from tests.waiting import eventually
from tests.worker_bench import TRACEPARENT, Talk, bench_on, spec

# --- the lease's own thread -------------------------------------------------------------------------------------------


async def test_a_loop_that_is_busy_costs_no_lease(tmp_path: Path) -> None:
    clock = SystemClock()
    bus = SqliteBus(tmp_path / "bus.db", clock)
    await bus.start()
    await bus.create_topics(topology().topics.values())
    settings = WorkerSettings(
        node="n1", gpus=1, state_dir=tmp_path, lease_s=3.0, report_interval_s=0.2, tick_s=0.02, same_user=True
    )
    processes = RealProcesses(settings.node_dir)
    worker = build(
        settings,
        bus=bus,
        lease_bus=lambda: SqliteBus(tmp_path / "bus.db", clock),
        gpus=ScriptedGpus(1),
        processes=processes,
    )
    stop = asyncio.Event()
    await worker.start()
    task = asyncio.create_task(worker.run(stop))
    talk = Talk(bus, "n1")
    try:
        await eventually(lambda: all(worker.ready().values()))
        key = await talk.assign(spec("sleep", "600"))
        await talk.started(key)
        session = (await talk.reports())[-1].session
        time.sleep(6.5)  # noqa: ASYNC251 - this is the point: the loop does nothing else for more than two leases
        assert processes.status(key).exit is None
        assert (await talk.reports())[-1].session == session
        await talk.order_stop(key, grace_s=1.0)
        assert (await talk.exited(key)).cause == "stopped"
    finally:
        stop.set()
        await asyncio.wait_for(task, 20)
        await worker.close()
        await bus.stop()


async def test_reports_say_how_the_node_stands_and_are_numbered(tmp_path: Path) -> None:
    async with bench_on(tmp_path, gpus=2, address="10.1.2.3", port_min=21000, port_max=21099) as bench:
        await eventually(lambda: len(bench.reports()) >= 3)
        reports = bench.reports()
        assert [r.report_no for r in reports] == list(range(1, len(reports) + 1))
        last = reports[-1]
        assert (last.address, last.port_min, last.port_max, last.lease_s) == ("10.1.2.3", 21000, 21099, 30.0)
        assert (last.same_user, last.stopping, last.pool) == (True, False, "default")
        assert last.boot_id
        assert [g.index for g in last.gpus] == [0, 1]


async def test_a_report_claims_no_more_than_what_was_applied(tmp_path: Path) -> None:
    """Whoever reads a report must find in it every member whose place is not above the applied one, or have its refusal."""
    async with bench_on(tmp_path, report_interval_s=0.02) as bench:
        keys = [await bench.assign(spec("true"), gpus=(n % 4,)) for n in range(8)]
        refused = [await bench.assign(spec("true"), session=1) for _ in range(4)]
        for key in keys:
            await eventually(
                lambda key=key: bench._of(RunExited, key) or any(r.run_id == key.run_id for r in _refusals(bench))
            )
        for key in refused:
            await bench.refused(key)
        places = {key.run_id: bench.talk._assigned[key].seq for key in [*keys, *refused]}
        told_refused = {r.run_id for r in _refusals(bench)}
        for report in bench.reports():
            shown = {run.run_id for run in report.runs}
            missing = {run for run, seq in places.items() if seq <= report.applied_seq} - shown
            assert missing <= told_refused


def _refusals(bench: Any) -> list[Any]:
    from schedmate.schemas.events import RunRefused  # noqa: PLC0415

    return bench.all(RunRefused)


# --- the outbox ---------------------------------------------------------------------------------------------------------


async def test_an_end_reaches_the_bus_however_often_that_fails(tmp_path: Path, seed: int) -> None:
    async with bench_on(tmp_path) as bench:
        bench.bus.faults.seed = seed
        bench.bus.faults.fail_before_write = 0.4
        bench.bus.faults.fail_after_write = 0.3
        with contextlib.suppress(BusUnavailableError):
            await bench.assign(spec("sh", "-c", "echo out; exit 9"))
        ((key, order),) = bench.talk._assigned.items()
        while key not in bench.worker._node.members:  # the dispatcher repeats too
            with contextlib.suppress(BusUnavailableError):
                await bench.talk.say(order)
            await asyncio.sleep(0.05)
        exited = await bench.exited(key, 30)
        assert exited.exit_code == 9
        await eventually(lambda: bench.log(key) == b"out\n", 30)
        ids_of = {r.header("ce_id") for r in bench.bus.records(RunExited.TOPIC)}
        assert len(ids_of) == 2, "repeats have the ids of before: one start, one exit"


# --- shipping -----------------------------------------------------------------------------------------------------------


async def test_output_is_on_the_bus_half_a_second_after_it_was_written(tmp_path: Path) -> None:
    """Most of it: where another process has the core for a while, some lines come later."""
    async with bench_on(tmp_path) as bench:
        lines = "for n in 1 2 3 4 5 6 7; do date +%s.%N; sleep 0.3; done; sleep 600"
        key = await bench.assign(spec("sh", "-c", lines))
        await eventually(lambda: bench.log(key).count(b"\n") == 7)
        chunks = [decode(record) for record in bench.bus.records(LogChunked.TOPIC)]
        late_s = sorted(chunk.time - float(line) for chunk in chunks for line in chunk.event.content.splitlines())
        assert len(late_s) == 7
        assert late_s[3] < 0.5


async def test_a_run_that_writes_without_end_is_cut_in_the_middle_and_blocks_nobody(tmp_path: Path) -> None:
    limits = {"log_run_bytes_s": 65536, "log_node_bytes_s": 131072, "log_backlog_bytes": 65536, "log_chunk_bytes": 8192}
    async with bench_on(tmp_path, spool_bytes_max=1 << 20, **limits) as bench:
        loud = await bench.assign(spec("sh", "-c", "yes 'a loud job' | head -c 8000000; echo the end"), gpus=(0,))
        quiet = await bench.assign(spec("sh", "-c", "echo quiet"), gpus=(1,))
        exited = await bench.exited(loud, 30)
        assert exited.exit_code == 0
        assert exited.log_bytes == 8000008
        await bench.exited(quiet)
        await eventually(lambda: bench.log(quiet) == b"quiet\n")
        await eventually(lambda: bench.log(loud).endswith(b"the end\n"), 30)
        log = bench.log(loud)
        assert log.startswith(b"a loud job\n")
        assert b"[gap]" in log
        assert len(log) < 1_000_000
        chunks = [c for c in bench.all(LogChunked) if c.run_id == loud.run_id]
        assert max(c.end for c in chunks) == exited.log_bytes
        assert all(len(c.content) <= 8192 for c in chunks)


async def test_shipping_goes_on_where_it_stood_after_a_restart(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sh", "-c", "echo one; sleep 1.5; echo two; sleep 600"))
        await eventually(lambda: bench.log(key) == b"one\n")
        await bench.kill()
        await bench.start()
        await eventually(lambda: bench.log(key) == b"one\ntwo\n")


# --- sources ------------------------------------------------------------------------------------------------------------


def bundle(number: int = 0) -> tuple[str, bytes]:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        info = tarfile.TarInfo("train.py")
        text = b"print('from the bundle')\n" + b"#" * number
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    value = content.getvalue()
    return hashlib.sha256(value).hexdigest(), value


class Given:
    """A place of bundles that a test fills."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content
        self.asked = 0

    async def stream(self, sha256: str) -> AsyncIterator[bytes]:
        self.asked += 1
        if sha256 not in self.content:
            raise SourceError(f"there is no bundle {sha256}")
        for byte in range(0, len(self.content[sha256]), 50):
            yield self.content[sha256][byte : byte + 50]


def sources(tmp_path: Path, given: Any, **settings: Any) -> Sources:
    return Sources(
        tmp_path / "cache", given, **{"bytes_max": 1 << 20, "timeout_s": 10.0, "cache_bytes": 1 << 20, **settings}
    )


async def test_a_bundle_is_fetched_once_checked_and_unpacked_once(tmp_path: Path) -> None:
    sha256, content = bundle()
    given = Given({sha256: content})
    both = await asyncio.gather(*(sources(tmp_path, given).unpacked(sha256, tmp_path / "j1") for _ in range(2)))
    assert both[0] == both[1] == tmp_path / "j1" / "source"
    assert (both[0] / "train.py").read_text() == "print('from the bundle')\n"
    asked = given.asked
    await sources(tmp_path, given).unpacked(sha256, tmp_path / "j2")
    assert given.asked == asked, "the second job has it from the cache"
    (both[0] / "train.py").write_text("changed by the job")
    await sources(tmp_path, given).unpacked(sha256, tmp_path / "j1")
    assert (both[0] / "train.py").read_text() == "changed by the job", "a job's directory is kept"


@pytest.mark.parametrize(
    ("content", "settings", "complaint"),
    [
        (None, {}, "there is no bundle"),
        (b"other bytes", {}, "has the hash"),
        (b"y" * 5000, {"bytes_max": 1000}, "larger than 1000 bytes"),
    ],
)
async def test_what_cannot_be_fetched_leaves_nothing_behind(
    tmp_path: Path, content: bytes | None, settings: dict[str, Any], complaint: str
) -> None:
    sha256, _ = bundle()
    given = Given({} if content is None else {sha256: content})
    with pytest.raises(SourceError, match=complaint):
        await sources(tmp_path, given, **settings).unpacked(sha256, tmp_path / "j1")
    assert not (tmp_path / "j1" / "source").exists()
    assert not list((tmp_path / "cache").iterdir())


async def test_the_cache_is_bounded_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    bundles = [bundle(number) for number in range(4)]
    given = Given(dict(bundles))
    made = sources(tmp_path, given, cache_bytes=2 * max(len(content) for _, content in bundles))
    for number, (sha256, _) in enumerate(bundles):
        await made.unpacked(sha256, tmp_path / f"j{number}")
        os.utime(tmp_path / "cache" / sha256, (number, number))
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert left == {sha256 for sha256, _ in bundles[2:]}


async def test_output_that_somebody_removed_is_said_to_be_gone(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        bench.bus.faults.unavailable = False
        key = await bench.assign(spec("sh", "-c", "echo one; sleep 0.3; echo two"))
        await eventually(lambda: bench.log(key) == b"one\n")
        (tmp_path / "n1" / "runs" / str(key) / "spool").write_bytes(b"")
        await bench.exited(key)
        await bench.release(key)
        await eventually(lambda: list(bench.processes.kept()) == [])


async def test_a_trace_has_the_workers_spans_between_its_neighbours(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing("worker", exporter=exporter, batched=False)
    with tracing.active():
        async with bench_on(tmp_path) as bench:
            key = await bench.assign(spec("true"))
            await bench.exited(key)
            records = bench.bus.records(RunExited.TOPIC)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    trace_id, parent_id, _ = TRACEPARENT.split("-")[1:]
    handled = spans["process schedmate.assignments"]
    assert f"{handled.context.trace_id:032x}" == trace_id
    assert f"{handled.parent.span_id:016x}" == parent_id, "under the dispatcher's span"
    assert spans["start member"].parent.span_id == handled.context.span_id
    assert spans["member exited"].parent.span_id == handled.context.span_id
    carried = {(record.header("traceparent") or b"").decode().split("-")[2] for record in records}
    assert carried == {f"{handled.context.span_id:016x}"}, "what reads these events hangs under the worker's span"
    tracing.shutdown()


async def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path) -> None:
    content = b"no archive"
    sha256 = hashlib.sha256(content).hexdigest()
    with pytest.raises(SourceError, match="cannot be unpacked"):
        await sources(tmp_path, Given({sha256: content})).unpacked(sha256, tmp_path / "j1")


async def test_without_a_place_to_fetch_from_the_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="set `api`"):
        await sources(tmp_path, None).unpacked("0" * 64, tmp_path / "j1")


async def test_bundles_come_over_http_with_the_token(tmp_path: Path) -> None:
    sha256, content = bundle()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers.get("authorization") != "Bearer secret":
            return httpx.Response(401)
        return (
            httpx.Response(200, content=content) if request.url.path == f"/v1/bundles/{sha256}" else httpx.Response(404)
        )

    for token, complaint in (("secret", None), ("wrong", "answers 401")):
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            transport=httpx.MockTransport(answer), base_url="http://ingest", headers=headers
        ) as client:
            made = sources(tmp_path / token, BundlesOverHttp(client))
            if complaint is None:
                assert (await made.unpacked(sha256, tmp_path / token / "j1") / "train.py").exists()
            else:
                with pytest.raises(SourceError, match=complaint):
                    await made.unpacked(sha256, tmp_path / token / "j1")


async def test_bundles_come_straight_from_the_blob_store(tmp_path: Path) -> None:
    sha256, content = bundle()
    blobs = MemoryBlobs(SystemClock())
    await blobs.put(f"bundles/{sha256}", content)
    assert (await sources(tmp_path, BundlesFromBlobs(blobs)).unpacked(sha256, tmp_path / "j1") / "train.py").exists()
    with pytest.raises(SourceError, match="there is no bundle"):
        await sources(tmp_path, BundlesFromBlobs(blobs)).unpacked("0" * 64, tmp_path / "j2")


async def test_a_job_runs_from_its_bundle_and_without_one_is_refused(tmp_path: Path) -> None:
    sha256, content = bundle()
    async with bench_on(tmp_path) as bench:
        missing = await bench.refused(await bench.assign(spec("python3", "train.py", bundle=sha256)))
        assert missing.cause == "bundle_unavailable"
        cache = tmp_path / "n1" / "bundles"
        cache.mkdir()
        (cache / sha256).write_bytes(content)
        key = await bench.assign(spec("python3", "train.py", bundle=sha256))
        assert (await bench.exited(key)).exit_code == 0
        await eventually(lambda: bench.log(key) == b"from the bundle\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch to another account")
async def test_a_job_of_another_account_owns_its_directory_and_finds_nothing_of_the_workers(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.getuid() and path.is_relative_to("/tmp/pytest-of-root"):
            path.chmod(0o755)
    async with bench_on(tmp_path, run_user="nobody") as bench:
        key = await bench.assign(
            spec("sh", "-c", 'id -un; touch mine "$SCHEDMATE_CHECKPOINT_DIR/step"; cat ../../journal.jsonl')
        )
        await bench.exited(key)
        await eventually(lambda: b"\n" in bench.log(key))
        output = bench.log(key).decode()
        assert output.startswith("nobody\n")
        assert "Permission denied" in output
        assert '"event"' not in output
        job = next(path for path in (tmp_path / "n1" / "jobs").iterdir() if path.name[0] != ".")
        assert (job / "mine").stat().st_uid == pwd.getpwnam("nobody").pw_uid
        assert (job / "checkpoints" / "step").exists()
        assert not bench.reports()[-1].same_user


# --- settings -----------------------------------------------------------------------------------------------------------


def settings(**values: Any) -> WorkerSettings:
    return WorkerSettings(**{"node": "n1", "gpus": 1, **values})


@pytest.mark.parametrize(
    ("lease_s", "expected", "reported", "interval_s"),
    [(600, 600.0, 600.0, 5.0), (24, 24.0, 24.0, 4.0), (0, 0.0, NEVER_S, 5.0), ("never", 0.0, NEVER_S, 5.0)],
)
def test_a_lease_may_be_never(lease_s: Any, expected: float, reported: float, interval_s: float) -> None:
    made = settings(lease_s=lease_s)
    assert (made.lease_s, made.reported_lease_s, made.interval_s) == (expected, reported, interval_s)


@pytest.mark.parametrize(
    "values",
    [
        {"api_token": "x"},
        {"kafka_username": "worker", "kafka_password": "x"},
        {"store": "mongodb://user:secret@host"},
        {"kafka_certificate_file": "c.pem", "kafka_key_file": "k.pem"},
    ],
)
def test_a_worker_with_credentials_runs_no_job_under_its_own_user_unless_told(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="holds credentials"):
        settings(**values)
    assert settings(**values, same_user=True).holds_credentials()
    assert settings(**values, run_user="nobody").holds_credentials()


def test_the_embedded_default_holds_no_credentials() -> None:
    assert not settings().holds_credentials()


def test_ports_have_an_order() -> None:
    with pytest.raises(ValidationError, match="port_min"):
        settings(port_min=30000, port_max=20000)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"gpus": 3}, 3),
        ({"gpus": 3, "gpu_source": "declared"}, 3),
        ({"gpus": None}, "SCHEDMATE_GPUS"),
        ({"gpus": None, "gpu_source": "declared"}, "SCHEDMATE_GPUS"),
        ({"gpus": 3, "gpu_source": "nvml"}, "SCHEDMATE_GPU_SOURCE"),
    ],
)
def test_without_a_driver_gpus_are_declared(
    values: dict[str, Any], expected: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver(**_: object) -> None:
        raise NvmlUnavailableError("no driver")

    monkeypatch.setattr("schedmate.services.worker.wiring.NvmlGpus", no_driver)
    if isinstance(expected, int):
        assert len(_make_gpus(settings(**values)).states()) == expected
    else:
        with pytest.raises(SettingsError, match=expected):
            _make_gpus(settings(**values))


def test_a_node_is_named_after_its_host() -> None:
    assert WorkerSettings(gpus=1).node


async def test_a_last_report_is_told_before_the_worker_ends(tmp_path: Path) -> None:
    async with bench_on(tmp_path, stop_runs=True, stop_grace_s=0.2) as bench:
        await bench.started(await bench.assign(spec("sleep", "600")))
        await bench.stop()
        last = [e for e in bench.all(NodeReported) if e.session == bench.session()][-1]
        assert last.stopping
        assert [run.state for run in last.runs] == ["ended"]
