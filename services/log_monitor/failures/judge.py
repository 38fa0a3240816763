"""Finds the root cause of a failed run: the earliest event without which the job would have gone on (taxonomy §4).

Order: a notice from outside beats what is printed after it; the node's own side beats the log; a specific cause beats a general
exception; consequences count only when nothing else is there; within these the first member that failed, and the earliest line.
"""

from __future__ import annotations

import posixpath
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schedmate.schemas.events import Action, CheckpointEntry, Culpable, ExitCause
from schedmate.services.log_monitor.failures import listing, refine
from schedmate.services.log_monitor.failures.categories import UNKNOWN, load_categories
from schedmate.services.log_monitor.failures.checkpoints import newest_valid
from schedmate.services.log_monitor.failures.digest import Digest, Hit
from schedmate.services.log_monitor.failures.rules import (
    LOG,
    TIER_GENERAL,
    TIER_NODE,
    TIER_NOTICE,
    TIER_SPECIFIC,
    TIER_TIMEOUT,
    Rule,
    Rules,
)

CONFIDENT: Final = 0.5
NEEDS_WITHIN_LINES: Final = 4
SIGNAL_BASE: Final = 128
EXIT_NOT_EXECUTABLE: Final = 126
EXIT_NOT_FOUND: Final = 127
NEAR_LIMIT: Final = 0.99
_SOURCE_ORDER: Final = {"kernel": 0, "node": 1, "events": 2, "scheduler": 3, LOG: 4}
_STORAGE_CATEGORIES: Final = frozenset(
    {"DISK_FULL", "DISK_QUOTA", "STORAGE_IO", "CKPT_CORRUPT", "SLOW_RANK_TIMEOUT", "REMOTE_SERVICE"}
)


