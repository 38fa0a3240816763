"""Reads a shell script's lines as far as a launch command needs it: continuations, quotes, variables. Nothing is run.

What only running could tell (a command substitution, a loop) is left open and said.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LINES_MAX: Final = 5000
WORD_MAX: Final = 8192
NESTING_MAX: Final = 5
UNKNOWN: Final = "\x01"  # stands for what only running could tell; no argument can hold it
ARRAYS_EXPANSION: Final = re.compile(r"\$\{(?P<name>[A-Za-z_]\w{0,100})\[[@*]\]\}")

_ASSIGNMENT: Final = re.compile(
    r"^(?:export\s+|local\s+|declare\s+(?:-\w+\s+)?)?(?P<name>[A-Za-z_]\w{0,100})=(?P<value>.*)$", re.DOTALL
)
_VARIABLE: Final = re.compile(
    r"\$\{(?P<braced>[A-Za-z_]\w{0,100})(?::?[-=](?P<default>[^{}]{0,2000}))?\}|\$(?P<plain>[A-Za-z_]\w{0,100})|\$\((?P<command>[^()]{0,2000})\)|`(?P<ticks>[^`]{0,2000})`|\$(?P<other>[@*#?0-9!$-])"
)
_SUBSTITUTION: Final = re.compile(r"\$\([^()]{0,2000}\)|`[^`]{0,2000}`")
_KEYWORDS: Final = frozenset({"if", "then", "else", "elif", "fi", "for", "while", "do", "done", "case", "esac", "set", "cd", "echo", "module", "source", ".", "conda", "mkdir", "function", "return", "exit", "trap", "wait", "sleep", "pip", "export", "unset", "ulimit", "[", "[["})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One simple command: its words and the line it begins on."""

    words: tuple[str, ...]
    line: int
    open: bool


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of a script: its commands, its variables at the end, and the `#SBATCH` options."""

    commands: tuple[ShellCommand, ...]
    variables: Mapping[str, str]
    directives: Mapping[str, tuple[str, int]]
    cut: bool


def read_script(text: str, environment: Mapping[str, str]) -> Read:
    """Return the simple commands of a script, with variables replaced as far as they are known."""
    variables = dict(environment)
    directives: dict[str, tuple[str, int]] = {}
    commands: list[ShellCommand] = []
    lines = text.splitlines()
    for number, logical in _logical_lines(lines[:LINES_MAX]):
        stripped = logical.strip()
        if stripped.startswith("#"):
            _directive(stripped, number, directives)
            continue
        for part in _simple_commands(stripped):
            _take(part, number, variables, commands)
    return Read(tuple(commands), variables, directives, len(lines) > LINES_MAX)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return the text with variables replaced; what cannot be known becomes UNKNOWN."""

    def replace(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        if name is None:
            return UNKNOWN
        if variables.get(name):
            return variables[name]
        if match["default"] is not None:
            return expand(match["default"], variables) if "$" in match["default"] else match["default"]
        return variables.get(name, UNKNOWN)

    return _VARIABLE.sub(replace, ARRAYS_EXPANSION.sub(lambda m: variables.get(m["name"], UNKNOWN), text))[:WORD_MAX]


def _logical_lines(lines: list[str]) -> list[tuple[int, str]]:
    """Join lines that go on: by a backslash, or inside quotes."""
    logical: list[tuple[int, str]] = []
    pending, start = "", 0
    for number, line in enumerate(lines, start=1):
        if not pending:
            start = number
        joined = pending + line
        if joined.endswith("\\") and not joined.lstrip().startswith("#"):
            pending = joined[:-1] + " "
        elif _quotes_open(joined) and len(joined) < WORD_MAX:
            pending = joined + "\n"
        else:
            logical.append((start, joined))
            pending = ""
    if pending:
        logical.append((start, pending))
    return logical


def _quotes_open(text: str) -> bool:
    if text.lstrip().startswith("#"):
        return False
    quote = ""
    skip = False
    for character in text:
        if skip:
            skip = False
        elif character == "\\" and quote != "'":
            skip = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#":
            return False
    return bool(quote)


def _simple_commands(line: str) -> list[str]:
    """Split at `;`, `&&`, `||`, `|` and `&` outside of quotes and parentheses."""
    parts: list[str] = []
    current: list[str] = []
    quote, depth, skip = "", 0, False
    for position, character in enumerate(line):
        if skip:
            skip = False
        elif character == "\\" and quote != "'":
            skip = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "(":
            depth += 1
        elif character == ")":
            depth = max(0, depth - 1)
        elif depth == 0 and (character in ";|\n" or (character == "&" and line[position - 1 : position] != ">")):
            parts.append("".join(current))
            current = []
            continue
        current.append(character)
    parts.append("".join(current))
    return [part.strip() for part in parts if part.strip()]


def _without_substitutions(text: str) -> str:
    """Put UNKNOWN in for `$(…)` and backticks, the inner ones first."""
    for _ in range(NESTING_MAX):
        text, count = _SUBSTITUTION.subn(UNKNOWN, text)
        if not count:
            break
    return text


def _take(part: str, number: int, variables: dict[str, str], commands: list[ShellCommand]) -> None:
    part = _without_substitutions(part)
    assignment = _ASSIGNMENT.match(part)
    if assignment is not None:
        value = assignment["value"]
        if value.startswith("("):
            variables[assignment["name"]] = expand(value.strip("()\n "), variables)
            return
        words = _words(value)
        if len(words) <= 1:
            variables[assignment["name"]] = "" if not words else _expanded(value, variables)
            return
    words = _words(part)
    if not words or words[0] in _KEYWORDS:
        return
    expanded: list[str] = []
    for word in words:
        value = _expanded(word, variables)
        if (word.startswith("$") or ARRAYS_EXPANSION.search(word)) and " " in value:
            expanded += _words(value)  # an unquoted variable that holds several arguments
        else:
            expanded.append(_unquote(value))
    commands.append(ShellCommand(tuple(expanded), number, any(UNKNOWN in w for w in expanded)))


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    if word.startswith("'") and word.endswith("'"):
        return word[1:-1]
    return _unquote(expand(word, variables))


def _unquote(word: str) -> str:
    if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1]
    return word.replace('"', "").replace("'", "") if ("'" in word or '"' in word) and " " not in word else word


def _words(text: str) -> list[str]:
    """Split into words, quotes kept; text that no shell would take gives what could be read of it."""
    lexer = shlex.shlex(text, posix=False, punctuation_chars="")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        for word in lexer:
            if word.startswith("#"):
                break
            words.append(word)
    except ValueError:
        return words
    return words


def _directive(line: str, number: int, directives: dict[str, tuple[str, int]]) -> None:
    found = re.match(
        r"#SBATCH\s+(?:--(?P<long>[\w-]{1,60})(?:[=\s]+(?P<value>\S{1,200}))?|-(?P<short>\w)\s*(?P<short_value>\S{1,200}))",
        line,
    )
    if found is not None:
        directives[found["long"] or found["short"]] = (found["value"] or found["short_value"] or "", number)
