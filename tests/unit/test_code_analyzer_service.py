"""code-analyzer as a whole: jobs in, analyses out; the process pool; the cache; bundles over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
import tarfile
import time
import zipfile

import httpx
import pytest

from schedmate.infra.blobs.memory import MemoryBlobs
from schedmate.infra.blobs.port import BlobsUnavailableError
from schedmate.infra.clock import SeededRandom, SystemClock
from schedmate.infra.llm.queue import ModelQueue
from schedmate.infra.llm.scripted import ScriptedModel
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.work_pool import WorkError, WorkPool, WorkTimeoutError
from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.bundles import BundleMissingError, BundlesFromBlobs, BundlesFromIngest, fetch
from schedmate.services.code_analyzer.handlers import Analyzer
from schedmate.services.code_analyzer.settings import CodeAnalyzerSettings
from schedmate.services.code_analyzer.wiring import build
from tests.advice import Job, envelope, events_on, memory_bus, memory_store, publish, serving

TRAIN = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int, default=3)\n"


@pytest.fixture
async def pool():
    made = WorkPool(1)
    yield made
    await made.close()


async def analyzer(pool, store=None, blobs=None, **given):
    settings = CodeAnalyzerSettings(**given)
    blobs = blobs or MemoryBlobs(SystemClock())
    return Analyzer(store or await memory_store(), BundlesFromBlobs(blobs), pool, settings, SystemClock(), Metrics())


async def analysis(handler, **fields):
    (said,) = await handler(envelope(Job(fields=fields).submitted()))
    return said.event


async def test_a_submitted_job_is_analysed_on_the_bus(pool):
    bus, store = await memory_bus(), await memory_store()
    component = build(
        CodeAnalyzerSettings(),
        bus=bus,
        store=store,
        blobs=MemoryBlobs(SystemClock()),
        random=SeededRandom(1),
        work_pool=pool,
    )
    async with serving(component):
        await publish(bus, Job(fields={"command": ("python", "t.py", "--epochs", "4")}).submitted())
        (said,) = await events_on(bus, "schedmate.analyses", within_s=30)
    assert said.event.fields["epochs"].value == 4
    assert said.event.partial_because == "there is no source to read"


async def test_a_working_directory_is_read_only_where_that_is_allowed(pool, tmp_path):
    (tmp_path / "t.py").write_text(TRAIN)
    told = {"command": ("python", "t.py"), "workdir": str(tmp_path)}
    allowed = await analysis(await analyzer(pool, read_workdirs=True), **told)
    assert (allowed.fields["epochs"].value, allowed.partial_because) == (3, None)
    refused = await analysis(await analyzer(pool), **told)
    assert "epochs" not in refused.fields
    assert "not read here" in refused.partial_because


async def test_links_pipes_and_hidden_directories_of_a_working_directory_are_not_followed(pool, tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "t.py").write_text(TRAIN)
    (tmp_path / "job" / "t.py").symlink_to(tmp_path / "t.py")
    os.mkfifo(tmp_path / "job" / "u.py")
    (tmp_path / "job" / "loop").symlink_to(tmp_path / "job", target_is_directory=True)
    found = await analysis(
        await analyzer(pool, read_workdirs=True), command=("python", "t.py"), workdir=str(tmp_path / "job")
    )
    assert "epochs" not in found.fields


async def test_a_missing_working_directory_is_said(pool):
    found = await analysis(
        await analyzer(pool, read_workdirs=True), command=("python", "t.py"), workdir="/nowhere/at/all"
    )
    assert "cannot be read" in found.partial_because


async def test_a_bundle_that_is_missing_costs_the_source_only_and_is_not_cached(pool):
    store = await memory_store()
    handler = await analyzer(pool, store)
    found = await analysis(handler, command=("python", "t.py", "--epochs", "4"), bundle="a" * 64)
    assert found.fields["epochs"].value == 4
    assert "not in the blob store" in found.partial_because
    assert await store.count("analyses") == 0


async def test_the_same_job_again_is_answered_from_the_cache_with_the_same_id(pool):
    store = await memory_store()
    handler = await analyzer(pool, store)
    job = Job(fields={"command": ("python", "t.py", "--epochs", "4")}).submitted()
    (first,) = await handler(envelope(job))
    (again,) = await handler(envelope(job))
    assert (again.id, again.event) == (first.id, first.event)
    assert await store.count("analyses") == 1


async def test_secrets_in_a_command_are_redacted(pool):
    token = "hf_" + "a1B2" * 9
    found = await analysis(
        await analyzer(pool), command=("python", "t.py", "--dataset_name", f"https://user:{token}@host/d")
    )
    assert token not in found.model_dump_json()


async def test_other_events_are_none_of_its_business(pool):
    assert await (await analyzer(pool))(envelope(Job().exited(0))) == ()


# --- the pool of processes -------------------------------------------------------------------------------------------


async def test_work_that_takes_too_long_costs_its_process_and_the_next_gets_a_new_one(pool):
    with pytest.raises(WorkTimeoutError):
        await pool.run(0.2, time.sleep, 30)
    assert await pool.run(10, abs, -3) == 3


async def test_work_that_kills_its_process_is_an_error_and_the_next_goes_on(pool):
    with pytest.raises(WorkError, match="died"):
        await pool.run(10, os.kill, *(await own_pid(pool), signal.SIGKILL))
    assert await pool.run(10, abs, -3) == 3


async def own_pid(pool):
    return await pool.run(10, os.getpid)


async def test_work_that_raises_says_what(pool):
    with pytest.raises(WorkError, match="ValueError"):
        await pool.run(10, int, "x")


async def test_work_that_wants_too_much_memory_is_refused_it():
    pool = WorkPool(1, memory_bytes_max=512 << 20)
    try:
        with pytest.raises(WorkError, match="memory"):
            await pool.run(20, bytes, 1 << 30)
    finally:
        await pool.close()


async def test_calls_share_the_processes_in_order(pool):
    assert await asyncio.gather(*(pool.run(10, abs, -n) for n in range(20))) == list(range(20))


async def test_a_closed_pool_takes_no_more_and_leaves_no_process():
    pool = WorkPool(1)
    pid = await pool.run(10, os.getpid)
    await pool.close()
    with pytest.raises(WorkError, match="closed"):
        await pool.run(10, abs, -1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_hostile_source_ends_in_a_partial_analysis_not_in_a_crash(pool, tmp_path):
    (tmp_path / "t.py").write_bytes(b"x = " + b"[" * 100_000 + b"\n" + b"-" * 900_000 + b"1")
    found = await analysis(
        await analyzer(pool, read_workdirs=True), command=("python", "t.py", "--epochs", "2"), workdir=str(tmp_path)
    )
    assert found.fields["epochs"].value == 2
    assert found.partial_because is not None


def packed(kind, **files):
    made = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(made, "w") as archive:
            for name, content in files.items():
                archive.writestr(name.replace("__", "/").replace("_py", ".py"), content)
    else:
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name.replace("__", "/").replace("_py", ".py"))
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content.encode()))
    return made.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar"])
async def test_a_bundle_is_read_and_its_analysis_is_found_again_without_it(pool, kind):
    content = packed(kind, src__t_py=TRAIN, src__lib_py="x = 1\n", README="words")
    digest = hashlib.sha256(content).hexdigest()
    blobs, store = MemoryBlobs(SystemClock()), await memory_store()
    await blobs.put(f"bundles/{digest}", content)
    handler = await analyzer(pool, store, blobs)
    told = {"command": ("python", "src/t.py"), "bundle": digest, "entry": "src/t.py"}
    found = await analysis(handler, **told)
    assert (found.fields["epochs"].value, found.fields["epochs"].file, found.partial_because) == (3, "src/t.py", None)
    await blobs.delete(f"bundles/{digest}")
    assert await analysis(handler, **told) == found


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04" + b"\x00" * 100, b"\x1f\x8b" + b"\x00" * 100])
async def test_a_bundle_that_is_no_archive_costs_the_source_only(pool, content):
    digest = hashlib.sha256(content).hexdigest()
    blobs = MemoryBlobs(SystemClock())
    await blobs.put(f"bundles/{digest}", content)
    found = await analysis(
        await analyzer(pool, blobs=blobs), command=("python", "t.py", "--epochs", "2"), bundle=digest
    )
    assert found.fields["epochs"].value == 2
    assert "the bundle cannot be read" in found.partial_because


# --- bundles ---------------------------------------------------------------------------------------------------------


async def test_a_bundle_is_fetched_from_ingest_with_its_hash_checked(tmp_path):
    content = b"archive"
    digest = hashlib.sha256(content).hexdigest()

    def answer(request):
        return httpx.Response(200 if request.url.path.endswith(digest) else 404, content=content)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://ingest") as client:
        source = BundlesFromIngest(client)
        await fetch(source, digest, tmp_path / "b", bytes_max=100)
        assert (tmp_path / "b").read_bytes() == content
        with pytest.raises(BundleMissingError, match="404"):
            await fetch(source, "0" * 64, tmp_path / "b", bytes_max=100)
        with pytest.raises(BundleMissingError, match="larger"):
            await fetch(source, digest, tmp_path / "b", bytes_max=3)


@pytest.mark.parametrize("failure", [httpx.Response(503), httpx.ConnectError("refused")])
async def test_an_ingest_that_does_not_answer_may_answer_later(tmp_path, failure):
    def answer(request):
        if isinstance(failure, Exception):
            raise failure
        return failure

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://ingest") as client:
        with pytest.raises(BlobsUnavailableError):
            await fetch(BundlesFromIngest(client), "0" * 64, tmp_path / "b", bytes_max=100)


async def test_a_models_suggestion_comes_after_the_analysis_and_an_exact_repeat_asks_no_more(pool, tmp_path):
    (tmp_path / "run.sh").write_text("./solve --rounds 40\n")
    quote = {"field": "epochs", "value": 40, "file": "run.sh", "quote": "./solve --rounds 40"}
    model = ScriptedModel([{"action": "answer", "answers": [quote]}] * 3)
    bus, store = await memory_bus(), await memory_store()
    component = build(
        CodeAnalyzerSettings(read_workdirs=True),
        bus=bus,
        store=store,
        blobs=MemoryBlobs(SystemClock()),
        random=SeededRandom(1),
        work_pool=pool,
        llm=ModelQueue(model, SystemClock()),
    )
    job = Job(fields={"command": ("bash", "run.sh"), "workdir": str(tmp_path)}).submitted()
    async with serving(component):
        await publish(bus, job)
        first, second = await events_on(bus, "schedmate.analyses", 2, within_s=30)
        assert "epochs" not in first.event.fields
        assert (second.event.fields["epochs"].value, second.event.fields["epochs"].basis) == (40, Basis.MODEL_SUGGESTED)
        assert first.id != second.id
        asked = len(model.asked)
        await publish(bus, job.model_copy(update={"job_id": "job-2"}))
        third = (await events_on(bus, "schedmate.analyses", 3, within_s=30))[-1]
    assert third.event.job_id == "job-2"
    assert len(model.asked) == asked == 3
