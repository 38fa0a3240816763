"""The expansion of a shell word: quotes, variables with their defaults, arrays, arithmetic; what cannot be known becomes a hole."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from schedmate.services.code_analyzer.resolve.shell_syntax import closing, closing_quote
from schedmate.services.code_analyzer.resolve.values import HOLE, Place

WORD_MAX: Final = 65_536
_SPLIT: Final = "\x02"  # a break between words that came out of an expansion
_EXPRESSION: Final = re.compile(r"(?P<flags>[#!]?)(?P<name>[A-Za-z_]\w*|[@*#?$!0-9-]|\d+)(?P<index>\[[^\]]*\])?(?P<rest>.*)", re.DOTALL)  # fmt: skip


@dataclass(slots=True)
class Variable:
    """A shell variable: a text, or the elements of an array; None is what only running could tell."""

    value: str | list[str] | dict[str, str] | None
    place: Place | None = None
    exported: bool = False


@dataclass(slots=True)
class Expansion:
    """A word's texts and the place of the variable that it rests on most directly."""

    texts: list[str]
    place: Place | None = None


@dataclass(slots=True)
class Words:
    """Expands words over variables; `run` answers a command substitution (None where only running could)."""

    variables: dict[str, Variable]
    run: Callable[[str], str | None]
    positional: list[str] = field(default_factory=list)
    name: str = ""
    _place: Place | None = None
    _depth: int = 0

    def expand(self, raw: str) -> Expansion:
        """Return the word's texts: none, one, or several where an unquoted variable or an array holds several."""
        self._place = None
        out = self._expand(raw, quoted=False)
        texts = [part.replace("\x03", "") for part in out.split(_SPLIT)]
        kept = [text for text, marked in zip(texts, out.split(_SPLIT), strict=True) if text or "\x03" in marked]
        return Expansion(kept, self._place)

    def text(self, raw: str) -> str:
        """Return the word as one text, as on the right of an assignment."""
        self._place = None
        return self._expand(raw, quoted=False).replace("\x03", "").replace(_SPLIT, " ")

    @property
    def place(self) -> Place | None:
        """The place of the last variable that the last expansion used."""
        return self._place

    def _expand(self, raw: str, *, quoted: bool) -> str:
        out: list[str] = []
        at, size = 0, len(raw)
        self._depth += 1
        if self._depth > 20 or size > WORD_MAX:  # noqa: PLR2004 - nothing that was written by hand is deeper
            self._depth -= 1
            return HOLE
        while at < size:
            character = raw[at]
            if character == "\\":
                out.append(_escaped(raw[at + 1 : at + 2], quoted=quoted))
                at += 2
            elif character == "'" and not quoted:
                end = closing_quote(raw, at)
                out.append("\x03" + raw[at + 1 : end])
                at = end + 1
            elif character == '"' and not quoted:
                end = closing_quote(raw, at)
                out.append("\x03" + self._expand(raw[at + 1 : end], quoted=True))
                at = end + 1
            elif character == "`":
                end = closing_quote(raw, at)
                out.append(self._split(self._substitute(raw[at + 1 : end]), quoted=quoted))
                at = end + 1
            elif character == "$":
                text, at = self._dollar(raw, at, quoted=quoted)
                out.append(text)
            elif character == "~" and at == 0 and not quoted:
                out.append("~")
                at += 1
            else:
                out.append(character)
                at += 1
        self._depth -= 1
        return "".join(out)[:WORD_MAX]

    def _dollar(self, raw: str, at: int, *, quoted: bool) -> tuple[str, int]:
        if raw.startswith("$((", at):
            end = closing(raw, at + 1)
            inner = raw[at + 3 : end - 1]
            return self._arithmetic(inner), end + 1
        if raw.startswith("$(", at):
            end = closing(raw, at + 1)
            return self._split(self._substitute(raw[at + 2 : end]), quoted=quoted), end + 1
        if raw.startswith("${", at):
            end = closing(raw, at + 1)
            return self._braces(raw[at + 2 : end], quoted=quoted), end + 1
        if raw.startswith("$'", at) and not quoted:
            end = closing_quote(raw, at + 1)
            return "\x03" + raw[at + 2 : end], end + 1
        found = re.match(r"[A-Za-z_]\w*|[@*#?$!0-9-]", raw[at + 1 : at + 200])
        if found is None:
            return "$", at + 1
        return self._braces(found[0], quoted=quoted), at + 1 + len(found[0])

    def _substitute(self, script: str) -> str:
        answer = self.run(script)
        return HOLE if answer is None else answer.rstrip("\n")

    def _split(self, text: str, *, quoted: bool) -> str:
        return text if quoted else re.sub(r"[ \t\n]+", _SPLIT, text)

    def _joined(self, values: list[str], *, quoted: bool, star: bool) -> str:
        if quoted:
            return " ".join(values) if star else _SPLIT.join("\x03" + v for v in values)
        return _SPLIT.join(self._split(v, quoted=False) for v in values)

    def _braces(self, expression: str, *, quoted: bool) -> str:
        found = _EXPRESSION.fullmatch(expression)
        if found is None:
            return HOLE
        name, index, rest = found["name"], found["index"], found["rest"]
        if name in ("@", "*") or (index or "")[1:-1] in ("@", "*"):
            values = self._values(name)
            if values is None:
                return HOLE
            if found["flags"] == "#":
                return str(len(values))
            star = name == "*" or (index or "") == "[*]"
            return self._joined(_sliced(values, rest, first=1 if name in ("@", "*") else 0), quoted=quoted, star=star)
        value = self._value(name, index)
        if found["flags"] == "!":
            inner = self.variables.get(value) if isinstance(value, str) else None
            value = inner.value if inner is not None and isinstance(inner.value, str) else None
        if found["flags"] == "#":
            return str(len(value)) if value is not None and HOLE not in value else HOLE
        return self._split(self._operated(value, rest, name), quoted=quoted)

    def _values(self, name: str) -> list[str] | None:
        if name in ("@", "*"):
            return list(self.positional)
        variable = self.variables.get(name)
        if variable is None:
            return []
        if variable.place is not None:
            self._place = variable.place
        if isinstance(variable.value, list):
            return variable.value
        if isinstance(variable.value, dict):
            return list(variable.value.values())
        return None if variable.value is None else [variable.value]

    def _value(self, name: str, index: str | None) -> str | None:
        """Return a variable's text, None when it is not set, a hole when it cannot be known."""
        special = self._special(name)
        if special is not None or name[0].isdigit():
            return special
        variable = self.variables.get(name)
        if variable is None:
            return None
        self._place = variable.place or self._place
        if variable.value is None:
            return HOLE
        if isinstance(variable.value, dict):
            return variable.value.get(self.text_of(index[1:-1]), HOLE) if index else HOLE
        if isinstance(variable.value, list):
            at = self.number(index[1:-1]) if index else 0
            inside = at is not None and -len(variable.value) <= at < len(variable.value)
            return variable.value[at] if inside and at is not None else HOLE
        return variable.value

    def text_of(self, raw: str) -> str:
        """Return a word's text inside another expansion, keeping the place."""
        return self._expand(raw, quoted=True).replace("\x03", "").replace(_SPLIT, " ")

    def _special(self, name: str) -> str | None:
        if name == "#":
            return str(len(self.positional))
        if name == "0":
            return self.name or None
        if name.isdigit():
            at = int(name) - 1
            return self.positional[at] if at < len(self.positional) else None
        return HOLE if name in ("$", "!", "-") else "0" if name == "?" else None

    def _operated(self, value: str | None, rest: str, name: str) -> str:
        if not rest:
            return HOLE if value is None and name not in self.variables and not name.isdigit() else value or ""
        test = re.match(r"(:?)([-=+?])(.*)", rest, re.DOTALL)
        if test is not None:
            return self._default(value, test, name)
        if value is None or HOLE in value:
            return value or ""
        return _edited(value, rest, self.text_of)

    def _default(self, value: str | None, test: re.Match[str], name: str) -> str:
        missing = value is None or (test[1] == ":" and value == "")
        if test[2] == "+":
            return "" if missing else self.text_of(test[3])
        if not missing:
            return value or ""
        if test[2] == "?":
            return HOLE
        given = self.text_of(test[3].strip("\"'") if len(test[3]) > 1 and test[3][0] in "\"'" else test[3])
        if test[2] == "=" and name.isidentifier():
            self.variables[name] = Variable(given, self._place)
        return given

    def _arithmetic(self, raw: str) -> str:
        number = self.number(raw)
        return HOLE if number is None else str(number)

    def number(self, raw: str) -> int | None:
        """Return the value of an arithmetic expression, None where it cannot be known."""
        text = self.text_of(raw) if "$" in raw or "`" in raw else raw

        def named(match: re.Match[str]) -> str:
            return self._value(match[0], None) or HOLE

        for _ in range(3):
            text = re.sub(r"(?<![\w.\x01])[A-Za-z_]\w*(?:\[\w+\])?", named, text)
        if HOLE in text:
            return None
        return calculated(text)


