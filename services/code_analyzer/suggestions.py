"""What a language model may say about a job: which fields it is asked for, how its words are checked, and how votes are counted. Pure.

The source is the user's: it may address the model. So a value counts only with a quotation that stands in the named file as code or
configuration (comments, documentation, prose and markdown are no evidence), only when the value itself is a token of that line, and only
for a field that the static resolution left open. Nothing else that the model says has any effect.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schedmate.schemas.events import WORKLOAD_FIELDS, Basis, WorkloadField
from schedmate.services.code_analyzer.resolve.notebook import python_of

ASKED: Final = (
    "framework", "task", "model_family", "model_name", "dataset", "batch_size_per_device", "global_batch_size", "epochs", "max_steps",
    "optimizer", "precision", "strategy", "grad_accum", "gpus_per_node", "nodes",
)  # fmt: skip
"""Fields that a line of the source can show. The rest follows from them, or from what is absent, which no quotation shows."""
_NUMBERS: Final = {"batch_size_per_device": 10**6, "global_batch_size": 10**8, "epochs": 10**5, "max_steps": 10**9, "grad_accum": 10**5, "gpus_per_node": 64, "nodes": 10**4}  # fmt: skip
_WORDS: Final = {"precision": {"fp32", "fp16", "bf16", "amp", "fp8", "tf32"}}
NAME_MAX: Final = 120
QUOTE_MIN: Final = 4
QUOTE_MAX: Final = 400
CONFIDENCE: Final = 0.4
_NAME: Final = re.compile(r"[A-Za-z0-9][\w./+:-]*")
_ADDRESSES: Final = re.compile(
    r"\b(ignore|disregard|forget)\b.{0,40}\b(previous|above|prior|all|instruction|rule)|\b(you are|you must|system prompt|assistant|language model|\bllm\b|\bai\b)|priority\s*[:=]|important\s*:",
    re.IGNORECASE,
)  # a line that speaks to a reader is no configuration
_PLAIN_NAME: Final = re.compile(r"[\w.@+-]+(/[\w.@+-]+)*")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A checked claim of a model: a field, its value, and the line that shows it."""

    field: str
    value: str | int
    file: str
    line: int


def open_fields(fields: Mapping[str, WorkloadField]) -> tuple[str, ...]:
    """Return the fields that a model may be asked for."""
    return tuple(name for name in ASKED if name not in fields)


def listable(path: str) -> bool:
    """Tell whether a file's name is plain enough to be shown to a model: names can be written to speak, too."""
    words = re.split(r"[\W_]+", path)
    return _PLAIN_NAME.fullmatch(path) is not None and len(path) <= NAME_MAX and len(words) <= 10 and not _ADDRESSES.search(" ".join(words))  # noqa: PLR2004 - names of files are short  # fmt: skip


def checked(claim: Mapping[str, Any], texts: Mapping[str, str], wanted: Sequence[str]) -> Suggestion | None:
    """Return a claim that holds: an open field, a value of its kind, and a quoted line of code that has the value in it."""
    name, value, file, quote = (claim.get(k) for k in ("field", "value", "file", "quote"))
    if name not in wanted or not isinstance(file, str) or not isinstance(quote, str) or file not in texts:
        return None
    if not QUOTE_MIN <= len(quote.strip()) <= QUOTE_MAX or "\n" in quote.strip():
        return None
    known = _value(str(name), value)
    if known is None:
        return None
    for number, line in evidence_lines(file, texts[file]):
        if quote.strip() in line and stands_in(known, line):
            return Suggestion(str(name), known, file, number)
    return None


def _value(name: str, value: Any) -> str | int | None:
    if name in _NUMBERS:
        if isinstance(value, str) and re.fullmatch(r"\d{1,10}", value):
            value = int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _NUMBERS[name] else None
    if not isinstance(value, str) or len(value) > NAME_MAX or not _NAME.fullmatch(value):
        return None
    return value if name not in _WORDS or value in _WORDS[name] else None


def stands_in(value: str | int, line: str) -> bool:
    """Tell whether a value is a token of a line, not a part of a word or of a sentence."""
    return re.search(rf"(?<![\w.]){re.escape(str(value))}(?![\w])(?!\.\d)", line, re.IGNORECASE) is not None


def evidence_lines(path: str, text: str) -> list[tuple[int, str]]:
    """Return the lines of a file that can be evidence: code and configuration, without comments, documentation and prose."""
    if path.endswith((".md", ".txt", ".rst", ".html")):
        return []
    if path.endswith((".py", ".ipynb")):
        lines = _python_lines(path, text)
    else:
        lines = [(n, _without_comment(line)) for n, line in enumerate(text.splitlines(), start=1)]
    return [(n, line) for n, line in lines if line.strip() and not _ADDRESSES.search(line) and not _is_prose(line)]


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)(#|//|;;).*$", "", line)


def _is_prose(line: str) -> bool:
    """Tell whether a line is a sentence: many words in a row that no punctuation of code parts."""
    return re.search(r"(?:\b[A-Za-z']{2,}\b[ ,]+){6,}", line) is not None


def _python_lines(path: str, text: str) -> list[tuple[int, str]]:
    """Return a program's lines with its comments and its longer strings blanked; texts that are whole names stay."""
    try:
        source, numbers = python_of(text) if path.endswith(".ipynb") else (text, [])
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (ValueError, tokenize.TokenError, SyntaxError, RecursionError):
        return []
    lines = source.splitlines()
    for token in tokens:
        spoken = token.type == tokenize.STRING and (
            token.start[0] != token.end[0] or _NAME.fullmatch(token.string.strip("rbfuRBFU'\"")) is None
        )
        if token.type == tokenize.COMMENT or spoken:
            for row in range(token.start[0], token.end[0] + 1):
                begin = token.start[1] if row == token.start[0] else 0
                end = token.end[1] if row == token.end[0] else None
                line = lines[row - 1] if row - 1 < len(lines) else ""
                stop = len(line) if end is None else end
                if row - 1 < len(lines):
                    lines[row - 1] = line[:begin] + " " * (stop - begin) + line[stop:]
    return [(numbers[n] if n < len(numbers) else n + 1, line) for n, line in enumerate(lines)]


def counted(votes: Sequence[Sequence[Suggestion]], wanted: Sequence[str]) -> dict[str, Suggestion]:
    """Return for each field the suggestion that more than half of all votes make."""
    chosen: dict[str, Suggestion] = {}
    for name in wanted:
        told = [s for vote in votes for s in vote[:64] if s.field == name]
        tally = Counter(str(s.value).lower() for s in told)
        for value, number in tally.most_common(1):
            if 2 * number > len(votes):
                chosen[name] = next(s for s in told if str(s.value).lower() == value)
    return chosen


def merged(fields: Mapping[str, WorkloadField], suggested: Mapping[str, Suggestion]) -> dict[str, WorkloadField]:
    """Return fields with suggestions where there was nothing; a static value always stays."""
    out = dict(fields)
    for name, one in suggested.items():
        if name not in out:
            out[name] = WorkloadField(
                value=one.value, basis=Basis.MODEL_SUGGESTED, file=one.file, line=one.line, confidence=CONFIDENCE
            )
    return {name: out[name] for name in WORKLOAD_FIELDS if name in out}
