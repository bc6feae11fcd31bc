"""The directory of one attempt of a command job: its log, its payload, and the files that the program writes.

<log_dir>/<first eight characters of the id>/<id>/<attempt>/output.log
                                                            payload.json    (removed when the attempt has ended)
                                                            artifacts/      (removed if it is empty)

With an artifact store, the log and the files move there when the program has ended, and the directory is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.engine.job import Claim
from holdfast.engine.payload import safe_text
from holdfast.errors import HoldfastError
from holdfast.stores.artifacts import Artifacts
from holdfast.stores.host_files import make_private, open_private, reference_to

MOST_ARTIFACTS = 100
NAME_LIMIT = 500


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that the program has written."""

    name: str
    path: Path
    size: int
    sha256: str

    @property
    def ref(self) -> str:
        return reference_to(self.path)


@dataclass(frozen=True, slots=True)
class AttemptDirectory:
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @property
    def payload(self) -> Path:
        return self.folder / "payload.json"

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    def clear(self) -> None:
        """Remove the payload, which may be confidential, and the artifact directory if it is empty."""
        with contextlib.suppress(OSError):
            self.payload.unlink()
        with contextlib.suppress(OSError):
            self.artifacts.rmdir()  # refused unless it is empty

    def output_files(self) -> list[OutputFile]:
        """The regular files in the artifact directory, by name. Unreadable files are skipped: the attempt does not
        fail for them."""
        files: dict[str, OutputFile] = {}
        for path in _regular_files(self.artifacts):
            if len(files) == MOST_ARTIFACTS:
                break
            with contextlib.suppress(OSError):
                file = self._output_file(path, files)
                files[file.name] = file
        return list(files.values())

    def _output_file(self, path: Path, others: Container[str]) -> OutputFile:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        name = path.relative_to(self.artifacts).as_posix()
        return OutputFile(_unique_name(safe_text(name, NAME_LIMIT), others), path, size, digest)

    @property
    def log_ref(self) -> str:
        return reference_to(self.log)

    def copy_log(self, artifacts: Artifacts, *, tenant: str, job_id: str) -> str:
        """Copy the log to the artifact store. Returns its reference there."""
        with self.log.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return artifacts.put_file(self.log, digest, tenant=tenant, job_id=job_id)

    def remove(self) -> None:
        """Remove the directory, and its parents if they are empty."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()
            self.folder.parent.parent.rmdir()


def create_directory(log_dir: Path, claim: Claim, *, create_parent: bool) -> AttemptDirectory:
    """Create the directory of an attempt, accessible to this user only. A configured ``log_dir`` must exist: an
    unmounted mount point must not fill up unnoticed."""
    directory = AttemptDirectory(log_dir.resolve() / claim.id[:8] / claim.id / str(claim.attempt))
    try:
        if create_parent:
            make_private(log_dir)
        elif not log_dir.is_dir():
            raise FileNotFoundError(f"{log_dir} is not a directory")
        make_private(directory.artifacts)
        for path, text in ((directory.log, ""), (directory.payload, claim.payload)):
            with open_private(path, "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise HoldfastError(
            f"the program's log cannot be stored: {error}",
            code="log_dir_unusable",
            fix="Create the directory, or choose another with log_dir (or HOLDFAST_LOG_DIR).",
        ) from error
    return directory


def _unique_name(name: str, others: Container[str]) -> str:
    """Number a name that is taken. Long names, and names that are not text, may collide once they are cleaned."""
    candidates = (name, *(f"{name[: NAME_LIMIT - 6]} ({number})" for number in range(2, MOST_ARTIFACTS + 2)))
    return next(candidate for candidate in candidates if candidate not in others)


def _regular_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            with contextlib.suppress(OSError):  # the file may have been removed meanwhile
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path
