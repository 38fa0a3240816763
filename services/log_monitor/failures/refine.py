"""What the neighbourhood of a sign says about it: whose memory, which node, busy or hung, at start or on the way, at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import re2

from schedmate.schemas.events import Action, Culpable
from schedmate.services.log_monitor.failures.categories import load_categories
from schedmate.services.log_monitor.failures.rules import LOG, TIER_GENERAL, TIER_TIMEOUT, Rule

if TYPE_CHECKING:
    from schedmate.services.log_monitor.failures.digest import Hit
    from schedmate.services.log_monitor.failures.judge import Candidate, Facts, Judgement, Source

FOREIGN_SHARE: Final = 0.5
SPEAKERS_OTHER_MIN: Final = 2
STARTUP_ATTEMPTS: Final = 2

_AMOUNT: Final = r"(\d{1,7}(?:\.\d{1,4})?) ?([KMGT])i?B"
_CAPACITY: Final = re2.compile(r"(?i)total capac\w{1,4} of " + _AMOUNT)
_CAPACITY_OLD: Final = re2.compile(r"(?i)" + _AMOUNT + r" total capacity")
_FREE: Final = re2.compile(r"(?i)(?:of which )?" + _AMOUNT + r"(?: is)? free")
_OWN: Final = re2.compile(
    r"(?i)(?:this process has " + _AMOUNT + r" memory in use|" + _AMOUNT + r" (?:is |already )?allocated)"
)
_OTHER: Final = re2.compile(r"(?i)Process \d{1,9} has " + _AMOUNT + r" memory in use")
_UNITS: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_KILLED: Final = re2.compile(r"(?i)exitcode ?: ?-9\b|signal 9\b|SIGKILL|\bKilled\b")
_SHUTDOWN: Final = re2.compile(
    r"(?i)__del__|Exception ignored|destroy_process_group|MPI_Finalize|atexit|wandb|mlflow|tensorboard|comet|swanlab|neptune|shutdown|logger|flush|finali[sz]e|thread pool|queue\.Empty|closed file"
)
_LOOSE_PATH_ERRORS: Final = frozenset(
    {"FILE_NOT_FOUND", "PERMISSION", "IMPORT_ERROR", "ENV_MISMATCH", "STORAGE_IO", "DISK_FULL"}
)


def refined(found: Judgement, chosen: Candidate, facts: Facts, candidates: Sequence[Candidate]) -> Judgement:
    """Return the judgement with what the neighbourhood adds."""
    match found.category:
        case "GPU_OOM":
            return _whose_memory(found, chosen, candidates)
        case "SEGFAULT":
            return _again_and_again(found, chosen, facts)
        case category if category in _LOOSE_PATH_ERRORS:
            return _on_one_node_only(found, chosen, facts)
        case _:
            return found


def busy_rank(timeout: Candidate, sources: Iterable[Source]) -> Hit | None:
    """Return the line that shows that a rank was at long work when the others' time ran out."""
    for source in sources:
        busy = source.digest.busy
        if source.kind != LOG or busy is None:
            continue
        if source is timeout.source:
            if busy.order < timeout.hit.order and busy.pulses >= timeout.hit.pulses:
                return busy
        elif busy.pulses >= source.digest.pulses:
            return busy
    return None


def is_shutdown_noise(candidate: Candidate) -> bool:
    """Tell whether a sign may well come from the shutdown of a program that did its work."""
    rule = candidate.rule
    if rule.tier >= TIER_TIMEOUT or rule.category == "SEGFAULT":
        return True
    return rule.tier >= TIER_GENERAL - 1 and _SHUTDOWN.search(candidate.hit.text) is not None


def killed_child(text: str) -> Judgement | None:
    """Return what a launcher's word of a child killed by SIGKILL says: most likely memory, and nothing here proves it."""
    from schedmate.services.log_monitor.failures.judge import Judgement  # noqa: PLC0415 - the two rooms know each other

    if _KILLED.search(text) is None:
        return None
    return Judgement("HOST_OOM", Culpable.USER_CONFIG, Action.RETRY_FROM_CHECKPOINT, 0.4)


