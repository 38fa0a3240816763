"""Chooses the root cause of a failed run from its members' logs, their exits, and what the nodes' own side says.

Order (taxonomy §4): the node's own side beats the log; a notice from outside beats a specific cause, that beats a general exception,
and a collective's timeout counts only when nothing else explains it; within these the earliest. Without any line the exit speaks.
A cordon needs the node's own side, or runs of two tenants that met the same fault there: a job's output alone never cordons.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from schedmate.schemas.events import Action, Culpable, Evidence, ExitCause, NodeFaultObserved
from schedmate.services.log_monitor.node_faults import NodeFailure, NodeFaults, borne_out, rule_of_fault
from schedmate.services.log_monitor.rules import UNKNOWN, Rule, Rules
from schedmate.services.log_monitor.tracks import Exit, Match, MemberTrack

EVIDENCE_MAX: Final = 400
NEAR_BEFORE_S: Final = 60.0
NEAR_AFTER_S: Final = 30.0
SIGNAL_BASE: Final = 128
EXIT_NOT_EXECUTABLE: Final = 126
EXIT_NOT_FOUND: Final = 127


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a run failed and what to do; the fields of `RunDiagnosed` that are about the cause."""

    category: str
    culpable: Culpable | None
    action: Action
    confidence: float
    evidence: Evidence | None = None
    culprit_node: str | None = None
    node_evidence: bool = False
    resume_from: str | None = None
    proposed_change: str | None = None
    awaits_node: bool = False


@dataclass(frozen=True, slots=True)
class _Candidate:
    rule: Rule
    match: Match
    track: MemberTrack

    def rank(self) -> tuple[int, bool, float, float, int, str]:
        ended = self.track.exit
        badly = ended is not None and ended.bad
        return (
            self.rule.tier,
            not badly,
            ended.ended_at if ended is not None else float("inf"),
            self.match.line if self.match.line is not None else float("inf"),
            self.track.member,
            self.rule.id,
        )


def diagnose(
    members: Sequence[MemberTrack],
    *,
    rules: Rules,
    faults: NodeFaults,
    failures: Callable[[str], Sequence[NodeFailure]],
    tenant: str | None,
    two_tenants_within_s: float,
    redact: Callable[[str], str],
) -> Verdict:
    """Return the verdict on a run of which at least one member ended badly."""
    chosen = _from_logs(members, rules)
    resume_from = newest_checkpoint(members, redact)
    fault = _from_nodes(members, rules, faults)
    if fault is not None and (chosen is None or chosen.rule.awaits_node or chosen.rule.tier > 2):  # noqa: PLR2004 - tiers of rules.toml
        rule, seen = fault
        return Verdict(
            rule.category, rule.culpable, rule.action, confidence=0.95,
            evidence=Evidence(file=f"{seen.origin}_{seen.node}.log", text=redact(seen.text)[:EVIDENCE_MAX]),
            culprit_node=seen.node, node_evidence=True, resume_from=resume_from, proposed_change=rule.proposed_change,
        )  # fmt: skip
    if chosen is None:
        return _from_exits(members, resume_from, redact)
    rule, track = chosen.rule, chosen.track
    second_tenant = (
        rule.node
        and tenant is not None
        and track.exit is not None
        and borne_out(
            failures(track.node),
            category=rule.category,
            tenant=tenant,
            at=track.exit.ended_at,
            within_s=two_tenants_within_s,
        )
    )
    return Verdict(
        rule.category, rule.culpable, rule.action, rule.confidence,
        evidence=Evidence(
            file=log_file(track.member), line=chosen.match.line, text=redact(chosen.match.text)[:EVIDENCE_MAX]
        ),
        culprit_node=track.node if rule.node else None, node_evidence=second_tenant,
        resume_from=resume_from, proposed_change=rule.proposed_change, awaits_node=rule.awaits_node,
    )  # fmt: skip


def log_file(member: int) -> str:
    """Name by which a diagnosis refers to a member's output."""
    return f"member-{member}.log"


def newest_checkpoint(members: Iterable[MemberTrack], redact: Callable[[str], str]) -> str | None:
    """Return the checkpoint that the lowest member said last that it had saved."""
    for track in sorted(members, key=lambda t: t.member):
        path = track.progress.checkpoint
        if path is not None:
            return path if redact(path) == path else None
    return None


def _from_logs(members: Iterable[MemberTrack], rules: Rules) -> _Candidate | None:
    candidates = [
        _Candidate(rule, match, track)
        for track in members
        for rule_id, match in track.matches.items()
        if (rule := rules.by_id.get(rule_id)) is not None and not survived(rule, match, track)
    ]
    return min(candidates, key=_Candidate.rank, default=None)


