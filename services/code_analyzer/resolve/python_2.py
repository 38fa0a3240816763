"""Python 2 read as far as it resembles Python 3."""

from __future__ import annotations

import ast
import re
from typing import Final

_PRINT: Final = re.compile(r"^(\s*(?:.*:\s+)?)print\s+(?![(=])(.+?)\s*$|^(\s*)print\s*$")
_EXCEPT: Final = re.compile(r"^(\s*except\s+[\w.()\[\], ]+?)\s*,\s*(\w+)\s*:")


def python_2(text: str) -> ast.Module | None:
    """Return the syntax tree of a Python 2 text after its `print` statements and `except X, e` are written anew; None when that is not enough."""
    lines = []
    for line in text.splitlines():
        printed = _PRINT.match(line)
        if printed is not None and not line.lstrip().startswith("#"):
            head = printed[1] if printed[1] is not None else printed[3]
            line = f"{head}print({(printed[2] or '').removeprefix('>>sys.stderr,').rstrip(',')})"  # noqa: PLW2901 - the line anew
        lines.append(_EXCEPT.sub(r"\1 as \2:", line))
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
