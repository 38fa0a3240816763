"""Writes what follows from the models: `python -m schedmate.schemas.generate [--check]`.

JSON Schema of each event's version, the AsyncAPI document, and the pages docs/events.md and docs/states.md. With `--check`
nothing is written: the exit status is 1 when a file is stale, missing or left over, and each is named.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from schedmate.schemas import asyncapi, catalogue
from schedmate.schemas.events import EVENTS
from schedmate.schemas.json_schema import event_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

GENERATED: Final = Path("schemas/generated")


class _PlainYaml(yaml.SafeDumper):
    """YAML without anchors: the parts of the document refer to each other by AsyncAPI's own means."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base's signature
        return True


def files() -> dict[Path, str]:
    """Return every generated file by its path in the checkout. The same code gives the same text."""
    schemas = {
        GENERATED / f"{event.ce_type()}.json": json.dumps(event_schema(event), indent=2, ensure_ascii=False) + "\n"
        for event in EVENTS
    }
    document = yaml.dump(asyncapi.document(), Dumper=_PlainYaml, sort_keys=False, allow_unicode=True, width=120)
    return {
        **schemas,
        GENERATED / "asyncapi.yaml": "# Generated from the models by `make schemas`.\n" + document,
        Path("docs/events.md"): catalogue.events_page(),
        Path("docs/states.md"): catalogue.states_page(),
    }


def stale(root: Path) -> dict[Path, str]:
    """Return the files under `root` that are not what the code gives, each with what is wrong with it."""
    wanted = files()
    wrong = {}
    for path, text in wanted.items():
        if not (root / path).is_file():
            wrong[path] = "is missing"
        elif (root / path).read_text("utf-8") != text:
            wrong[path] = "is stale"
    left_over = sorted(path.relative_to(root) for path in (root / GENERATED).glob("*"))
    return wrong | {path: "is generated from nothing" for path in left_over if path not in wanted}


def write(root: Path) -> list[Path]:
    """Make the files under `root` what the code gives, and return those that changed."""
    wanted = files()
    wrong = list(stale(root))
    for path in wrong:
        if path in wanted:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(wanted[path], "utf-8")
        else:
            (root / path).unlink()
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 0 when the files are fresh, 1 when `--check` finds one that is not, 2 outside a checkout."""
    parser = argparse.ArgumentParser(
        prog="python -m schedmate.schemas.generate", description="Write what follows from the models."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 when a file is stale, and name it"
    )
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    options = parser.parse_args(arguments)
    if not (options.root / "pyproject.toml").is_file():
        sys.stderr.write(f"{options.root} is no checkout of the project; name one with --root\n")
        return 2
    if options.check:
        wrong = stale(options.root)
        for path, what in wrong.items():
            sys.stderr.write(f"{path} {what}; run `make schemas`\n")
        return 1 if wrong else 0
    for path in write(options.root):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
