"""Reads logs and artifacts of attempts: from the database, the artifact store, or this host.

Files on another host are refused with their location.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.job import Artifact, Job
from holdfast.engine.operation import Program
from holdfast.engine.states import State
from holdfast.errors import NotFound, Refused
from holdfast.features.attempts.model import (
    FILE_SCHEME,
    READ_LIMIT,
    AttemptLog,
    LogPart,
    check_attempt,
    check_window,
    decode_log,
    parse_file_ref,
)
from holdfast.features.payloads.model import HIDDEN
from holdfast.stores.artifacts import SCHEME
from holdfast.stores.flow import Steps, flow, read_together, run
from holdfast.stores.host_files import read_file
from holdfast.stores.namespace import call
from holdfast.stores.port import Caller
from holdfast.stores.vault import Vault, sealed_in

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

FILE_LIMIT = 64 * 1024 * 1024
"""The most bytes of a file that one call reads."""


def load_log(
    caller: Caller, vault: Vault, job_id: str, attempt: int | None, offset: int | None, tail: int | None, tenant: str
) -> Program[AttemptLog]:
    """The log of an attempt, for ``app.jobs.log`` and ``handle.log``."""
    check_window(offset, tail)
    parts = yield from run(log_parts(caller.store, job_id, check_attempt(attempt), tenant))
    return (yield from call(partial(read_log, vault, parts, offset, tail)))


def load_artifact(
    caller: Caller, vault: Vault, job_id: str, name: str, attempt: int | None, tenant: str
) -> Program[bytes]:
    """The contents of an artifact, for ``app.jobs.artifact`` and ``handle.artifact``."""
    location = yield from run(artifact_of(caller.store, job_id, name, check_attempt(attempt), tenant))
    return (yield from call(partial(read_artifact, vault, location)))


@flow(writes=False)
def log_parts(store: Store, job_id: str, attempt: int | None, tenant: str) -> Steps[tuple[Job, int, list[LogPart]]]:
    """The job, the number of the attempt (the last one by default), and the parts of its log."""
    job = yield from store.jobs.get(job_id, tenant).start()
    if job is None:
        raise NotFound(f"no job {job_id} in tenant {tenant}", fix="If it belongs to another tenant, try --all-tenants.")
    number = job.attempt if attempt is None else attempt
    if attempt is not None and not 1 <= attempt <= job.attempt:
        raise NotFound(f"job {job.id} has no attempt {attempt}", code="attempt_not_found")
    return job, number, (yield from store.attempts.log(job.id, number, tenant).start())


def read_log(
    vault: Vault,
    log: tuple[Job, int, list[LogPart]],
    offset: int | None = None,
    tail: int | None = None,
    *,
    most: int = READ_LIMIT,
    opens: bool = True,
) -> AttemptLog:
    """Read a log from ``offset`` on, or its last ``tail`` bytes, and at most ``most`` bytes.

    Without ``opens``, sealed logs are refused: the HTTP API does not unseal them for its clients.
    """
    job, attempt, _ = log
    start: int | None = offset or 0
    if tail is not None:
        start, most = None, min(tail, most)
    ref, (begin, size, data) = _log_bytes(vault, log, start, most, opens)
    if tail is not None and begin:  # start at a line, or at least at a character
        cut = data.find(b"\n", 0, -1) + 1 or next((n for n, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
        begin, data = begin + cut, data[cut:]
    ended = (job.state is not State.IN_PROGRESS or job.attempt != attempt) if attempt else job.state.finished
    after, text = decode_log(data, begin, at_end=ended and begin + len(data) >= size)
    return AttemptLog(job.id, attempt, text, begin, after, size, ended, ref)


def raw_log(vault: Vault, log: tuple[Job, int, list[LogPart]], *, opens: bool = True) -> bytes:
    """The bytes of a log, up to ``FILE_LIMIT``."""
    return _log_bytes(vault, log, 0, FILE_LIMIT, opens)[1][2]


def _log_bytes(
    vault: Vault, log: tuple[Job, int, list[LogPart]], start: int | None, most: int, opens: bool
) -> tuple[str | None, tuple[int, int, bytes]]:
    job, _, parts = log
    if job.payload == HIDDEN:
        raise Refused("logs of a restricted kind are not shown", code="restricted")
    ref = next((part.ref for part in reversed(parts) if part.ref is not None), None)
    if ref is None:
        return None, _lines(vault, job, parts, start, most, opens)
    return ref, _output(vault, job, ref, start, most)


def _lines(
    vault: Vault, job: Job, parts: list[LogPart], start: int | None, most: int, opens: bool
) -> tuple[int, int, bytes]:
    opened = []
    for part in parts:
        text, sealed = part.lines or "", sealed_in(part.lines or "")
        if sealed is not None and not opens:
            raise Refused(
                f"the log is sealed with key {sealed[0]!r}",
                code="log_sealed",
                fix="Read it with a program that has the key: app.jobs.log, or holdfast jobs log.",
            )
        place = f"{part.attempt}/{part.n}"
        opened.append(vault.open(text, what="log", tenant=job.tenant, job_id=job.id, place=place))
    return _window("".join(opened).encode(), start, most)


def _output(vault: Vault, job: Job, ref: str, start: int | None, most: int) -> tuple[int, int, bytes]:
    if ref.startswith(FILE_SCHEME):
        output = read_file(ref, job.id, start, most)
        if output is None:
            raise _elsewhere("log", ref)
        return output
    return _window(_stored(vault, job, ref, "log"), start, most)


def _window(data: bytes, start: int | None, most: int) -> tuple[int, int, bytes]:
    begin = max(0, len(data) - most) if start is None else min(start, len(data))
    return begin, len(data), data[begin : begin + most]


def chosen_artifact(artifacts: list[Artifact], name: str, attempt: int | None) -> Artifact:
    """The artifact with this name; without an attempt, of the last attempt that has one."""
    matches = [artifact for artifact in artifacts if artifact.name == name and attempt in (None, artifact.attempt)]
    if not matches:
        raise NotFound(f"this job has no artifact {name!r}", code="artifact_not_found")
    return matches[-1]


@flow(writes=False)
def artifact_of(store: Store, job_id: str, name: str, attempt: int | None, tenant: str) -> Steps[tuple[Job, Artifact]]:
    job, artifacts = yield from read_together(
        store.jobs.get(job_id, tenant).start(), store.jobs.artifacts(job_id, tenant).start()
    )
    if job is None:
        raise NotFound(f"no job {job_id} in tenant {tenant}")
    return job, chosen_artifact(artifacts, name, attempt)


def read_artifact(vault: Vault, location: tuple[Job, Artifact]) -> bytes:
    """The bytes of an artifact, up to ``FILE_LIMIT``."""
    job, artifact = location
    if job.payload == HIDDEN:
        raise Refused("artifacts of a restricted kind are not shown", code="restricted")
    if artifact.ref.startswith(FILE_SCHEME):
        contents = _own_file(job, artifact)
        if contents is None:
            raise _elsewhere("artifact", artifact.ref)
        _, size, data = contents
        if size > FILE_LIMIT:
            raise Refused(
                f"the file has {size:,} bytes; {FILE_LIMIT:,} can be read at once",
                code="artifact_too_large",
                fix=f"Its location is {artifact.ref}.",
            )
        return data
    return _stored(vault, job, artifact.ref, "artifact")


def _own_file(job: Job, artifact: Artifact) -> tuple[int, int, bytes] | None:
    """The contents of a file that a command job wrote. None for other files: a handler may name any file of its host,
    and reading that would expose it."""
    try:
        return read_file(artifact.ref, job.id, 0, FILE_LIMIT)
    except Refused:
        return None


def _stored(vault: Vault, job: Job, ref: str, what: str) -> bytes:
    if vault.artifacts is None or not ref.startswith(SCHEME):
        raise _elsewhere(what, ref)
    return vault.artifacts.get(ref, tenant=job.tenant, most=FILE_LIMIT)


def _elsewhere(what: str, ref: str) -> Refused:
    file = parse_file_ref(ref)
    where = "not in this program's artifact store" if file is None else f"on host {file[0]}, and cannot be read here"
    return Refused(
        f"the {what} is {where}",
        code="log_elsewhere" if what == "log" else "artifact_elsewhere",
        fix=f"Its location is {ref}." + (" Set HOLDFAST_ARTIFACTS to read new ones from everywhere." if file else ""),
    )
