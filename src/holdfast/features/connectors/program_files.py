"""The directory of one attempt of a command job: its log, its payload, and the files the program leaves.

<log_dir>/<first eight of the id>/<id>/<attempt>/output.log
                                                 payload.json    (gone when the attempt has ended)
                                                 artifacts/      (gone when nothing is in it)

With an artifact store, the log and the files move there when the program has ended, and the directory is gone.
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
from holdfast.stores.host_files import reference_to

MOST_ARTIFACTS = 100
NAME_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Found:
    """A file the program has left."""

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
        """The payload may hold what should not lie about."""
        with contextlib.suppress(OSError):
            self.payload.unlink()
        with contextlib.suppress(OSError):
            self.artifacts.rmdir()  # refused unless it is empty

    def found(self) -> list[Found]:
        """The files in the artifact directory, by name; links, devices and the like are left out, and what cannot be
        read. How the program ended counts for more than what it has left."""
        found: dict[str, Found] = {}
        for path in _files(self.artifacts):
            if len(found) == MOST_ARTIFACTS:
                break
            with contextlib.suppress(OSError):
                each = self._look_at(path, found)
                found[each.name] = each
        return list(found.values())

    def _look_at(self, path: Path, others: Container[str]) -> Found:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        name = path.relative_to(self.artifacts).as_posix()
        return Found(_free(safe_text(name, NAME_LIMIT), others), path, size, digest)

    @property
    def log_ref(self) -> str:
        return reference_to(self.log)

    def move_log(self, artifacts: Artifacts, *, tenant: str, job_id: str) -> str:
        """Copy the log to the artifact store; answers its reference there."""
        with self.log.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return artifacts.put_file(self.log, digest, tenant=tenant, job_id=job_id)

    def remove(self) -> None:
        """Everything is elsewhere. Directories above go too, if nothing is left in them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()
            self.folder.parent.parent.rmdir()


def set_up(log_dir: Path, claim: Claim, *, may_make: bool) -> AttemptDirectory:
    """Make the directory, for this user only. A ``log_dir`` that was named must be there: an empty mount point
    must not fill up unseen."""
    desk = AttemptDirectory(log_dir.resolve() / claim.id[:8] / claim.id / str(claim.attempt))
    try:
        if may_make:
            log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not log_dir.is_dir():
            raise FileNotFoundError(f"{log_dir} is not a directory")
        for folder in (*reversed(desk.folder.parents[:2]), desk.folder, desk.artifacts):
            folder.mkdir(mode=0o700, exist_ok=True)
        for path, text in ((desk.log, ""), (desk.payload, claim.payload)):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise HoldfastError(
            f"the program's log cannot be stored: {error}",
            code="log_dir_unusable",
            fix="Create the directory, or choose another with log_dir (or HOLDFAST_LOG_DIR).",
        ) from error
    return desk


def _free(name: str, others: Container[str]) -> str:
    """Names that are no text, or very long, may be the same once they are stored."""
    names = (name, *(f"{name[: NAME_LIMIT - 6]} ({number})" for number in range(2, MOST_ARTIFACTS + 2)))
    return next(each for each in names if each not in others)


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            with contextlib.suppress(OSError):  # it may be gone again
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path
