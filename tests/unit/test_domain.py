"""The domain is pure, and its coverage counts: the list in pyproject.toml has every module that decides, and no other."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INCLUDED: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["coverage"]["report"][
    "include"
]
DOMAIN = {pattern: sorted(path.relative_to(ROOT) for path in ROOT.glob(pattern)) for pattern in INCLUDED}
MODULES = sorted({path for paths in DOMAIN.values() for path in paths})

# What reaches the world: a clock, a file, a socket, a process, randomness, a thread, a log.
WORLD = {
    "aiokafka", "asyncio", "concurrent", "faust", "fastapi", "fcntl", "httpx", "logging", "motor", "multiprocessing", "ollama",
    "os", "prometheus_client", "pymongo", "random", "secrets", "select", "shutil", "socket", "sqlite3", "starlette", "structlog",
    "subprocess", "tempfile", "threading", "time", "uvicorn",
}  # fmt: skip
# What the domain may take from infra: the ports' plain values, and functions that are pure themselves.
PURE_INFRA = ("schedmate.infra.bus.partitioner", "schedmate.infra.bus.port", "schedmate.infra.gpus.port", "schedmate.infra.llm.port", "schedmate.infra.pacing",
              "schedmate.infra.processes.port", "schedmate.infra.store.port", "schedmate.infra.telemetry.names", "schedmate.infra.telemetry.redaction")  # fmt: skip
SHELL = {"__init__.py", "__main__.py", "settings.py", "wiring.py"}
TOOLS = {Path("schemas/generate.py")}  # writes files, that is what it is for


def reaches(path: Path) -> set[str]:
    """Return what a module does that the domain may not do."""
    found = set()
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in WORLD}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] in WORLD:
                found.add(node.module)
            if node.module.startswith("schedmate.infra") and not node.module.startswith(PURE_INFRA):
                found.add(node.module)
        elif isinstance(node, ast.AsyncFunctionDef):
            found.add(f"async def {node.name}")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"open", "print", "input"}
        ):
            found.add(f"{node.func.id}()")
    return found


@pytest.mark.parametrize("pattern", INCLUDED)
def test_every_line_of_the_list_names_modules_that_are_there(pattern: str):
    assert DOMAIN[pattern], f"{pattern} of [tool.coverage.report] include names nothing"


@pytest.mark.parametrize("path", [path for path in MODULES if path not in TOOLS], ids=str)
def test_a_module_of_the_domain_is_pure(path: Path):
    assert reaches(path) == set()


def test_every_pure_module_of_a_service_is_in_the_list():
    """Pure and not in the list would mean: it decides something, and nothing asks whether its tests cover it."""
    services = {path.relative_to(ROOT) for path in (ROOT / "services").rglob("*.py") if path.name not in SHELL}
    unlisted = sorted(str(path) for path in services - set(MODULES) if not reaches(path))
    lines = "".join(f'  "{path}",\n' for path in unlisted)
    assert not unlisted, f"add to [tool.coverage.report] include in pyproject.toml:\n{lines}"
