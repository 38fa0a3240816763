"""MongoDB's wire protocol: SecantusDB, installed once into an environment of its own and run as a separate process.

It stands in for mongod, which no package registry has. It is GPL-2.0-only: a development tool behind a socket.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import TYPE_CHECKING, ClassVar

from schedmate.infra.servers.cache import cache_directory, filled, run_step, say
from schedmate.infra.servers.ports import HOST
from schedmate.infra.servers.process import ServerProcess
from schedmate.infra.servers.server import LocalServer

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MongoServer"]

_VERSION = "0.7.0b3"
_CACHE_SIZE = "256M"
_SIZE_BYTES = 4  # a message begins with its own size


class MongoServer(LocalServer):
    """A server whose acknowledged writes outlive kill -9; change streams and transactions work."""

    name: ClassVar[str] = "mongo"
    ports_default: ClassVar[dict[str, int]] = {"client": 27117}

    @property
    def address(self) -> str:
        """The URL, as SCHEDMATE_STORE and MongoDB's clients take it."""
        return f"mongodb://{HOST}:{self.port}/?directConnection=true&retryWrites=false"

    def environment(self) -> dict[str, str]:
        """Where tests find the server."""
        return {"SCHEDMATE_TEST_MONGO": self.address}

    def processes(self) -> list[ServerProcess]:
        """The one server process."""
        return [ServerProcess(self.directory, "mongo")]

    def install(self) -> None:
        """Install the package into the cache."""
        self._program()

    def launch(self) -> None:
        """Start the server on the directory's database."""
        configuration = self.directory / "secantusd.toml"
        configuration.touch()  # named, so that no other configuration file is looked for
        self.processes()[0].start(
            [self._program(), "--config", configuration, "--host", HOST, "--port", str(self.port), "--storage-path",
             self.directory / "db", "--cache-size", _CACHE_SIZE, "--log-level", "WARNING"]
        )  # fmt: skip

    def answers(self) -> bool:
        """Whether `ping` is answered with ok."""
        return _answers_ping(self.port)

    def _program(self) -> Path:
        python = f"{sys.version_info.major}{sys.version_info.minor}"
        home = cache_directory(self.name) / f"secantus-{_VERSION}-py{python}"
        # The stamp, not the folder, says that it is whole: an environment cannot be renamed into place.
        with filled(home / "installed") as staging:
            if staging is not None:
                say(self.name, f"installing SecantusDB {_VERSION}, once")
                run_step([sys.executable, "-m", "venv", "--clear", home / "venv"], timeout_s=120.0)
                pip: list[str | Path] = [
                    home / "venv" / "bin" / "python",
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                ]
                run_step([*pip, f"SecantusDB=={_VERSION}"], timeout_s=600.0)
                (staging / "installed").touch()
        return home / "venv" / "bin" / "secantusd-py"


def _answers_ping(port: int) -> bool:
    """Send one OP_MSG {ping: 1, $db: "admin"}; true when the reply's document holds ok: 1."""
    document = b"\x10ping\0" + struct.pack("<i", 1) + b"\x02$db\0" + struct.pack("<i", 6) + b"admin\0" + b"\0"
    body = struct.pack("<IB", 0, 0) + struct.pack("<i", len(document) + 4) + document
    received, size = b"", _SIZE_BYTES
    try:
        with socket.create_connection((HOST, port), timeout=2.0) as connection:
            connection.sendall(struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body)
            while len(received) < size:
                part = connection.recv(65536)
                if not part:
                    return False
                received += part
                size = struct.unpack("<i", received[:4])[0] if len(received) >= _SIZE_BYTES else _SIZE_BYTES
    except OSError:
        return False
    return b"\x01ok\0" + struct.pack("<d", 1) in received or b"\x10ok\0" + struct.pack("<i", 1) in received
