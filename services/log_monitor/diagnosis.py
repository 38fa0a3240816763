"""Brings a run's members, their exits and what the nodes' own side says before the judge, and makes a verdict of the judgement.

A cordon needs the node's own side, or runs of two tenants that met the same fault there: a job's output alone never cordons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from schedmate.schemas.events import Action, Culpable, Evidence, ExitCause, NodeFaultObserved
from schedmate.services.log_monitor.failures.digest import Digest, Hit
from schedmate.services.log_monitor.failures.judge import Facts, Judgement, Similar, Source, judge
from schedmate.services.log_monitor.failures.rules import LOG, TIER_SPECIFIC, Rules
from schedmate.services.log_monitor.failures.similar import load_library
from schedmate.services.log_monitor.node_faults import NodeFailure, NodeFaults, borne_out, rule_of_fault
from schedmate.services.log_monitor.tracks import MemberTrack

EVIDENCE_MAX: Final = 400
NEAR_BEFORE_S: Final = 60.0
NEAR_AFTER_S: Final = 30.0


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
    work_was_complete: bool = False
    source: Literal["rules", "retrieval", "model"] = "rules"
    awaits_node: bool = False
    hardware: bool = False
    judged: Judgement | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a run from its job: which attempt it was, its time limit, where it keeps checkpoints."""

    attempt: int = 1
    time_limit_s: float | None = None
    checkpoint_dir: str | None = None


def diagnose(
    members: Sequence[MemberTrack],
    *,
    asked: Asked,
    rules: Rules,
    faults: NodeFaults,
    failures: Callable[[str], Sequence[NodeFailure]],
    tenant: str | None,
    two_tenants_within_s: float,
    redact: Callable[[str], str],
    similar: Similar | None = None,
) -> Verdict:
    """Return the verdict on a run of which at least one member ended badly."""
    logs = log_sources(members, rules)
    similar = similar or load_library().nearest
    facts = _facts(members, asked)
    found = judge(logs, facts, rules, similar)
    nodes = _of_nodes(members, rules, faults)
    if nodes and _leaves_room_for_the_node(found):
        found = judge([*nodes, *logs], facts, rules, similar)
    second_tenant = (
        found.hardware
        and not found.node_evidence
        and tenant is not None
        and found.node is not None
        and borne_out(
            failures(found.node),
            category=found.category,
            tenant=tenant,
            at=max((t.exit.ended_at for t in members if t.exit is not None), default=0.0),
            within_s=two_tenants_within_s,
        )
    )
    return _verdict(found, redact, second_tenant=second_tenant)


def log_sources(members: Sequence[MemberTrack], rules: Rules) -> list[Source]:
    """Return the members' outputs as the judge sees them."""
    return [_of_member(track, rules) for track in members]


def log_file(member: int) -> str:
    """Name by which a diagnosis refers to a member's output."""
    return f"member-{member}.log"


def _leaves_room_for_the_node(found: Judgement) -> bool:
    """A specific cause of the job's own is not excused by a fault that the node had at the time."""
    return found.awaits_node or found.tier is None or found.tier > TIER_SPECIFIC


def _of_member(track: MemberTrack, rules: Rules) -> Source:
    ended = track.exit
    digest = track.digest
    if ended is not None and ended.cause is ExitCause.LAUNCH_FAILED and ended.detail:
        digest = digest.model_copy(deep=True)
        digest.take(ended.detail, None, rules)
    return Source(
        log_file(track.member),
        LOG,
        digest,
        track.node,
        track.member,
        ended.ended_at if ended is not None else float("inf"),
        bad=ended is not None and ended.bad,
    )


def _of_nodes(members: Sequence[MemberTrack], rules: Rules, faults: NodeFaults) -> list[Source]:
    """What the nodes said of themselves while the run was there: the earliest fault of each."""
    found: list[tuple[float, int, Source]] = []
    for track in members:
        if track.exit is None:
            continue
        start = track.exit.started_at if track.exit.started_at is not None else track.exit.ended_at
        for fault in faults.during(track.node, start - NEAR_BEFORE_S, track.exit.ended_at + NEAR_AFTER_S):
            source = _of_fault(fault, track.member, rules)
            if source is not None:
                found.append((fault.at, track.member, source))
                break
    return [source for _, _, source in sorted(found, key=lambda f: f[:2])]


def _of_fault(fault: NodeFaultObserved, member: int, rules: Rules) -> Source | None:
    rule = rule_of_fault(fault, rules)
    if rule is None:
        return None
    digest = Digest(hits={rule.id: Hit(line=None, text=fault.text[:EVIDENCE_MAX], pulses=0)})
    kind = "kernel" if fault.origin == "kernel" else "node"
    return Source(f"{fault.origin}_{fault.node}.log", kind, digest, fault.node, member, fault.at)


def _facts(members: Sequence[MemberTrack], asked: Asked) -> Facts:
    ended = [(t.exit.ended_at, t.member, t.exit) for t in members if t.exit is not None and t.exit.bad]
    nodes = tuple(dict.fromkeys(track.node for track in members))
    known = Facts(
        nodes=nodes, attempt=asked.attempt, time_limit_s=asked.time_limit_s,
        checkpoint_dir=asked.checkpoint_dir or next((t.listed.directory for t in members if t.listed is not None), None),
        listed=next((t.listed.entries for t in members if t.listed is not None), None),
    )  # fmt: skip
    if not ended:
        return known
    first = min(ended, key=lambda e: e[:2])[2]
    started = first.started_at
    return replace(
        known,
        exit_code=first.exit_code,
        signal=first.signal,
        elapsed_s=first.ended_at - started if started is not None else None,
        cause=first.cause,
    )


def _verdict(found: Judgement, redact: Callable[[str], str], *, second_tenant: bool) -> Verdict:
    resume_from = found.resume_from
    if resume_from is not None and redact(resume_from) != resume_from:
        resume_from = None
    evidence = None
    if found.file is not None and found.text is not None:
        evidence = Evidence(file=found.file, line=found.line, text=redact(found.text)[:EVIDENCE_MAX])
    elsewhere = found.hardware or found.action is Action.RETRY_ELSEWHERE_CORDON
    return Verdict(
        found.category,
        found.culpable,
        found.action,
        found.confidence,
        evidence=evidence,
        culprit_node=found.node if elsewhere else None,
        node_evidence=found.node_evidence or second_tenant,
        resume_from=resume_from,
        proposed_change=found.proposed_change,
        work_was_complete=found.work_was_complete,
        source="retrieval" if found.basis == "retrieval" else "rules",
        awaits_node=found.awaits_node,
        hardware=found.hardware,
        judged=found,
    )
