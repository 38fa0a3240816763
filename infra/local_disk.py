"""Whether a file lies on this machine: SQLite's shared memory and locks do not hold over a network."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "fuse.sshfs", "fuse.ceph", "fuse.s3fs", "fuse.glusterfs", "glusterfs",
     "lustre", "gpfs", "beegfs", "beegfs_nodev", "afs", "pvfs2", "orangefs"}
)  # fmt: skip


def network_file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the kind of the network file system that `path` lies (or would lie) on; None on a local disk or where nobody can say."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    real = path.absolute().resolve()
    best: tuple[int, str] = (-1, "")
    for line in lines:
        fields = line.split(" ")
        point = Path(fields[1].encode("utf-8", "surrogateescape").decode("unicode_escape", "replace"))
        if real.is_relative_to(point) and len(point.parts) >= best[0]:  # the last mount on a point covers the others
            best = (len(point.parts), fields[2])
    return best[1] if best[1] in _NETWORK else None
