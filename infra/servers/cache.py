"""What is fetched or built once: the cache directory, its locks, and the steps that fill it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["InstallError", "cache_directory", "filled", "locked", "program", "run_step", "say"]

_OUTPUT_LINES = 20


class InstallError(Exception):
    """A step of an installation failed, or a program that it needs is missing."""


def cache_directory(server: str) -> Path:
    """Where `server` keeps what it installs: SCHEDMATE_SERVERS_CACHE, else schedmate-servers in the user's cache."""
    own = os.environ.get("SCHEDMATE_SERVERS_CACHE")
    if own:
        root = Path(own).expanduser()
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "schedmate-servers"
    path = root.resolve() / server
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` between processes; the kernel frees it when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def filled(target: Path) -> Iterator[Path | None]:
    """Fill `target` (a file or a folder) once: yields a staging folder to make `<staging>/<target's name>` in, or None.

    None says that it is there already. It appears whole, by a rename, under a lock that parallel callers wait for.
    """
    with locked(target.with_name(target.name + ".lock")):
        if target.exists():
            yield None
            return
        staging = Path(tempfile.mkdtemp(prefix="staging-", dir=target.parent))
        try:
            yield staging
            (staging / target.name).rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def program(name: str, purpose: str) -> str:
    """The path of a program, or an InstallError that says what it is for."""
    path = shutil.which(name)
    if path is None:
        message = f"`{name}` is not on PATH; it is needed {purpose}"
        raise InstallError(message)
    return path


def run_step(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float,
) -> str:
    """Run one step to its end and return its output; InstallError with the output's end when it fails."""
    argv = [str(word) for word in command]
    try:
        done = subprocess.run(  # noqa: S603 - the callers' own constant commands
            argv,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        message = f"`{' '.join(argv[:4])} ...` did not end within {timeout_s:g} s"
        raise InstallError(message) from error
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_OUTPUT_LINES:])
        message = f"`{' '.join(argv[:4])} ...` ended with status {done.returncode}:\n{tail}"
        raise InstallError(message)
    return done.stdout


def say(server: str, text: str) -> None:
    """Tell whoever waits what takes time."""
    sys.stderr.write(f"{server}: {text}\n")
    sys.stderr.flush()
