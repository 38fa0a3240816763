"""Whether a script's `[ … ]`, `[[ … ]]` and `test` hold, where that can be told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from schedmate.services.code_analyzer.resolve.values import HOLE

if TYPE_CHECKING:
    from schedmate.services.code_analyzer.resolve.shell import Shell

TESTS: Final = ("[", "[[", "test", "false")  # a loop's condition is followed where it is one of these


@dataclass(slots=True)
class Test:
    """`[ … ]` and `[[ … ]]`."""

    shell: Shell
    raws: list[str]

    def value(self) -> bool | None:
        """Return whether the test holds, None where that cannot be told."""
        return self._either(self.raws)

    def _either(self, raws: list[str]) -> bool | None:
        for joint in ("||", "-o", "&&", "-a"):
            if joint in raws[1:-1]:
                at = raws.index(joint)
                left, right = self._either(raws[:at]), self._either(raws[at + 1 :])
                if joint in ("||", "-o"):
                    return True if left or right else None if left is None or right is None else False
                return False if left is False or right is False else None if left is None or right is None else True
        return self._one(raws)

    def _one(self, raws: list[str]) -> bool | None:
        if raws[:1] == ["!"]:
            inner = self._one(raws[1:])
            return None if inner is None else not inner
        words = self.shell._words()  # noqa: SLF001 - one thing in two classes
        if len(raws) == 1:
            text = words.text(raws[0])
            return None if HOLE in text else bool(text)
        if len(raws) == 2:  # noqa: PLR2004 - `-z TEXT`
            return self._unary(raws[0], words.text(raws[1]), raws[1])
        if len(raws) != 3:  # noqa: PLR2004 - `A = B`
            return None
        left, right = words.text(raws[0]), words.text(raws[2])
        return None if HOLE in left + right else _compared(left, raws[1], right)

    def _unary(self, operator: str, text: str, raw: str) -> bool | None:
        unset = re.fullmatch(r'"?\$\{?([A-Za-z_]\w*)(?::?-)?\}?"?|"?\$\{?([1-9])(?::?-)?\}?"?', raw)
        if operator in ("-z", "-n"):
            if unset is not None and (unset[1] or "") not in self.shell.variables and (unset[2] or text in ("", HOLE)):
                if unset[2] and len(self.shell.positional) >= int(unset[2]):
                    return (text == "") == (operator == "-z")
                known_outside = unset[1] is not None and unset[1].startswith(
                    ("SLURM", "MASTER", "RANK", "WORLD", "LOCAL", "NODE")
                )
                return None if known_outside else operator == "-z"
            return None if HOLE in text else (text == "") == (operator == "-z")
        if operator == "-v":
            return text in self.shell.variables
        if operator in ("-f", "-e", "-s", "-r") and HOLE not in text:
            return True if self.shell.files.find(text, self.shell.folder) is not None else None
        return None


def _compared(left: str, operator: str, right: str) -> bool | None:
    if operator in ("=", "=="):
        return fnmatchcase(left, right)
    if operator == "!=":
        return not fnmatchcase(left, right)
    if operator == "=~":
        return right.strip("^$") in left if re.fullmatch(r"[\w^$ .-]*", right) else None
    numbers = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
    if operator in numbers and left.lstrip("-").isdigit() and right.lstrip("-").isdigit():
        a, b = int(left), int(right)
        return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[numbers[operator]]
    return None
