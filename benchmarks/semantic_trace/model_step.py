"""The step `+ model`: `python -m benchmarks.semantic_trace.model_step OUT --llm ollama:MODEL@URL [--bundles 150] [--seconds 600]`.

Where static analysis left a field open that a model may be asked for, code-analyzer's own agent asks a real model; what it says counts only with
a quoted line. One vote where the service takes three: all that holds is then filled, the most that a model can do here, for a third of the time. The bundles are a seeded sample, taken in turn until the seconds are over. OUT/model.json tells
what was open, asked, claimed, held and filled; the ladder's page reads it. Started again, it goes on where it stood.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.semantic_trace import knowledge
from schedmate.infra.adapters import make_llm
from schedmate.infra.clock import SystemClock
from schedmate.infra.llm.port import Answer, LanguageModel, Question
from schedmate.infra.settings import ServiceSettings
from schedmate.infra.telemetry.redaction import redact
from schedmate.services.code_analyzer.agent import Agent, Bounds
from schedmate.services.code_analyzer.suggestions import ASKED, checked

SEED = 0
VOTES = 1
CALL_S, BUNDLE_S = 120.0, 240.0  # longer than the service waits: a slow machine is not what is measured


class Listening:
    """A model whose answers are kept."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.answers: list[dict[str, Any]] = []

    @property
    def name(self) -> str:
        """Its name."""
        return self._model.name

    async def available(self) -> bool:
        """Tell whether it answers."""
        return await self._model.available()

    async def ask(self, question: Question) -> Answer:
        """Ask, and keep the answer."""
        answer = await self._model.ask(question)
        self.answers.append(dict(answer.value))
        return answer

    async def stop(self) -> None:
        """Let go."""
        await self._model.stop()


def open_of(fields: dict[str, Any]) -> tuple[str, ...]:
    """Return the fields that a model would be asked for."""
    return tuple(name for name in ASKED if name not in fields)


async def run(trace: Path, llm: str, bundles: int, seconds: float) -> dict[str, Any]:
    """Ask about a sample; return, and write, what came of it."""
    fields = json.loads((trace / "fields.json").read_text("utf-8"))
    source = knowledge.bundles(trace)
    path = trace / "model.json"
    told: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {"bundles": {}, "seconds": 0.0}
    told |= {"model": llm.partition("@")[0].removeprefix("ollama:"), "votes": VOTES, "of": len(fields)}
    told["open"] = Counter(name for known in fields.values() for name in open_of(known))
    chosen = sorted(fields)
    random.Random(SEED).shuffle(chosen)  # noqa: S311 - a sample
    model = Listening(make_llm(ServiceSettings(llm=llm)))
    agent = Agent(model, SystemClock(), Bounds(votes=VOTES, seconds_max=BUNDLE_S, call_seconds_max=CALL_S))
    begun = time.monotonic()
    try:
        if not await model.available():
            raise SystemExit(f"no model answers at {llm}")
        for name in chosen[:bundles]:
            if name in told["bundles"] or not open_of(fields[name]):
                continue
            if time.monotonic() - begun > seconds:
                break
            told["bundles"][name] = await _asked(agent, model, source[name], open_of(fields[name]))
            path.write_text(json.dumps(told), encoding="utf-8")
    finally:
        await model.stop()
    told["seconds"] += time.monotonic() - begun
    path.write_text(json.dumps(told), encoding="utf-8")
    return told


async def _asked(agent: Agent, model: Listening, made: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
    texts = {path: redact(text) for path, text in made["files"].items()}
    model.answers.clear()
    outcome = await agent.ask(texts, wanted)
    claims = [
        claim
        for answer in model.answers
        if answer.get("action") == "answer" and isinstance(answer.get("answers"), list)
        for claim in answer["answers"]
        if isinstance(claim, dict)
    ]
    held = [h for claim in claims if (h := checked(claim, texts, wanted)) is not None]
    return {
        "wanted": list(wanted), "calls": outcome.calls, "answers": len(model.answers), "claims": len(claims),
        "held": [[h.field, h.value, h.file, h.line] for h in held], "filled": {name: one.value for name, one in outcome.suggested.items()},
    }  # fmt: skip


def main() -> int:
    """Ask, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--llm", required=True, help="as in SCHEDMATE_LLM")
    parser.add_argument("--bundles", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    print(summary(asyncio.run(run(given.trace, given.llm, given.bundles, given.seconds))))
    return 0


def summary(told: dict[str, Any]) -> str:
    """Return what came of asking, in words."""
    rows = list(told["bundles"].values())
    still = (
        ", ".join(f"`{name}` of {count:,} bundles" for name, count in Counter(told["open"]).most_common()) or "nothing"
    )
    held = Counter(h[0] for row in rows for h in row["held"])
    filled = Counter(name for row in rows for name in row["filled"])
    return (
        f"Static analysis left open, of what a model may be asked for, {still} (of {told['of']:,}). {told['model']} was asked about {len(rows)} bundles of a seeded sample "
        f"({told['votes']} vote each, {told['seconds']:.0f} s): {sum(r['calls'] for r in rows)} calls, {sum(r['answers'] for r in rows)} answers in shape, "
        f"{sum(r['claims'] for r in rows)} claims, {sum(held.values())} of which held against a quoted line ({_counted(held)}), and {sum(filled.values())} fields filled by a majority ({_counted(filled)})."
    )  # fmt: skip


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"


if __name__ == "__main__":
    sys.exit(main())
