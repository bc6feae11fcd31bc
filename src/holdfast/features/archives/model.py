"""The file of an archive: gzipped JSON lines, one header, one line per job, one end.

Holdfast writes a job as its rows, by table, as they are stored: what is encrypted stays encrypted. The same jobs give
the same bytes: the id of an archive is made from them, and the file carries no time of its own. So a process that
died after it stored a file writes the same file again.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from holdfast.errors import Conflict

FORMAT: Final = 1
LONG: Final = 1024
"""Bytes of a value from which ``shortened`` may omit it."""
Document = dict[str, Any]
"""A job in an archive: ``job``, ``job_state``, ``event`` and further tables; ``files`` has the copies of files in the
artifact store by their old reference, and ``restricted`` whether its payload is."""


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive. ``ref`` contains the SHA-256 of its file; ``seal`` and ``seal_digest`` are the newest seal of the
    ledger when it was recorded."""

    id: str
    tenant: str
    ref: str
    bytes: int
    jobs: int
    first_job: str
    last_job: str
    seal: int | None
    seal_digest: str | None
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ArchiveRun:
    """What a run archived."""

    jobs: int
    archives: int


@dataclass(frozen=True, slots=True)
class ArchiveCheck:
    """The result of verifying an archive: what is wrong, or nothing."""

    archive: str
    jobs: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished job that has to be archived."""

    id: str
    tenant: str
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class Walk:
    """One step of the walk over the jobs, in the order of their ids: those to archive, and where it is now."""

    jobs: Sequence[Finished]
    reached: str
    more: bool


def archive_id(tenant: str, jobs: Sequence[Finished]) -> str:
    """An id that sorts with the last of the jobs, as ids sort by time."""
    text = "\n".join([tenant, *(f"{job.id} {job.finished_at.timestamp():.6f}" for job in jobs)])
    return str(uuid.UUID(bytes=uuid.UUID(jobs[-1].id).bytes[:10] + hashlib.sha256(text.encode()).digest()[:6]))


def day_of(job_id: str) -> int:
    """The day of an id, which has its time in milliseconds."""
    return (uuid.UUID(job_id).int >> 80) // 86_400_000


def artifact_refs(text: str, job_id: str) -> list[str]:
    """The references to files of this job in the artifact store."""
    return sorted(set(re.findall(rf"artifact://[^/\s\"]{{1,900}}/{re.escape(job_id)}/[0-9a-f]{{64}}", text)))


class ArchiveWriter:
    """Writes the file of an archive into a temporary file that only its owner can read, line by line. ``jobs`` are
    those written, ``size`` their bytes before compression."""

    def __init__(self, archive: str, tenant: str) -> None:
        # The destination decides how long it lives; it is stored before it is closed.
        self._file = tempfile.NamedTemporaryFile(prefix="holdfast-archive-")  # noqa: SIM115
        self._packed = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=self._file, mtime=0)
        self._digest = hashlib.sha256()
        self.jobs: list[Finished] = []
        self.size = 0
        self._write({"holdfast": "archive", "format": FORMAT, "id": archive, "tenant": tenant})

    @property
    def path(self) -> Path:
        return Path(self._file.name)

    def add(self, document: Mapping[str, Any]) -> None:
        state = document["job_state"]
        self.jobs.append(Finished(state["id"], state["tenant"], datetime.fromisoformat(state["finished_at"])))
        self._write(document)

    def finish(self) -> tuple[str, int]:
        """The SHA-256 and the size of the file."""
        self._write({"end": {"jobs": len(self.jobs), "sha256": self._digest.hexdigest()}})
        self._packed.close()
        self._file.flush()
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), self.path.stat().st_size

    def close(self) -> None:
        self._file.close()

    def _write(self, value: Mapping[str, Any]) -> None:
        line = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        self.size += len(line)
        self._digest.update(line)
        self._packed.write(line)


def shortened(document: Document, most: int) -> Document:
    """The document with at most ``most`` bytes of long values, and as many of other columns. A note of its size stands
    for each value or row beyond that."""
    long = short = most

    def value_of(value: Any) -> Any:
        nonlocal long, short
        size = len(json.dumps(value, ensure_ascii=False).encode())
        if size <= LONG:
            short -= size
            return value
        long -= size
        return value if long >= 0 else {"$holdfast": {"omitted": size}}

    def row_of(row: Any) -> Any:
        nonlocal short
        if not isinstance(row, dict):
            return value_of(row)
        if short < 0:
            return {"$holdfast": {"omitted": len(json.dumps(row, ensure_ascii=False).encode())}}
        short -= sum(map(len, row))
        return {name: value_of(value) for name, value in row.items()}

    return {
        name: [row_of(each) for each in rows] if isinstance(rows, list) else row_of(rows)
        for name, rows in document.items()
    }


def read_documents(archive: str, file: Path) -> Iterator[Document]:
    """The jobs of a file, one at a time. ``Conflict`` if it is not whole."""
    digest, jobs, ended = hashlib.sha256(), 0, False
    try:
        with gzip.open(file) as lines:
            header = json.loads(line := lines.readline())
            if header.get("holdfast") != "archive" or header.get("format") != FORMAT or header.get("id") != archive:
                raise _broken(archive, "its header is that of another file")
            digest.update(line)
            for line in _lines(lines):
                document = json.loads(line)
                if "end" in document:
                    ended = document["end"] == {"jobs": jobs, "sha256": digest.hexdigest()}
                    break
                digest.update(line)
                jobs += 1
                yield document
    except (OSError, EOFError, ValueError) as error:
        raise _broken(archive, str(error)) from error
    if not ended:
        raise _broken(archive, "its end does not match its lines")


def _lines(file: BinaryIO | gzip.GzipFile) -> Iterable[bytes]:
    return iter(file.readline, b"")


def _broken(archive: str, why: str) -> Conflict:
    return Conflict(f"archive {archive} is damaged: {why}", code="archive_damaged")
