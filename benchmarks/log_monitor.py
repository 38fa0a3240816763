"""Speed and bounds of the metric tracker: `benchmarks/log_monitor.py [--fuzz LINES]`.

Prints lines a second of the tracker in its steady state beside drain3 (without masking) on the same lines, in one run and process; the
memory that a 2 GB log, a line of 100 MB and ten thousand jobs take; and, with `--fuzz`, the longest time that any of so many random lines took.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

from drain3 import TemplateMiner
from drain3.template_miner_config import TemplateMinerConfig

from schedmate.services.log_monitor.metrics.far import Hints
from schedmate.services.log_monitor.metrics.follow import Follower
from schedmate.services.log_monitor.metrics.library import library
from schedmate.services.log_monitor.metrics.state import Metrics
from schedmate.services.log_monitor.metrics.whole import progress_of

LINES = 40_000
WARM = 5_000
MIB = 1 << 20
SUSPECT_S = 0.01


def logs(lines: int = LINES) -> dict[str, list[str]]:
    """Return logs of several formats: known ones, one nobody knows, and lines that say nothing."""
    chance = random.Random(5)  # noqa: S311 - no secret
    return {
        "megatron": [
            f" iteration {i:8d}/  250000 | consumed samples: {i * 1024:12d} | elapsed time per iteration (ms): {chance.uniform(870, 900):.1f} | "
            f"learning rate: 8.325E-06 | global batch size:  1024 | lm loss: {2.5 - i / 1e5:.6E} | loss scale: 1.0 | grad norm: {chance.random():.3f} | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
            for i in range(1, lines + 1)
        ],
        "bar": [
            f" {i * 100 // 60000:3d}%|{'█' * (i * 10 // 60000)}{' ' * (10 - i * 10 // 60000)}| {i}/60000 "
            f"[{i // 3600:02d}:{i // 60 % 60:02d}:{i % 60:02d}<10:00:00,  {chance.uniform(1, 2):.2f}s/it]"
            for i in range(1, lines + 1)
        ],
        "home-grown": [
            f"2025-03-04 {9 + i // 3600:02d}:{i // 60 % 60:02d}:{i % 60:02d},123 INFO pass {i} obj {chance.random():.4f} lr 0.0001 took {chance.uniform(0.3, 0.4):.3f}"
            for i in range(1, lines + 1)
        ],
        "chatter": [
            f"INFO worker {chance.randrange(64)} fetched shard-{chance.randrange(10000):05d}.tar in {chance.random():.3f}s from node{chance.randrange(8)}"
            for _ in range(lines)
        ],
    }


def rate(lines: list[str], take: Callable[[str], object]) -> float:
    """Return lines a second after a warm-up."""
    for line in lines[:WARM]:
        take(line)
    begun = time.process_time()
    for line in lines[WARM:]:
        take(line)
    return (len(lines) - WARM) / (time.process_time() - begun)


def tracker_rate(lines: list[str]) -> float:
    """Return the tracker's lines a second."""
    follower, metrics = Follower(library()), Metrics()
    return rate(lines, lambda line: follower.follow(metrics, line, None))


def drain_rate(lines: list[str]) -> float:
    """Return drain3's lines a second, without masking."""
    config = TemplateMinerConfig()
    config.masking_instructions = []
    miner = TemplateMiner(config=config)
    return rate(lines, miner.add_log_message)


PIECES = (
    "step ", "epoch ", "/", "1", "23", "4567", ".5", "e-3", "nan", "%", "|", "█", " ", "  ", "[", "]", "(", ")", ":", "=", ",", "loss", "12:34", "it/s", "s/it",
    "2025-03-04 09:15:00", "\t", "val", "eval", "-", "é", "批", "<", "of", "ms", "saved checkpoint", "resume", "{", "}", "'", "1,234", "0x7f", "a" * 40, "9" * 30,
    "1 day, ", "minutes", "\x1b[0m", "training", "GET /x HTTP/1.1", "\\", "Ⅷ", "١٢", "\u200b", "#" * 20, "=" * 20, " - ", "12h 3m", "=>", "..", "1.2.3.4",
)  # fmt: skip


def fuzz_lines(count: int, seed: int = 11) -> Iterator[str]:
    """Yield random lines: words of logs in any order, repeated pieces, random characters."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    for number in range(count):
        kind = number % 16
        if kind == 0:
            yield chance.choice(PIECES) * chance.choice((3, 30, 300, 2000))
        elif kind == 1:
            yield "".join(chr(chance.randrange(1, 0x2FFF)) for _ in range(chance.randrange(200)))
        elif kind == 2:
            yield (chance.choice(PIECES) + chance.choice(PIECES)) * chance.choice((3, 30, 300))
        else:
            yield "".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 24)))


def slowest(count: int) -> tuple[float, str]:
    """Return the longest time that one of so many random lines took, and the line's beginning.

    A line that seems slow is taken again, thrice, by a follower that does not know it: the machine's own pauses are not the line's.
    """
    follower, metrics = Follower(library()), Metrics()
    worst, which = 0.0, ""
    for number, line in enumerate(fuzz_lines(count)):
        if number % 5000 == 0:
            metrics = Metrics()
        took = _timed(follower, metrics, line)
        if took > max(worst, SUSPECT_S):
            took = min(took, *(_timed(Follower(library()), Metrics(), line) for _ in range(3)))
        if took > worst:
            worst, which = took, line[:120]
    return worst, which


def _timed(follower: Follower, metrics: Metrics, line: str) -> float:
    begun = time.process_time()  # what the line costs; what other programs cost meanwhile is not its own
    follower.follow(metrics, line, None)
    return time.process_time() - begun


def peak_mib() -> float:
    """Return the process's peak resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory(megabytes: int) -> None:
    """Print how the peak grows with a long log, a long line, and many jobs."""
    block = b"".join(b"2025-03-04 09:15:%02d step %d/90000 loss 0.%d\n" % (i % 60, i, i) for i in range(1, 20_000))
    before = peak_mib()
    progress_of((block for _ in range(megabytes * MIB // len(block))), Hints())
    print(f"a log of {megabytes} MiB: peak grew by {peak_mib() - before:.1f} MiB")
    before = peak_mib()
    progress_of((b"x=1 " * (64 * 1024) for _ in range(400)), Hints())
    print(f"a line of 100 MiB: peak grew by {peak_mib() - before:.1f} MiB")
    before = peak_mib()
    follower = Follower(library())
    jobs = [Metrics() for _ in range(10_000)]
    for number in range(30):
        for job, metrics in enumerate(jobs):
            follower.follow(
                metrics, f"job{job % 50} step {number}/1000 loss 0.{job} time 0.3s lr 0.1 acc 0.{number}", float(number)
            )
    size = max(len(repr(asdict(metrics))) for metrics in jobs[:100])
    print(
        f"10,000 jobs: peak grew by {peak_mib() - before:.1f} MiB; a job's state is at most {size / 1024:.1f} KiB as text"
    )


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fuzz", type=int, default=0, metavar="LINES", help="time so many random lines")
    parser.add_argument("--megabytes", type=int, default=200, help="length of the long log")
    given = parser.parse_args()
    memory(given.megabytes)
    for name, lines in logs().items():
        ours, theirs = tracker_rate(lines), drain_rate(lines)
        print(f"{name:12s} {ours:9,.0f} lines/s, drain3 {theirs:9,.0f}: {ours / theirs:.1f} times")
    if given.fuzz:
        took, line = slowest(given.fuzz)
        print(f"the slowest of {given.fuzz:,} random lines took {took * 1000:.1f} ms: {line!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
