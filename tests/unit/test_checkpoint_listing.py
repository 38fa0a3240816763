"""Checkpoints that the log never names: what the directory holds, and which of it is the newest that is whole."""

from __future__ import annotations

import os

import pytest

from schedmate.infra.checkpoint_listing import ENTRIES_MAX, listing
from schedmate.infra.clock import SeededRandom
from schedmate.schemas.events import CheckpointEntry, CheckpointsListed
from schedmate.services.log_monitor.failures.listing import newest_whole
from schedmate.services.log_monitor.settings import LogMonitorSettings
from schedmate.services.log_monitor.wiring import build
from tests.advice import START, Job, events_on, memory_bus, memory_store, publish, serving


def file(name, size=1000, at=0.0, marker=None):
    return CheckpointEntry(name=name, size_bytes=size, modified_at=START + at, marker=marker)


def folder(name, size=1000, files=4, at=0.0):
    return CheckpointEntry(name=name, size_bytes=size, files=files, modified_at=START + at)


@pytest.mark.parametrize(
    ("entries", "newest"),
    [
        ([], None),
        ([file("epoch_1.pt"), file("epoch_2.pt", at=9)], "epoch_2.pt"),
        ([file("epoch_9.pt"), file("epoch_10.pt", at=0.2)], "epoch_10.pt"),
        ([file("epoch_1.pt"), file("epoch_2.pt", at=9), file("epoch_3.pt", size=12, at=18)], "epoch_2.pt"),
        ([file("epoch_1.pt"), file("epoch_2.pt.tmp", at=9)], "epoch_1.pt"),
        ([file("epoch_1.pt"), file("epoch_2.pt", size=0, at=9)], "epoch_1.pt"),
        ([file("model.safetensors"), file("optimizer.pt", at=9), file("train.log", at=10)], "model.safetensors"),
        ([folder("checkpoint-100"), folder("checkpoint-200", at=9)], "checkpoint-200"),
        ([folder("checkpoint-100"), folder("checkpoint-150", at=5), folder("checkpoint-200", files=1, size=900, at=9)], "checkpoint-150"),
        ([folder("global_step100"), folder("global_step200", at=9), file("latest", 14, 5, "global_step100")], "global_step100"),
        ([folder("iter_0000100"), folder("iter_0000200", at=9), file("latest_checkpointed_iteration.txt", 3, 9, "200")], "iter_0000200"),
        ([folder("9000"), folder("10000.orbax-checkpoint-tmp-17", at=9)], "9000"),
        ([file("last.ckpt", at=9)], "last.ckpt"),
        ([file("checkpoint_best.pt"), file("checkpoint_last.pt", at=9), file("checkpoint12.pt", at=9)], "checkpoint12.pt"),
        ([folder("logs", at=9), folder("wandb", at=10), file("config.json", at=11)], None),
    ],
)  # fmt: skip
def test_the_newest_whole_checkpoint_of_a_listing(entries, newest):
    assert newest_whole(entries) == newest
    assert newest_whole(list(reversed(entries))) == newest


def test_a_damaged_one_is_passed_over():
    entries = [file("e1.pt"), file("e2.pt", at=5), file("e3.pt", at=9)]
    assert newest_whole(entries, damaged={"e3.pt"}) == "e2.pt"
    assert newest_whole(entries, before=START + 6) == "e2.pt"


def test_a_directory_is_listed_within_bounds_and_without_following_links(tmp_path):
    ck = tmp_path / "ck"
    (ck / "checkpoint-10" / "rank0").mkdir(parents=True)
    (ck / "checkpoint-10" / "model.bin").write_bytes(b"x" * 100)
    (ck / "checkpoint-10" / "rank0" / "o.pt").write_bytes(b"x" * 50)
    (ck / "latest").write_text("checkpoint-10\n")
    (ck / "epoch_1.pt").write_bytes(b"x" * 10)
    (tmp_path / "secret.pt").write_bytes(b"x" * 999)
    (ck / "link.pt").symlink_to(tmp_path / "secret.pt")
    os.mkfifo(ck / "pipe.pt")
    found = {e.name: e for e in listing(ck)}
    assert set(found) == {"checkpoint-10", "latest", "epoch_1.pt"}
    assert (found["checkpoint-10"].size_bytes, found["checkpoint-10"].files) == (150, 2)
    assert found["latest"].marker == "checkpoint-10"
    assert listing(tmp_path / "none") == ()
    for n in range(ENTRIES_MAX + 50):
        (ck / f"f{n}.pt").write_bytes(b"x")
    assert len(listing(ck)) == ENTRIES_MAX


def listed(job, *entries, directory="/ck/run"):
    return CheckpointsListed(
        job_id=job.id, pool="default", run_id=job.run_id, attempt=1, member=0, node="n1", directory=directory, entries=entries, at=START + 59,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("log", "entries", "resume_from"),
    [
        (b"step 310/900\n", [folder("checkpoint-200"), folder("checkpoint-300", at=9)], "/ck/run/checkpoint-300"),
        (b"saved checkpoint /ck/run/checkpoint-300\n", [folder("checkpoint-300")], "/ck/run/checkpoint-300"),
        (b"saved checkpoint /ck/run/checkpoint-300\n", [folder("checkpoint-200")], "/ck/run/checkpoint-200"),
        (b"saved checkpoint s3://b/ck/9\n", [folder("checkpoint-200")], "s3://b/ck/9"),
        (b"saved checkpoint /ck/run/checkpoint-300\n", None, "/ck/run/checkpoint-300"),
        (b"step 310/900\n", None, None),
    ],
)
async def test_what_the_directory_holds_is_what_is_resumed_from(log, entries, resume_from):
    bus, store, job = await memory_bus(), await memory_store(), Job(fields={"checkpoint_dir": "/ck/run"})
    settings = LogMonitorSettings(stream="runner", tail_wait_s=2.0)
    text = log + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    async with serving(build(settings, bus=bus, store=store, random=SeededRandom(1))):
        await publish(bus, job.submitted(), job.chunk(text))
        if entries is not None:
            await publish(bus, listed(job, *entries))
            await publish(bus, listed(job, file("late.pt")))  # a repeat of the worker after a restart: the first counts
        await publish(bus, job.exited(log_bytes=len(text)))
        (diagnosis,) = await events_on(bus, "schedmate.diagnoses")
    assert (diagnosis.event.category, diagnosis.event.resume_from) == ("GPU_OOM", resume_from)
