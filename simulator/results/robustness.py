"""The section on wrong advice: what `benchmarks/robustness.py` found over its seeds."""

from __future__ import annotations

import json
from pathlib import Path

from schedmate.simulator.results.tables import table


def robustness_section(path: Path) -> str:
    """Return the section; where nothing was measured yet, how it is."""
    head = "## Wrong advice\n\nMeans over the seeds as shares of the same policy without advice, with the standard error; `benchmarks/robustness.py` measures them.\n\n"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()] if path.is_file() else []
    if not rows:
        return head + "Not measured yet in this state: `python benchmarks/robustness.py` (see `--help`).\n"
    shown = [
        (
            row["ground"], f"`{row['policy']}`", row["advice"], str(row["seeds"]),
            *(f"{row[key]['mean']:.3f} ± {row[key]['standard_error']:.3f}" for key in ("avg_jct_s", "p999_wait_s")),
        )
        for row in rows
    ]  # fmt: skip
    return head + table(("on", "policy", "advice", "seeds", "average JCT", "p99.9 wait"), shown) + "\n"
