"""Secrets out, before any sink: event, log, span, prompt, page.

`redact` takes text, `redact_value` a value under a key. What they cannot read is dropped, not passed. Both run in time
linear in the text (patterns: `secret_formats`), and a text has a largest size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from schedmate.infra.telemetry.secret_formats import CONTEXTS, TOKENS, SecretFormat

REDACTED: Final = "[redacted]"
TEXT_CHARACTERS_MAX: Final = 1024 * 1024
LINE_CHARACTERS_MAX: Final = 16 * 1024
DEPTH_MAX: Final = 8
ITEMS_MAX: Final = 1000

_KEY_BLOCK: Final = re.compile(
    r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_SECRET_KEY: Final = re.compile(
    r"(?i)(?:^|[_.-])(?:password|passwd|passphrase|pwd|secret|token|authorization|cookie|credentials?|api_?key|access_?key|private_?key|secret_?key)$"
    r"|password|api_?key|private_?key|client_?secret|secret_?access"
)
_FORMATS: Final[tuple[SecretFormat, ...]] = (*TOKENS, *CONTEXTS)

_NAMES_OF_KEYS: Final = frozenset({"idempotency_key", "record_key"})


def redact(text: str | bytes) -> str:
    """Return the text without what looks like a secret.

    Bytes that are no UTF-8, lines beyond LINE_CHARACTERS_MAX and what follows TEXT_CHARACTERS_MAX are dropped, with a note in
    their place.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError:
            return f"[dropped: {len(text)} bytes that are not UTF-8]"
    if len(text) > TEXT_CHARACTERS_MAX:
        text = f"{text[:TEXT_CHARACTERS_MAX]}\n[dropped: {len(text) - TEXT_CHARACTERS_MAX} characters]"
    if "PRIVATE KEY" in text:
        text = _KEY_BLOCK.sub(REDACTED, text)
    wanted = _triggered(text)  # most texts hold no trigger at all
    if len(text) <= LINE_CHARACTERS_MAX:
        if not wanted:
            return text
        if "\n" not in text:
            return _line(text, wanted)
    numbers = frozenset(wanted)
    return "".join([_bounded_line(line, numbers) for line in text.splitlines(keepends=True)])


def redact_value(key: str, value: Any, depth: int = 0) -> Any:
    """Return a JSON value without secrets: hidden whole where the key names one, else redacted inside.

    Keys that are no text, values of types that are not JSON's, and what lies deeper than DEPTH_MAX are dropped or shown by
    their redacted `str()`.
    """
    if value is None or isinstance(value, bool):
        return value
    if is_secret_key(key) and not (isinstance(value, (int, float)) and "token" in key.lower()):
        return REDACTED
    if isinstance(value, (int, float)):
        return value
    return redact(value) if isinstance(value, str) else _foreign(key, value, depth)


def _foreign(key: str, value: Any, depth: int) -> Any:
    """Return what is no scalar of JSON: containers item by item, anything else by its redacted text."""
    if isinstance(value, (bytes, bytearray)):
        return f"[dropped: {len(value)} bytes]"
    if depth >= DEPTH_MAX:
        return f"[dropped: {type(value).__name__} too deep]"
    if isinstance(value, Mapping):
        return {
            redact(str(name)): redact_value(str(name), inner, depth + 1)
            for name, inner in list(value.items())[:ITEMS_MAX]
        }
    if isinstance(value, (Sequence, set, frozenset)):
        return [redact_value(key, inner, depth + 1) for inner in list(value)[:ITEMS_MAX]]
    return _as_text(value)


def is_secret_key(key: str) -> bool:
    """Tell whether a key by its name holds a secret (`password`, `hf_token`), not a measure (`tokens`, `token_count`)."""
    return key not in _NAMES_OF_KEYS and _SECRET_KEY.search(key) is not None


def _as_text(value: object) -> str:
    try:
        return redact(str(value))
    except Exception as error:  # noqa: BLE001 - a foreign __str__ may raise anything, and a log line must not
        return f"[dropped: {type(value).__name__} whose text failed with {type(error).__name__}]"


def _triggered(text: str, wanted: frozenset[int] | None = None) -> list[int]:
    """Return which formats (of `wanted`) may occur in the text: those with a trigger in it, in their order."""
    lowered = text.lower()
    found = {number for trigger, number in _triggers() if trigger in lowered}
    return sorted(found if wanted is None else found & wanted) if found else []


def _bounded_line(line: str, wanted: frozenset[int]) -> str:
    if len(line) > LINE_CHARACTERS_MAX:
        content = line.rstrip("\r\n")
        return f"[dropped: a line of {len(content)} characters]{line[len(content) :]}"
    return _line(line, _triggered(line, wanted)) if wanted else line


def _line(line: str, wanted: Sequence[int]) -> str:
    patterns = _patterns()
    for number in wanted:
        line = patterns[number].sub(_replaced, line)
    return line


def _replaced(match: re.Match[str]) -> str:
    groups = match.groupdict()
    for name in ("secret", "a", "b", "c"):
        found = groups.get(name)
        if found is not None:
            start, end = match.start(name) - match.start(), match.end(name) - match.start()
            whole = match.group()
            return whole if found == REDACTED or _harmless(found) else whole[:start] + REDACTED + whole[end:]
    return REDACTED


def _harmless(value: str) -> bool:
    """A placeholder or an empty word is no secret: hiding it would only hide the cause of a failure."""
    return value.startswith(("${", "$", "%(", "{{", REDACTED)) or value.lower() in (
        "none",
        "null",
        "true",
        "false",
        "***",
        "",
    )


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(one.pattern) for one in _FORMATS)


@cache
def _triggers() -> tuple[tuple[str, int], ...]:
    """Every trigger with its format's number. One that holds another of the same format is left out: it adds nothing."""
    return tuple(
        (trigger, number)
        for number, one in enumerate(_FORMATS)
        for trigger in one.triggers
        if not any(other != trigger and other in trigger for other in one.triggers)
    )
