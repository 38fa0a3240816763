"""Scores code-analyzer on the labelled jobs of tests/corpora/sources (`make eval`): `analyze` for each case, then the corpus's scorer."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from schedmate.cli.analyze_commands import as_json
from schedmate.services.code_analyzer.analysis import Subject
from schedmate.services.code_analyzer.reading import analyze_directory

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "corpora" / "sources"


def predictions(split: str) -> list[str]:
    """Return what `schedmate analyze --json` prints for each case of a set, as the scorer reads it."""
    lines = []
    for label in sorted((CORPUS / split).glob("*/label.json")):
        case = json.loads(label.read_text("utf-8"))
        _, analysis = analyze_directory(Subject(entry=case["entry"]), label.parent / "job")
        lines.append(json.dumps({"id": case["id"], **as_json(analysis)}))
    return lines


def main() -> int:
    """Print the scores of both sets."""
    for split in ("dev", "own", "later"):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write("\n".join(predictions(split)))
            file.flush()
            scorer = [sys.executable, str(CORPUS / "score.py"), file.name, "--split", split, "--verbose"]
            subprocess.run(scorer, check=True, timeout=60)  # noqa: S603 - our own program
    return 0


if __name__ == "__main__":
    sys.exit(main())
