"""What every server here is: a name, a directory of its own, processes with pid files, and an address once it answers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from schedmate.infra.servers.cache import locked
from schedmate.infra.servers.ports import bindable, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from schedmate.infra.servers.process import ServerProcess

__all__ = ["LocalServer", "ServerError"]

_POLL_S = 0.05


class ServerError(Exception):
    """A server could not be started; the text says why and where to look."""


class LocalServer(ABC):
    """One server on the loopback, on a data directory of its own.

    The directory is the identity: a second object for the same directory, in this process or another, speaks of the
    same server. Ports are chosen at the first start and kept, so that clients find a restarted server again.
    All methods block for as long as they say: in a coroutine, call them through `asyncio.to_thread`.
    """

    name: ClassVar[str]
    #: the wanted port of each listener, the main one first; a taken one is replaced by a free one, 0 always is
    ports_default: ClassVar[dict[str, int]]

    def __init__(self, directory: Path, ports: Mapping[str, int] | None = None) -> None:
        """`ports` replaces the wanted ports of the listeners that it names."""
        self.directory = directory.expanduser().resolve()
        self._ports_wanted = {**self.ports_default, **(ports or {})}

    @abstractmethod
    def install(self) -> None:
        """Put what the server needs into the cache; quick when it is there already."""

    @abstractmethod
    def launch(self) -> None:
        """Start the processes; `self.ports` are known and free, the directory exists."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether a client would be served now."""

    @abstractmethod
    def processes(self) -> list[ServerProcess]:
        """The processes, in the order of their start."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The variables that tell tests where the server is."""

    def start(self, timeout_s: float = 90.0) -> Self:
        """Install if needed, start unless it runs, and return once it answers; ServerError after `timeout_s`."""
        self.install()
        self.directory.mkdir(parents=True, exist_ok=True)
        with locked(self.directory / "start.lock"):
            if not self.running():
                # Of two processes one may have died alone: both start together or not at all.
                self.stop()
                self._choose_ports()
                self.launch()
            self._wait(timeout_s)
        return self

    def stop(self, timeout_s: float = 30.0) -> None:
        """Ask it to end and wait; what has not ended after `timeout_s` is killed."""
        for process in reversed(self.processes()):
            process.stop(timeout_s)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        for process in reversed(self.processes()):
            process.kill()

    def restart(self, timeout_s: float = 90.0) -> Self:
        """Stop, and start on the same data and ports."""
        self.stop()
        return self.start(timeout_s)

    def running(self) -> bool:
        """Whether all of its processes live (they may not answer yet)."""
        return all(process.living_pid() is not None for process in self.processes())

    @property
    def port(self) -> int:
        """The main listener's port; ServerError before the first start."""
        return self.ports[next(iter(self.ports_default))]

    @property
    def ports(self) -> dict[str, int]:
        """The port of each listener, as chosen at the first start; ServerError before it."""
        try:
            words = (self.directory / "ports").read_text().split()
        except OSError as error:
            message = f"{self.name} was never started in {self.directory}"
            raise ServerError(message) from error
        return {listener: int(port) for listener, port in (word.split("=") for word in words)}

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        """Stop, whatever happened."""
        self.stop()

    def _choose_ports(self) -> None:
        path = self.directory / "ports"
        if path.exists():
            taken = [port for port in self.ports.values() if not bindable(port)]
            if taken:
                message = f"{self.name} in {self.directory} has port {taken[0]}, which another process has taken"
                raise ServerError(message)
            return
        chosen: dict[str, int] = {}
        for listener, wanted in self._ports_wanted.items():
            chosen[listener] = wanted if wanted and bindable(wanted) else free_port()
        temporary = path.with_suffix(".new")
        temporary.write_text("".join(f"{listener}={port}\n" for listener, port in chosen.items()))
        temporary.replace(path)

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        reason = f"did not answer within {timeout_s:g} s"
        while time.monotonic() < deadline:
            if not self.running():
                reason = "ended while it started"
                break
            if self.answers():
                return
            time.sleep(_POLL_S)
        tails = "\n".join(process.log_tail() for process in self.processes())
        self.kill()
        message = f"{self.name} {reason}; the end of its log in {self.directory}:\n{tails}"
        raise ServerError(message)
