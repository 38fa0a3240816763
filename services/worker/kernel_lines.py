"""Which lines of the kernel's log speak of a fault of the node. Pure: bytes in, findings out."""

from __future__ import annotations

import re
from dataclasses import dataclass

TEXT_LEN_MAX = 2000
LINE_BYTES_MAX = 64 * 1024

_XID = re.compile(r"\bXid\b\s*(?:\([^)]*\))?\s*:?\s*(\d{1,4})\b")
_FAULT = re.compile(
    r"\bXid\b|\bNVRM\b|\bECC\b|\bMCE\b.*\b(?:error|hardware)\b|\b[Oo]ut of memory\b|\boom-kill|\bfallen off the bus\b"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A line that speaks of a fault; `xid` where it names one."""

    text: str
    xid: int | None


def find(line: str) -> Finding | None:
    """Return the finding of one line, or None when it says nothing of a fault."""
    if _FAULT.search(line) is None:
        return None
    match = _XID.search(line)
    return Finding(line.strip()[:TEXT_LEN_MAX], int(match.group(1)) if match is not None else None)


class Lines:
    """Cuts a stream of bytes into lines; a line without end is kept until it has one, within a bound."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, content: bytes) -> list[str]:
        """Return the lines that are whole now. Invalid UTF-8 is replaced."""
        *whole, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            whole.append(self._rest)
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in whole]
