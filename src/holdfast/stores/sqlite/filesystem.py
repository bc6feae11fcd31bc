"""SQLite's locks do not hold on network file systems, so a database there is refused."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import InvalidSetting

# Without the `fuse.` that file systems of user space have in front of their names.
NETWORK = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ncpfs", "sshfs", "glusterfs", "ceph", "ceph-fuse"),
        *("lustre", "beegfs", "rclone", "s3fs"),
    }
)


def refuse_network_file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """Does nothing where the mount table cannot be read."""
    try:
        table = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    target = path.absolute().resolve()
    best = ("", "")
    for line in table.splitlines():
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        if target.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, parts[2])
    if best[1].removeprefix("fuse.") in NETWORK:
        raise InvalidSetting(
            f"{path} is on a network file system ({best[1]} at {best[0]})",
            code="network_file_system",
            fix="Keep the database on a local disk, or use PostgreSQL for several machines.",
        )
