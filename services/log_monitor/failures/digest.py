"""What is kept of one source of lines (a member's output, a kernel log ...) for a diagnosis: bounded, and plain JSON.

Fed line by line, as they come; knows nothing of the end. A "sign of life" is a line that shows work going on: when some follow a
sign of failure, the job survived it.
"""

from __future__ import annotations

from typing import Final

import re2
from pydantic import BaseModel, Field

from schedmate.services.log_monitor.failures.checkpoints import Checkpoint, remember, sight
from schedmate.services.log_monitor.failures.rules import LOG, Rule, Rules

TEXT_KEPT_MAX: Final = 400
SUSPECT_KEPT_MAX: Final = 240
SUSPECTS_MAX: Final = 10
SPEAKERS_MAX: Final = 16

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
_SPEAKER: Final = re2.compile(r"^\[?([A-Za-z][\w.-]{0,60})[\]:]")
_NUMBER: Final = re2.compile(r"\d+")
_RANK: Final = re2.compile(r"(?i)\[?rank[ :]?(\d{1,6})\b|^\[(\d{1,5})\]<|^(\d{1,5}): ")


class Hit(BaseModel):
    """The earliest line that shows a sign and that the job did not survive, and how much life had been seen by then."""

    line: int | None
    text: str
    pulses: int
    count: int = 1
    speakers: list[str] = Field(default_factory=list)
    order: int = 0


class Digest(BaseModel):
    """What one source has shown so far."""

    hits: dict[str, Hit] = Field(default_factory=dict)
    pulses: int = 0
    taken: int = 0
    busy: Hit | None = None
    timed_out: bool = False
    ignoring: bool = False
    done: Hit | None = None
    checkpoints: list[Checkpoint] = Field(default_factory=list)
    suspects: list[Hit] = Field(default_factory=list)
    speakers: dict[str, int] = Field(default_factory=dict)

    def take(self, text: str, line: int | None, rules: Rules, source: str = LOG) -> None:
        """Take in one line."""
        self.taken += 1
        if source == LOG and self._is_ignored(text):
            return
        matched = rules.match(text, source)
        causes = False
        for rule in matched:
            if rule.role == "cause":
                causes = True
                self._show(rule, text, line)
        if source != LOG:
            return
        self._listen(text)
        if not causes:
            self._take_context(matched, text, line)
        if not causes and self.checkpoints and _NO_LIFE.search(text) is None and not text[:1].isspace():
            self.checkpoints[-1].settled = True
        checkpoint = sight(text, line, self.pulses)
        if checkpoint is not None and not causes:
            remember(self.checkpoints, checkpoint)

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
        if rank_of(text) == 0 and rank_of(known.text) and _shape(text) == _shape(known.text):
            known.line, known.text = line, text[:TEXT_KEPT_MAX]  # the same words from every rank: rank 0's are cited
        if speaker and speaker not in known.speakers and len(known.speakers) < SPEAKERS_MAX:
            known.speakers.append(speaker)

    def _take_context(self, matched: tuple[Rule, ...], text: str, line: int | None) -> None:
        hit = Hit(line=line, text=text[:SUSPECT_KEPT_MAX], pulses=self.pulses, order=self.taken)
        roles = {rule.role for rule in matched}
        if "busy" in roles:
            self.busy = self.busy if self.timed_out else hit
        elif is_life(text):
            self.pulses += 1
            self.timed_out = False
        elif "done" not in roles and is_suspect(text) and len(self.suspects) < SUSPECTS_MAX:
            self.suspects.append(hit)
        if "done" in roles:
            self.done = hit

    def _listen(self, text: str) -> None:
        speaker = speaker_of(text)
        if speaker is not None and (speaker in self.speakers or len(self.speakers) < SPEAKERS_MAX):
            self.speakers[speaker] = self.speakers.get(speaker, 0) + 1


def _shape(text: str) -> str:
    return str(_NUMBER.sub("0", text[:TEXT_KEPT_MAX]))


def is_life(text: str) -> bool:
    """Tell whether a line shows work going on."""
    return _LIFE.search(text) is not None and _NO_LIFE.search(text) is None


def is_suspect(text: str) -> bool:
    """Tell whether a line speaks of an error in any words."""
    return _SUSPECT.search(text) is not None


def speaker_of(text: str) -> str | None:
    """Return the name before a line (`n1: ...`, `[n1] ...`, `n1:2:3 [0] ...`), as launchers put it; it may be a node."""
    found = _SPEAKER.search(text)
    return found.group(1) if found is not None else None


def rank_of(text: str) -> int | None:
    """Return the rank that a line speaks of."""
    found = _RANK.search(text)
    if found is None:
        return None
    return int(next(group for group in found.groups() if group is not None))
