"""A worker with real processes: start, output, exit, stop, lease, restart."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from schedmate.infra.bus.memory import MemoryBus
from schedmate.infra.processes.port import Phase
from schedmate.schemas.events import CheckpointsListed, RunExited
from schedmate.services.worker.records import RecordsError
from schedmate.services.worker.wiring import build
from tests.journal_checker import check_directories
from tests.processes import is_alive
from tests.waiting import eventually
from tests.worker_bench import Bench, Talk, bench_on, spec

STAYS = "echo ready; while true; do sleep 0.05; done"


def stays(**fields: object) -> object:
    return spec("sh", "-c", STAYS, **fields)


async def output(bench: Bench, key: object, expected: bytes) -> None:
    await eventually(lambda: bench.log(key) == expected, what=f"output is {expected!r}")


def journal(tmp_path: Path, node: str = "n1") -> list[dict]:
    return [json.loads(line) for line in (tmp_path / node / "journal.jsonl").read_text().splitlines()]


async def test_a_run_starts_prints_and_exits(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sh", "-c", "echo hello; echo oops >&2; exit 3"), gpus=(1, 2))
        started = await bench.started(key)
        exited = await bench.exited(key)
        assert (exited.cause, exited.exit_code, exited.signal) == ("exited", 3, None)
        assert (started.gpus, started.node, started.session) == ((1, 2), "n1", bench.session())
        assert exited.started_at == started.started_at <= exited.ended_at
        await output(bench, key, b"hello\noops\n")
        assert exited.log_bytes == 11
        report = await bench.reported(lambda r: r.runs and r.runs[0].state == "ended")
        assert (report.runs[0].exit_code, report.runs[0].log_bytes, report.runs[0].cause) == (3, 11, "exited")
    assert [(line["event"], line["exit_code"]) for line in journal(tmp_path)] == [("started", None), ("exited", 3)]
    assert check_directories([tmp_path]).violations == []


async def test_a_run_that_ends_badly_says_first_what_its_checkpoint_directory_holds(tmp_path: Path) -> None:
    save = "mkdir -p $SCHEDMATE_CHECKPOINT_DIR/step-5; echo abc > $SCHEDMATE_CHECKPOINT_DIR/step-5/w.pt; exit $0"
    async with bench_on(tmp_path) as bench:
        bad = await bench.assign(spec("sh", "-c", save, "3"))
        await bench.exited(bad)
        well = await bench.assign(spec("sh", "-c", save, "0"))
        await bench.exited(well)
        (listed,) = bench.all(CheckpointsListed)
        assert (listed.run_id, listed.member) == (bad.run_id, bad.member)
        assert Path(listed.directory).is_absolute()
        assert [(e.name, e.size_bytes, e.files) for e in listed.entries] == [("step-5", 4, 1)]
        kinds = [r.header("ce_type") for r in bench.bus.records(RunExited.TOPIC) if bad.run_id.encode() in r.value]
        assert kinds.index(CheckpointsListed.ce_type().encode()) < kinds.index(RunExited.ce_type().encode())


async def test_a_job_sees_the_environment_that_was_built_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDMATE_API_TOKEN", "secret-of-the-service")
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("env", env={"LR": "0.1"}), gpus=(2,), resume_from="/c/5")
        await bench.exited(key)
        await eventually(lambda: b"SCHEDMATE_RESUME_FROM=/c/5" in bench.log(key))
        env = dict(line.split(b"=", 1) for line in bench.log(key).splitlines())
        assert b"secret-of-the-service" not in bench.log(key)
        assert (env[b"CUDA_VISIBLE_DEVICES"], env[b"LR"], env[b"SCHEDMATE_RUN_ID"]) == (
            b"2",
            b"0.1",
            key.run_id.encode(),
        )
        assert os.path.isdir(env[b"SCHEDMATE_CHECKPOINT_DIR"])  # noqa: ASYNC240, PTH112 - a test may wait for a disk


async def test_the_directory_of_a_job_is_kept_across_its_attempts(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        first = await bench.assign(spec("sh", "-c", 'echo 5 > "$SCHEDMATE_CHECKPOINT_DIR/step"; exit 1'), job_id="j")
        await bench.exited(first)
        second = await bench.assign(spec("sh", "-c", 'cat "$SCHEDMATE_CHECKPOINT_DIR/step"'), job_id="j", attempt=2)
        await bench.exited(second)
        await output(bench, second, b"5\n")


@pytest.mark.parametrize(
    ("job_spec", "detail"),
    [
        (spec("no-such-program"), "cannot execute 'no-such-program'"),
        (spec("true", workdir="/no/such/directory"), "cannot enter the directory '/no/such/directory'"),
    ],
)
async def test_a_program_that_cannot_be_executed_is_a_failed_launch(
    tmp_path: Path, job_spec: object, detail: str
) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(job_spec)
        exited = await bench.exited(key)
        assert (exited.cause, exited.exit_code, exited.started_at) == ("launch_failed", None, None)
        assert detail in exited.detail
        assert "No such file or directory" in exited.detail


async def test_a_run_that_dies_of_a_signal_says_which(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sh", "-c", "kill -SEGV $$"))
        exited = await bench.exited(key)
        assert (exited.cause, exited.exit_code, exited.signal) == ("exited", None, signal.SIGSEGV)


async def test_a_stop_lets_a_run_say_goodbye(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sh", "-c", f"trap 'echo saved; exit 0' TERM; {STAYS}"))
        await output(bench, key, b"ready\n")
        await bench.order_stop(key, grace_s=30)
        exited = await bench.exited(key)
        assert (exited.cause, exited.exit_code) == ("stopped", 0)
        await eventually(
            lambda: bench.log(key).endswith(b"saved\n")
        )  # the shell says itself that its sleep was terminated
    assert journal(tmp_path)[-1]["event"] == "killed"


async def test_a_run_that_ignores_the_stop_is_killed_after_the_grace(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sh", "-c", f"trap '' TERM; {STAYS}"))
        await output(bench, key, b"ready\n")
        await bench.order_stop(key, grace_s=0.3)
        exited = await bench.exited(key)
        assert (exited.cause, exited.exit_code, exited.signal) == ("stopped", None, signal.SIGKILL)


async def test_an_ended_run_is_reported_until_it_is_released(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sh", "-c", "echo out"))
        await bench.exited(key)
        await bench.reported(lambda r: [run.state for run in r.runs] == ["ended"])
        await bench.release(key)
        await bench.reported(lambda r: r.runs == ())
        await eventually(lambda: list(bench.processes.kept()) == [])
        assert list((tmp_path / "n1" / "members").iterdir()) == []
        await output(bench, key, b"out\n")


async def test_a_gpu_has_one_owner_whoever_asks(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        holder = await bench.assign(stays(), gpus=(0, 1))
        await bench.started(holder)
        other = await bench.assign(spec("true"), gpus=(1, 2))
        refused = await bench.refused(other)
        assert refused.cause == "gpu_in_use"
        assert str(holder) in refused.detail
        free = await bench.assign(spec("true"), gpus=(2, 3))
        assert (await bench.exited(free)).exit_code == 0
        await bench.order_stop(holder)
        await bench.exited(holder)
        again = await bench.assign(spec("true"), gpus=(1,))
        assert (await bench.exited(again)).exit_code == 0
    assert check_directories([tmp_path]).violations == []


async def test_an_assignment_of_another_session_is_refused(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("true"), session=bench.session() - 1)
        refused = await bench.refused(key)
        assert (refused.cause, refused.seq) == ("stale_session", 1)
    assert [line["event"] for line in journal(tmp_path)] == ["refused"]


async def test_a_repeated_assignment_starts_nothing_twice(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sh", "-c", "echo once"))
        await bench.exited(key)
        records = bench.bus.records("schedmate.assignments")
        await bench.bus.publish(records)
        after = await bench.assign(spec("true"))
        await bench.exited(after)
        assert [line["event"] for line in journal(tmp_path)] == ["started", "exited"] * 2


async def test_a_worker_that_comes_back_goes_on_with_a_living_run(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sh", "-c", f"trap 'echo bye; exit 5' TERM; {STAYS}"))
        started = await bench.started(key)
        session = bench.session()
        await bench.kill()
        assert is_alive(started.pid)
        await bench.start()
        assert bench.session() > session
        assert [(r.run_id, r.state) for r in bench.reports()[-1].runs] == [(key.run_id, "running")]
        await bench.order_stop(key)
        exited = await bench.exited(key)
        assert (exited.cause, exited.exit_code) == ("stopped", 5)
        await eventually(lambda: bench.log(key).startswith(b"ready\n") and bench.log(key).endswith(b"bye\n"))
    assert [line["event"] for line in journal(tmp_path)] == ["started", "killed"]


async def test_an_exit_code_is_not_lost_while_nobody_watches(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        go = tmp_path / "go"
        key = await bench.assign(
            spec("sh", "-c", f"echo on; while [ ! -e {go} ]; do sleep 0.02; done; echo off; exit 42")
        )
        started = await bench.started(key)
        await bench.kill()
        go.touch()
        await eventually(lambda: not is_alive(started.pid))
        await bench.start()
        exited = await bench.exited(key)
        assert (exited.cause, exited.exit_code) == ("exited", 42)
        await output(bench, key, b"on\noff\n")
    assert check_directories([tmp_path]).violations == []


async def test_an_end_stands_in_the_journal_once_though_the_worker_died_before_it_wrote_its_file(
    tmp_path: Path,
) -> None:
    async with bench_on(tmp_path) as bench:
        go = tmp_path / "go"
        key = await bench.assign(spec("sh", "-c", f"while [ ! -e {go} ]; do sleep 0.02; done; exit 3"))
        await bench.started(key)
        file = next(tmp_path.rglob(f"members/{key}.json"))  # noqa: ASYNC240 - a test looks at the disk
        before = file.read_bytes()
        go.touch()
        await bench.exited(key)
        await bench.kill()
        file.write_bytes(before)  # as a kill between the journal's line and the member's file leaves it
        bench.bus.recreate("schedmate.runs")
        await bench.start()
        exited = await bench.exited(key)
        assert (exited.cause, exited.exit_code) == ("exited", 3)
    assert check_directories([tmp_path]).violations == []


async def test_an_end_that_was_never_acknowledged_is_told_after_the_restart(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sh", "-c", "exit 7"))
        bench.bus.faults.unavailable = False
        await bench.started(key)
        await bench.exited(key)
        bench.bus.recreate("schedmate.runs")
        await bench.kill()
        await bench.start()
        assert (await bench.exited(key)).exit_code == 7
        assert (await bench.started(key)).pid > 0


async def test_sigterm_leaves_the_runs_to_their_supervisors(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(stays())
        started = await bench.started(key)
        await bench.stop()
        assert is_alive(started.pid)
        assert bench.processes.status(key).phase is Phase.RUNNING
        assert bench.reports()[-1].stopping
        await bench.start()
        assert not bench.reports()[-1].stopping
        await bench.order_stop(key)
        assert (await bench.exited(key)).cause == "stopped"


async def test_a_worker_told_to_ends_its_runs_with_itself(tmp_path: Path) -> None:
    async with bench_on(tmp_path, stop_runs=True, stop_grace_s=5.0) as bench:
        key = await bench.assign(spec("sh", "-c", f"trap 'echo bye; exit 0' TERM; {STAYS}"))
        await output(bench, key, b"ready\n")
        await bench.stop()
        exited = await bench.exited(key)
        assert (exited.cause, exited.exit_code) == ("worker_stopped", 0)
        assert bench.log(key).endswith(b"bye\n")


async def test_runs_end_at_once_with_a_worker_whose_drain_is_broken_off(tmp_path: Path) -> None:
    async with bench_on(tmp_path, stop_runs=True, stop_grace_s=60.0) as bench:
        key = await bench.assign(spec("sh", "-c", f"trap '' TERM; {STAYS}"))
        started = await bench.started(key)
        await output(bench, key, b"ready\n")
        draining = asyncio.create_task(bench.stop())
        await bench.reported(lambda report: report.stopping)
        draining.cancel()
        await bench.kill()
        await eventually(lambda: not is_alive(started.pid))


async def test_two_workers_on_one_node_are_refused(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        second = build(bench.settings, bus=bench.bus, gpus=bench.gpus, processes=bench.processes)
        with pytest.raises(RecordsError, match="another worker runs"):
            await second.start()
        await second.close()


async def test_without_acknowledgement_the_lease_ends_the_runs_and_a_new_session_begins(tmp_path: Path) -> None:
    async with bench_on(tmp_path, lease_s=1.0, report_interval_s=0.1) as bench:
        key = await bench.assign(spec("sh", "-c", f"trap '' TERM; {STAYS}"))
        started = await bench.started(key)
        session = bench.session()
        bench.bus.faults.unavailable = True
        await eventually(lambda: not is_alive(started.pid))
        bench.bus.faults.heal()
        exited = await bench.exited(key)
        assert (exited.cause, exited.signal) == ("lease_expired", signal.SIGKILL)
        report = await bench.reported(lambda r: r.session == session + 1)
        assert [run.state for run in report.runs] == ["ended"]
        late = await bench.assign(spec("true"), session=session)
        assert (await bench.refused(late)).cause == "stale_session"
        again = await bench.assign(spec("true"))
        assert (await bench.exited(again)).exit_code == 0
    assert check_directories([tmp_path]).violations == []


async def test_a_lease_of_zero_outlives_any_outage(tmp_path: Path) -> None:
    async with bench_on(tmp_path, lease_s=0.0) as bench:
        key = await bench.assign(stays())
        started = await bench.started(key)
        epoch, deadline = bench.processes.deadline() or (0, 0.0)
        assert (epoch, deadline) == (1, float("inf"))
        await bench.kill()
        assert is_alive(started.pid)
        await bench.start()
        assert [r.state for r in bench.reports()[-1].runs] == ["running"]


async def test_a_worker_that_comes_back_after_its_lease_finds_its_runs_dead(tmp_path: Path) -> None:
    async with bench_on(tmp_path, lease_s=0.8, report_interval_s=0.1) as bench:
        key = await bench.assign(stays())
        started = await bench.started(key)
        await bench.kill()
        await eventually(lambda: not is_alive(started.pid))
        await bench.start()
        assert (await bench.exited(key)).cause == "lease_expired"
        assert [r.state for r in bench.reports()[-1].runs] == ["ended"]


async def test_a_short_outage_of_the_bus_costs_nothing(tmp_path: Path) -> None:
    async with bench_on(tmp_path, lease_s=20.0) as bench:
        key = await bench.assign(spec("sh", "-c", f"trap 'exit 0' TERM; {STAYS}"))
        await bench.started(key)
        session = bench.session()
        bench.bus.faults.unavailable = True
        await bench.clock.sleep(0.5)
        bench.bus.faults.heal()
        await bench.order_stop(key)
        assert (await bench.exited(key)).cause == "stopped"
        assert bench.session() == session


async def test_lost_assignments_are_no_reason_to_stand_still(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        first = await bench.assign(spec("true"))
        await bench.exited(first)
        await bench.kill()
        lost = await bench.assign(spec("true"))
        for partition in await bench.bus.bounds([await bench.worker._assignments.partition()]):
            bench.bus.truncate(partition, 2)
        await bench.start()
        after = await bench.assign(spec("true"))
        assert (await bench.exited(after)).exit_code == 0
        assert bench._of(type(await bench.exited(after)), lost) is None


async def test_a_node_that_remembers_nothing_acts_on_nothing_old(tmp_path: Path) -> None:
    async with bench_on(tmp_path / "a") as bench:
        old = await bench.assign(spec("true"))
        await bench.exited(old)
        await bench.kill()
        bench.settings = bench.settings.model_copy(update={"state_dir": tmp_path / "b"})
        bench.processes = type(bench.processes)(bench.settings.node_dir)
        session = bench.session()
        await bench.start()
        assert bench.session() > session
        assert bench.reports()[-1].runs == ()
    assert (tmp_path / "b" / "n1" / "journal.jsonl").read_bytes() == b""


async def test_a_start_that_was_never_journalled_is_undone_and_refused(tmp_path: Path) -> None:
    """The worker dies after its supervisor holds the program and before the journal knows."""
    async with bench_on(tmp_path) as bench:
        write = bench.worker._records.journal_start

        def dies(*_: object) -> None:
            bench.worker._records.journal_start = write
            raise OSError(5, "the machine goes down here")

        bench.worker._records.journal_start = dies
        key = await bench.assign(spec("sh", "-c", "echo ran"))
        with pytest.raises(OSError, match="goes down"):
            await asyncio.wait_for(asyncio.shield(bench._task), 10)
        await bench.worker.close()
        await bench.start()
        assert (await bench.refused(key)).cause == "stale_session"
        await eventually(lambda: list(bench.processes.kept()) == [])
        await bench.reported(lambda r: r.runs == ())
        assert (await bench.exited(await bench.assign(spec("true")))).exit_code == 0
    assert [line["event"] for line in journal(tmp_path)] == ["refused", "started", "exited"]


async def test_on_another_bus_the_fence_begins_anew(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        for _ in range(3):
            await bench.exited(await bench.assign(spec("true")))
        await bench.kill()
        bench.bus = MemoryBus(bench.clock, name="another")
        await bench.setup()
        bench.talk = Talk(bench.bus, "n1")
        await bench.start()
        key = await bench.talk.assign(spec("true"))
        assert (await bench.exited(key)).exit_code == 0


async def test_a_gang_of_two_nodes_meets_at_its_master(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(
            spec("env", nodes=2), members=2, member=1, gpus=(0, 1), master_addr="10.0.0.7", master_port=20042
        )
        await bench.exited(key)
        await eventually(lambda: b"MASTER_PORT=20042" in bench.log(key))
        for expected in (b"MASTER_ADDR=10.0.0.7", b"NODE_RANK=1", b"NNODES=2", b"WORLD_SIZE=4"):
            assert expected in bench.log(key).splitlines()


async def test_events_of_a_run_carry_the_trace_of_its_assignment(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sh", "-c", "echo x"))
        await bench.exited(key)
        await output(bench, key, b"x\n")
        records = [*bench.bus.records("schedmate.runs"), *bench.bus.records("schedmate.logs")]
        assert len(records) == 3
        assert {(r.header("traceparent") or b"")[3:35] for r in records} == {b"0af7651916cd43dd8448eb211c80319c"}
