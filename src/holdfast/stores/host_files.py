"""Files of command jobs on this host, named by references such as ``file://host/…/<id>/<attempt>/output.log``.

A reference comes from the database, so it grants access only to the directory of its job: the path must contain the id
of the job where ``app.command`` writes it, and no part of it may be a link. The host name is informational: a directory
that several hosts or containers share can be read on each of them.

``open_private`` and ``make_private`` create files and folders for their owner only, whatever the umask. Nothing else in
the library creates any (``tests/app/test_file_modes.py``). Existing ones keep their mode.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
import stat
from pathlib import Path
from typing import IO, Any

from holdfast.errors import Refused
from holdfast.features.attempts.model import FILE_SCHEME, file_ref, parse_file_ref


def host_name() -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "localhost"


def reference_to(path: Path) -> str:
    return file_ref(host_name(), os.fsencode(path.absolute()))


def read_file(ref: str, job_id: str, start: int | None, most: int) -> tuple[int, int, bytes] | None:
    """Read at most ``most`` bytes of a job's file from ``start``, or its last bytes for None. Returns the position of
    the first byte, the size of the file and the bytes; None when the file is not on this host. Raises ``Refused`` when
    it is not a file of this job."""
    path = _own_path(ref, job_id)
    if _has_links(path):
        return None
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        begin = max(0, status.st_size - most) if start is None else min(start, status.st_size)
        file.seek(begin)
        return begin, status.st_size, file.read(most)


def remove_directory(ref: str, job_id: str) -> bool:
    """Delete the directory of a job. True when it no longer exists; False when it could not be deleted, or is not here
    and the reference names another host."""
    path = _own_path(ref, job_id)
    if path.name != job_id or _has_links(path):
        return False
    if not path.is_dir():
        return ref.startswith(f"{FILE_SCHEME}{host_name()}/") and not path.exists()
    try:
        shutil.rmtree(path)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        path.parent.rmdir()  # fails if other jobs have directories there
    return True


def _own_path(ref: str, job_id: str) -> Path:
    location = parse_file_ref(ref)
    path = None if location is None else Path(os.path.normpath(os.fsdecode(location[1])))
    within = path is not None and path.is_absolute() and "\0" not in str(path)
    parts = path.parts if path is not None and within else ()
    if path is None or not any(pair == (job_id[:8], job_id) for pair in itertools.pairwise(parts)):
        raise Refused("the file is not in the directory of this job", code="invalid_reference")
    return path


def _has_links(path: Path) -> bool:
    """Whether a part of the path is a symbolic link."""
    try:
        return path.resolve() != path
    except (OSError, RuntimeError):
        return True


def private_handle(path: str | os.PathLike[str], flags: int) -> int:
    """``os.open`` for a file that may not exist yet."""
    return os.open(path, flags | os.O_CREAT, 0o600)


def open_private(path: str | os.PathLike[str], mode: str = "wb", encoding: str | None = None) -> IO[Any]:
    """``open`` for writing: the file is created or, depending on the mode, emptied or continued."""
    return open(path, mode, encoding=encoding, opener=private_handle)


def make_private(folder: Path, mode: int = 0o700) -> None:
    """Create a folder and its missing parents. ``mkdir(parents=True)`` would create parents readable by everyone."""
    if folder.is_dir():
        return
    make_private(folder.parent, mode)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        if mode != 0o700:
            folder.chmod(folder.stat().st_mode & 0o7000 | mode)
