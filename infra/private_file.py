"""Making a file that only its owner reads, without ever having it open."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

_MODE: Final = stat.S_IFREG | stat.S_IRUSR | stat.S_IWUSR


def make_private_file(path: Path) -> None:
    """Make the file, empty and for its owner alone, and its directory; a file that is there stays as it is.

    It is never opened: closing a file drops every POSIX lock that this process has on it. SQLite's locks are of that kind, and
    without them another process that closes the database deletes the journal under those who use it here.

    Raises:
        OSError: the directory or the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mknod(path, _MODE)
