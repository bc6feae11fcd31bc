"""Creating files and folders for their owner only, whatever the umask. Nothing else in the library creates any
(``tests/app/test_file_modes.py``). Existing files and folders keep their mode."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, Any


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
