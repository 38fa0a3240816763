"""The command: servers up | down | status | install [kafka mongo ollama tracing ...]."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from schedmate.infra.servers.cache import InstallError, say
from schedmate.infra.servers.kafka import KafkaServer
from schedmate.infra.servers.mongo import MongoServer
from schedmate.infra.servers.ollama import OllamaServer
from schedmate.infra.servers.server import LocalServer, ServerError
from schedmate.infra.servers.tracing import TracingServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["SERVERS", "main"]

SERVERS: dict[str, type[LocalServer]] = {
    server.name: server for server in (KafkaServer, MongoServer, OllamaServer, TracingServer)
}


def main(arguments: Sequence[str]) -> int:
    """Return 0 when every server named did what was asked (status: runs), 1 when one did not, 2 for wrong use."""
    options = _options(arguments)
    state = _state_directory()
    servers = [SERVERS[name](state / name) for name in options.names or SERVERS]
    if options.action == "status":
        return _status(servers)
    if options.action == "install":
        return 0 if _each(servers, LocalServer.install) else 1
    if options.action == "up":
        done = _each(servers, lambda server: server.start(options.timeout))
    elif options.kill:
        done = _each(servers, LocalServer.kill)
    else:
        done = _each(servers, LocalServer.stop)
    _write_environment(state)
    return 0 if done else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="servers", description="The real servers, without Docker, for tests and development."
    )
    parser.add_argument("action", choices=["up", "down", "status", "install"])
    parser.add_argument("names", nargs="*", metavar="server", help=f"of {', '.join(SERVERS)}; default: all")
    parser.add_argument("--kill", action="store_true", help="down: SIGKILL at once, as a crash would")
    parser.add_argument(
        "--timeout", type=float, default=90.0, help="up: seconds to wait for an answer (default %(default)g)"
    )
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in SERVERS:
            parser.error(f"there is no server {name!r}; choose from {', '.join(SERVERS)}")
    return options


def _state_directory() -> Path:
    """SCHEDMATE_SERVERS_DIR, else .servers in the checkout."""
    own = os.environ.get("SCHEDMATE_SERVERS_DIR")
    path = Path(own).expanduser() if own else Path(__file__).resolve().parents[2] / ".servers"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def _each(servers: Sequence[LocalServer], action: Callable[[LocalServer], object]) -> bool:
    """Do `action` on all at once; say which failed, and why."""
    done = True
    with ThreadPoolExecutor(max_workers=len(servers)) as pool:
        for server, future in [(server, pool.submit(action, server)) for server in servers]:
            try:
                future.result()
            except (InstallError, ServerError, OSError) as error:
                say(server.name, f"failed: {error}")
                done = False
    return done


def _status(servers: Sequence[LocalServer]) -> int:
    well = True
    for server in servers:
        running = server.running()
        state = "stopped" if not running else "answers" if server.answers() else "does not answer"
        pids = " ".join(str(process.living_pid()) for process in server.processes()) if running else ""
        where = " ".join(server.environment().values()) if running else ""
        sys.stdout.write(f"{server.name:8} {state:16} {pids:16} {where}\n")
        well = well and state == "answers"
    return 0 if well else 1


def _write_environment(state: Path) -> None:
    """Write the variables of every server that runs, those of earlier calls among them, for a shell to read."""
    lines = [
        f"export {name}={shlex.quote(value)}\n"
        for server in (SERVERS[name](state / name) for name in SERVERS)
        if server.running()
        for name, value in server.environment().items()
    ]
    temporary = state / "env.new"
    temporary.write_text("".join(lines))
    temporary.replace(state / "env")
    sys.stdout.write("".join(lines))
