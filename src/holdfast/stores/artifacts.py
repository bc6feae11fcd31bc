"""``ArtifactStore``, references, the directory implementation, ``open_artifacts``.

References to stored content. Every access goes through here, by tenant and by content.

A reference names the tenant, the job and the SHA-256 of the content: ``artifact://acme/<job>/<sha256>``. Whoever reads
says for which tenant, and gets only what is still what was written. A store itself knows nothing but keys and bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol, cast
from urllib.parse import quote, unquote

from holdfast.engine.ids import parse_id
from holdfast.engine.redaction import shown_url
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound, Refused, StoreUnavailable
from holdfast.stores.s3 import Bucket

SCHEME: Final = "artifact://"
_FORM: Final = re.compile(r"artifact://([^/]{1,900})/([0-9a-f-]{36})/([0-9a-f]{64})")


class ArtifactStore(Protocol):
    """Keys are paths of safe parts; a put is whole or not there, and putting the same again changes nothing."""

    def put(self, key: str, data: bytes) -> None: ...
    def get(self, key: str) -> bytes | None: ...
    def delete(self, key: str) -> None: ...
    def exists(self, key: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Reference:
    tenant: str
    job_id: str
    digest: str

    @classmethod
    def of(cls, text: str) -> Reference:
        found = _FORM.fullmatch(text)
        if found is None:
            raise InvalidInput("this is not a reference to the artifact store", code="invalid_reference")
        return cls(unquote(found[1]), parse_id(found[2]), found[3])

    @classmethod
    def at(cls, key: str) -> Reference | None:
        """What lies under a key; None if it was not put there by us."""
        tenant, _, rest = key.partition("/")
        found = _FORM.fullmatch(f"{SCHEME}{quote(unquote(tenant), safe='')}/{rest}")
        if found is None:
            return None
        made = cls(unquote(found[1]), found[2], found[3])
        return made if made.key == key else None

    def __str__(self) -> str:
        return f"{SCHEME}{quote(self.tenant, safe='')}/{self.job_id}/{self.digest}"

    @property
    def key(self) -> str:
        # A name of dots alone would be a path; escaped it is none.
        return f"{quote(self.tenant, safe='').replace('.', '%2E')}/{self.job_id}/{self.digest}"


class FileStore(ArtifactStore, Protocol):
    """One that takes a file without reading it into memory; the others are given its bytes."""

    def put_file(self, key: str, path: Path, digest: str) -> None: ...


class ListedStore(ArtifactStore, Protocol):
    """One that can say what is in it."""

    def keys(self) -> Iterator[str]: ...


class SizedStore(ArtifactStore, Protocol):
    """One that knows how large a file is without reading it; None if there is none."""

    def size(self, key: str) -> int | None: ...


class Artifacts:
    """What the rest of the library has of a store."""

    def __init__(self, store: ArtifactStore) -> None:
        self.store = store

    def put(self, data: bytes, *, tenant: str, job_id: str) -> str:
        """Keep the bytes; answers the reference."""
        made = Reference(tenant, parse_id(job_id), hashlib.sha256(data).hexdigest())
        self.store.put(made.key, data)
        return str(made)

    def reference(self, data: bytes, *, tenant: str, job_id: str) -> str:
        """The reference that ``put`` will answer for these bytes."""
        return str(Reference(tenant, parse_id(job_id), hashlib.sha256(data).hexdigest()))

    def put_file(self, path: Path, digest: str, *, tenant: str, job_id: str) -> str:
        """The same for a file, whose SHA-256 is known."""
        made = Reference(tenant, parse_id(job_id), digest)
        if hasattr(self.store, "put_file"):
            cast(FileStore, self.store).put_file(made.key, path, digest)
        else:
            self.store.put(made.key, path.read_bytes())
        return str(made)

    def get(self, ref: str, *, tenant: str, most: int | None = None) -> bytes:
        """The bytes, checked: ``artifact_missing`` or ``artifact_changed`` if they are not what was put there, and
        ``artifact_too_large`` if there are more than ``most``."""
        wanted = self._own(ref, tenant)
        if most is not None and hasattr(self.store, "size"):
            size = cast(SizedStore, self.store).size(wanted.key)
            if size is not None and size > most:
                raise Refused(
                    f"the file has {size:,} bytes; {most:,} can be read at once",
                    code="artifact_too_large",
                    fix=f"Read it from the artifact store: {wanted}.",
                )
        data = self.store.get(wanted.key)
        if data is None:
            raise NotFound(
                f"{wanted} is not in the artifact store",
                code="artifact_missing",
                fix="Check HOLDFAST_ARTIFACTS: it must be the store that the artifact was written to.",
            )
        if hashlib.sha256(data).hexdigest() != wanted.digest:
            raise Conflict(f"{wanted} was changed after it was written", code="artifact_changed")
        return data

    def exists(self, ref: str, *, tenant: str) -> bool:
        return self.store.exists(self._own(ref, tenant).key)

    def delete(self, ref: str, *, tenant: str) -> None:
        """Gone, also if it was not there."""
        self.store.delete(self._own(ref, tenant).key)

    def references(self) -> Iterator[Reference]:
        """All that lies there and was put there by us, of every tenant."""
        if not hasattr(self.store, "keys"):
            raise InvalidSetting("this artifact store cannot list its contents", code="artifacts_unlisted")
        keys = cast(ListedStore, self.store).keys()
        for key in keys:
            if (found := Reference.at(key)) is not None:
                yield found

    def _own(self, ref: str, tenant: str) -> Reference:
        wanted = Reference.of(ref)
        if wanted.tenant != tenant:
            raise Refused("the reference belongs to another tenant", code="artifact_not_yours")
        return wanted


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

    def size(self, key: str) -> int | None:
        try:
            return self._path(key).stat().st_size
        except OSError:
            return None

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
            raise InvalidInput("an artifact's key must be a path of plain names", code="invalid_reference")
        path = self.root.joinpath(*parts)
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise InvalidInput("an artifact's key must stay inside its directory", code="invalid_reference")
        return path


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unavailable(error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"the artifact store cannot be used: {error.strerror or error}", code="artifacts_away")


def open_artifacts(named: str | os.PathLike[str] | ArtifactStore | None) -> Artifacts | None:
    """``/var/lib/jobs``, ``file:///var/lib/jobs``, ``s3://bucket/prefix?region=…``, or a store of your own."""
    if named is None or named == "":
        return None
    if isinstance(named, os.PathLike):
        return Artifacts(Directory(Path(named)))
    if not isinstance(named, str):
        return Artifacts(named)
    if named.startswith("s3://"):
        return Artifacts(Bucket.of(named, os.environ))
    if named.startswith("file://"):
        return Artifacts(Directory(named.removeprefix("file://")))
    if "://" in named:
        raise InvalidSetting(
            f"{shown_url(named)} is not the URL of an artifact store",
            code="invalid_artifacts",
            fix="Use a directory, or s3://bucket/prefix?region=….",
        )
    return Artifacts(Directory(named))
