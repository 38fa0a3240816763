"""All figures of the dispatcher in one run: the pure core, a whole dispatcher in memory, and its latency on real Kafka and a MongoDB-wire server.

    python benchmarks/run.py [--quick]

Prints one JSON object, and a table with the aims beside the figures. The benchmarks run one after the other, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
TIMEOUT_S: Final = 600
QUICK: Final = {
    "core": ["--decisions", "10000"],
    "throughput": ["--jobs", "500"],
    "latency": ["--samples", "50", "--seconds", "2"],
}
AIMS: Final = (  # path in the figures, least, most
    ("core.decisions_per_s_1000_pending", 25_000, None),
    ("core.ratio_10000_to_100", 0.7, None),
    ("throughput.jobs_per_s", None, None),
    ("latency.one by one.p50_ratio", None, 2),
    ("latency.one by one.p99_ratio", None, 4),
    ("latency.50 a second.p50_ratio", None, 2),
    ("latency.50 a second.p99_ratio", None, 4),
)


def figures(name: str, arguments: list[str]) -> dict[str, Any]:
    """Return what a benchmark prints."""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, str(HERE / f"{name}.py"), *arguments],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(f"{name}.py ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


def at(found: dict[str, Any], path: str) -> float:
    """Return the figure at a dotted path."""
    value: Any = found
    for part in path.split("."):
        value = value[part]
    return float(value)


def table(found: dict[str, Any]) -> str:
    """Return the figures that have an aim, one a line."""
    lines = [f"{'figure':42} {'measured':>12} {'aim':>10}"]
    for path, least, most in AIMS:
        value = at(found, path)
        aim = f">= {least:,}" if least is not None else f"<= {most:,}" if most is not None else ""
        missed = (least is not None and value < least) or (most is not None and value > most)
        lines.append(f"{path:42} {value:>12,.2f} {aim:>10}{'  missed' if missed else ''}")
    return "\n".join(lines)


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fraction of the samples")
    quick = parser.parse_args().quick
    found: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "python": sys.version.split()[0]}
    }
    for name, few in QUICK.items():
        print(f"{name} …", file=sys.stderr, flush=True)
        found[name] = figures(name, few if quick else [])
    print(json.dumps(found, indent=2))
    print(table(found), file=sys.stderr)


if __name__ == "__main__":
    main()
