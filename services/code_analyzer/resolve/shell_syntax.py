"""From a shell script's text to its commands: words, lists, `if`, `for`, `case`, functions, here-documents. Bash as scripts use it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

TOKENS_MAX: Final = 60_000
DEPTH_MAX: Final = 60
OPERATORS: Final = ("&&", "||", ";;", "|&", "&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", ">|", "(", ")", ";", "&", "|", "<", ">")  # fmt: skip
_HERE_DOCUMENTS: Final = ("<<", "<<-")
REDIRECTS: Final = frozenset({"&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", ">|", "<", ">"})
_NAME: Final = re.compile(r"[A-Za-z_]\w*$")
ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?=)")
_ENDS: Final = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "}", ")", ";;"})


class ShellSyntaxError(Exception):
    """The text is no script that could be read; what came before is kept by the caller."""


@dataclass(slots=True)
class Word:
    """A word as it is written, quotes and all; or an operator."""

    raw: str
    line: int
    operator: bool = False
    body: str | None = None
    """The text of a here-document, on its operator."""
    quoted: bool = False


@dataclass(slots=True)
class Redirect:
    """`>file`, `<<EOF`."""

    operator: str
    target: Word
    body: str | None = None
    quoted: bool = False


@dataclass(slots=True)
class Simple:
    """Assignments, words and redirections."""

    line: int
    assignments: list[Word] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    negated: bool = False


@dataclass(slots=True)
class Chain:
    """Commands joined by `|`, `&&` or `||`; `joins[n]` stands before command n + 1."""

    commands: list[Node]
    joins: list[str]


@dataclass(slots=True)
class If:
    """Branches of conditions and bodies; the last condition may be None, which is `else`."""

    branches: list[tuple[list[Node] | None, list[Node]]]


@dataclass(slots=True)
class For:
    """`for`; or `while` and `until`, whose words are None: `until` has `name` so, and `test` is what is asked before each turn."""

    name: str
    words: list[Word] | None
    body: list[Node]
    line: int
    test: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Case:
    """`case`."""

    word: Word
    branches: list[tuple[list[Word], list[Node]]]


@dataclass(slots=True)
class Define:
    """A function."""

    name: str
    body: list[Node]


@dataclass(slots=True)
class Group:
    """`{ … }` or `( … )`."""

    body: list[Node]


Node = Simple | Chain | If | For | Case | Define | Group


def lex(text: str) -> list[Word]:
    r"""Return words and operators; a newline is the operator `\\n`."""
    return _Lexer(text.replace("\r\n", "\n")).run()


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._out: list[Word] = []
        self._documents: list[tuple[Word, str]] = []

    def run(self) -> list[Word]:
        text, size = self._text, len(self._text)
        while self._at < size:
            if len(self._out) > TOKENS_MAX:
                raise ShellSyntaxError("the script has too many words")
            character = text[self._at]
            if character == "\n":
                self._newline()
            elif character in " \t\r":
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._at += 2
                self._line += 1
            elif character == "#":
                end = text.find("\n", self._at)
                self._at = size if end < 0 else end
            else:
                self._operator_or_word()
        return self._out

    def _operator_or_word(self) -> None:
        text = self._text
        if text.startswith(("((", "<(", ">("), self._at):
            self._word()
            return
        if text[self._at] in "{}" and text[self._at + 1 : self._at + 2] in ("", " ", "\t", "\n", ";"):
            self._out.append(Word(text[self._at], self._line))
            self._at += 1
            return
        for operator in OPERATORS:
            if text.startswith(operator, self._at):
                self._at += len(operator)
                word = Word(operator, self._line, operator=True)
                self._out.append(word)
                if operator in _HERE_DOCUMENTS:
                    self._delimiter(word)
                return
        self._word()

    def _delimiter(self, word: Word) -> None:
        while self._at < len(self._text) and self._text[self._at] in " \t":
            self._at += 1
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in " \t\n;&|>)":
            self._at += 1
        raw = self._text[start : self._at]
        name = raw.replace("'", "").replace('"', "").replace("\\", "")
        word.quoted = raw != name
        self._documents.append((word, name))
        self._out.append(Word(name, self._line))

    def _newline(self) -> None:
        self._out.append(Word("\n", self._line, operator=True))
        self._at += 1
        self._line += 1
        documents, self._documents = self._documents, []
        for word, name in documents:
            lines = []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end]
                self._at = end + 1
                self._line += 1
                stripped = line.lstrip("\t") if word.raw == "<<-" else line
                if stripped == name:
                    break
                lines.append(stripped)
            word.body = "\n".join(lines) + "\n"

    def _word(self) -> None:
        start, line = self._at, self._line
        text, size = self._text, len(self._text)
        array = False
        while self._at < size:
            character = text[self._at]
            if character in " \t\n\r;&|<>)" and not (character in "<>" and text.startswith("(", self._at + 1)):
                break
            if character == "(" and self._at > start:
                array = text[self._at - 1] == "=" and ASSIGNMENT.match(text, start) is not None
                if not array and not text.startswith(("$", "?", "*", "+", "@", "!", "<", ">", "("), self._at - 1):
                    break
            self._step(character)
        if self._at == start:
            self._at += 1  # a character that begins nothing we know
            return
        raw = text[start : self._at]
        self._line = line + raw.count("\n")
        self._out.append(Word(raw, line))

    def _step(self, character: str) -> None:
        """Go over one character, or over what it opens."""
        if character == "\\":
            self._at += 2
        elif character in "'\"`":
            self._at = closing_quote(self._text, self._at) + 1
        elif character in "({":
            self._at = closing(self._text, self._at) + 1
        else:
            self._at += 1


def closing_quote(text: str, at: int) -> int:
    """Return where the quote that opens at `at` ends."""
    quote = text[at]
    at += 1
    while at < len(text):
        character = text[at]
        if character == quote:
            return at
        if character == "\\" and quote != "'":
            at += 1
        elif quote == '"' and character == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at = closing(text, at + 1)
        at += 1
    return len(text)


def closing(text: str, at: int, depth: int = 0) -> int:
    """Return where the parenthesis or brace that opens at `at` ends, quotes inside respected."""
    opening, end = text[at], ")" if text[at] == "(" else "}"
    if depth > DEPTH_MAX:
        raise ShellSyntaxError("the script is nested too deeply")
    at += 1
    while at < len(text):
        character = text[at]
        if character == end:
            return at
        if character == "\\":
            at += 1
        elif character in "'\"`":
            at = closing_quote(text, at)
        elif character == "#" and opening == "(" and text[at - 1] in " \t\n":
            newline = text.find("\n", at)
            at = len(text) if newline < 0 else newline
        elif character == opening:
            at = closing(text, at, depth + 1)
        at += 1
    return len(text)


def parse(text: str) -> tuple[list[Node], str | None]:
    """Return a script's commands, and why not all of it could be read."""
    parser = _Parser()
    try:
        parser.words = lex(text)
        return parser.block(frozenset(), parser.out), None
    except (ShellSyntaxError, RecursionError) as error:
        return parser.out, str(error) or "the script is nested too deeply"


