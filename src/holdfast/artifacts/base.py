"""References to what is stored, and the one gate to it: by tenant, by content.

A reference names the tenant, the job and the SHA-256 of the content: ``artifact://acme/<job>/<sha256>``. Whoever reads
says for which tenant, and gets only what is still what was written. A store itself knows nothing but keys and bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast
from urllib.parse import quote, unquote

from holdfast.engine.ids import parse_id
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, NotFound, Refused

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
            raise InvalidInput("this is no reference to the artifact store", code="invalid_reference")
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


class Artifacts:
    """What the rest of the library has of a store."""

    def __init__(self, store: ArtifactStore) -> None:
        self.store = store

    def put(self, data: bytes, *, tenant: str, job_id: str) -> str:
        """Keep the bytes; answers the reference."""
        made = Reference(tenant, parse_id(job_id), hashlib.sha256(data).hexdigest())
        self.store.put(made.key, data)
        return str(made)

    def put_file(self, path: Path, digest: str, *, tenant: str, job_id: str) -> str:
        """The same for a file, whose SHA-256 is known."""
        made = Reference(tenant, parse_id(job_id), digest)
        if hasattr(self.store, "put_file"):
            cast(FileStore, self.store).put_file(made.key, path, digest)
        else:
            self.store.put(made.key, path.read_bytes())
        return str(made)

    def get(self, ref: str, *, tenant: str) -> bytes:
        """The bytes, checked: ``artifact_missing`` or ``artifact_changed`` if they are not what was put there."""
        wanted = self._own(ref, tenant)
        data = self.store.get(wanted.key)
        if data is None:
            raise NotFound(
                f"{wanted} is not in the artifact store",
                code="artifact_missing",
                fix="Is it the store it was put into? See HOLDFAST_ARTIFACTS.",
            )
        if hashlib.sha256(data).hexdigest() != wanted.digest:
            raise Conflict(f"{wanted} is not what was put there", code="artifact_changed")
        return data

    def exists(self, ref: str, *, tenant: str) -> bool:
        return self.store.exists(self._own(ref, tenant).key)

    def delete(self, ref: str, *, tenant: str) -> None:
        """Gone, also if it was not there."""
        self.store.delete(self._own(ref, tenant).key)

    def references(self) -> Iterator[Reference]:
        """All that lies there and was put there by us, of every tenant."""
        if not hasattr(self.store, "keys"):
            raise InvalidSetting("this artifact store cannot say what is in it", code="artifacts_unlisted")
        keys = cast(ListedStore, self.store).keys()
        for key in keys:
            if (found := Reference.at(key)) is not None:
                yield found

    def _own(self, ref: str, tenant: str) -> Reference:
        wanted = Reference.of(ref)
        if wanted.tenant != tenant:
            raise Refused("the reference is another tenant's", code="artifact_not_yours")
        return wanted