def node_named(text: str, nodes: Sequence[str], rule: Rule) -> str | None:
    """Return the job's node that a line names: the one it speaks of, else the one that speaks."""
    at = [(text.find(node), node) for node in nodes]
    named = sorted((position, node) for position, node in at if position >= 0 and _whole(text, position, node))
    if not named:
        return None
    if rule.node and rule.id == "node-failure":
        return named[-1][1]
    return named[0][1]


def _whole(text: str, position: int, node: str) -> bool:
    before = text[position - 1] if position else " "
    after = text[position + len(node)] if position + len(node) < len(text) else " "
    return not (before.isalnum() or before == "-") and not (after.isalnum() or after == "-")


def _whose_memory(found: Judgement, chosen: Candidate, candidates: Iterable[Candidate]) -> Judgement:
    """Device memory that is full although the job holds little of it is held by somebody else."""
    texts = [c.hit.text for c in candidates if c.rule.category == "GPU_OOM"] or [chosen.hit.text]
    if not any(_held_by_others(text) for text in texts):
        return found
    usual = load_categories()["GPU_BUSY_EXTERNAL"]
    return replace(
        found, category=usual.name, culpable=usual.culpable, action=usual.action, confidence=0.8,
        proposed_change=None, awaits_node=True, hardware=True,
    )  # fmt: skip


def _held_by_others(text: str) -> bool:
    capacity = _mib(_CAPACITY, text) or _mib(_CAPACITY_OLD, text)
    if capacity is None:
        return False
    own = max(_all_mib(_OWN, text), default=None)
    free = _mib(_FREE, text) or 0.0
    others = _all_mib(_OTHER, text)
    if own is None:
        return len(others) > 1 and max(others) > FOREIGN_SHARE * capacity and min(others) < FOREIGN_SHARE * capacity
    return capacity - free - own > FOREIGN_SHARE * capacity


def _mib(pattern: re2._Regexp[str], text: str) -> float | None:
    return next(iter(_all_mib(pattern, text)), None)


def _all_mib(pattern: re2._Regexp[str], text: str) -> list[float]:
    amounts = []
    for match in pattern.finditer(text):
        groups = [g for g in match.groups() if g is not None]
        amounts.append(float(groups[0]) * _UNITS[groups[1].upper()])
    return amounts


def _again_and_again(found: Judgement, chosen: Candidate, facts: Facts) -> Judgement:
    """A crash before any work, attempt after attempt, does not go away by itself."""
    at_start = chosen.source.digest.pulses == 0
    if at_start and (facts.attempt >= STARTUP_ATTEMPTS or chosen.hit.count > STARTUP_ATTEMPTS):
        return replace(found, action=Action.DO_NOT_RETRY, confidence=0.75)
    return found


def _on_one_node_only(found: Judgement, chosen: Candidate, facts: Facts) -> Judgement:
    """What fails on one node while the others of the job do not see it is that node's fault (taxonomy §4.5)."""
    nodes = set(facts.nodes)
    failing = {s for s in chosen.hit.speakers if s in nodes}
    talking = {s for s in chosen.source.digest.speakers if s in nodes}
    if (
        len(failing) != 1
        or len(talking - failing) < SPEAKERS_OTHER_MIN
        or not _had_done_the_same(chosen, failing, talking)
    ):
        return found
    storage = found.category in {"FILE_NOT_FOUND", "PERMISSION", "STORAGE_IO", "DISK_FULL"}
    return replace(
        found,
        category="STORAGE_IO" if found.category in {"FILE_NOT_FOUND", "PERMISSION"} else found.category,
        culpable=Culpable.STORAGE if storage else Culpable.INFRA_HARDWARE,
        action=Action.RETRY_ELSEWHERE_CORDON,
        node=next(iter(failing)),
        confidence=0.75,
        proposed_change=None,
    )


def _had_done_the_same(chosen: Candidate, failing: set[str], talking: set[str]) -> bool:
    """The others must have said about as much: then they got as far, or farther."""
    counts = chosen.source.digest.speakers
    bad = max(counts[s] for s in failing)
    return sum(counts[s] * 3 >= bad for s in talking - failing) >= SPEAKERS_OTHER_MIN