class _Parser:
    def __init__(self) -> None:
        self.words: list[Word] = []
        self.out: list[Node] = []
        self._at = 0
        self._depth = 0

    def block(self, ends: frozenset[str], out: list[Node] | None = None) -> list[Node]:
        nodes = [] if out is None else out
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ShellSyntaxError("the script is nested too deeply")
        while (word := self._peek()) is not None:
            if word.operator and word.raw in ("\n", ";", "&"):
                self._at += 1
            elif word.raw in ends:
                break
            elif word.raw in _ENDS:
                self._at += 1  # it ends nothing that is open: go on after it
            else:
                nodes.append(self._chain())
        self._depth -= 1
        return nodes

    def _peek(self) -> Word | None:
        return self.words[self._at] if self._at < len(self.words) else None

    def _take(self, *raws: str) -> bool:
        word = self._peek()
        if word is not None and word.raw in raws:
            self._at += 1
            return True
        return False

    def _skip_newlines(self) -> None:
        while self._take("\n", ";"):
            pass

    def _chain(self) -> Node:
        commands, joins = [self._command()], []
        while (word := self._peek()) is not None and word.operator and word.raw in ("|", "|&", "&&", "||"):
            self._at += 1
            while self._take("\n"):
                pass
            joins.append(word.raw)
            commands.append(self._command())
        return commands[0] if not joins else Chain(commands, joins)

    def _command(self) -> Node:
        word = self._peek()
        if word is None:
            return Simple(0)
        makers = {"if": self._if, "for": self._for, "while": self._while, "until": self._while, "case": self._case,
                  "{": self._braces, "(": self._parentheses, "function": self._function}  # fmt: skip
        maker = makers.get(word.raw)
        if maker is not None:
            self._at += 1
            node = maker()
            self._redirects(Simple(word.line))
            return node
        if word.raw == "[[":
            return self._double_test(word)
        after = self.words[self._at + 1 : self._at + 3]
        if [w.raw for w in after] == ["(", ")"] and re.fullmatch(r"[\w:.-]+", word.raw):
            self._at += 3
            return self._body_of(word.raw)
        return self._simple()

    def _double_test(self, first: Word) -> Node:
        """Read `[[ … ]]`, inside which `&&`, `||`, `<` and parentheses are words."""
        command = Simple(first.line)
        while (word := self._peek()) is not None and word.raw != "\n":
            self._at += 1
            command.words.append(word)
            if word.raw == "]]":
                break
        return command

    def _function(self) -> Node:
        name = self.words[self._at].raw if self._peek() is not None else ""
        self._at += 1
        if self._take("("):
            self._take(")")
        return self._body_of(name)

    def _body_of(self, name: str) -> Node:
        self._skip_newlines()
        body = self._command()
        return Define(name, body.body if isinstance(body, Group) else [body])

    def _braces(self) -> Node:
        body = self.block(frozenset({"}"}))
        self._take("}")
        return Group(body)

    def _parentheses(self) -> Node:
        body = self.block(frozenset({")"}))
        self._take(")")
        return Group(body)

    def _if(self) -> Node:
        branches: list[tuple[list[Node] | None, list[Node]]] = []
        while True:
            condition = self.block(frozenset({"then", "fi"}))
            self._take("then")
            branches.append((condition, self.block(frozenset({"else", "elif", "fi"}))))
            if not self._take("elif"):
                break
        if self._take("else"):
            branches.append((None, self.block(frozenset({"fi"}))))
        self._take("fi")
        return If(branches)

    def _for(self) -> Node:
        head = self._peek()
        name = head.raw if head is not None else ""
        line = head.line if head is not None else 0
        self._at += 1
        words: list[Word] | None = None
        self._skip_newlines()
        if self._take("in"):
            words = []
            while (word := self._peek()) is not None and not word.operator:
                words.append(word)
                self._at += 1
        self._skip_newlines()
        return For(name if _NAME.match(name) else "", words, self._loop_body(), line)

    def _while(self) -> Node:
        word = self.words[self._at - 1]
        test = self.block(frozenset({"do"}))
        return For(word.raw, None, self._loop_body(), word.line, test)

    def _loop_body(self) -> list[Node]:
        self._take("do")
        body = self.block(frozenset({"done"}))
        self._take("done")
        return body

    def _case(self) -> Node:
        word = self._peek() or Word("", 0)
        self._at += 1
        self._skip_newlines()
        self._take("in")
        branches: list[tuple[list[Word], list[Node]]] = []
        while self._peek() is not None and not self._take("esac"):
            if self._take("\n", ";", ";;", "("):
                continue
            patterns: list[Word] = []
            while (pattern := self._peek()) is not None and pattern.raw != ")":
                if not pattern.operator:
                    patterns.append(pattern)
                self._at += 1
            self._take(")")
            branches.append((patterns, self.block(frozenset({";;", "esac"}))))
        return Case(word, branches)

    def _simple(self) -> Node:
        first = self._peek()
        command = Simple(first.line if first is not None else 0)
        while (word := self._peek()) is not None:
            if word.operator:
                if not self._redirect(command):
                    break
                continue
            self._at += 1
            if word.raw == "!" and not command.words:
                command.negated = True
            elif not command.words and ASSIGNMENT.match(word.raw):
                command.assignments.append(word)
            else:
                following = self._peek()
                if word.raw.isdigit() and following is not None and following.raw in REDIRECTS and following.operator:
                    continue
                command.words.append(word)
        if not command.words and not command.assignments and not command.redirects:
            self._at += 1
        return command

    def _redirects(self, command: Simple) -> None:
        while (word := self._peek()) is not None and word.operator and self._redirect(command):
            pass

    def _redirect(self, command: Simple) -> bool:
        word = self.words[self._at]
        if word.raw not in REDIRECTS:
            return False
        self._at += 1
        target = self._peek()
        if target is not None and (not target.operator):
            self._at += 1
            command.redirects.append(Redirect(word.raw, target, word.body, word.quoted))
        return True
