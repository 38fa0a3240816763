"""Operators' scenarios that a worker alone decides, or its half of them. Real processes, GPU memory by a scripted `Gpus`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from schedmate.infra.gpus.port import GpuFault
from schedmate.schemas.events import RunExited, RunStarted
from tests.journal_checker import check_directories
from tests.processes import is_alive
from tests.waiting import eventually
from tests.worker_bench import Bench, bench_on, spec

# Children with sessions of their own, as data loaders and inference engines have; they keep "GPU memory".
ORPHANS = """
import os, subprocess, sys, time
children = [subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True) for _ in range(3)]
print(*[c.pid for c in children], flush=True)
time.sleep(600)
"""


async def orphans_of(bench: Bench, key: object) -> list[int]:
    line = await eventually(lambda: bench.log(key) if bench.log(key).endswith(b"\n") else None)
    return [int(pid) for pid in line.split()]


# --- BR-28 orphan_process ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "kill the parent"])
async def test_br28_orphan_process_children_are_killed_and_memory_is_awaited(tmp_path: Path, how: str) -> None:
    async with bench_on(tmp_path, gpu_settle_s=30.0) as bench:
        key = await bench.assign(spec(sys.executable, "-S", "-c", ORPHANS), gpus=(0,))
        started = await bench.started(key)
        children = await orphans_of(bench, key)
        bench.gpus.shows(0, memory_used_mib=60_000, pids=tuple(children))
        await eventually(lambda: bench.reports()[-1].gpus[0].memory_used_mib == 60_000)
        assert not bench.reports()[-1].gpus[0].busy_external
        if how == "cancel":
            await bench.order_stop(key, grace_s=0.2)
        else:
            os.kill(started.pid, signal.SIGKILL)
        await bench.exited(key)
        assert [pid for pid in children if is_alive(pid)] == []
        bench.gpus.shows(0, memory_used_mib=60_000, pids=())  # the driver takes its time
        waiting = await bench.assign(spec("true"), gpus=(0,))
        await bench.reported(lambda r: any(run.run_id == waiting.run_id and run.state == "starting" for run in r.runs))
        assert bench._of(RunStarted, waiting) is None
        bench.gpus.shows(0, memory_used_mib=12, pids=())
        assert (await bench.exited(waiting)).exit_code == 0
        assert bench._of(RunStarted, waiting) is not None


async def test_br28_orphan_process_memory_that_never_comes_back_holds_the_gpu(tmp_path: Path) -> None:
    async with bench_on(tmp_path, gpu_settle_s=0.3) as bench:
        key = await bench.assign(spec("sleep", "600"), gpus=(0,))
        await bench.started(key)
        bench.gpus.shows(0, memory_used_mib=60_000, pids=None)
        await eventually(lambda: bench.reports()[-1].gpus[0].memory_used_mib == 60_000)
        await bench.order_stop(key, grace_s=0.1)
        await bench.exited(key)
        await bench.reported(lambda r: r.gpus[0].held and not r.gpus[0].busy_external)
        refused = await bench.refused(await bench.assign(spec("true"), gpus=(0,)))
        assert "held" in refused.detail
        bench.gpus.shows(0, memory_used_mib=0, pids=None)
        await bench.reported(lambda r: not r.gpus[0].held)
        assert (await bench.exited(await bench.assign(spec("true"), gpus=(0,)))).exit_code == 0


# --- BR-33 external_use -----------------------------------------------------------------------------------------------


async def test_br33_external_use_is_reported_and_nothing_is_started_there(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        bench.gpus.shows(3, memory_used_mib=20_000, pids=(os.getpid(),))  # somebody logged in and uses it
        await bench.reported(lambda r: [g.busy_external for g in r.gpus] == [False, False, False, True])
        key = await bench.assign(spec("true"), gpus=(3,))
        refused = await bench.refused(key)
        assert refused.cause == "gpu_busy_external"
        assert (await bench.exited(await bench.assign(spec("true"), gpus=(2,)))).exit_code == 0
        bench.gpus.shows(3, memory_used_mib=0, pids=())
        await bench.reported(lambda r: not r.gpus[3].busy_external)
    assert [life.gpus for life in check_directories([tmp_path]).lives] == [(2,)]


async def test_br33_external_use_that_no_report_has_seen_yet_is_seen_before_the_start(tmp_path: Path) -> None:
    async with bench_on(tmp_path, gpu_poll_s=3600.0) as bench:
        bench.gpus.shows(1, memory_used_mib=20_000, pids=(os.getpid(),))
        refused = await bench.refused(await bench.assign(spec("true"), gpus=(1,)))
        assert refused.cause == "gpu_busy_external"
        await bench.reported(lambda r: r.gpus[1].busy_external)


async def test_br33_external_use_beside_a_run_of_ours_is_told_while_it_runs(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sleep", "600"), gpus=(0,))
        started = await bench.started(key)
        bench.gpus.shows(0, memory_used_mib=70_000, pids=(started.pid, os.getpid()))
        await bench.reported(
            lambda r: r.gpus[0].busy_external
        )  # so an out-of-memory of this run is not the job's fault
        bench.gpus.shows(0, memory_used_mib=40_000, pids=(started.pid,))
        await bench.reported(lambda r: not r.gpus[0].busy_external)


# --- BR-30 reattach_gone ----------------------------------------------------------------------------------------------


async def test_br30_reattach_gone_a_run_that_vanished_while_the_worker_was_down_is_told(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sleep", "600"), gpus=(0,))
        await bench.started(key)
        await bench.kill()
        bench.processes.kill(key)  # supervisor and run
        await bench.start()
        exited = await bench.exited(key)
        assert (exited.cause, exited.exit_code) == ("lost", None)
        await bench.reported(lambda r: [run.state for run in r.runs] == ["ended"])
        assert (await bench.exited(await bench.assign(spec("true"), gpus=(0,)))).exit_code == 0  # the slot is free
    assert check_directories([tmp_path]).violations == []


async def test_br30_reattach_gone_a_worker_that_stays_away_past_its_lease_finds_nothing_alive(tmp_path: Path) -> None:
    async with bench_on(tmp_path, lease_s=0.8, report_interval_s=0.1) as bench:
        key = await bench.assign(spec("sleep", "600"), gpus=(0,))
        started = await bench.started(key)
        await bench.kill()
        await eventually(lambda: not is_alive(started.pid))
        await bench.start()
        assert (await bench.exited(key)).cause == "lease_expired"


async def test_br30_reattach_gone_a_lost_supervisor_is_noticed_while_the_worker_watches(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec(sys.executable, "-S", "-c", ORPHANS), gpus=(0,))
        await bench.started(key)
        children = await orphans_of(bench, key)
        stat = bench.processes._supervisor(key)
        os.kill(stat.pid, signal.SIGKILL)
        assert (await bench.exited(key)).cause == "lost"
        assert [pid for pid in children if is_alive(pid)] == []


# --- BR-18 resource_leak ----------------------------------------------------------------------------------------------


async def test_br18_resource_leak_without_the_scheduler_the_lease_ends_the_run_and_on_reconnect_it_is_told(
    tmp_path: Path,
) -> None:
    async with bench_on(tmp_path, lease_s=1.0, report_interval_s=0.1) as bench:
        key = await bench.assign(spec("sleep", "600"), gpus=(0,))
        started = await bench.started(key)
        bench.bus.faults.unavailable = True
        assert is_alive(started.pid)
        await eventually(lambda: not is_alive(started.pid), 5)
        bench.bus.faults.heal()
        exited = await bench.exited(key)
        assert exited.cause == "lease_expired"
        assert started.started_at + 0.9 < exited.ended_at < started.started_at + 5


async def test_br18_resource_leak_on_reconnect_a_zombie_gets_its_stop(tmp_path: Path) -> None:
    """The lease is long: the scheduler has given the run up and orders its end; the end is told when it is true, not before."""
    async with bench_on(tmp_path, lease_s=600.0) as bench:
        key = await bench.assign(
            spec("sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.05; done"), gpus=(0,)
        )
        started = await bench.started(key)
        await eventually(lambda: bench.log(key) == b"ready\n")
        await bench.kill()
        await bench.order_stop(key, grace_s=0.5)
        assert is_alive(started.pid)
        await bench.start()
        exited = await bench.exited(key)
        assert (exited.cause, exited.signal) == ("stopped", signal.SIGKILL)
        assert not is_alive(started.pid)
        states = [run.state for report in bench.reports() for run in report.runs]
        assert "stopping" in states


# --- BR-08 lost_gpu ---------------------------------------------------------------------------------------------------


async def test_br08_lost_gpu_is_reported_unhealthy_while_its_run_still_holds_it(tmp_path: Path) -> None:
    async with bench_on(tmp_path, gpus=8) as bench:
        key = await bench.assign(spec("sleep", "600"), gpus=range(8))
        await bench.started(key)
        bench.gpus.shows(6, healthy=False)
        bench.gpus.loses(7)
        report = await bench.reported(lambda r: [g.healthy for g in r.gpus] == [True] * 6 + [False] * 2)
        assert [g.index for g in report.gpus] == list(range(8)), "a lost GPU is told, never left out"
        assert report.runs[0].gpus == tuple(range(8))
        other = await bench.assign(spec("true"), gpus=range(6))
        assert (await bench.refused(other)).cause == "gpu_in_use"
        await bench.order_stop(key)
        await bench.exited(key)
        ill = await bench.assign(spec("true"), gpus=(5, 6))
        assert (await bench.refused(ill)).cause == "gpu_missing"
        assert (await bench.exited(await bench.assign(spec("true"), gpus=range(6)))).exit_code == 0


async def test_br08_lost_gpu_count_lower_than_configured_at_the_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gpus=4)
    bench.gpus.loses(0)
    bench.gpus.loses(3)
    await bench.setup()
    await bench.start()
    assert [(g.index, g.healthy) for g in bench.reports()[-1].gpus] == [(0, False), (1, True), (2, True), (3, False)]
    await bench.kill()


async def test_br08_lost_gpu_faults_of_the_driver_and_the_kernel_are_told(tmp_path: Path) -> None:
    kernel_log = tmp_path / "kern.log"
    kernel_log.write_text("NVRM: Xid (PCI:0000:3b:00): 31, an old one\n")
    async with bench_on(tmp_path, kernel_log=kernel_log) as bench:
        bench.gpus.reports_fault(GpuFault(2, 79, "NVML: Xid 79 on GPU 2"))
        with kernel_log.open("a") as file:
            file.write("eth0: link up\nNVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n")
        await eventually(lambda: len(bench.faults()) == 2)
        assert sorted((f.origin, f.xid, f.gpu) for f in bench.faults()) == [("kernel", 79, None), ("nvml", 79, 2)]
        kernel_log.rename(tmp_path / "kern.log.1")  # rotated
        kernel_log.write_text("Out of memory: Killed process 42 (python)\n")
        await eventually(lambda: len(bench.faults()) == 3)


# --- BR-38 unicode ----------------------------------------------------------------------------------------------------


async def test_br38_unicode_output_arrives_byte_for_byte_however_it_is_cut(tmp_path: Path) -> None:
    directory = tmp_path / "训练 résumé 🚀"
    directory.mkdir()
    code = (
        "import os, time\n"
        "for part in (b'\\xe8\\xae', b'\\xad\\xe7\\xbb\\x83 ', b'\\xe2', b'\\r 50%|\\xe2\\x96', b'\\x88\\x80\\x00\\n'):\n"
        "    os.write(1, part); time.sleep(0.25)\n"
    )
    async with bench_on(tmp_path, log_chunk_bytes=1024) as bench:
        named = spec(
            sys.executable, "-S", "-c", code, name="训练-résumé-🚀", workdir=str(directory), env={"NOTE": "é 🚀"}
        )
        key = await bench.assign(named)
        exited = await bench.exited(key)
        assert exited.exit_code == 0
        whole = b"\xe8\xae\xad\xe7\xbb\x83 \xe2\r 50%|\xe2\x96\x88\x80\x00\n"
        await eventually(lambda: bench.log(key) == whole)
        assert exited.log_bytes == len(whole)


# --- BR-16 cancel_race ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.2])
async def test_br16_cancel_race_leaves_no_process_and_one_end(tmp_path: Path, delay_s: float) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sleep", "600"), gpus=(0,))
        await bench.clock.sleep(delay_s)
        await bench.order_stop(key, grace_s=1.0)
        exited = await bench.exited(key)
        assert exited.cause == "stopped"
        await bench.release(key)
        await bench.reported(lambda r: r.runs == ())
        await eventually(lambda: bench.processes.pids() == frozenset() and list(bench.processes.kept()) == [])
        assert len([e for e in bench.all(RunExited) if e.run_id == key.run_id]) == 1
        assert (await bench.exited(await bench.assign(spec("true"), gpus=(0,)))).exit_code == 0
    assert check_directories([tmp_path]).violations == []


async def test_br16_cancel_race_what_was_cancelled_while_the_worker_was_away_never_starts(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        await bench.kill()
        key = await bench.assign(spec("sh", "-c", "echo ran"))
        await bench.order_stop(key)
        await bench.start()
        refused = await bench.refused(key)
        assert refused.cause == "stale_session"
        after = await bench.assign(spec("true"))
        await bench.exited(after)
        assert bench._of(RunStarted, key) is None


async def test_br16_cancel_race_what_waits_for_a_gpu_is_cancelled_at_once(tmp_path: Path) -> None:
    async with bench_on(tmp_path, gpu_settle_s=60.0) as bench:
        first = await bench.assign(spec("sleep", "600"), gpus=(0,))
        await bench.started(first)
        bench.gpus.shows(0, memory_used_mib=60_000, pids=None)
        await eventually(lambda: bench.reports()[-1].gpus[0].memory_used_mib == 60_000)
        await bench.order_stop(first, grace_s=0.1)
        await bench.exited(first)
        waiting = await bench.assign(spec("true"), gpus=(0,))
        await bench.reported(lambda r: any(run.run_id == waiting.run_id for run in r.runs))
        await bench.order_stop(waiting)
        exited = await bench.exited(waiting)
        assert (exited.cause, exited.started_at) == ("stopped", None)
