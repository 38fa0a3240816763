"""The wheel and the sdist hold the program: real files, nothing that only a checkout needs, and one gives the other."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("schemas", "services", "infra", "simulator")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git would carry, so that building leaves nothing in the tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=30,
    )
    copy = tmp_path_factory.mktemp("checkout")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def program_modules() -> list[Path]:
    """Return the modules that are installed: all but the servers, which only a checkout starts."""
    rooms = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    inside = [path for path in rooms if not {"servers", "node_modules"} & set(path.relative_to(ROOT).parts)]
    return inside + [
        path
        for path in (ROOT / "schedmate").rglob("*.py")
        if path.relative_to(ROOT / "schedmate").parts[0] not in ROOMS
    ]


def imports(path: Path) -> set[str]:
    """Return the names of the top-level packages that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def build(source: Path, kind: str, into: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", into, source],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = into.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(checkout, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(checkout, "sdist", tmp_path_factory.mktemp("sdist"))


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_every_import_of_the_program_is_a_declared_dependency():
    """A plain `pip install .` has the direct dependencies and what they bring; what we import is ours to declare. The simulator and the embeddings have extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = project["optional-dependencies"]
    declared, simulator, embeddings = (
        {normal(re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]) for text in listed}
        for listed in (project["dependencies"], optional["sim"], [*optional["embeddings"], *optional["vectors"]])
    )
    extras = {ROOT / "simulator": simulator, ROOT / "infra" / "embeddings": embeddings}
    brought = {"starlette": "fastapi", "pydantic_core": "pydantic"}  # named in its owner's own documentation and types
    distributions = packages_distributions()
    undeclared = {
        (imported, str(path.relative_to(ROOT)))
        for path in program_modules()
        for imported in imports(path) - sys.stdlib_module_names - {"schedmate", "__future__"}
        if not declared.union(*(names for folder, names in extras.items() if path.is_relative_to(folder)))
        & {normal(name) for name in [*distributions.get(imported, []), brought.get(imported, "")]}
    }
    assert undeclared == set()


def test_the_command_line_starts_without_the_extra():
    program = "import sys; sys.modules['matplotlib'] = sys.modules['numpy'] = None; import schedmate.cli.app"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60, capture_output=True)


def test_the_wheel_holds_every_module_of_the_program(wheel: Path):
    modules = {
        str(path if path.parts[0] == "schedmate" else Path("schedmate") / path)
        for path in (module.relative_to(ROOT) for module in program_modules())
    }
    assert {name for name in names(wheel) if name.endswith(".py")} >= modules


def test_the_wheel_holds_what_the_program_reads(wheel: Path):
    read = {
        f"schedmate/{path.relative_to(ROOT)}"
        for room in ("schemas", "services")
        for path in (ROOT / room).rglob("*.toml")
    }
    assert "schedmate/schemas/topology.toml" in read
    assert read | {"schedmate/py.typed"} <= names(wheel)


def test_the_wheel_holds_nothing_that_only_a_checkout_needs(wheel: Path):
    assert {name.split("/")[0] for name in names(wheel)} == {"schedmate"}
    for unwanted in ("infra/servers", "infra/compose", "infra/asyncapi", "node_modules", "tests", "Dockerfile"):
        assert not [name for name in names(wheel) if f"/{unwanted}" in name], unwanted


def test_what_the_wheel_holds_are_files_and_no_links(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        kinds = {entry.external_attr >> 28 for entry in archive.infolist()}
    assert kinds == {0o10}, "regular files have the type 0o10 in their Unix mode"


def test_the_sdist_gives_the_wheel_that_the_checkout_gives(wheel: Path, sdist: Path, tmp_path: Path):
    with tarfile.open(sdist) as archive:
        assert not [entry.name for entry in archive if not (entry.isreg() or entry.isdir())]
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11 has it from 3.11.4 on
        archive.extractall(tmp_path / "unpacked")
    (source,) = (tmp_path / "unpacked").iterdir()
    (tmp_path / "out").mkdir()
    assert names(build(source, "wheel", tmp_path / "out")) == names(wheel)


def test_an_installed_wheel_can_be_imported(wheel: Path, tmp_path: Path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path / "site"]
    subprocess.run([*pip, wheel], check=True, timeout=60, capture_output=True)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import schedmate.schemas.events, schedmate.schemas.topology\n"
        "print(schedmate.__file__, len(schedmate.schemas.topology.topology().topics) > 10)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(tmp_path / "site" / "schedmate" / "__init__.py"), "True"]
