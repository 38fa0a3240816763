"""A worker with real processes: start, output, exit, stop, lease, restart."""

from __future__ import annotations

from pathlib import Path

from tests.worker_bench import bench_on, spec


async def test_a_run_starts_prints_and_exits(tmp_path: Path) -> None:
    async with bench_on(tmp_path) as bench:
        key = await bench.assign(spec("sh", "-c", "echo hello; exit 3"), gpus=(1, 2))
        started = await bench.started(key)
        exited = await bench.exited(key)
        assert (exited.cause, exited.exit_code, exited.signal) == ("exited", 3, None)
        assert exited.log_bytes == 6
        assert started.gpus == (1, 2)
