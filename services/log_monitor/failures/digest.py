"""What is kept of one source of lines (a member's output, a kernel log ...) for a diagnosis: bounded, and plain JSON.

Fed line by line, as they come; knows nothing of the end. A "sign of life" is a line that shows work going on: when some follow a
sign of failure, the job survived it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import re2
from pydantic import BaseModel, Field

from schedmate.services.log_monitor.failures.checkpoints import Checkpoint, remember, sight, worth_a_look
from schedmate.services.log_monitor.failures.rules import (
    LOG,
    SHAPES_CACHED,
    SURVIVES,
    TEXT_MAX,
    TIER_GENERAL,
    Rule,
    Rules,
    digits_masked,
)

TEXT_KEPT_MAX: Final = 400
LOOKED_AT_MAX: Final = 1000
NAME_MAX: Final = 62
SUSPECT_KEPT_MAX: Final = 240
SUSPECTS_MAX: Final = 10
SPEAKERS_MAX: Final = 16
SHAPES_MAX: Final = 32
ROUTINE_FROM: Final = 4

_LIFE: Final = re2.compile(
    r"(?i)\b\d{1,9} ?/ ?\d{1,9}\b|\b(?:it|steps?|samples?|tokens?|img|batch|iter)/s(?:ec)?\b|\bs/(?:it|step|iter|batch)\b"
    r"|\b(?:n?step|iter(?:ation)?|epoch|batch|update|round|trajectory|frame|cycle|episode|global_step|num_updates|generation|timestep)\b[^\w]{0,6}\d"
    r"|\b(?:loss|mse|nll|bce|ce|psnr|ppl|reward|rmse|energy)\b[^\w]{0,4}-?\d"
)
_NO_LIFE: Final = re2.compile(
    r"(?i)error|exception|traceback|fail|abort|signal|timed? ?out|\bkill|^(?:\[?\S{0,40}\]?:? ?)?\s+(?:File \"|at |@ )|^frame #\d|NCCL|terminat|exit ?code|restor|resum|unable|cannot|denied"
)
_SUSPECT: Final = re2.compile(
    r"(?i)\b(?:errors?|err|exception|fatal|panic|fail(?:ed|ure|s)?|abort(?:ed|ing)?|killed|terminated|denied|refused|unreachable|corrupt(?:ed)?|invalid|illegal|cannot|could not|couldn't|unable|missing|crash(?:ed)?|assert(?:ion)?|not found|no such|timed? ?out|oom|out of memory|exceeded|nan|mismatch|unsupported|lost|disconnected|segfault|core dumped|broken|expired|unauthorized|forbidden|exhausted|full|stopp(?:ed|ing)|bad)\b|\w(?:Error|Exception)\b"
)
_NUMBER: Final = re2.compile(r"\d+(?:[.,:]\d+)*")
_PREFIX: Final = re2.compile(
    r"^\[?[A-Za-z][\w.-]{0,60}\]?(?::\d{1,9}){0,2} ?[:|\]] ?|^\d{1,5}: ?|^\[\d{1,5}\]<\w{1,10}>:? ?"
)
_RANK: Final = re2.compile(r"(?i)\[?rank[ :]?(\d{1,6})\b|^\[(\d{1,5})\]<|^(\d{1,5}): ")


class Hit(BaseModel):
    """The earliest line that shows a sign and that the job did not survive, and how much life had been seen by then."""

    line: int | None
    text: str
    pulses: int
    count: int = 1
    speakers: list[str] = Field(default_factory=list)
    order: int = 0


_QUOTES_CODE: Final = re2.compile(
    r"^\s{2,}\S?\s{0,8}(?:raise |return |assert |with |for |if |[\w.]{1,80}(?:\(|\[| = )).{0,300}[(\[,:=]"
)
_RAISED: Final = re2.compile(
    r"^\s{0,4}(?:\[?[\w: -]{0,24}\]?:?\s{0,2})?[A-Za-z_][\w.]{0,120}(?:Error|Exception|Interrupt|Exit|Failure)\b"
)
_WARNS: Final = re2.compile(r"(?i)^\[?W\d|\bwarn(?:ing)?\b")


class Digest(BaseModel):
    """What one source has shown so far."""

    hits: dict[str, Hit] = Field(default_factory=dict)
    pulses: int = 0
    taken: int = 0
    busy: Hit | None = None
    timed_out: bool = False
    ignoring: bool = False
    shapes: dict[int, int] = Field(default_factory=dict)
    alarm: int | None = None
    done: Hit | None = None
    checkpoints: list[Checkpoint] = Field(default_factory=list)
    suspects: list[Hit] = Field(default_factory=list)
    speakers: dict[str, int] = Field(default_factory=dict)

    def take(self, text: str, line: int | None, rules: Rules, source: str = LOG) -> None:
        """Take in one line."""
        self.taken += 1
        if source == LOG and self._is_ignored(text):
            return
        masked = digits_masked(text[:TEXT_MAX])
        matched = rules.match(text, source, masked)
        causes = False
        for rule in matched:
            if rule.role == "cause":
                causes = True
                self._show(rule, text, line)
        if source != LOG:
            return
        self._listen(text)
        if not causes:
            looks = _looks_of(masked[:LOOKED_AT_MAX])
            self._take_context(matched, looks, text, line)
            self._take_checkpoint(looks, text, masked, line)

    def _is_ignored(self, text: str) -> bool:
        """An exception that Python itself ignored (in a destructor) ends with the line that names it."""
        if "Exception ignored in" in text:
            self.ignoring = True
            return True
        if not self.ignoring:
            return False
        self.ignoring = text[:1].isspace() or text.startswith("Traceback")
        return True

    def fresh(self, rule: Rule) -> Hit | None:
        """Return the hit of a rule, unless the job lived on after it."""
        hit = self.hits.get(rule.id)
        if hit is None or self._survived(rule, hit):
            return None
        return hit

    def _survived(self, rule: Rule, hit: Hit) -> bool:
        return rule.survives is not None and self.pulses - hit.pulses > rule.survives

    def _show(self, rule: Rule, text: str, line: int | None) -> None:
        known = self.hits.get(rule.id)
        speaker = speaker_of(text)
        self.timed_out |= rule.timeout
        if rule.tier <= TIER_GENERAL:
            self.alarm = self.pulses
        if known is None or self._survived(rule, known):
            self.hits[rule.id] = Hit(
                line=line,
                text=text[:TEXT_KEPT_MAX],
                pulses=self.pulses,
                order=self.taken,
                speakers=[speaker] if speaker else [],
            )
            return
        known.count += 1
        if self.pulses == known.pulses and _tells_more(text, known.text):
            known.line, known.text, known.order = line, text[:TEXT_KEPT_MAX], self.taken
        if rank_of(text) == 0 and rank_of(known.text) and _shape(text) == _shape(known.text):
            known.line, known.text = line, text[:TEXT_KEPT_MAX]  # the same words from every rank: rank 0's are cited
        if speaker and speaker not in known.speakers and len(known.speakers) < SPEAKERS_MAX:
            known.speakers.append(speaker)

    def _take_context(self, matched: tuple[Rule, ...], looks: _Looks, text: str, line: int | None) -> None:
        roles = {rule.role for rule in matched}
        if "busy" in roles:
            self.busy = self.busy if self.timed_out else self._hit(text, line)
        elif looks.life or self._is_routine(looks.shape):
            self.pulses += 1
            self.timed_out = False
        elif "done" not in roles and looks.suspect:
            self._suspect(self._hit(text, line))
        if "done" in roles:
            self.done = self._hit(text, line)

    def _suspect(self, hit: Hit) -> None:
        """Keep the first suspects; when there are too many, those that the job outlived make room."""
        if len(self.suspects) >= SUSPECTS_MAX:
            outlived = next((old for old in self.suspects if self.pulses - old.pulses > SURVIVES), None)
            if outlived is None:
                return
            self.suspects.remove(outlived)
        self.suspects.append(hit)

    def fresh_suspect(self) -> Hit | None:
        """Return the earliest suspect that the job did not outlive."""
        return next((hit for hit in self.suspects if self.pulses - hit.pulses <= SURVIVES), None)

    def _hit(self, text: str, line: int | None) -> Hit:
        return Hit(line=line, text=text[:SUSPECT_KEPT_MAX], pulses=self.pulses, order=self.taken)

    def _take_checkpoint(self, looks: _Looks, text: str, masked: str, line: int | None) -> None:
        newest = self.checkpoints[-1] if self.checkpoints else None
        if newest is not None and not newest.settled and looks.calm and not text[:1].isspace():
            newest.settled = True
        checkpoint = sight(text, line, self.pulses) if worth_a_look(masked) else None
        if checkpoint is not None:
            remember(self.checkpoints, checkpoint)

    def _is_routine(self, key: int | None) -> bool:
        """Tell whether a line with numbers in it has a shape that has come often: the program says it again and again."""
        if key is None:
            return False
        if self.alarm is not None and self.pulses - self.alarm <= SURVIVES and self.shapes.get(key, 0) < ROUTINE_FROM:
            return False  # what begins only after a failure is the end's own routine: hooks, summaries
        if key not in self.shapes and len(self.shapes) >= SHAPES_MAX:
            del self.shapes[min(self.shapes, key=lambda k: self.shapes[k])]
        self.shapes[key] = count = min(self.shapes.get(key, 0) + 1, ROUTINE_FROM)
        return count >= ROUTINE_FROM

    def _listen(self, text: str) -> None:
        speaker = speaker_of(text)
        if speaker is not None and (speaker in self.speakers or len(self.speakers) < SPEAKERS_MAX):
            self.speakers[speaker] = self.speakers.get(speaker, 0) + 1


def _tells_more(text: str, known: str) -> bool:
    """Tell whether a later line of the same sign, in the same breath, says it better than the one that is known.

    A traceback quotes the code that makes a message before the message comes, and a warning says beforehand what then ends the program.
    """
    if _QUOTES_CODE.search(text) is not None:
        return False
    if _QUOTES_CODE.search(known) is not None:
        return True
    return _RAISED.search(text) is not None and _WARNS.search(known) is not None


def _shape(text: str) -> str:
    return str(_NUMBER.sub("0", text[:TEXT_KEPT_MAX]))


def is_suspect(text: str) -> bool:
    """Tell whether a line speaks of an error in any words."""
    return _looks_of(digits_masked(text[:LOOKED_AT_MAX])).suspect


def speaker_of(text: str) -> str | None:
    """Return the name before a line (`n1: ...`, `[n1] ...`, `n1:2:3 [0] ...`), as launchers put it; it may be a node."""
    start = 1 if text[:1] == "[" else 0
    ends = [
        end for end in (text.find(":", start, start + NAME_MAX), text.find("]", start, start + NAME_MAX)) if end > 0
    ]
    if not ends:
        return None
    name = text[start : min(ends)]
    if not name[:1].isalpha() or not name.replace("-", "").replace(".", "").replace("_", "").isalnum():
        return None
    return name


@dataclass(frozen=True, slots=True)
class _Looks:
    """What a line looks like whatever its digits are."""

    life: bool
    suspect: bool
    calm: bool
    shape: int | None


@lru_cache(SHAPES_CACHED)
def _looks_of(text: str) -> _Looks:
    calm = _NO_LIFE.search(text) is None
    told = _PREFIX.sub("", text[:TEXT_KEPT_MAX])
    routine = calm and not told[:2].isspace() and "0" in told
    return _Looks(
        life=calm and _LIFE.search(text) is not None,
        suspect=_SUSPECT.search(text) is not None,
        calm=calm,
        shape=zlib.crc32(_NUMBER.sub("0", told).encode()) if routine else None,
    )


def rank_of(text: str) -> int | None:
    """Return the rank that a line speaks of."""
    found = _RANK.search(text)
    if found is None:
        return None
    return int(next(group for group in found.groups() if group is not None))
