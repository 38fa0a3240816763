"""Checks workers' journals from outside: no GPU held for more than one whole, no job with two living attempts, every start with an end.

    python tests/journal_checker.py [--living] STATE_DIR [STATE_DIR…]

Knows the journal's format (design §8) and nothing of the worker's code. A node's own lines are taken in their order in the file; across nodes
`t` counts, so the nodes' clocks must be one (a test's machine). A line that a crash tore off at the end is no line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEYS = {
    "t", "node", "session", "pool", "seq", "term", "job_id", "run_id", "attempt", "member", "gpus", "event", "pid", "exit_code",
}  # fmt: skip
SHARED_KEYS = {"gpu_milli", "packable", "packed_with"}
"""Keys that a line may have besides: how the GPUs are held. Without them they are held whole and alone."""
WHOLE_MILLI = 1000
EVENTS = {"started", "exited", "killed", "refused"}
FOREVER = float("inf")


@dataclass
class Life:
    """One member on one node."""

    node: str
    job: str
    run: str
    attempt: int
    member: int
    gpus: tuple[int, ...]
    started_at: float
    ended_at: float = FOREVER
    gpu_milli: int = WHOLE_MILLI
    packable: bool = False
    packed_with: str | None = None

    def __str__(self) -> str:
        return f"{self.run}.{self.member} (job {self.job}, attempt {self.attempt}) on {self.node}"


@dataclass
class Verdict:
    """What the journals say; it is good when nothing is violated."""

    violations: list[str] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    refused: int = 0
    never_started: int = 0

    @property
    def living(self) -> list[Life]:
        return [life for life in self.lives if life.ended_at == FOREVER]


def check(journals: dict[str, Iterable[bytes]], *, may_live: bool = False) -> Verdict:
    """Return the verdict on journals by name (of a node, or of a file). `may_live`: a start without an end is allowed."""
    verdict = Verdict()
    for name in sorted(journals):
        _check_node(name, journals[name], verdict)
    _check_attempts(verdict)
    _check_starts(verdict)
    if not may_live:
        verdict.violations += [f"{life} was started and never ended" for life in verdict.living]
    return verdict


def check_directories(directories: Iterable[Path], *, may_live: bool = False) -> Verdict:
    """Return the verdict on all `*/journal.jsonl` below these directories."""
    paths = sorted({path for directory in directories for path in directory.rglob("journal.jsonl")})
    if not paths:
        return Verdict(violations=["there is no journal"])
    return check({str(path): _lines(path.read_bytes()) for path in paths}, may_live=may_live)


def _lines(content: bytes) -> Iterator[bytes]:
    whole, _, _ = content.rpartition(b"\n")
    yield from (line for line in whole.split(b"\n") if line)


def _check_node(name: str, lines: Iterable[bytes], verdict: Verdict) -> None:
    holders: dict[int, list[Life]] = {}
    open_lives: dict[tuple[str, int], Life] = {}
    ended: set[tuple[str, int]] = set()
    session = 0
    for number, line in enumerate(lines, start=1):
        value = _parsed(f"{name}:{number}", line, verdict)
        if value is None:
            continue
        where = f"{name}:{number}"
        key = (value["run_id"], value["member"])
        if value["session"] < session:
            verdict.violations.append(f"{where}: session fell from {session} to {value['session']}")
        session = max(session, value["session"])
        if value["event"] == "refused":
            verdict.refused += 1
            if key in open_lives:
                verdict.violations.append(f"{where}: {open_lives[key]} is refused while it lives")
        elif value["event"] == "started":
            _start(where, value, holders, open_lives, ended, verdict)
        else:
            _end(where, value, holders, open_lives, ended, verdict)


def _end(
    where: str,
    value: dict[str, Any],
    holders: dict[int, list[Life]],
    open_lives: dict[tuple[str, int], Life],
    ended: set[tuple[str, int]],
    verdict: Verdict,
) -> None:
    key = (value["run_id"], value["member"])
    if key in open_lives:
        life = open_lives.pop(key)
        life.ended_at = value["t"]
        for gpu in life.gpus:
            holders[gpu] = [one for one in holders[gpu] if one is not life]
    elif key in ended:
        verdict.violations.append(f"{where}: {key[0]}.{key[1]} ends a second time")
    elif value["pid"] is not None:
        verdict.violations.append(f"{where}: {key[0]}.{key[1]} ends with a pid and was never started")
    else:
        verdict.never_started += 1
    ended.add(key)


def _start(
    where: str,
    value: dict[str, Any],
    holders: dict[int, list[Life]],
    open_lives: dict[tuple[str, int], Life],
    ended: set[tuple[str, int]],
    verdict: Verdict,
) -> None:
    key = (value["run_id"], value["member"])
    life = Life(
        value["node"],
        value["job_id"],
        value["run_id"],
        value["attempt"],
        value["member"],
        tuple(value["gpus"]),
        value["t"],
        gpu_milli=value.get("gpu_milli", WHOLE_MILLI),
        packable=value.get("packable", False),
        packed_with=value.get("packed_with"),
    )
    if key in open_lives or key in ended:
        verdict.violations.append(f"{where}: {life} is started a second time")
    if life.gpu_milli != WHOLE_MILLI and (not 0 < life.gpu_milli < WHOLE_MILLI or len(life.gpus) != 1 or life.packable):
        verdict.violations.append(f"{where}: {life} holds {life.gpu_milli} thousandths of {len(life.gpus)} GPUs")
    for gpu in life.gpus:
        there = holders.setdefault(gpu, [])
        wrong = more_than_a_whole(there, life)
        if wrong is not None:
            whose = " and ".join(map(str, [*there, life]))
            verdict.violations.append(f"{where}: GPU {gpu} {wrong}: {whose}")
        there.append(life)
    open_lives[key] = life
    verdict.lives.append(life)


def more_than_a_whole(there: list[Life], life: Life) -> str | None:
    """Say what is wrong with one more holder of a GPU: shares come to one whole at most, of whole holders two at most, who agreed."""
    if not there:
        return None
    if all(one.gpu_milli < WHOLE_MILLI for one in (*there, life)):
        total = sum(one.gpu_milli for one in (*there, life))
        return f"is given out for {total} thousandths" if total > WHOLE_MILLI else None
    if len(there) > 1:
        return "has three owners" if life.gpu_milli == WHOLE_MILLI else "has two owners"
    (first,) = there
    agreed = first.packable and life.packable and life.packed_with == first.run and life.job != first.job
    return None if agreed and set(first.gpus) == set(life.gpus) else "has two owners"


def _check_attempts(verdict: Verdict) -> None:
    """No job with two living attempts: over all nodes, by time."""
    jobs: dict[str, list[Life]] = {}
    for life in verdict.lives:
        jobs.setdefault(life.job, []).append(life)
    for lives in jobs.values():
        for number, one in enumerate(lives):
            for other in lives[number + 1 :]:
                if one.attempt != other.attempt and one.started_at < other.ended_at and other.started_at < one.ended_at:
                    verdict.violations.append(f"two attempts live at once: {one} and {other}")


def _check_starts(verdict: Verdict) -> None:
    """One start per member, over all nodes; one run per attempt of a job."""
    starts: dict[tuple[str, int], Life] = {}
    runs: dict[tuple[str, int], str] = {}
    for life in verdict.lives:
        other = starts.setdefault((life.run, life.member), life)
        if other is not life and other.node != life.node:
            verdict.violations.append(f"one member started on two nodes: {other} and {life}")
        if runs.setdefault((life.job, life.attempt), life.run) != life.run:
            verdict.violations.append(f"attempt {life.attempt} of job {life.job} has two runs")


def _parsed(where: str, line: bytes, verdict: Verdict) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        verdict.violations.append(f"{where}: not JSON")
        return None
    if not isinstance(value, dict) or not KEYS <= set(value) <= KEYS | SHARED_KEYS or value["event"] not in EVENTS:
        verdict.violations.append(f"{where}: not a line of the journal's format")
        return None
    return value


def main(arguments: list[str]) -> int:
    """Print the verdict; 1 when something is violated, 2 on wrong use."""
    may_live = "--living" in arguments
    directories = [Path(a) for a in arguments if a != "--living"]
    if not directories:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    verdict = check_directories(directories, may_live=may_live)
    for violation in verdict.violations:
        sys.stdout.write(f"VIOLATION {violation}\n")
    sys.stdout.write(
        f"{len(verdict.lives)} lives, {len(verdict.living)} living, {verdict.refused} refused, "
        f"{verdict.never_started} ended before their start, {len(verdict.violations)} violations\n"
    )
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
