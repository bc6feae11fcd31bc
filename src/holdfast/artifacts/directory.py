"""A directory as an artifact store: one file a key, written aside, synced and then put in its place."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import InvalidInput, StoreUnavailable

_PART = re.compile(r"[A-Za-z0-9%_~\-]{1,1000}")


class Directory:
    """Made when something is first put there, for nobody but its owner."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()

    def put(self, key: str, data: bytes) -> None:
        self._put(key, lambda file: file.write(data))

    def put_file(self, key: str, path: Path, digest: str) -> None:
        with path.open("rb") as source:
            self._put(key, lambda file: shutil.copyfileobj(source, file, 1 << 20))

    def _put(self, key: str, write: Callable[[BinaryIO], object]) -> None:
        path = self._path(key)
        try:
            shared = self._shared()
            self._make(path.parent, 0o700 | shared)
            handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".aside-")
            try:
                with os.fdopen(handle, "wb") as file:
                    if shared:
                        os.chmod(aside, 0o600 | shared & 0o060)
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(aside, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(aside)
                raise
            for folder in (path.parent, path.parent.parent, self.root):
                _sync(folder)
        except OSError as error:
            raise _unavailable(error) from error

    def _shared(self) -> int:
        """The rights of the group, where whoever made the root let a group write to it; else none."""
        try:
            mode = self.root.stat().st_mode
        except OSError:
            return 0
        return mode & 0o070 if mode & 0o020 else 0

    def _make(self, folder: Path, mode: int) -> None:
        """With every folder above it that is missing: ``mkdir(parents=True)`` would leave those open to all."""
        if folder.is_dir():
            return
        self._make(folder.parent, mode)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            if mode != 0o700:
                folder.chmod(folder.stat().st_mode & 0o7000 | mode)

    def get(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unavailable(error) from error

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others are left in there
                path.parent.rmdir()
        except OSError as error:
            raise _unavailable(error) from error

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    def keys(self) -> Iterator[str]:
        """In no order. What is just being put there is not there yet."""
        for folder, _, names in os.walk(self.root):
            parts = Path(folder).relative_to(self.root).parts
            for name in names:
                if _PART.fullmatch(name):
                    yield "/".join((*parts, name))

    def _path(self, key: str) -> Path:
        """Inside the root and nowhere else: no part is empty, begins with a dot or has a separator in it; and no link
        on the way leads out of it."""
        parts = key.split("/")
        if not all(_PART.fullmatch(part) for part in parts):
            raise InvalidInput("the key of an artifact is a path of plain names", code="invalid_reference")
        path = self.root.joinpath(*parts)
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise InvalidInput("the key of an artifact leads out of its directory", code="invalid_reference")
        return path


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unavailable(error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"the artifact store cannot be used: {error.strerror or error}", code="artifacts_away")
