"""One run with a real, small language model: the failure judge's opinion and the proposal of a pattern.

    benchmarks/real_model.py --llm ollama:smollm2:135m@http://127.0.0.1:11534 [--failures N] [--logs N]

Says how many answers came, how many held (a quote that stands in its line; a pattern that the log bears out), how many of these were right,
and how long they took. Every failure and log is asked about, whether the service would ask or not. What does not hold changes nothing, so
this measures the model, not the service: the service's scores are those of `make eval`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

from schedmate.infra.adapters import make_llm
from schedmate.infra.llm.port import LanguageModel, LanguageModelError, Question
from schedmate.infra.settings import ServiceSettings
from schedmate.infra.telemetry.redaction import redact
from schedmate.services.log_monitor.failures import opinion
from schedmate.services.log_monitor.failures.case import lines_of, read_case
from schedmate.services.log_monitor.failures.judge import judge
from schedmate.services.log_monitor.failures.rules import load_rules
from schedmate.services.log_monitor.metrics import proposal

CORPORA = Path(__file__).resolve().parent.parent / "tests" / "corpora"
TIMEOUT_S = 180.0


class Tally:
    """What came of questions of one kind."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.asked = self.answered = self.held = self.right = 0
        self.seconds: list[float] = []

    def __str__(self) -> str:
        took = sorted(self.seconds) or [0.0]
        return (
            f"{self.title}: asked {self.asked}, answered in shape {self.answered}, held {self.held}, right {self.right}; "
            f"median {took[len(took) // 2]:.1f} s, at most {took[-1]:.1f} s"
        )


async def asked(model: LanguageModel, question: Question, tally: Tally) -> dict[str, object] | None:
    """Return the model's answer, None when none came in shape and in time."""
    tally.asked += 1
    begun = time.perf_counter()
    try:
        answer = await model.ask(question)
    except LanguageModelError as error:
        print(f"  no answer: {error}"[:120])
        return None
    finally:
        tally.seconds.append(time.perf_counter() - begun)
    tally.answered += 1
    return dict(answer.value)


async def opinions(model: LanguageModel, count: int) -> Tally:
    """Ask why runs failed."""
    tally = Tally("opinions")
    for folder in sorted((CORPORA / "failures" / "later").iterdir())[:count]:
        case = read_case(folder, load_rules())
        found = judge(case.sources, case.facts, load_rules())
        shown = opinion.excerpt("stdout.log", lines_of(folder / "stdout.log"), load_rules(), redact)
        answer = await asked(model, opinion.question(shown, timeout_s=TIMEOUT_S), tally)
        if answer is None:
            continue
        weighed = opinion.weighed(found, answer, shown)
        label = json.loads((folder / "label.json").read_text("utf-8"))
        tally.held += weighed is not found
        tally.right += weighed is not found and weighed.category in {label["category"], *label["category_accept"]}
        assert weighed is found or weighed.action.value == "retry_from_checkpoint", "an opinion changed what is done"
    return tally


async def proposals(model: LanguageModel, count: int) -> Tally:
    """Ask for patterns of logs."""
    tally = Tally("proposals")
    for folder in sorted((CORPORA / "progress" / "later").iterdir())[:count]:
        content = (folder / "stdout.log").read_bytes()
        lines = proposal.samples([content])
        question = proposal.question(lines, redact, timeout_s=TIMEOUT_S)
        if question is None:
            continue
        answer = await asked(model, question, tally)
        found = proposal.adopted(answer, lines) if answer is not None else None
        if found is None:
            continue
        tally.held += 1
        label = json.loads((folder / "label.json").read_text("utf-8"))
        read = next((n for n in map(found.read, reversed(lines)) if "step" in n), {})
        tally.right += read.get("step") == label["cuts"][-1]["truth"]["step"]
    return tally


async def run(llm: str, failures: int, logs: int) -> int:
    """Print the figures."""
    model = make_llm(ServiceSettings(llm=llm))
    try:
        if not await model.available():
            print(f"no model answers at {llm}", file=sys.stderr)
            return 1
        print(await opinions(model, failures))
        print(await proposals(model, logs))
    finally:
        await model.stop()
    return 0


def main() -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", required=True, help="as in SCHEDMATE_LLM")
    parser.add_argument("--failures", type=int, default=12)
    parser.add_argument("--logs", type=int, default=9)
    given = parser.parse_args()
    return asyncio.run(run(given.llm, given.failures, given.logs))


if __name__ == "__main__":
    sys.exit(main())
