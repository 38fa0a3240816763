"""The pure tracker: repeats, overlaps, order, closings, verdicts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedmate.schemas.events import Action, Culpable, ExitCause, ProgressObservedV2, RunSlowed
from schedmate.services.log_monitor.failures.rules import load_rules
from schedmate.services.log_monitor.node_faults import NodeFailure, NodeFaults
from schedmate.services.log_monitor.tracker import Tracker, Tuning, members_of, settle
from schedmate.services.log_monitor.tracks import load_job, load_member, save_job
from tests.advice import START, Job, Table, fault

TRACKER = Tracker(load_rules(), Tuning(), lambda text: text.replace("hunter2", "[redacted]"))


def apply(table, event, at=START):
    return TRACKER.apply(event, at=at, now=at, table=table)


def verdict_on(table, job, *, now=START + 100, faults=None, failures=lambda _: ()):
    track = load_job(table, job.id)
    closed = TRACKER.close(
        track,
        job.attempt,
        members_of(table, track, job.attempt),
        faults=faults or NodeFaults(),
        failures=failures,
        now=now,
    )
    return closed.diagnosed if closed is not None else None


def failed(text: str, **given):
    """A job of one member whose log is `text`, ended."""
    job, table = Job(), Table()
    content = text.encode()
    apply(table, job.submitted())
    apply(table, job.chunk(content))
    apply(table, job.exited(log_bytes=len(content), **given))
    return job, table


# --- progress --------------------------------------------------------------------------------------------------------


def test_progress_is_said_with_the_offset_it_was_read_to():
    job, table = Job(), Table()
    (said,) = apply(table, job.chunk(b"step 1/10\n")).events
    assert said[1] == ProgressObservedV2(
        job_id=job.id, pool="default", run_id=job.run_id, attempt=1, member=0, log_offset=10, step=1, total_steps=10,
        fraction=0.1, phase="train",
    )  # fmt: skip


def test_progress_is_said_at_most_once_an_interval_unless_it_moved_far():
    job, table, offset, said = Job(), Table(), 0, []
    for step in range(1, 41):
        content = b"step %d/1000\n" % step
        said += apply(table, job.chunk(content, offset), at=START + step * 0.1).events
        offset += len(content)
    assert [e.step for _, e in said] == [1, 11, 21, 31]


def test_the_last_progress_is_said_when_the_log_has_been_read_to_its_end():
    job, table = Job(), Table()
    apply(table, job.submitted())
    apply(table, job.chunk(b"step 1/1000\n"))
    assert apply(table, job.chunk(b"step 2/1000\n", 12)).events == []
    (said,) = apply(table, job.exited(0, log_bytes=24)).events
    assert said[1].step == 2


def test_the_bar_that_no_line_break_ends_counts_at_the_exit():
    job, table = Job(), Table()
    apply(table, job.submitted())
    bars = b"\r 50%|#| 5/10 [00:05<00:05, 1.00it/s]\r100%|##| 10/10 [00:10<00:00, 1.00it/s]"
    apply(table, job.chunk(bars))
    (said,) = apply(table, job.exited(0, log_bytes=len(bars))).events
    assert (said[1].step, said[1].fraction) == (10, 1.0)


def test_a_chunk_that_comes_again_says_the_same_with_the_same_id_and_changes_nothing():
    job, table = Job(), Table()
    first = apply(table, job.chunk(b"step 1/10\n"))
    before = dict(table.values)
    again = apply(table, job.chunk(b"step 1/10\n"), at=START + 5)
    assert again.events == first.events
    assert table.values == before


def test_of_a_gang_the_lowest_member_that_shows_progress_speaks():
    job, table = Job(fields={"nodes": 2}), Table()
    assert len(apply(table, job.chunk(b"step 1/10\n", member=1)).events) == 1
    assert len(apply(table, job.chunk(b"step 2/10\n", member=0)).events) == 1
    assert apply(table, job.chunk(b"step 9/10\n", 10, member=1), at=START + 9).events == []


@given(data=st.data())
def test_any_chunking_with_repeats_and_overlaps_gives_the_same_track(data):
    log = (
        b"loading\nEpoch 1/2\r\n" + b"".join(b"step %d/20 loss=0.%d \xe2\x96\x8f\r" % (n, n) for n in range(1, 9))
        + b"\nsaved checkpoint to /ck/8.pt\nTraceback (most recent call last):\nKeyError: 'x'\n"
    )  # fmt: skip
    job, whole, cut = Job(), Table(), Table()
    apply(whole, job.chunk(log))
    position = 0
    while position < len(log):
        start = data.draw(st.integers(0, position))
        end = data.draw(st.integers(position + 1, len(log)))
        apply(cut, job.chunk(log[start:end], start))
        if data.draw(st.booleans()):
            apply(cut, job.chunk(log[:end]))
        position = end
    expected, got = (load_member(t, job.id, 1, 0) for t in (whole, cut))
    assert got.feed == expected.feed
    assert got.progress == expected.progress
    assert got.digest == expected.digest


def test_a_byte_at_a_time_is_the_same_as_all_at_once():
    log = b"step 1/9\r\xe2\x96\x8f step 2/9\nRuntimeError: CUDA out of memory\n"
    job, whole, cut = Job(), Table(), Table()
    apply(whole, job.chunk(log))
    for n in range(len(log)):
        apply(cut, job.chunk(log[n : n + 1], n))
    assert load_member(cut, job.id, 1, 0).model_dump(exclude={"emission"}) == load_member(
        whole, job.id, 1, 0
    ).model_dump(exclude={"emission"})


def test_a_track_is_json_and_stays_small_whatever_comes():
    job, table, offset = Job(), Table(), 0
    for n in range(200):
        content = b"x" * 900 + b" Error: %d\nCUDA out of memory\nstep %d/200\nKeyError: 1\n" % (n, n)
        apply(table, job.chunk(content, offset), at=START + n)
        offset += len(content)
    sizes = [len(value) for value in table.values.values()]
    assert max(sizes) < 16 * 1024
    assert all(json.loads(value)["version"] == 1 for value in table.values.values())


# --- closing ---------------------------------------------------------------------------------------------------------


def test_a_diagnosis_waits_for_the_last_bytes_and_no_longer():
    job, table = Job(), Table()
    apply(table, job.submitted())
    apply(table, job.chunk(b"starting\n"))
    assert apply(table, job.exited(log_bytes=49)).closing
    assert verdict_on(table, job, now=START + 1) is None
    assert apply(table, job.chunk(b"RuntimeError: CUDA error: out of memory\n", 9)).closing
    table_without_tail = Table(dict(table.values))
    apply(table, job.chunk(b"torch.OutOfMemoryError: CUDA out of memory\n", 9))
    assert verdict_on(table_without_tail, job, now=START + 3) is not None


def test_a_run_that_ended_well_is_closed_without_a_diagnosis():
    job, table = failed("KeyError: 'x' was handled\nstep 1/1\n", code=0)
    assert verdict_on(table, job) is None
    assert load_job(table, job.id).runs[1].closing is not None


def test_what_comes_of_a_settled_attempt_is_dropped_and_its_tracks_are_gone():
    job, table = failed("KeyError: 1\n")
    track = load_job(table, job.id)
    settle(table, track, 1)
    before = dict(table.values)
    assert list(before) == [job.id]
    for event in (job.chunk(b"step 1/2\n"), job.exited(log_bytes=0)):
        assert apply(table, event).events == []
    assert table.values == before


def test_the_log_of_the_next_attempt_may_come_before_the_end_of_this_one():
    first, second, table = Job(), Job(attempt=2), Table()
    apply(table, first.submitted())
    apply(table, first.chunk(b"step 5/10\nKeyError: 'x'\n"))
    apply(table, second.chunk(b"step 1/10\n"))
    apply(table, first.exited(log_bytes=24))
    assert verdict_on(table, first).category == "CODE_ERROR"


def test_the_whole_gang_is_waited_for_and_the_member_that_failed_first_is_the_cause():
    job, table = Job(fields={"nodes": 2}), Table()
    apply(table, job.submitted())
    zero, one = b"RuntimeError: NCCL error: remote process exited\n", b"torch.OutOfMemoryError: CUDA out of memory.\n"
    apply(table, job.chunk(zero, member=0))
    apply(table, job.exited(log_bytes=len(zero), member=0, at=START + 61))
    assert verdict_on(table, job, now=START + 1) is None
    apply(table, job.chunk(one, member=1, node="n2"))
    apply(table, job.exited(log_bytes=len(one), member=1, node="n2", at=START + 60))
    found = verdict_on(table, job, now=START + 1)
    assert (found.category, found.evidence.file, found.evidence.line) == ("GPU_OOM", "member-1.log", 1)


def test_an_unknown_size_of_the_gang_waits_for_the_deadline():
    job, table = Job(), Table()
    apply(table, job.chunk(b"KeyError: 1\n"))
    apply(table, job.exited(log_bytes=12))
    assert verdict_on(table, job, now=START + 1) is None
    apply(table, job.submitted())
    assert verdict_on(table, job, now=START + 1) is not None


# --- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "category", "action"),
    [
        ("Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 'x'\n", "CODE_ERROR", Action.DO_NOT_RETRY),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n", "GPU_OOM", Action.RETRY_WITH_CHANGES),
        ("DataLoader worker (pid 8) is killed by signal: Killed.\n", "HOST_OOM", Action.RETRY_WITH_CHANGES),
        ("ModuleNotFoundError: No module named 'apex'\n", "IMPORT_ERROR", Action.DO_NOT_RETRY),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/d'\n", "FILE_NOT_FOUND", Action.DO_NOT_RETRY),
        ("usage: t.py [-h]\nt.py: error: unrecognized arguments: --x\n", "CONFIG_ERROR", Action.DO_NOT_RETRY),
        ("OSError: [Errno 98] Address already in use\n", "PORT_IN_USE", Action.RETRY_WITH_CHANGES),
        ("OSError: [Errno 28] No space left on device\n", "DISK_FULL", Action.DO_NOT_RETRY),
        ("Watchdog caught collective operation timeout: WorkNCCL\n", "NCCL_TIMEOUT", Action.RETRY_FROM_CHECKPOINT),
        ("Loss is nan, stopping training\n", "LOSS_NAN", Action.RETRY_WITH_CHANGES),
        ("PermissionError: [Errno 13] Permission denied: '/x'\n", "PERMISSION", Action.DO_NOT_RETRY),
        ("CUDA error: uncorrectable ECC error encountered\n", "GPU_ECC", Action.RETRY_ELSEWHERE_CORDON),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n", "GPU_LOST", Action.RETRY_ELSEWHERE_CORDON),
        ("CUDA error: uncorrectable NVLink error detected\n", "NVLINK_ERROR", Action.RETRY_ELSEWHERE_CORDON),
        ("something happened\n", "UNKNOWN", Action.RETRY_FROM_CHECKPOINT),
        ("", "UNKNOWN", Action.RETRY_FROM_CHECKPOINT),
    ],
)  # fmt: skip
def test_a_log_gives_its_root_cause(log, category, action):
    job, table = failed(log)
    found = verdict_on(table, job)
    assert (found.category, found.action) == (category, action)
    assert found.node_evidence is False


@pytest.mark.parametrize(
    ("given", "category", "action"),
    [
        ({"code": None, "signal": 9}, "HOST_OOM", Action.RETRY_FROM_CHECKPOINT),
        ({"code": 137}, "HOST_OOM", Action.RETRY_FROM_CHECKPOINT),
        ({"code": None, "signal": 11}, "SEGFAULT", Action.RETRY_FROM_CHECKPOINT),
        ({"code": 127}, "FILE_NOT_FOUND", Action.DO_NOT_RETRY),
        ({"code": 126}, "PERMISSION", Action.DO_NOT_RETRY),
        ({"code": None, "cause": ExitCause.LOST}, "NODE_FAILURE", Action.RETRY_FROM_CHECKPOINT),
        ({"code": None, "cause": ExitCause.LAUNCH_FAILED, "detail": "No such file or directory: 'trian'"}, "FILE_NOT_FOUND", Action.DO_NOT_RETRY),
        ({"code": None, "cause": ExitCause.LAUNCH_FAILED, "detail": "prolog"}, "LAUNCH_FAILURE", Action.RETRY_ELSEWHERE_CORDON),
    ],
)  # fmt: skip
def test_where_no_line_tells_the_exit_does(given, category, action):
    job, table = failed("step 1/9\n", **given)
    found = verdict_on(table, job)
    assert (found.category, found.action, found.node_evidence) == (category, action, False)


@pytest.mark.parametrize("cause", [ExitCause.STOPPED, ExitCause.WORKER_STOPPED])
def test_an_ordered_stop_is_no_failure(cause):
    job, table = failed("KeyError: 1\n", code=None, cause=cause, signal=15)
    assert verdict_on(table, job) is None


def test_an_error_that_the_job_survived_is_not_what_ended_it():
    survived = "CUDA out of memory, halving the batch\n" + "".join(f"step {n}/9 loss=0.1\n" for n in range(1, 7))
    job, table = failed(survived + "KeyError: 'late'\n")
    found = verdict_on(table, job)
    assert (found.category, found.evidence.line) == ("CODE_ERROR", 8)


def test_the_first_exception_of_a_chain_is_the_root():
    job, table = failed(
        "KeyError: 'a'\nDuring handling of the above exception, another exception occurred:\nValueError: b\n"
    )
    assert verdict_on(table, job).evidence.text == "KeyError: 'a'"


def test_what_the_node_says_beats_the_log_and_cordons():
    job, table = failed("Watchdog caught collective operation timeout: WorkNCCL\n")
    faults = NodeFaults()
    faults.add(fault("n1", xid=79))
    found = verdict_on(table, job, faults=faults)
    assert (found.category, found.action, found.culprit_node, found.node_evidence) == (
        "GPU_LOST", Action.RETRY_ELSEWHERE_CORDON, "n1", True,
    )  # fmt: skip
    assert found.evidence.file == "kernel_n1.log"


@pytest.mark.parametrize(
    "given",
    [{"node": "n2", "xid": 79}, {"node": "n1", "xid": 79, "at": START - 7200}, {"node": "n1", "xid": 79, "at": START + 7200}, {"node": "n1", "xid": 45}],
    ids=["another node", "long before", "long after", "a consequence"],
)  # fmt: skip
def test_a_fault_elsewhere_at_another_time_or_of_another_kind_is_no_evidence(given):
    job, table = failed("Watchdog caught collective operation timeout: WorkNCCL\n")
    faults = NodeFaults()
    faults.add(fault(**given))
    found = verdict_on(table, job, faults=faults)
    assert (found.category, found.culprit_node, found.node_evidence) == ("NCCL_TIMEOUT", None, False)


def test_a_fault_of_the_node_does_not_excuse_a_missing_module():
    job, table = failed("ModuleNotFoundError: No module named 'apex'\n")
    faults = NodeFaults()
    faults.add(fault("n1", xid=63))
    assert verdict_on(table, job, faults=faults).category == "IMPORT_ERROR"


def test_a_hardware_fault_in_the_log_waits_for_the_nodes_own_side():
    job, table = failed("CUDA error: uncorrectable ECC error encountered\n")
    assert verdict_on(table, job, now=START + 1) is None
    faults = NodeFaults()
    faults.add(fault("n1", xid=95))
    assert verdict_on(table, job, now=START + 1, faults=faults).node_evidence is True
    assert verdict_on(table, job, now=START + 3).node_evidence is False


@pytest.mark.parametrize(
    ("tenant", "category", "at", "borne_out"),
    [
        ("robotics", "GPU_ECC", START, True),
        ("vision", "GPU_ECC", START, False),
        ("robotics", "GPU_LOST", START, False),
        ("robotics", "GPU_ECC", START - 2 * 86400, False),
    ],
)
def test_only_the_same_fault_of_another_tenant_lately_stands_in_for_the_node(tenant, category, at, borne_out):
    job, table = failed("CUDA error: uncorrectable ECC error encountered\n")
    found = verdict_on(table, job, failures=lambda _: [NodeFailure("other-run", tenant, category, at)])
    assert found.node_evidence is borne_out
    assert (found.action, found.culprit_node) == (Action.RETRY_ELSEWHERE_CORDON, "n1")


def test_an_oom_proposes_a_change_and_the_checkpoint_to_resume_from():
    job, table = failed(
        "saved checkpoint to /ck/1.pt\nsaved checkpoint to /ck/2.pt\ntorch.OutOfMemoryError: CUDA out of memory\n"
    )
    found = verdict_on(table, job)
    assert found.resume_from == "/ck/2.pt"
    assert "batch" in found.proposed_change
    assert found.culpable is Culpable.USER_CONFIG


def test_a_secret_in_the_line_of_evidence_is_redacted():
    job, table = failed("ValueError: bad password hunter2\n")
    assert "hunter2" not in verdict_on(table, job).evidence.text


def test_a_gap_before_the_end_still_gives_a_diagnosis():
    job, table = Job(), Table()
    apply(table, job.submitted())
    apply(table, job.chunk(b"step 1/9\n"))
    gap = job.chunk(b"", 9).model_copy(update={"end": 5000, "gap": True})
    apply(table, gap)
    apply(table, job.chunk(b"cut line\nKeyError: 'x'\n", 5000))
    apply(table, job.exited(log_bytes=5023))
    found = verdict_on(table, job, now=START + 1)
    assert (found.category, found.evidence.line) == ("CODE_ERROR", None)


def test_the_tracks_of_a_job_from_an_older_version_of_the_program_are_read():
    table = Table()
    track = load_job(table, "x")
    assert track is None
    job = Job()
    apply(table, job.submitted())
    stored = load_job(table, job.id)
    save_job(table, stored)
    assert load_job(table, job.id) == stored


def test_a_run_that_slows_down_is_said_to_once_and_again_with_the_same_id_when_its_bytes_come_again():
    job, table, offset, said = Job(), Table(), 0, []
    chunks = []
    for n in range(1, 320):
        now = 2 * n if n < 160 else 320 + 5 * (n - 160)
        chunks.append(
            b"2025-03-04 %02d:%02d:%02d step %d/4000 loss 0.5\n" % (9 + now // 3600, now // 60 % 60, now % 60, n)
        )
    for number, content in enumerate(chunks):
        events = apply(table, job.chunk(content, offset), at=START + number).events
        slowed = [(i, e) for i, e in events if isinstance(e, RunSlowed)]
        if slowed:
            again = apply(table, job.chunk(content, offset), at=START + number).events
            assert slowed == [(i, e) for i, e in again if isinstance(e, RunSlowed)]
        said += slowed
        offset += len(content)
    assert [round(e.slowdown, 1) for _, e in said] == [2.5]
    assert said[0][1].since_step == pytest.approx(160, abs=20)
    assert said[0][1].steps_per_sec_before == pytest.approx(0.5)


def test_the_jobs_command_gives_the_total_and_its_analysis_goes_before_it():
    job, table = Job(fields={"command": ["python", "train.py", "--max-steps", "400"]}), Table()
    apply(table, job.submitted())
    (said,) = apply(table, job.chunk(b"step 100 loss 0.5\n")).events
    assert (said[1].total_steps, said[1].fraction) == (400, 0.25)
