"""Follows a shell script to the commands that it would run, with what their words and variables would hold. Nothing is run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from posixpath import dirname, join, normpath
from typing import Final

from schedmate.services.code_analyzer.resolve import shell_syntax as syntax
from schedmate.services.code_analyzer.resolve.files import Files, Written
from schedmate.services.code_analyzer.resolve.ran import DEPTH_MAX, Arg, Ran
from schedmate.services.code_analyzer.resolve.shell_substitution import Substitution
from schedmate.services.code_analyzer.resolve.shell_tests import TESTS, Test
from schedmate.services.code_analyzer.resolve.shell_words import Variable, Words
from schedmate.services.code_analyzer.resolve.values import HOLE, Place

SELF_MAX: Final = 2
"""A script may start itself (with other arguments, on other nodes), within reason."""
COMMANDS_MAX: Final = 2000
STEPS_MAX: Final = 20_000


class _LeaveScriptError(Exception):
    """`exit` was reached."""


class _ReturnError(Exception):
    """`return` was reached."""


@dataclass(slots=True)
class Shell:
    """One shell: its variables, its functions and the commands it has come to."""

    files: Files
    variables: dict[str, Variable] = field(default_factory=dict)
    ran: list[Ran] = field(default_factory=list)
    functions: dict[str, list[syntax.Node]] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    file: str = "script"
    folder: str = ""
    export_all: bool = False
    certain: bool = True
    depth: int = 0
    captured: list[str] | None = None
    line_offset: int = 0

    def run_text(self, text: str, file: str) -> None:
        """Follow a script's text to its end."""
        if self.files.following.count(file) > SELF_MAX:
            self.files.missing(f"{file} starts itself again and again")
            return
        nodes, why = self.files.unit("shell", file, text, syntax.parse)
        if why is not None:
            self.files.missing(f"{file}: {why}")
        outer, self.file = self.file, file
        self.files.following.append(file)
        try:
            self._block(nodes)
        except (_LeaveScriptError, _ReturnError):
            pass
        except RecursionError:
            self.files.missing(f"{file}: the script is nested too deeply")
        finally:
            self.files.following.pop()
        self.file = outer

    # --- commands ----------------------------------------------------------------------------------------------------

    def _block(self, nodes: list[syntax.Node]) -> bool | None:
        status: bool | None = True
        for node in nodes:
            status = self._node(node)
        return status

    def _node(self, node: syntax.Node) -> bool | None:
        """Follow one command; tell whether it succeeds, None where only running could tell."""
        self.files.steps += 1
        if self.files.steps > STEPS_MAX or len(self.ran) > COMMANDS_MAX:
            self.files.missing(f"{self.file}: the script takes too many steps")
            raise _LeaveScriptError
        if isinstance(node, syntax.Simple):
            return self._simple(node)
        if isinstance(node, syntax.Chain):
            return self._chain(node)
        if isinstance(node, syntax.If):
            return self._if(node)
        if isinstance(node, syntax.Define):
            self.functions[node.name] = node.body
            return True
        return self._compound(node)

    def _compound(self, node: syntax.For | syntax.Case | syntax.Group | syntax.Define) -> bool | None:
        if isinstance(node, syntax.For):
            self._for(node)
        elif isinstance(node, syntax.Case):
            self._case(node)
        elif isinstance(node, syntax.Group):
            return self._block(node.body)
        return None

    def _chain(self, node: syntax.Chain) -> bool | None:
        status = self._node(node.commands[0])
        for join_, command in zip(node.joins, node.commands[1:], strict=True):
            if join_ == "&&" and status is False:
                continue
            if join_ == "&&" and status is None and _is_test(node.commands[0]):
                self._perhaps(command)
                continue
            if join_ == "||" and status is not False:
                if status is None:
                    self._perhaps(command)
                continue
            status = self._node(command)
        return status

    def _perhaps(self, node: syntax.Node) -> None:
        """Follow a command that may not run: what it sets is not taken, and it does not end the script."""
        if isinstance(node, syntax.Simple) and node.words and node.words[0].raw in ("exit", "return", "echo"):
            return
        before, certain = self._copy(), self.certain
        self.certain = False
        with contextlib.suppress(_LeaveScriptError, _ReturnError):
            self._node(node)
        self.certain = certain
        self._merge(before)

    def _copy(self) -> dict[str, Variable]:
        return {name: Variable(v.value, v.place, v.exported) for name, v in self.variables.items()}

    def _merge(self, other: Mapping[str, Variable]) -> None:
        """Keep of the variables what holds in both states."""
        for name, variable in list(self.variables.items()):
            known = other.get(name)
            if known is None or known.value != variable.value:
                self.variables[name] = Variable(None, variable.place, variable.exported)

    def _if(self, node: syntax.If) -> bool | None:
        before: list[dict[str, Variable]] = []
        for condition, body in node.branches:
            holds = True if condition is None else self._block(condition)
            if holds is False:
                continue
            if holds:
                self._branch(body, sure=not before)
                for state in before:
                    self._merge(state)
                return None
            kept = self._copy()
            self._branch(body, sure=False)
            before.append(self._copy())
            self.variables = kept
        for state in before:
            self._merge(state)
        return None

    def _branch(self, body: list[syntax.Node], *, sure: bool) -> None:
        certain = self.certain
        self.certain = certain and sure
        try:
            self._block(body)
        except (_LeaveScriptError, _ReturnError):
            if sure:
                raise
        finally:
            self.certain = certain

    def _for(self, node: syntax.For) -> None:
        if node.words is not None and node.name:
            texts = [t for word in node.words for t in self._words().expand(word.raw).texts]
            same = len(texts) == 1 and HOLE not in texts[0]
            self.variables[node.name] = Variable(texts[0] if same else None, self._place(node.line))
            if not texts:
                return
        elif self._never_turns(node):
            return
        self._branch(node.body, sure=True)

    def _never_turns(self, node: syntax.For) -> bool:
        """Tell whether the condition of `while` or `until` ends the loop before its first turn."""
        asked = all(isinstance(n, syntax.Simple) and n.words and n.words[0].raw in TESTS for n in node.test)
        return asked and self._block(node.test) is (node.name == "until")

    def _case(self, node: syntax.Case) -> None:
        value = self._words().text(node.word.raw)
        if HOLE in value:
            for _, body in node.branches:
                self._perhaps(syntax.Group(body))
            return
        for patterns, body in node.branches:
            if any(fnmatchcase(value, self._words().text(p.raw)) for p in patterns):
                self._branch(body, sure=True)
                return

    # --- simple commands ---------------------------------------------------------------------------------------------

    def _place(self, line: int) -> Place:
        return Place(self.file, max(1, line + self.line_offset))

    def _words(self) -> Words:
        return Words(self.variables, self._substituted, self.positional, self.file)

    def _substituted(self, script: str) -> str | None:
        if self.depth > DEPTH_MAX:
            return None
        return Substitution(self).answer(script)

    def _simple(self, node: syntax.Simple) -> bool | None:
        if node.words and node.words[0].raw in ("[[", "[", "test"):
            return self._tested(node)
        if node.words and node.words[0].raw.startswith("(("):
            return self._arithmetic(node.words[0].raw)
        args: list[Arg] = []
        for word in node.words:
            expansion = self._words().expand(word.raw)
            place = expansion.place if expansion.place is not None and expansion.place.file else self._place(word.line)
            args += [Arg(text, place) for text in expansion.texts]
        declares = bool(args) and args[0].text in ("export", "declare", "local", "readonly", "typeset")
        if not args or declares:
            own = node.assignments + (node.words[1:] if declares else [])
            for word in own:
                self._assign(word, exported=declares and args[0].text == "export")
            self._redirect(node, args)
            return True
        own_environment: dict[str, Arg] = {}
        for word in node.assignments:
            found = syntax.ASSIGNMENT.match(word.raw)
            if found is not None:
                text = self._words().text(word.raw[found.end() :])
                own_environment[found[1]] = Arg(text, self._place(word.line))
        if self._redirect(node, args):
            return True
        status = self._command(args, own_environment, self._place(node.line))
        return (not status) if node.negated and status is not None else status

    def _assign(self, word: syntax.Word, *, exported: bool) -> None:
        found = syntax.ASSIGNMENT.match(word.raw)
        if found is None:
            known = self.variables.get(word.raw)
            if known is not None and exported:
                known.exported = True
            return
        name, index, operator = found[1], found[2], found[3]
        raw, place = word.raw[found.end() :], self._place(word.line)
        known = self.variables.get(name)
        exported = exported or self.export_all or (known is not None and known.exported)
        words = self._words()
        if raw.startswith("(") and not index:
            value: str | list[str] | dict[str, str] | None = self._array(raw[1:-1])
            if operator == "+=" and known is not None and isinstance(known.value, list) and isinstance(value, list):
                value = known.value + value
        else:
            text = words.text(raw)
            place = words.place if words.place is not None and raw.startswith("$") else place
            value = text
            if operator == "+=" and known is not None and isinstance(known.value, str):
                value = known.value + text
            if index:
                value = self._with_element(known, words.text_of(index[1:-1]), text)
        self.variables[name] = Variable(value, place, exported)

    def _array(self, raw: str) -> list[str] | dict[str, str] | None:
        try:
            words = [w for w in syntax.lex(raw) if not w.operator]
        except syntax.ShellSyntaxError:
            return None
        keyed = [re.match(r"\[([^\]]+)\]=(.*)", w.raw, re.DOTALL) for w in words]
        if words and all(keyed):
            own = self._words()
            return {own.text(k[1]): own.text(k[2]) for k in keyed if k is not None}
        return [text for word in words for text in self._words().expand(word.raw).texts]

    @staticmethod
    def _with_element(known: Variable | None, index: str, text: str) -> list[str] | dict[str, str] | None:
        value = known.value if known is not None else None
        if index.isdigit() and isinstance(value, list) and int(index) <= len(value):
            return [*value[: int(index)], text, *value[int(index) + 1 :]]
        if not index.isdigit():
            return {**(value if isinstance(value, dict) else {}), index: text}
        return [text] if index == "0" else None

    def _redirect(self, node: syntax.Simple, args: list[Arg]) -> bool:
        """Keep what `cat > file <<EOF` and `echo … > file` write; tell whether that was all of the command."""
        body = next((r for r in node.redirects if r.body is not None), None)
        targets = [r for r in node.redirects if r.operator in (">", ">>", ">|")]
        name = args[0].text if args else ""
        if name == "tee" and len(args) > 1:
            target: str | None = args[-1].text
        else:
            target = self._words().text(targets[0].target.raw) if targets else None
        if target is None or HOLE in target or name not in ("cat", "echo", "printf", "tee"):
            return False
        if body is not None and body.body is not None:
            text = body.body if body.quoted else self._words().text(body.body.replace("'", "\\'").replace('"', '\\"'))
            place = self._place(body.target.line)
        elif name == "echo":
            text = " ".join(a.text for a in args[1:] if a.text not in ("-e", "-n")) + "\n"
            place = self._place(node.line - 1)
        else:
            return False
        path = target if target.startswith("/") else normpath(join(self.folder, target))
        old = self.files.written.get(path)
        if old is not None and any(r.operator == ">>" for r in targets):
            text, place = old.text + text, old.place
        self.files.written[path] = Written(text, place)
        return True

    def _arithmetic(self, raw: str) -> bool | None:
        inner = raw[2:-2].strip()
        step = re.fullmatch(r"([A-Za-z_]\w*)\s*(\+|-|\*|/|)=\s*([^=].*)", inner)
        words = self._words()
        if step is not None:
            operation = f"{step[1]} {step[2]} ({step[3]})" if step[2] else step[3]
            number = words.number(operation)
            self.variables[step[1]] = Variable(None if number is None else str(number), words.place)
            return True
        number = words.number(inner)
        return None if number is None else bool(number)

    def _command(self, args: list[Arg], own: dict[str, Arg], place: Place) -> bool | None:
        name = args[0].text
        body = self.functions.get(name)
        if body is not None and self.depth < DEPTH_MAX:
            self._call(body, args, own)
            return None
        builtin = _BUILTINS.get(name)
        if builtin is not None:
            return builtin(self, [a.text for a in args], args)
        environment = {n: Arg(v.value, v.place or place) for n, v in self.variables.items() if v.exported and isinstance(v.value, str)}  # fmt: skip
        environment.update(own)
        self.ran.append(Ran(args, environment, place, self.folder, self.certain))
        return None

    def _call(self, body: list[syntax.Node], args: list[Arg], own: dict[str, Arg]) -> None:
        outer, self.positional = self.positional, [a.text for a in args[1:]]
        for name, value in own.items():
            self.variables[name] = Variable(value.text, value.place, exported=True)
        self.depth += 1
        try:
            self._block(body)
        except _ReturnError:
            pass
        finally:
            self.depth -= 1
            self.positional = outer

    # --- built-ins ---------------------------------------------------------------------------------------------------

    def _tested(self, node: syntax.Simple) -> bool | None:
        raws = [w.raw for w in node.words[1:] if w.raw not in ("]]", "]")]
        return Test(self, raws).value()

    def source_file(self, texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow `source FILE` in this shell."""
        path = self.files.find(texts[1], self.folder, dirname(self.file)) if len(texts) > 1 else None
        text = self.files.text(path) if path is not None else None
        if path is None or text is None or self.depth >= DEPTH_MAX:
            return None
        outer, folder = self.positional, self.line_offset
        self.positional = texts[2:] or outer
        self.depth += 1
        self.line_offset = 0
        self.run_text(text, path)
        self.depth -= 1
        self.positional, self.line_offset = outer, folder
        return True

    def change_folder(self, texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow `cd FOLDER`, where it stays inside the source."""
        target = texts[1] if len(texts) > 1 else ""
        if target and HOLE not in target:
            folder = normpath(join(self.folder, target)).lstrip("/")
            known = any(p.startswith(folder + "/") for p in self.files.tree.files)
            self.folder = "" if folder == "." else folder if known else self.folder
        return True

    def set_option(self, texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow `set -a` and `set -- WORDS`."""
        if "--" in texts:
            self.positional = texts[texts.index("--") + 1 :]
        elif len(texts) > 1 and re.fullmatch(r"[-+]\w*a\w*", texts[1]) is not None:
            self.export_all = texts[1].startswith("-")
        elif texts[1:3] in (["-o", "allexport"], ["+o", "allexport"]):
            self.export_all = texts[1] == "-o"
        return True

    def shift(self, texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow `shift`."""
        count = int(texts[1]) if len(texts) > 1 and texts[1].isdigit() else 1
        self.positional = self.positional[count:]
        return True

    def unset(self, texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow `unset`."""
        for name in texts[1:]:
            self.variables.pop(name, None)
        return True

    def evaluate(self, texts: list[str], args: list[Arg]) -> bool | None:
        """Follow `eval WORDS`."""
        self.depth += 1
        if self.depth < DEPTH_MAX:
            offset = self.line_offset
            self.line_offset = (args[0].place.line or 1) - 1
            self.run_text(" ".join(texts[1:]), self.file)
            self.line_offset = offset
        self.depth -= 1
        return None

    def read_input(self, texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow `read NAMES`: what they hold cannot be known."""
        for name in texts[1:]:
            if name.isidentifier():
                self.variables[name] = Variable(None)
        return None

    def let(self, texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow `let NAME=EXPRESSION`."""
        for text in texts[1:]:
            self._arithmetic(f"(({text}))")
        return True

    def leave(self, texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow `exit` and `return`."""
        raise (_ReturnError if texts[0] == "return" else _LeaveScriptError)

    def echo(self, texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow `echo`, whose words a command substitution may want."""
        if self.captured is not None:
            self.captured.append(" ".join(t for t in texts[1:] if t not in ("-n", "-e")))
        return True

    def succeed(self, _texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow what always succeeds and changes nothing here."""
        return True

    def fail(self, _texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow `false`."""
        return False

    def ignore(self, _texts: list[str], _args: list[Arg]) -> bool | None:
        """Follow what changes nothing here and whose success is not known."""
        return None


_BUILTINS: Final = {
    "source": Shell.source_file, ".": Shell.source_file, "cd": Shell.change_folder, "pushd": Shell.change_folder,
    "set": Shell.set_option, "shift": Shell.shift, "unset": Shell.unset, "eval": Shell.evaluate, "read": Shell.read_input,
    "let": Shell.let, "exit": Shell.leave, "return": Shell.leave, "echo": Shell.echo, "printf": Shell.echo,
    ":": Shell.succeed, "true": Shell.succeed, "false": Shell.fail, "mkdir": Shell.succeed, "module": Shell.succeed,
    "ulimit": Shell.succeed, "trap": Shell.succeed, "wait": Shell.succeed, "sleep": Shell.succeed, "shopt": Shell.succeed, "pip": Shell.ignore, "command": Shell.ignore, "which": Shell.ignore, "type": Shell.ignore,
    "popd": Shell.succeed, "umask": Shell.succeed, "alias": Shell.succeed, "break": Shell.succeed, "continue": Shell.succeed,
    "rm": Shell.succeed, "cp": Shell.succeed, "mv": Shell.succeed, "ln": Shell.succeed, "date": Shell.succeed, "nvidia-smi": Shell.ignore,
    "hostname": Shell.ignore, "scontrol": Shell.ignore, "kill": Shell.ignore, "pkill": Shell.ignore, "ls": Shell.ignore,
    "grep": Shell.ignore, "cat": Shell.ignore, "export": Shell.succeed, "tee": Shell.succeed, "]": Shell.ignore,
}  # fmt: skip


def _is_test(node: syntax.Node) -> bool:
    return isinstance(node, syntax.Simple) and bool(node.words) and node.words[0].raw in ("[", "[[", "test")