def survived(rule: Rule, match: Match, track: MemberTrack) -> bool:
    """Tell whether the job went on after the line: then it was not what ended it."""
    return rule.survives is not None and track.progress.sightings - match.sightings > rule.survives


def _from_nodes(
    members: Iterable[MemberTrack], rules: Rules, faults: NodeFaults
) -> tuple[Rule, NodeFaultObserved] | None:
    found: list[tuple[float, int, Rule, NodeFaultObserved]] = []
    for track in members:
        if track.exit is None:
            continue
        start = track.exit.started_at if track.exit.started_at is not None else track.exit.ended_at
        for fault in faults.during(track.node, start - NEAR_BEFORE_S, track.exit.ended_at + NEAR_AFTER_S):
            rule = rule_of_fault(fault, rules)
            if rule is not None:
                found.append((fault.at, track.member, rule, fault))
                break
    if not found:
        return None
    _, _, rule, fault = min(found, key=lambda f: f[:2])
    return rule, fault


def _from_exits(members: Sequence[MemberTrack], resume_from: str | None, redact: Callable[[str], str]) -> Verdict:
    ended = [(t.exit.ended_at, t.member, t.exit) for t in members if t.exit is not None and t.exit.bad]
    if not ended:
        return Verdict(UNKNOWN, None, Action.RETRY_FROM_CHECKPOINT, 0.1, resume_from=resume_from)
    _, member, first = min(ended, key=lambda e: e[:2])
    category, culpable, action, confidence = _meaning_of(first)
    evidence = None
    if first.detail:
        evidence = Evidence(file=log_file(member), text=redact(first.detail)[:EVIDENCE_MAX])
    return Verdict(
        category,
        culpable,
        action,
        confidence,
        evidence=evidence,
        resume_from=resume_from,
        awaits_node=category == UNKNOWN,
    )


def _meaning_of(ended: Exit) -> tuple[str, Culpable | None, Action, float]:
    """What an exit alone says, where no line of the log does."""
    if ended.cause in {ExitCause.LOST, ExitCause.LEASE_EXPIRED}:
        return "NODE_FAILURE", Culpable.INFRA_HARDWARE, Action.RETRY_FROM_CHECKPOINT, 0.5
    if ended.cause is ExitCause.LAUNCH_FAILED:
        for words, meaning in _LAUNCH_MEANINGS:
            if words.search(ended.detail):
                return meaning
        return "LAUNCH_FAILURE", Culpable.INFRA_HARDWARE, Action.RETRY_ELSEWHERE_CORDON, 0.4
    code, number = ended.exit_code, ended.signal
    if number is None and code is not None and code > SIGNAL_BASE:
        number = code - SIGNAL_BASE  # a shell's way to say it
    if number is not None:
        return _SIGNAL_MEANINGS.get(number, _UNKNOWN_CAUSE)
    return _CODE_MEANINGS.get(code or 0, _UNKNOWN_CAUSE)


_UNKNOWN_CAUSE: Final = (UNKNOWN, None, Action.RETRY_FROM_CHECKPOINT, 0.2)
_LAUNCH_MEANINGS: Final = (
    (
        re.compile(r"(?i)no such file|not found"),
        ("FILE_NOT_FOUND", Culpable.USER_CONFIG, Action.DO_NOT_RETRY, 0.8),
    ),
    (
        re.compile(r"(?i)permission denied|exec format"),
        ("PERMISSION", Culpable.USER_CONFIG, Action.DO_NOT_RETRY, 0.8),
    ),
)
_CRASHED: Final = ("SEGFAULT", Culpable.FRAMEWORK, Action.RETRY_FROM_CHECKPOINT, 0.5)
_SIGNAL_MEANINGS: Final = {
    # the kernel's out-of-memory killer is the usual sender of a SIGKILL that is not ours; nothing here proves it
    int(signal.SIGKILL): ("HOST_OOM", None, Action.RETRY_FROM_CHECKPOINT, 0.35),
    int(signal.SIGSEGV): _CRASHED,
    int(signal.SIGBUS): _CRASHED,
    int(signal.SIGILL): _CRASHED,
    int(signal.SIGFPE): _CRASHED,
}
_CODE_MEANINGS: Final = {
    EXIT_NOT_EXECUTABLE: ("PERMISSION", Culpable.USER_CONFIG, Action.DO_NOT_RETRY, 0.6),
    EXIT_NOT_FOUND: ("FILE_NOT_FOUND", Culpable.USER_CONFIG, Action.DO_NOT_RETRY, 0.6),
}
