"""The runs of the results page, and the page: `make results`.

    SCHEDMATE_TRACES=../shared/traces python benchmarks/results.py [--only TEXT,...] [--seconds N] [--processes 2] [--page-only]

Finished runs stand in `results/runs.jsonl`, one line each with the sum of the code that decided; what is finished under the code as it is
now is not run again, and a run that is broken off goes on where it was. `--earlier` takes runs of earlier code as well, and the page
then says how many; `--check N` runs N of those again (drawn by a seed) and says how many came to the same. The page is written of what
there is, and names what is missing.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

from schedmate.simulator.results.grid import Case, cases
from schedmate.simulator.results.ledger import Ledger, Line, code_version, run_case, run_missing

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"


def told(text: str) -> None:
    """Say it on standard error."""
    print(text, file=sys.stderr, flush=True)


def check(earlier: list[Line], count: int, ledger: Ledger, folder: Path, code: str) -> None:
    """Run some cases of earlier code again; a line of the code as it is now takes the place of each."""
    sample = random.Random(0).sample(earlier, min(count, len(earlier)))  # noqa: S311
    for old in sample:
        new = run_case(old.case, folder, code)
        ledger.add(new)
        same = "equal" if new.same == old.same else f"NOT equal: {old.figures['avg_jct_s']} became {new.figures['avg_jct_s']}"  # fmt: skip
        told(f"check {old.case.key}: {same}")


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", help="only runs whose key (ground/policy/advice/…) has one of these in it"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many seconds")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--earlier", action="store_true", help="take runs of earlier code as finished")
    parser.add_argument("--check", type=int, default=0, help="run so many of those again")
    parser.add_argument("--page-only", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results.md")
    given = parser.parse_args()
    if not os.environ.get("SCHEDMATE_TRACES"):
        parser.error("no traces: set SCHEDMATE_TRACES to the folder that has them (docs/traces.md)")
    folder, code, ledger = (
        Path(os.environ["SCHEDMATE_TRACES"]).resolve(),
        code_version(),
        Ledger(RESULTS / "runs.jsonl"),
    )
    wanted = [case for case in cases() if any(part in case.key for part in given.only.split(","))]
    if not given.page_only:
        lines = ledger.lines()
        missing = [case for case in wanted if not _finished(case, lines, code, earlier=given.earlier)]
        told(f"code {code}: {len(wanted) - len(missing)} of {len(wanted)} runs are finished")
        run_missing(missing, ledger, folder, code, processes=given.processes, seconds=given.seconds, told=told)
        if given.check:
            check([line for line in ledger.lines().values() if line.code != code], given.check, ledger, folder, code)
    from schedmate.simulator.results.page import write_page  # noqa: PLC0415 - the runs need no plots

    write_page(given.out, ledger.lines(), code, folder, earlier=given.earlier)
    told(f"wrote {given.out}")


def _finished(case: Case, lines: dict[str, Line], code: str, *, earlier: bool) -> bool:
    line = lines.get(case.key)
    return line is not None and (earlier or line.code == code)


if __name__ == "__main__":
    main()
