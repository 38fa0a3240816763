"""The runs of the results page, and the page: `make results`.

    SCHEDMATE_TRACES=../shared/traces python benchmarks/results.py [--only TEXT,...] [--seconds N] [--processes 2] [--page-only]

Finished runs stand in `results/runs.jsonl`, one line each with a sum over the code that decided, written as it ends: what is finished is
not run again, and a run that is broken off goes on where it was. The short grounds are run first, under every code. A long run of earlier
code holds where its policy and advice came to the same on the peer week, on 54 nodes, under both codes; the page says how many
there are. It is written of what there is, and names what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from schedmate.simulator.results.grid import BY_NAME, GROUNDS, MADE, SEMANTIC_NODES, Case, absent_files, cases
from schedmate.simulator.results.ledger import WITNESS, Ledger, code_version, run_missing
from schedmate.simulator.results.page import write_page

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"


def told(text: str) -> None:
    """Say it on standard error."""
    print(text, file=sys.stderr, flush=True)


def is_short(case: Case) -> bool:
    """Tell whether a run is one that is run again under every code."""
    ground = BY_NAME[case.ground]
    return not ground.full or ground.workloads is not None or case.ground == WITNESS


def make_semantic_trace(traces: Path, *, quick: bool) -> None:
    """Generate the semantic trace with what is known of its jobs, where it is not there as this code makes it; `quick`: not now."""
    if quick or any(not (traces / name).is_dir() for name in ("philly-2017", "pollux-osdi21")):
        return
    sys.path.insert(0, str(ROOT))
    from benchmarks.semantic_trace.workloads import make  # noqa: PLC0415 - found from the root on

    told(f"the semantic trace in {MADE}")
    make(ROOT / MADE, traces)
    nodes = json.loads((ROOT / MADE / "summary.json").read_text("utf-8"))["nodes_at_load"]
    if nodes != SEMANTIC_NODES:
        raise SystemExit(f"the semantic trace is for {nodes} nodes, the page for {SEMANTIC_NODES}")


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", help="only runs whose key (ground/policy/advice/…) has one of these in it"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many seconds")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--page-only", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results.md")
    given = parser.parse_args()
    if not os.environ.get("SCHEDMATE_TRACES"):
        told(
            "all runs are skipped, and the page is as it was: SCHEDMATE_TRACES names no folder of traces (docs/traces.md)"
        )
        return
    folder, code, ledger = (
        Path(os.environ["SCHEDMATE_TRACES"]).resolve(),
        code_version(),
        Ledger(RESULTS / "runs.jsonl"),
    )
    make_semantic_trace(folder, quick=given.page_only)
    for ground in GROUNDS:
        if files := absent_files(ground, folder):
            told(f"skipped: {ground.title}: there is no {', no '.join(files)}")
    wanted = [case for case in cases() if any(part in case.key for part in given.only.split(","))]
    if not given.page_only:
        for part in ([case for case in wanted if short == is_short(case)] for short in (True, False)):
            lines = ledger.lines(code)
            missing = [
                case for case in part if case.key not in lines and not absent_files(BY_NAME[case.ground], folder)
            ]
            told(f"code {code}: {len(part) - len(missing)} of {len(part)} runs are finished")
            run_missing(missing, ledger, folder, code, processes=given.processes, seconds=given.seconds, told=told)
    write_page(given.out, ledger.lines(code), code, folder)
    told(f"wrote {given.out}")


if __name__ == "__main__":
    main()
