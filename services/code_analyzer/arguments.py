"""A program's declared arguments (argparse, click) and its defaults, read from the syntax tree; and what a command line gives them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schedmate.services.code_analyzer.shell import UNKNOWN

ARGUMENTS_MAX: Final = 1000
_NUMBER: Final = re.compile(r"-\.?\d")
_LITERALS: Final = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Argument:
    """One declared argument. `default` is None when there is none or it is no literal."""

    options: tuple[str, ...]
    dest: str
    default: object
    line: int
    is_flag: bool
    positional: bool


@dataclass(frozen=True, slots=True)
class Given:
    """One argument as the command line gives it; the value is True for a flag that stands alone."""

    name: str
    value: object


def declared(tree: ast.Module, constants: Mapping[str, object]) -> tuple[Argument, ...]:
    """Return the arguments that a module declares by `add_argument` or `@click.option`."""
    found: list[Argument] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_declaration(node.func):
            argument = _argument(node, constants)
            if argument is not None:
                found.append(argument)
        if len(found) >= ARGUMENTS_MAX:
            break
    return tuple(found)


def literal(node: ast.expr | None, constants: Mapping[str, object]) -> object:
    """Return the value of a literal or of a name bound to one, else None. Nothing is evaluated."""
    if isinstance(node, ast.Constant) and isinstance(node.value, _LITERALS):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.List | ast.Tuple) and len(node.elts) <= 50:  # noqa: PLR2004 - a default, not a table
        return [literal(element, constants) for element in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow):
        return _product(node, constants)
    return None


def given(words: Sequence[str], arguments: Iterable[Argument]) -> tuple[Given, ...]:
    """Return what a command line gives, by destination where the program declares the argument, else by the flag's name."""
    known = {option: a for a in arguments for option in a.options}
    positionals = [a for a in arguments if a.positional]
    found: list[Given] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("-") or _NUMBER.match(word):
            if "=" in word and not word.startswith("="):  # Hydra's way: trainer.max_epochs=3
                name, _, value = word.lstrip("+").partition("=")
                found.append(Given(name, _opened(value)))
            elif positionals:
                found.append(Given(positionals.pop(0).dest, _opened(word)))
            continue
        name, equals, value = word.partition("=")
        argument = _declared_as(name, known)
        if equals:
            found.append(_given(name, argument, _opened(value)))
        elif _takes_value(argument, words, position):
            found.append(_given(name, argument, _opened(words[position])))
            position += 1
        else:
            found.append(_given(name, argument, _switch(name, argument)))
    return tuple(found)


def _opened(value: str) -> object:
    return None if UNKNOWN in value else value


def _given(name: str, argument: Argument | None, value: object) -> Given:
    return Given(argument.dest if argument is not None else name, value)


def _switch(name: str, argument: Argument | None) -> bool:
    if argument is not None and argument.is_flag:
        return argument.default is not True  # store_false turns off what is on
    return not name.startswith("--no-")


def _takes_value(argument: Argument | None, words: Sequence[str], position: int) -> bool:
    if position >= len(words) or (argument is not None and argument.is_flag):
        return False
    following = words[position]
    return not following.startswith("-") or _NUMBER.match(following) is not None


def _declared_as(name: str, known: Mapping[str, Argument]) -> Argument | None:
    """Return the argument of an option; argparse takes an unambiguous beginning of a long one too."""
    if name in known or not name.startswith("--"):
        return known.get(name)
    beginning = {id(a): a for option, a in known.items() if option.startswith(name)}
    return next(iter(beginning.values())) if len(beginning) == 1 else None


def _is_declaration(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr == "add_argument":
        return True
    return function.attr == "option" and isinstance(function.value, ast.Name) and function.value.id == "click"


def _argument(node: ast.Call, constants: Mapping[str, object]) -> Argument | None:
    names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    options = tuple(part for name in names for part in name.split("/") if part.startswith("-"))
    keywords = {k.arg: k.value for k in node.keywords if k.arg is not None}
    if not names:
        return None
    plain = [name for name in names if not name.startswith("-")]
    dest = literal(keywords.get("dest"), constants)
    if not isinstance(dest, str):
        long = [o for o in options if o.startswith("--")]
        dest = (plain or [o.lstrip("-") for o in (*long, *options)])[0].replace("-", "_")
    action = literal(keywords.get("action"), constants)
    is_flag = (
        action in {"store_true", "store_false", "store_const", "count"}
        or literal(keywords.get("is_flag"), constants) is True
    )
    default = literal(keywords.get("default"), constants)
    if action == "store_true" and default is None:
        default = False
    elif action == "store_false" and default is None:
        default = True
    return Argument(options, dest, default, node.lineno, is_flag, positional=not options)


def _product(node: ast.BinOp, constants: Mapping[str, object]) -> object:
    left, right = literal(node.left, constants), literal(node.right, constants)
    if not isinstance(left, int | float) or not isinstance(right, int | float) or isinstance(left, bool):
        return None
    if isinstance(node.op, ast.Mult):
        return left * right if abs(left) < 1e12 and abs(right) < 1e12 else None  # noqa: PLR2004 - no count is larger
    if not 0 <= right <= 60 or abs(left) > 1000:  # noqa: PLR2004 - 10**6 is a count, 9**9**9 an attack
        return None
    return left**right