@dataclass(frozen=True, slots=True)
class Source:
    """One file or stream: its name, what kind it is, its digest; for a member's output which node and how it ended."""

    file: str
    kind: str
    digest: Digest
    node: str | None = None
    member: int = 0
    ended_at: float = 0.0
    bad: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the run besides lines."""

    nodes: tuple[str, ...] = ()
    attempt: int = 1
    exit_code: int | None = None
    signal: int | None = None
    elapsed_s: float | None = None
    time_limit_s: float | None = None
    checkpoint_dir: str | None = None
    cause: ExitCause | None = None
    listed: tuple[CheckpointEntry, ...] | None = None
    """What the checkpoint directory holds, where somebody has looked."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sign that the job did not survive, and where it was seen."""

    rule: Rule
    hit: Hit
    source: Source

    @property
    def line(self) -> float:
        """Its place in its source."""
        return self.hit.order

    def rank(self) -> tuple[float, ...]:
        """Order of candidates: the least is the cause."""
        outside = self.source.kind != LOG
        tier: float = self.rule.tier
        if outside and tier == TIER_SPECIFIC:
            tier = TIER_NODE
        return (
            tier,
            _SOURCE_ORDER[self.source.kind],
            not self.source.bad,
            self.source.ended_at,
            self.hit.order,
            self.source.member,
            -self.rule.confidence,
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """Why a run failed and what should be done."""

    category: str
    culpable: Culpable | None
    action: Action
    confidence: float
    file: str | None = None
    line: int | None = None
    text: str | None = None
    node: str | None = None
    node_evidence: bool = False
    resume_from: str | None = None
    proposed_change: str | None = None
    work_was_complete: bool = False
    awaits_node: bool = False
    hardware: bool = False
    general: bool = False
    tier: int | None = None
    basis: str = "rules"
    also: tuple[str, ...] = field(default=())


Similar = Callable[[str], tuple[str, float] | None]


def judge(sources: Sequence[Source], facts: Facts, rules: Rules, similar: Similar | None = None) -> Judgement:
    """Return the judgement on a run that ended badly."""
    candidates = sorted(_candidates(sources, rules), key=Candidate.rank)
    chosen = next((c for c in candidates if not _yields(c, candidates)), None)
    done = _work_was_done(sources, candidates, chosen)
    if done is not None:
        found = _teardown(*done)
    elif chosen is None or chosen.rule.tier >= TIER_TIMEOUT or _cut_off(chosen, facts):
        found = _without_cause(sources, facts, chosen)
    else:
        found = _of(chosen, facts, candidates)
    if similar is not None and (found.general or found.category == UNKNOWN):
        found = _retrieved(found, sources, similar)
    if found.file is None:
        found = _with_suspect(found, sources)
    found = _in_the_jobs_own_words(found, candidates)
    found = _safe(replace(found, also=_others(candidates, found)))
    return replace(found, resume_from=_resume(sources, facts, found))


def _candidates(sources: Iterable[Source], rules: Rules) -> Iterable[Candidate]:
    for source in sources:
        for rule_id in source.digest.hits:
            rule = rules.by_id.get(rule_id)
            hit = source.digest.fresh(rule) if rule is not None else None
            if rule is not None and hit is not None and _needs_met(rule, hit, source.digest):
                yield Candidate(rule, hit, source)


def _needs_met(rule: Rule, hit: Hit, digest: Digest) -> bool:
    if rule.needs is None:
        return True
    return any(
        rule.needs in other.text and abs(other.order - hit.order) <= NEEDS_WITHIN_LINES
        for other in digest.hits.values()
    )


def _yields(candidate: Candidate, candidates: Iterable[Candidate]) -> bool:
    """A notice in the job's own output is no cause when the job had one of its own before it."""
    if not candidate.rule.yields or candidate.source.kind != LOG:
        return False
    return any(
        other.source is candidate.source
        and TIER_NOTICE < other.rule.tier <= TIER_GENERAL
        and not other.rule.yields
        and other.hit.order < candidate.hit.order
        for other in candidates
    )


def _of(chosen: Candidate, facts: Facts, candidates: Sequence[Candidate]) -> Judgement:
    rule, hit, source = chosen.rule, chosen.hit, chosen.source
    found = Judgement(
        category=rule.category, culpable=rule.culpable, action=rule.action, confidence=rule.confidence,
        file=source.file, line=hit.line, text=hit.text, node=_node_of(chosen, facts),
        node_evidence=rule.node and source.kind in {"kernel", "node"}, proposed_change=rule.proposed_change,
        awaits_node=rule.awaits_node or (rule.node and source.kind == LOG), hardware=rule.node, general=rule.general, tier=rule.tier,
    )  # fmt: skip
    if any(c.rule.category == rule.category and c is not chosen for c in candidates):
        found = replace(found, confidence=min(0.97, found.confidence + 0.05))
    return refine.refined(found, chosen, facts, candidates)


def _without_cause(sources: Sequence[Source], facts: Facts, chosen: Candidate | None) -> Judgement:
    """Only consequences, or nothing: a busy rank, the clock, or the way it ended may explain it."""
    if chosen is not None and chosen.rule.timeout:
        busy = refine.busy_rank(chosen, sources)
        if busy is not None:
            return _of_category("SLOW_RANK_TIMEOUT", 0.7, chosen, facts)
    if _ran_out_of_time(facts):
        return replace(_of_category("TIME_LIMIT", 0.7, chosen, facts), node=None)
    if chosen is not None and chosen.rule.category != UNKNOWN:
        return _of(chosen, facts, ())
    ended = _from_exit(facts)
    if chosen is None:
        return ended
    killed = refine.killed_child(chosen.hit.text)
    if killed is not None and ended.category == UNKNOWN:
        ended = killed
    return replace(
        ended, file=chosen.source.file, line=chosen.hit.line, text=chosen.hit.text, node=_node_of(chosen, facts)
    )


def _of_category(category: str, confidence: float, chosen: Candidate | None, facts: Facts) -> Judgement:
    usual = load_categories()[category]
    found = Judgement(category, usual.culpable, usual.action, confidence, proposed_change=usual.proposed_change)
    if chosen is None:
        return found
    return replace(
        found, file=chosen.source.file, line=chosen.hit.line, text=chosen.hit.text, node=_node_of(chosen, facts)
    )


def _cut_off(chosen: Candidate, facts: Facts) -> bool:
    """A general exception in the very moment in which the time was up tells of the end, not of its cause."""
    return chosen.source.kind == LOG and chosen.rule.tier >= TIER_GENERAL and _ran_out_of_time(facts)


def _ran_out_of_time(facts: Facts) -> bool:
    limit, elapsed = facts.time_limit_s, facts.elapsed_s
    return limit is not None and elapsed is not None and elapsed >= limit * NEAR_LIMIT


def _from_exit(facts: Facts) -> Judgement:
    """What an exit alone says, where no line does."""
    if facts.cause in _CAUSE_MEANINGS:
        return _CAUSE_MEANINGS[facts.cause]
    code, number = facts.exit_code, facts.signal
    if number is None and code is not None:
        number = code - SIGNAL_BASE if code > SIGNAL_BASE else -code  # a shell's way to say it, and Python's
    if number in _SIGNAL_MEANINGS:
        return _SIGNAL_MEANINGS[number]
    return _CODE_MEANINGS.get(code or 0, _UNKNOWN_CAUSE)


_UNKNOWN_CAUSE: Final = Judgement(UNKNOWN, None, Action.RETRY_FROM_CHECKPOINT, 0.2, awaits_node=True)
_CRASHED: Final = Judgement("SEGFAULT", Culpable.FRAMEWORK, Action.RETRY_FROM_CHECKPOINT, CONFIDENT)
_LOST: Final = Judgement("NODE_FAILURE", Culpable.INFRA_HARDWARE, Action.RETRY_FROM_CHECKPOINT, CONFIDENT)
_CAUSE_MEANINGS: Final[dict[ExitCause | None, Judgement]] = {
    ExitCause.LOST: _LOST,
    ExitCause.LEASE_EXPIRED: _LOST,
    ExitCause.LAUNCH_FAILED: Judgement(
        "LAUNCH_FAILURE", Culpable.INFRA_HARDWARE, Action.RETRY_ELSEWHERE_CORDON, CONFIDENT
    ),
}
_SIGNAL_MEANINGS: Final[dict[int | None, Judgement]] = {
    # the kernel's out-of-memory killer is the usual sender of a SIGKILL that is not ours; nothing here proves it
    int(signal.SIGKILL): Judgement("HOST_OOM", None, Action.RETRY_FROM_CHECKPOINT, 0.35),
    int(signal.SIGSEGV): _CRASHED,
    int(signal.SIGBUS): _CRASHED,
    int(signal.SIGILL): _CRASHED,
    int(signal.SIGFPE): _CRASHED,
}
_CODE_MEANINGS: Final = {
    EXIT_NOT_EXECUTABLE: Judgement("PERMISSION", Culpable.USER_CONFIG, Action.DO_NOT_RETRY, 0.6),
    EXIT_NOT_FOUND: Judgement("FILE_NOT_FOUND", Culpable.USER_CONFIG, Action.DO_NOT_RETRY, 0.6),
}


def _work_was_done(
    sources: Sequence[Source], candidates: Sequence[Candidate], chosen: Candidate | None
) -> tuple[Source, Hit] | None:
    """Return the line that says that the work was done, when only a crash of the shutdown follows it."""
    if chosen is not None and chosen.source.kind != LOG:
        return None
    for source in sources:
        done = source.digest.done
        if source.kind != LOG or done is None or source.digest.pulses > done.pulses:
            continue
        real = [c for c in candidates if c.source is source and not refine.is_shutdown_noise(c)]
        after = [c for c in candidates if c.source is source and c.hit.order > done.order]
        if after and not real and source.bad:
            return source, done
    return None


def _teardown(source: Source, done: Hit) -> Judgement:
    usual = load_categories()["TEARDOWN_ERROR"]
    return Judgement(
        usual.name, usual.culpable, usual.action, 0.8,
        file=source.file, line=done.line, text=done.text, node=source.node, work_was_complete=True,
    )  # fmt: skip


def _retrieved(found: Judgement, sources: Iterable[Source], similar: Similar) -> Judgement:
    """Ask past failures when the rules know no better: first by the line found, then by the earliest suspects."""
    texts = [(found.file, found.line, found.text)] if found.text and found.general else []
    if found.category == UNKNOWN:
        texts += [(s.file, h.line, h.text) for s in sources for h in s.digest.suspects]
    for file, line, text in texts:
        near = similar(text or "")
        if near is None or (near[0] == found.category):
            continue
        usual = load_categories()[near[0]]
        return replace(
            found, category=usual.name, culpable=usual.culpable, action=usual.action, confidence=min(near[1], 0.7),
            file=file, line=line, text=text, proposed_change=usual.proposed_change, basis="retrieval", node_evidence=False,
        )  # fmt: skip
    return found


def _with_suspect(found: Judgement, sources: Iterable[Source]) -> Judgement:
    """Where no line is a sign, the earliest that speaks of an error is what there is to look at."""
    for source in sorted((s for s in sources if s.kind == LOG), key=lambda s: (not s.bad, s.ended_at, s.member)):
        hit = source.digest.fresh_suspect()
        if hit is not None:
            return replace(found, file=source.file, line=hit.line, text=hit.text)
    return found


def _in_the_jobs_own_words(found: Judgement, candidates: Iterable[Candidate]) -> Judgement:
    """Where the job's output itself names the cause that the node's side bears out, its line is the one to show to the user."""
    if found.file is None or all(s.file != found.file or s.kind == LOG for s in (c.source for c in candidates)):
        return found
    own = (
        c
        for c in candidates
        if c.source.kind == LOG and c.rule.category == found.category and c.rule.tier <= TIER_SPECIFIC
    )
    said = min(own, key=lambda c: c.rank(), default=None)
    if said is None:
        return found
    return replace(found, file=said.source.file, line=said.hit.line, text=said.hit.text)


def _safe(found: Judgement) -> Judgement:
    """Low confidence means the action that costs least when it is wrong: try again, within the budget, and touch no node."""
    if found.confidence >= CONFIDENT or found.action is Action.RETRY_FROM_CHECKPOINT:
        return found
    return replace(found, action=Action.RETRY_FROM_CHECKPOINT, node_evidence=False)


def _others(candidates: Iterable[Candidate], found: Judgement) -> tuple[str, ...]:
    seen: dict[str, None] = {}
    for candidate in candidates:
        if candidate.rule.category not in {found.category, UNKNOWN}:
            seen.setdefault(candidate.rule.category)
    return tuple(seen)[:5]


def _node_of(chosen: Candidate, facts: Facts) -> str | None:
    if chosen.source.node is not None and chosen.source.kind != LOG:
        return chosen.source.node
    named = refine.node_named(chosen.hit.text, facts.nodes, chosen.rule)
    if named is not None:
        return named
    if chosen.source.node is not None:
        return chosen.source.node
    return facts.nodes[0] if len(facts.nodes) == 1 else None


def _resume(sources: Sequence[Source], facts: Facts, found: Judgement) -> str | None:
    named = _named_checkpoint(sources, facts, found)
    if facts.listed is None or facts.checkpoint_dir is None:
        return named
    inside = named is not None and posixpath.dirname(named.rstrip("/")) == facts.checkpoint_dir.rstrip("/")
    if named is not None and (not inside or listing.has(facts.listed, named)):
        return named
    damaged = {posixpath.basename(c.path) for s in sources for c in s.digest.checkpoints if c.kind == "loaded"}
    newest = listing.newest_whole(facts.listed, damaged=damaged if found.category == "CKPT_CORRUPT" else ())
    return posixpath.join(facts.checkpoint_dir, newest) if newest is not None else None


def _named_checkpoint(sources: Sequence[Source], facts: Facts, found: Judgement) -> str | None:
    """Return the newest checkpoint that a log names and that nothing speaks against."""
    for source in sorted((s for s in sources if s.kind == LOG), key=lambda s: s.member):
        path = newest_valid(
            source.digest.checkpoints,
            failed_while_saving=found.category in _STORAGE_CATEGORIES,
            corrupt=found.category == "CKPT_CORRUPT",
            directory=facts.checkpoint_dir,
        )
        if path is not None:
            return path
    return None
