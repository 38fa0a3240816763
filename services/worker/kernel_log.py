"""Follows the kernel's log file through rotation and truncation; blocks for milliseconds, so it is called off the loop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from schedmate.services.worker.kernel_lines import Finding, Lines, find

READ_BYTES_MAX: Final = 1 << 20


class KernelLog:
    """Starts at the end of what is there: older lines were somebody else's to see. A file that appears later is read whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = Lines()
        self._inode: int | None = None
        self._offset = 0
        try:
            stat = path.stat()
            self._inode, self._offset = stat.st_ino, stat.st_size
        except OSError:
            pass

    def findings(self) -> list[Finding]:
        """Return what new lines say of faults. A file that cannot be read says nothing."""
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return []
        try:
            stat = os.fstat(handle)
            if stat.st_ino != self._inode or stat.st_size < self._offset:
                self._inode, self._offset, self._lines = stat.st_ino, 0, Lines()
            content = os.pread(handle, READ_BYTES_MAX, self._offset)
        finally:
            os.close(handle)
        self._offset += len(content)
        return [finding for line in self._lines.feed(content) if (finding := find(line)) is not None]
