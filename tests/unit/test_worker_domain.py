"""The worker's pure parts: lease, journal, reports, launch, GPUs, kernel lines."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from schedmate.infra.gpus.port import GpuState
from schedmate.infra.processes.port import EndCause, ExitStatus, MemberKey
from schedmate.schemas import ids
from schedmate.schemas.events import ExitCause, MemberAssigned, NodeReportedV2, RefusalCause
from schedmate.schemas.job import JobSpec
from schedmate.services.worker import announcements, journal
from schedmate.services.worker.fence import Place
from schedmate.services.worker.gpu_watch import GpuWatch, Use, worst
from schedmate.services.worker.kernel_lines import LINE_BYTES_MAX, Lines, find
from schedmate.services.worker.launch import Base, command, environment
from schedmate.services.worker.lease import Lease
from schedmate.services.worker.member import Member

SPEC = JobSpec(name="x", command=("python", "train.py"), tenant="t", user="u", pool="p")
BASE = Base(path="/usr/bin", home="/home/u", lang="C.UTF-8", tz="UTC", user="u")


def assigned(**fields: Any) -> MemberAssigned:
    values: dict[str, Any] = {
        "pool": "p", "seq": 4, "index": 1, "term": 2, "node": "n1", "session": 5, "job_id": "j", "run_id": "r", "attempt": 3,
        "member": 0, "members": 1, "gpus": (0, 2), "spec": SPEC, "master_addr": "10.0.0.7", "master_port": 20017,
    }  # fmt: skip
    return MemberAssigned(**{**values, **fields})


def member(**fields: Any) -> Member:
    return Member(assigned=assigned(**fields), traceparent="00-a-b-01")


def status(cause: EndCause = EndCause.EXITED, code: int | None = 0, number: int | None = None) -> ExitStatus:
    return ExitStatus(cause, code, number, 11.0, 12.0)


# --- lease ------------------------------------------------------------------------------------------------------------


def test_a_lease_counts_from_before_the_report_was_sent() -> None:
    lease = Lease(30.0, 1, None).acknowledged(100.0)
    assert not lease.has_lapsed(129.9)
    assert lease.has_lapsed(130.0)


def test_an_acknowledgement_that_comes_late_shortens_nothing() -> None:
    lease = Lease(30.0, 1, None).acknowledged(100.0).acknowledged(90.0)
    assert lease.deadline == 130.0


def test_a_lease_without_acknowledgement_has_not_begun() -> None:
    assert not Lease(30.0, 1, None).has_lapsed(1e9)


def test_a_lease_of_nothing_never_lapses() -> None:
    lease = Lease.adopt(0.0, None, 0, 100.0).acknowledged(100.0)
    assert lease.deadline == math.inf
    assert not lease.has_lapsed(1e12)


def test_after_a_lapse_an_epoch_begins_that_has_no_deadline_yet() -> None:
    assert Lease(30.0, 1, 130.0).next_epoch() == Lease(30.0, 2, None)


@pytest.mark.parametrize(
    ("last", "known_epoch", "expected"),
    [
        ((3, 200.0), 3, Lease(30.0, 3, 200.0)),  # the worker was away for less than the lease: its runs live
        ((3, 100.0), 3, Lease(30.0, 4, None)),  # it had run out
        (None, 3, Lease(30.0, 4, None)),  # the node has booted since
        (None, 0, Lease(30.0, 1, None)),  # the node is new
        ((3, 200.0), 4, Lease(30.0, 5, None)),  # a lapse was noted, and then no report acknowledged
    ],
)
def test_a_worker_that_starts_adopts_a_lease_only_while_it_runs(
    last: tuple[int, float] | None, known_epoch: int, expected: Lease
) -> None:
    assert Lease.adopt(30.0, last, known_epoch, 150.0) == expected


# --- journal ----------------------------------------------------------------------------------------------------------


def test_a_line_of_the_journal_has_exactly_the_keys_of_the_design() -> None:
    line = json.loads(journal.started_line(member().started(pid=7, session=5), at=10.5))
    assert line == {
        "t": 10.5, "node": "n1", "session": 5, "pool": "p", "seq": 4, "term": 2, "job_id": "j", "run_id": "r", "attempt": 3, "member": 0,
        "gpus": [0, 2], "event": "started", "pid": 7, "exit_code": None,
    }  # fmt: skip
    assert tuple(line) == journal.KEYS


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        (EndCause.EXITED, "exited"),
        (EndCause.LAUNCH_FAILED, "exited"),
        (EndCause.STOPPED, "killed"),
        (EndCause.LEASE_EXPIRED, "killed"),
        (EndCause.WORKER_STOPPED, "killed"),
        (EndCause.NOT_STARTED, "killed"),
        (EndCause.LOST, "killed"),
    ],
)
def test_an_end_is_exited_or_killed_by_its_cause(cause: EndCause, effect: str) -> None:
    ended = member().started(pid=7, session=5).ended(status(cause, 3), session=6, log_bytes=9)
    line = json.loads(journal.ended_line(ended, at=12.0))
    assert (line["event"], line["exit_code"], line["pid"], line["session"]) == (effect, 3, 7, 6)


def test_the_history_knows_who_lives_and_who_was_ever_started() -> None:
    one, two = member().started(pid=7, session=5), member(run_id="r2").started(pid=8, session=5)
    lines = [
        journal.started_line(one, at=1),
        journal.started_line(two, at=2),
        journal.ended_line(one.ended(status(), session=5, log_bytes=0), at=3),
        journal.refused_line(assigned(run_id="r3"), at=4, session=5),
    ]
    history = journal.fold(lines)
    assert history.started == {MemberKey("r", 0): 7, MemberKey("r2", 0): 8}
    assert history.living == {MemberKey("r2", 0)}


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"{}", b'{"run_id": "r", "member": 0, "event": "danced", "pid": 1}']
)
def test_a_line_that_is_none_of_ours_is_named(line: bytes) -> None:
    with pytest.raises(journal.JournalError, match="line 1"):
        journal.fold([line])


# --- members, reports and events ----------------------------------------------------------------------------------------


def test_a_member_goes_through_its_states() -> None:
    starting = member()
    held = starting.started(pid=7, session=5)
    running = held.seen_running(11.0)
    stopping = running.stopped(10.0)
    ended = stopping.ended(status(EndCause.STOPPED, None, 15), session=5, log_bytes=4)
    assert [m.state for m in (starting, held, running, stopping, ended)] == [
        "starting", "starting", "running", "stopping", "ended",
    ]  # fmt: skip
    assert [m.is_living for m in (starting, held, running, stopping, ended)] == [True] * 4 + [False]


def test_a_member_survives_its_file() -> None:
    ended = member().started(pid=7, session=5).seen_running(11.0).ended(status(), session=5, log_bytes=4)
    assert Member.model_validate_json(ended.model_dump_json()) == ended


def test_events_of_a_member_have_ids_that_follow_from_it_and_carry_its_trace() -> None:
    running = member().started(pid=7, session=5).seen_running(11.0)
    started = announcements.run_started(running)
    exited = announcements.run_exited(running.ended(status(EndCause.LOST, None), session=6, log_bytes=4))
    refused = announcements.run_refused(assigned(), None, RefusalCause.SUPERSEDED, "x" * 5000, session=5, at=1.0)
    assert started.id == ids.member_event_id("r", 0, "started")
    assert exited.id == ids.member_event_id("r", 0, "exited")
    assert refused.id == ids.member_event_id("r", 0, "refused")
    assert started.source == "schedmate/worker/n1"
    assert started.traceparent == exited.traceparent == "00-a-b-01"
    assert (exited.event.cause, exited.event.session, exited.event.started_at) == (ExitCause.LOST, 6, 11.0)
    assert (refused.event.seq, refused.event.index) == (4, 1)
    assert len(refused.event.detail) == announcements.DETAIL_LEN_MAX


def test_a_report_shows_every_member_in_order() -> None:
    living = member(run_id="b").started(pid=7, session=5).seen_running(11.0)
    ended = member(run_id="a").started(pid=7, session=5).ended(status(code=3), session=5, log_bytes=9)
    reports = announcements.run_reports([living, ended])
    assert [(r.run_id, r.state, r.exit_code, r.log_bytes, r.started_at) for r in reports] == [
        ("a", "ended", 3, 9, 11.0),
        ("b", "running", None, 0, 11.0),
    ]


def test_a_report_is_numbered_and_its_id_follows_from_its_number() -> None:
    snapshot = announcements.Snapshot(
        "n1", "p", "boot", 5, Place(4, 1), "10.0.0.7", 20000, 20099, (), (), stopping=False, same_user=True, lease_s=30.0
    )  # fmt: skip
    one, two = (announcements.node_reported(snapshot, report_no=n, at=1.0) for n in (1, 2))
    assert one.id != two.id
    assert (one.event.applied_seq, one.event.applied_index, one.event.report_no) == (4, 1, 1)
    assert (
        one.event.ce_type() == "schedmate.node.reported.v1"
    )  # what every reader knows, as long as there is nothing more to say


@pytest.mark.parametrize(("rack", "spine"), [("r1", None), (None, "s1"), ("r1", "s1")])
def test_a_node_that_knows_where_it_stands_says_so(rack: str | None, spine: str | None) -> None:
    snapshot = announcements.Snapshot(
        "n1", "p", "boot", 5, Place(4, 1), "10.0.0.7", 20000, 20099, (), (), stopping=False, same_user=True, lease_s=30.0,
        rack=rack, spine=spine,
    )  # fmt: skip
    told = announcements.node_reported(snapshot, report_no=1, at=1.0).event
    assert isinstance(told, NodeReportedV2)
    assert (told.rack, told.spine, told.node) == (rack, spine, "n1")


# --- launch -------------------------------------------------------------------------------------------------------------


def test_the_environment_is_built_and_never_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDMATE_API_TOKEN", "secret")
    spec = SPEC.model_copy(
        update={"env": {"LR": "0.1", "PATH": "/mine", "CUDA_VISIBLE_DEVICES": "7", "SCHEDMATE_JOB_ID": "no"}}
    )
    env = environment(assigned(spec=spec), BASE, "/ckpt")
    assert env == {
        "PATH": "/mine",  # the job's own
        "HOME": "/home/u",
        "USER": "u",
        "LOGNAME": "u",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONUNBUFFERED": "1",
        "LR": "0.1",
        "CUDA_VISIBLE_DEVICES": "0,2",  # not the job's to say
        "SCHEDMATE_JOB_ID": "j",
        "SCHEDMATE_RUN_ID": "r",
        "SCHEDMATE_ATTEMPT": "3",
        "SCHEDMATE_MEMBER": "0",
        "SCHEDMATE_NODE": "n1",
        "SCHEDMATE_CHECKPOINT_DIR": "/ckpt",
    }


def test_a_gang_gets_the_variables_of_torchrun() -> None:
    env = environment(assigned(member=1, members=3, gpus=(4, 5, 6, 7)), BASE, "/ckpt")
    gang = {
        "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "20017", "NNODES": "3", "NODE_RANK": "1", "GROUP_RANK": "1", "NPROC_PER_NODE": "4",
        "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "12",
    }  # fmt: skip
    assert gang.items() <= env.items()
    assert "RANK" not in env


def test_with_one_gpu_a_node_a_member_is_a_rank() -> None:
    env = environment(assigned(member=1, members=2, gpus=(4,)), BASE, "/ckpt")
    assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) == ("1", "0", "2")


@pytest.mark.parametrize(
    ("fields", "resume_from", "expected"),
    [
        ({}, None, ("python", "train.py")),
        ({}, "/c/5", ("python", "train.py")),
        ({"resume_flag": "--resume"}, None, ("python", "train.py")),
        ({"resume_flag": "--resume"}, "/c/5", ("python", "train.py", "--resume", "/c/5")),
        ({"resume_flag": "--resume="}, "/c/5", ("python", "train.py", "--resume=/c/5")),
        ({"command": None, "script": "echo hi"}, None, ("/bin/sh", "-e", "-c", "echo hi", "/bin/sh")),
        (
            {"command": None, "script": 'exec x "$@"', "resume_flag": "-r"}, "/c/5",
            ("/bin/sh", "-e", "-c", 'exec x "$@"', "/bin/sh", "-r", "/c/5"),
        ),
    ],
)  # fmt: skip
def test_the_command_gets_the_resume_flag_that_the_job_declares(
    fields: dict[str, Any], resume_from: str | None, expected: tuple[str, ...]
) -> None:
    order = assigned(spec=SPEC.model_copy(update=fields), resume_from=resume_from)
    assert command(order) == expected
    assert environment(order, BASE, "/c").get("SCHEDMATE_RESUME_FROM") == resume_from


# --- GPUs ---------------------------------------------------------------------------------------------------------------


def gpu(index: int = 0, used: int | None = 0, pids: tuple[int, ...] | None = (), *, healthy: bool = True) -> GpuState:
    return GpuState(index, "h100", 81920, healthy, memory_used_mib=used, pids=pids)


def watch() -> GpuWatch:
    return GpuWatch(idle_memory_mib=500, settle_s=10.0)


OURS = frozenset({70, 71})

GPU_TABLE = {
    "idle": ([(gpu(), False, 0)], Use.READY),
    "a little memory of the driver": ([(gpu(used=400), False, 0)], Use.READY),
    "nothing is measured": ([(gpu(used=None, pids=None), False, 0)], Use.READY),
    "our own run": ([(gpu(used=9000, pids=(70,)), True, 0)], Use.READY),
    "a stranger's process": ([(gpu(used=9000, pids=(99,)), False, 0)], Use.EXTERNAL),
    "a stranger's process with little memory": ([(gpu(used=10, pids=(99,)), False, 0)], Use.EXTERNAL),
    "a stranger beside our run": ([(gpu(used=9000, pids=(70, 99)), True, 0)], Use.EXTERNAL),
    "memory of nobody known": ([(gpu(used=9000, pids=None), False, 0)], Use.EXTERNAL),
    "memory just after our run": ([(gpu(used=9000, pids=(70,)), True, 0), (gpu(used=9000), False, 1)], Use.SETTLING),
    "memory long after our run": (
        [(gpu(used=9000, pids=(70,)), True, 0), (gpu(used=9000), False, 1), (gpu(used=9000), False, 11)], Use.HELD,
    ),
    "memory that came back": (
        [(gpu(used=9000, pids=(70,)), True, 0), (gpu(used=9000), False, 1), (gpu(used=3), False, 2)], Use.READY,
    ),
    "held, and then it came back": (
        [(gpu(used=9000), True, 0), (gpu(used=9000), False, 1), (gpu(used=9000), False, 20), (gpu(used=3), False, 21)], Use.READY,
    ),
    "ill": ([(gpu(healthy=False), False, 0)], Use.MISSING),
}  # fmt: skip


@pytest.mark.parametrize("name", GPU_TABLE)
def test_a_gpu_may_be_started_on_or_not(name: str) -> None:
    observations, expected = GPU_TABLE[name]
    watched = watch()
    for state, is_occupied, now in observations:
        watched.observe([state], ours=OURS, occupied={0} if is_occupied else set(), now=now)
    assert watched.use(0) is expected
    (report,) = watched.reports()
    assert report.busy_external == (expected is Use.EXTERNAL)
    assert report.held == (expected is Use.HELD)
    assert report.healthy == (expected is not Use.MISSING)


def test_a_gpu_that_vanishes_is_reported_unhealthy_and_never_left_out() -> None:
    watched = watch()
    watched.observe([gpu(0), gpu(1)], ours=OURS, occupied=set(), now=0)
    watched.observe([gpu(0)], ours=OURS, occupied=set(), now=1)
    assert [(r.index, r.healthy) for r in watched.reports()] == [(0, True), (1, False)]
    assert watched.present() == {0}
    assert watched.use(1) is Use.MISSING


def test_a_gpu_that_the_settings_expect_is_reported_before_it_was_ever_seen() -> None:
    watched = GpuWatch(idle_memory_mib=500, settle_s=10.0, expected=[gpu(0), gpu(1)])
    watched.observe([gpu(0)], ours=OURS, occupied=set(), now=0)
    assert [(r.index, r.healthy) for r in watched.reports()] == [(0, True), (1, False)]


def test_a_gpu_that_nobody_knows_is_missing() -> None:
    assert watch().use(9) is Use.MISSING


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ({}, None),
        ({0: Use.READY, 1: Use.READY}, None),
        ({0: Use.SETTLING, 1: Use.HELD}, (1, Use.HELD)),
        ({0: Use.EXTERNAL, 1: Use.MISSING}, (1, Use.MISSING)),
        ({3: Use.EXTERNAL, 2: Use.EXTERNAL}, (2, Use.EXTERNAL)),
    ],
)
def test_the_worst_gpu_decides(uses: dict[int, Use], expected: tuple[int, Use] | None) -> None:
    assert worst(uses) == expected


# --- kernel lines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "xid"),
    [
        ("[12.3] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.", 79),
        ("kernel: NVRM: Xid (PCI:0000:1c:00): 48, pid='<unknown>', DBE (double bit error)", 48),
        ("NVRM: Xid (0000:03:00): 31, Ch 00000010", 31),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed!", None),
        ("EDAC MC0: 1 UE ECC error on CPU_SrcID#0", None),
        ("Out of memory: Killed process 4242 (python) total-vm:1kB", None),
        ("oom-kill:constraint=CONSTRAINT_MEMCG", None),
        ("Memory cgroup out of memory: Killed process 77", None),
    ],
)
def test_a_kernel_line_that_speaks_of_a_fault_is_found(line: str, xid: int | None) -> None:
    finding = find(line + "\n")
    assert finding is not None
    assert (finding.text, finding.xid) == (line, xid)


@pytest.mark.parametrize(
    "line", ["", "eth0: link up", "systemd[1]: Started Session 3 of user root.", "project decoder loaded"]
)
def test_other_kernel_lines_say_nothing(line: str) -> None:
    assert find(line) is None


def test_lines_are_whole_though_they_come_in_pieces_and_with_broken_bytes() -> None:
    lines = Lines()
    assert lines.feed(b"NVRM: X") == []
    assert lines.feed(b"id \xff 1\nnext") == ["NVRM: Xid \ufffd 1"]
    assert lines.feed(b"\n") == ["next"]


def test_a_line_without_end_is_bounded() -> None:
    (line,) = Lines().feed(b"x" * (LINE_BYTES_MAX + 1))
    assert len(line) == LINE_BYTES_MAX + 1