_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[int, int], bool]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
ARITHMETIC_MAX: Final = 500
NUMBER_MAX: Final = 10**18


def calculated(text: str) -> int | None:
    """Return the value of an arithmetic expression of numbers, None when it is none."""
    if len(text) > ARITHMETIC_MAX:
        return None
    choice = re.fullmatch(r"(.+?)\?(.+):(.+)", text.strip(), re.DOTALL)
    if choice is not None:
        condition = calculated(choice[1])
        return None if condition is None else calculated(choice[2] if condition else choice[3])
    try:
        body = ast.parse(text.strip().replace("&&", " and ").replace("||", " or ").replace("**", "^"), mode="eval").body
        value = _calculate(body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None
    return value if value is not None and abs(value) <= NUMBER_MAX else None


def _calculate(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        inner = _calculate(node.operand)
        return None if inner is None else -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        left, right = _calculate(node.left), _calculate(node.right)
        operation = _OPERATIONS.get(type(node.op))
        return None if left is None or right is None or operation is None else operation(left, right)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _calculate(node.left), _calculate(node.comparators[0])
        comparison = _COMPARISONS.get(type(node.ops[0]))
        return None if left is None or right is None or comparison is None else int(comparison(left, right))
    return None


def _escaped(character: str, *, quoted: bool) -> str:
    if character == "\n":
        return ""
    return "\\" + character if quoted and character not in '"\\$`' else "\x03" + character


def _sliced(values: list[str], rest: str, *, first: int) -> list[str]:
    found = re.fullmatch(r":\s*(-?\d+)(?::\s*(\d+))?", rest)
    if found is None:
        return values
    start = max(0, int(found[1]) - first)
    return values[start : start + int(found[2])] if found[2] else values[start:]


def _edited(value: str, rest: str, expand: Callable[[str], str]) -> str:
    """Return a value after `%`, `#`, `/`, `:offset`, `^` or `,`."""
    if rest[0] in "%#":
        pattern = expand(rest.lstrip(rest[0]))
        return _stripped(value, pattern, end=rest[0] == "%", longest=rest[:2] in ("%%", "##"))
    if rest[0] == "/":
        old, _, new = rest.lstrip("/").partition("/")
        return value.replace(expand(old), expand(new), -1 if rest.startswith("//") else 1)
    if rest[0] in "^,":
        upper = rest[0] == "^"
        whole = value.upper() if upper else value.lower()
        return whole if rest[:2] in ("^^", ",,") else whole[:1] + value[1:]
    found = re.fullmatch(r":\s*(-?\d+)(?::\s*(-?\d+))?", rest)
    if found is None:
        return HOLE
    start = int(found[1])
    tail = value[start:]
    return tail if found[2] is None else tail[: int(found[2])]


def _stripped(value: str, pattern: str, *, end: bool, longest: bool) -> str:
    cuts = range(len(value) + 1)
    order = cuts if longest else reversed(cuts)
    for cut in order:
        piece = value[cut:] if end else value[: len(value) - cut]
        if piece and fnmatchcase(piece, pattern):
            return value[:cut] if end else value[len(value) - cut :]
    return value
