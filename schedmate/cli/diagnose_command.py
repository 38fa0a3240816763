"""`schedmate diagnose DIR`: why the run whose logs are in a folder failed, and what to do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from schedmate.cli import rendering
from schedmate.infra.adapters import make_llm
from schedmate.infra.checkpoint_listing import listing
from schedmate.infra.llm.port import LanguageModelError
from schedmate.infra.settings import ServiceSettings, load
from schedmate.infra.telemetry.redaction import redact
from schedmate.services.log_monitor.failures import opinion
from schedmate.services.log_monitor.failures.case import Case, CaseError, lines_of, read_case
from schedmate.services.log_monitor.failures.categories import advice_on
from schedmate.services.log_monitor.failures.judge import Facts, Judgement, judge
from schedmate.services.log_monitor.failures.rules import LOG, load_rules
from schedmate.services.log_monitor.failures.similar import load_library

MODEL_TIMEOUT_S = 30.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(diagnose)


def diagnose(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with stdout.log, kernel_NODE.log, ... and job.json.")
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Tell why the run whose logs are in DIR failed, which line shows it, and what to do."""
    try:
        case = read_case(folder, load_rules())
    except CaseError as error:
        raise typer.BadParameter(str(error)) from error
    found = judge(case.sources, _with_listing(case.facts), load_rules(), load_library().nearest)
    if opinion.wanted(found):
        found = asyncio.run(_with_opinion(found, folder, case))
    told = as_json(found)
    if json:
        rendering.print_json(told)
        return
    out = rendering.console()
    out.print(rendering.cell(f"{found.category} ({found.confidence:.0%} sure): {advice_on(found.category)}"))
    for name in ("culpable", "action", "culprit_node", "resume_from", "proposed_change"):
        if told[name] is not None:
            out.print(rendering.cell(f"{name.replace('_', ' ')}: {told[name]}"))
    if told["evidence"] is not None:
        evidence = told["evidence"]
        out.print(rendering.cell(f"evidence: {evidence['file']}:{evidence['line']}: {evidence['text']}"))


def as_json(found: Judgement) -> dict[str, Any]:
    """Return a judgement as the command prints it: the fields of the corpora's predictions, and more."""
    evidence = None
    if found.file is not None:
        evidence = {"file": found.file, "line": found.line, "text": redact(found.text or "")}
    resume_from = found.resume_from
    return {
        "category": found.category,
        "culpable": found.culpable.value if found.culpable is not None else None,
        "action": found.action.value,
        "evidence": evidence,
        "culprit_node": found.node,
        "node_evidence": found.node_evidence,
        "resume_from": resume_from if resume_from is not None and redact(resume_from) == resume_from else None,
        "proposed_change": found.proposed_change,
        "work_was_complete": found.work_was_complete,
        "confidence": round(found.confidence, 2),
        "basis": found.basis,
        "also": list(found.also),
        "advice": advice_on(found.category),
    }


def _with_listing(facts: Facts) -> Facts:
    """Return facts with what the checkpoint directory holds, when it is there on this machine."""
    directory = facts.checkpoint_dir
    if directory is None or not directory.startswith("/"):
        return facts
    found = listing(Path(directory))
    return replace(facts, listed=found) if found else facts


async def _with_opinion(found: Judgement, folder: Path, case: Case) -> Judgement:
    """Ask the configured model, when there is one and it answers; what it says is checked."""
    output = next((source.file for source in case.sources if source.kind == LOG), None)
    if output is None:
        return found
    shown = opinion.excerpt(output, lines_of(folder / output), load_rules(), redact)
    if not shown:
        return found
    model = make_llm(load(ServiceSettings))
    try:
        if not await model.available():
            return found
        answer = await model.ask(opinion.question(shown, timeout_s=MODEL_TIMEOUT_S))
    except LanguageModelError:
        return found
    finally:
        await model.stop()
    return opinion.weighed(found, answer.value, shown)
