"""Artifacts: content outside the database, in a directory or an S3 bucket, addressed by reference.

A reference names the tenant, the job and the SHA-256 of the content: ``artifact://acme/<job>/<sha256>``. Every access
goes through ``Artifacts``, which checks the tenant and the digest. An ``ArtifactStore`` knows only keys and bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol, cast
from urllib.parse import quote, unquote

from holdfast.engine.ids import parse_id
from holdfast.engine.redaction import shown_url
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound, Refused, StoreUnavailable
from holdfast.stores.host_files import make_private
from holdfast.stores.s3 import Bucket

SCHEME: Final = "artifact://"
_FORM: Final = re.compile(r"artifact://([^/]{1,900})/([0-9a-f-]{36})/([0-9a-f]{64})")


class ArtifactStore(Protocol):
    """Keys are paths of safe names. A put is atomic, and repeating it has no effect."""

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
        match = _FORM.fullmatch(text)
        if match is None:
            raise InvalidInput("this is not a reference to the artifact store", code="invalid_reference")
        return cls(unquote(match[1]), parse_id(match[2]), match[3])

    @classmethod
    def at(cls, key: str) -> Reference | None:
        """The reference with this key; None if Holdfast did not write it."""
        tenant, _, rest = key.partition("/")
        match = _FORM.fullmatch(f"{SCHEME}{quote(unquote(tenant), safe='')}/{rest}")
        if match is None:
            return None
        reference = cls(unquote(match[1]), match[2], match[3])
        return reference if reference.key == key else None

    def __str__(self) -> str:
        return f"{SCHEME}{quote(self.tenant, safe='')}/{self.job_id}/{self.digest}"

    @property
    def key(self) -> str:
        # Dots are escaped: a tenant named ".." would change the path.
        return f"{quote(self.tenant, safe='').replace('.', '%2E')}/{self.job_id}/{self.digest}"


class FileStore(ArtifactStore, Protocol):
    """A store that takes and gives files without reading them into memory; other stores get and give bytes."""

    def put_file(self, key: str, path: Path, digest: str) -> None: ...
    def get_file(self, key: str) -> AbstractContextManager[Path | None]: ...


class ListedStore(ArtifactStore, Protocol):
    """A store that can list its keys."""

    def keys(self) -> Iterator[str]: ...


class SizedStore(ArtifactStore, Protocol):
    """A store that knows the size of a file without reading it; None if there is no such file."""

    def size(self, key: str) -> int | None: ...


class Artifacts:
    """Access to an artifact store by reference, checked by tenant and content."""

    def __init__(self, store: ArtifactStore) -> None:
        self.store = store

    def put(self, data: bytes, *, tenant: str, job_id: str) -> str:
        """Store the bytes and return their reference."""
        reference = Reference(tenant, parse_id(job_id), hashlib.sha256(data).hexdigest())
        self.store.put(reference.key, data)
        return str(reference)

    def reference(self, data: bytes, *, tenant: str, job_id: str) -> str:
        """The reference that ``put`` returns for these bytes."""
        return str(Reference(tenant, parse_id(job_id), hashlib.sha256(data).hexdigest()))

    def put_file(self, path: Path, digest: str, *, tenant: str, job_id: str) -> str:
        """Store a file whose SHA-256 is known and return its reference."""
        reference = Reference(tenant, parse_id(job_id), digest)
        if hasattr(self.store, "put_file"):
            cast(FileStore, self.store).put_file(reference.key, path, digest)
        else:
            self.store.put(reference.key, path.read_bytes())
        return str(reference)

    def get(self, ref: str, *, tenant: str, most: int | None = None) -> bytes:
        """Read the bytes and check them. Raises ``artifact_missing``, ``artifact_changed`` if the digest differs, or
        ``artifact_too_large`` if there are more than ``most``."""
        reference = self._checked(ref, tenant)
        if most is not None and hasattr(self.store, "size"):
            size = cast(SizedStore, self.store).size(reference.key)
            if size is not None and size > most:
                raise Refused(
                    f"the file has {size:,} bytes; {most:,} can be read at once",
                    code="artifact_too_large",
                    fix=f"Read it from the artifact store: {reference}.",
                )
        data = self.store.get(reference.key)
        _check(reference, None if data is None else hashlib.sha256(data).hexdigest())
        assert data is not None
        return data

    @contextlib.contextmanager
    def file(self, ref: str, *, tenant: str) -> Iterator[Path]:
        """The content as a file to read from, checked like that of ``get`` without being in memory."""
        reference = self._checked(ref, tenant)
        if not hasattr(self.store, "get_file"):
            with tempfile.NamedTemporaryFile(prefix="holdfast-artifact-") as copy:
                copy.write(self.get(ref, tenant=tenant))
                copy.flush()
                yield Path(copy.name)
            return
        with cast(FileStore, self.store).get_file(reference.key) as path:
            _check(reference, None if path is None else _digest(path))
            assert path is not None
            yield path

    def exists(self, ref: str, *, tenant: str) -> bool:
        return self.store.exists(self._checked(ref, tenant).key)

    def delete(self, ref: str, *, tenant: str) -> None:
        """Delete it; no error if it does not exist."""
        self.store.delete(self._checked(ref, tenant).key)

    def references(self) -> Iterator[Reference]:
        """The references of everything Holdfast wrote to the store, of every tenant."""
        if not hasattr(self.store, "keys"):
            raise InvalidSetting("this artifact store cannot list its contents", code="artifacts_unlisted")
        keys = cast(ListedStore, self.store).keys()
        for key in keys:
            if (reference := Reference.at(key)) is not None:
                yield reference

    def _checked(self, ref: str, tenant: str) -> Reference:
        reference = Reference.of(ref)
        if reference.tenant != tenant:
            raise Refused("the reference belongs to another tenant", code="artifact_not_yours")
        return reference


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unavailable(error) from error


def _check(reference: Reference, digest: str | None) -> None:
    if digest is None:
        raise NotFound(
            f"{reference} is not in the artifact store",
            code="artifact_missing",
            fix="Check HOLDFAST_ARTIFACTS: it must be the store that the artifact was written to.",
        )
    if digest != reference.digest:
        raise Conflict(f"{reference} was changed after it was written", code="artifact_changed")


_PART = re.compile(r"[A-Za-z0-9%_~\-]{1,1000}")


class Directory:
    """An artifact store in a directory. It is created by the first put, readable only by its owner."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()

    def put(self, key: str, data: bytes) -> None:
        self._put(key, lambda file: file.write(data))

    def put_file(self, key: str, path: Path, digest: str) -> None:
        with path.open("rb") as source:
            self._put(key, lambda file: shutil.copyfileobj(source, file, 1 << 20))

    @contextlib.contextmanager
    def get_file(self, key: str) -> Iterator[Path | None]:
        path = self._path(key)
        yield path if path.is_file() else None

    def _put(self, key: str, write: Callable[[BinaryIO], object]) -> None:
        path = self._path(key)
        try:
            shared = self._group_mode()
            make_private(path.parent, 0o700 | shared)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
            try:
                with os.fdopen(handle, "wb") as file:
                    if shared:
                        os.chmod(temporary, 0o600 | shared & 0o060)
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            for folder in (path.parent, path.parent.parent, self.root):
                _sync(folder)
        except OSError as error:
            raise _unavailable(error) from error

    def _group_mode(self) -> int:
        """The permission bits of the group, if the root is writable by its group; else 0."""
        try:
            mode = self.root.stat().st_mode
        except OSError:
            return 0
        return mode & 0o070 if mode & 0o020 else 0

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
            with contextlib.suppress(OSError):  # the directory is not empty
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
        """All keys, in no particular order, without files that are being written."""
        for folder, _, names in os.walk(self.root):
            parts = Path(folder).relative_to(self.root).parts
            for name in names:
                if _PART.fullmatch(name):
                    yield "/".join((*parts, name))

    def _path(self, key: str) -> Path:
        """The path of a key, always inside the root: no part is empty, starts with a dot or contains a separator, and
        no link on the path leads outside."""
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


def open_artifacts(location: str | os.PathLike[str] | ArtifactStore | None) -> Artifacts | None:
    """Open ``/var/lib/jobs``, ``file:///var/lib/jobs``, ``s3://bucket/prefix?region=…``, or an ``ArtifactStore``."""
    if location is None or location == "":
        return None
    if isinstance(location, os.PathLike):
        return Artifacts(Directory(Path(location)))
    if not isinstance(location, str):
        return Artifacts(location)
    if location.startswith("s3://"):
        return Artifacts(Bucket.of(location, os.environ))
    if location.startswith("file://"):
        return Artifacts(Directory(location.removeprefix("file://")))
    if "://" in location:
        raise InvalidSetting(
            f"{shown_url(location)} is not the URL of an artifact store",
            code="invalid_artifacts",
            fix="Use a directory, or s3://bucket/prefix?region=….",
        )
    return Artifacts(Directory(location))
