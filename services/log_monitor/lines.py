"""From bytes in arbitrary chunks to lines of text: positions by maximum, split characters joined, bars cut at carriage returns.

The state depends on the bytes alone, never on how they were cut into chunks or how often they came.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

LINE_BYTES_MAX: Final = 4096

_BREAK: Final = re.compile(rb"[\r\n]|\x08{8,}(?=[^\x08\r\n])")
_ERASED: Final = re.compile(
    rb"\x08{8,}$"
)  # a line rubbed out from its end, to be written anew: what it said still counts
_BACKSPACE: Final = 8
_ANSI: Final = re.compile(
    r"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|[@-Z\\-_])"  # CSI, OSC, two-character
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or one state of a bar that overwrites itself. `number` is 1-based; None after bytes were lost."""

    text: str
    number: int | None


class Feed(BaseModel):
    """How far a member's output has been read. `offset` only grows; `carry` is the line that is not finished yet."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    offset: int = Field(default=0, ge=0)
    carry: bytes = b""
    newlines: int = 0
    numbered: bool = True
    resync: bool = False


def push(feed: Feed, start: int, end: int, content: bytes, *, gap: bool) -> Iterator[Line]:
    """Take bytes [start, end) into `feed` and yield the lines that they finish.

    Bytes already read are trimmed off. Bytes that never came (a gap, or a chunk that starts past the offset) cost the line they
    cut: reading goes on after the next line break, without line numbers.
    """
    if end <= feed.offset:
        return
    if gap or start > feed.offset:
        _lose(feed)
        feed.offset = max(start, feed.offset)
    if gap:
        feed.offset = end
        return
    fresh = feed.carry + content[feed.offset - start :]
    feed.carry = b""
    feed.offset = end
    position = 0
    for match in _BREAK.finditer(fresh):
        if fresh[match.start()] == _BACKSPACE and match.end() - position >= LINE_BYTES_MAX:
            continue  # past what is kept of a line; and the same whether the bytes came at once or in pieces
        piece = fresh[position : match.start()]
        position = match.end()
        line = _finish(feed, piece)
        if match.group() == b"\n":
            feed.newlines += 1
        if line is not None:
            yield line
    if position < len(fresh) and not feed.resync:
        feed.carry = fresh[position : position + LINE_BYTES_MAX]


def flush(feed: Feed) -> Iterator[Line]:
    """Yield what stands unfinished at the end of the output, once."""
    line = _finish(feed, b"")
    if line is not None:
        yield line


def clean(raw: bytes) -> str:
    """Return the text of a line: invalid bytes replaced, terminal codes and control characters removed, backspaces applied."""
    text = raw.decode("utf-8", "replace")
    if text.isprintable():
        return text.rstrip()
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\b" in text:
        text = _apply_backspaces(text)
    return _CONTROL.sub("", text).rstrip()


def _finish(feed: Feed, piece: bytes) -> Line | None:
    if feed.resync:
        feed.resync = False
        return None
    raw = (feed.carry + piece)[:LINE_BYTES_MAX]
    feed.carry = b""
    text = clean(_ERASED.sub(b"", raw))
    if not text:
        return None
    return Line(text, feed.newlines + 1 if feed.numbered else None)


def _lose(feed: Feed) -> None:
    feed.carry = b""
    feed.numbered = False
    feed.resync = True


def _apply_backspaces(text: str) -> str:
    kept: list[str] = []
    for character in text:
        if character == "\b":
            if kept:
                kept.pop()
        else:
            kept.append(character)
    return "".join(kept)
