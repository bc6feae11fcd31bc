"""Archiving: the jobs that a policy wants archived become files in the artifact store, one tenant per file.

A file is stored first and recorded then. A process that dies in between leaves a file that the next one writes again,
byte by byte, under the same name; nothing is removed before it is recorded.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.engine.operation import Program
from holdfast.errors import NotFound
from holdfast.features.archives.model import (
    Archive,
    ArchiveRun,
    ArchiveWriter,
    Document,
    Finished,
    archive_id,
    artifact_refs,
    day_of,
)
from holdfast.features.payloads.model import effective
from holdfast.stores.artifacts import Artifacts, Reference
from holdfast.stores.flow import run
from holdfast.stores.namespace import call

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")

EVERY, REST, WORKER_JOBS = 60.0, 19.0, 5_000
FIRST = "00000000-0000-0000-0000-000000000000"
FILE_JOBS, FILE_BYTES = 500, 64 << 20
"""Maximum jobs of a file, and maximum bytes before compression."""
READ_JOBS = 10
"""Jobs that are in memory at once."""


def archive_due(store: Store, artifacts: Artifacts, actor: str, tenant: str, limit: int) -> Program[ArchiveRun]:
    """Archive the jobs whose policy wants it and that are due, at most ``limit``. A file has jobs of one tenant whose
    ids are of one day: to find a job later, few files are read."""
    waiting: dict[tuple[str, int], list[Finished]] = {}
    after, jobs, archives, last = FIRST, 0, 0, False
    while not last:
        walk = yield from run(store.archives.walk(after, tenant=tenant))
        after = walk.reached
        for job in walk.jobs:
            waiting.setdefault((job.tenant, day_of(job.id)), []).append(job)
        last = not walk.more or jobs + sum(map(len, waiting.values())) >= limit
        for (whose, day), found in list(waiting.items()):
            while len(found) >= (1 if last or day < day_of(after) else FILE_JOBS):
                done, archive = yield from write_archive(store, artifacts, actor, whose, found[:FILE_JOBS])
                del found[:done]
                if archive is not None:
                    jobs, archives = jobs + archive.jobs, archives + 1
            if not found:
                del waiting[whose, day]
    return ArchiveRun(jobs, archives)


class Archiving:
    """The maintenance task of a worker. ``run`` archives what is due, a limited number of jobs."""

    def __init__(self, run: Callable[[], Awaitable[object]] | None, tenant: str) -> None:
        self._run, self._tenant = run, tenant
        self._again_at = -math.inf

    async def __call__(self, store: Store) -> int:
        """Returns 0, as it makes no job ready. Usually it does nothing, or reads one small table. It walks over all
        jobs that are kept, so it rests in proportion."""
        began = time.monotonic()
        if began < self._again_at:
            return 0
        policies = await store.arun(store.retention.list(self._tenant))
        if any(policy.archive for policy in policies):
            if self._run is None:
                log.warning("Jobs have to be archived, but there is no artifact store: set HOLDFAST_ARTIFACTS.")
            else:
                await self._run()
        self._again_at = time.monotonic() + max(EVERY, REST * (time.monotonic() - began))
        return 0


def write_archive(
    store: Store, artifacts: Artifacts, actor: str, tenant: str, jobs: Sequence[Finished]
) -> Program[tuple[int, Archive | None]]:
    """Store the file of these jobs of one tenant, and record those in it. Returns how many were read, since a file has
    a limit, and the archive; None if none of them has to be archived any more."""
    id, done = archive_id(tenant, jobs), 0
    rules = yield from run(store.payload_rules.list(tenant))
    writer = yield from call(lambda: ArchiveWriter(id, tenant))
    try:
        while done < len(jobs) and writer.size < FILE_BYTES:
            ids = [job.id for job in jobs[done : done + READ_JOBS]]
            done += len(ids)
            documents = yield from run(store.archives.rows(ids, tenant))
            for document in documents:
                document["restricted"] = effective(rules, tenant, document["job"]["kind"]).restricted

            def add(documents: Sequence[Document] = documents) -> None:
                for document in documents:
                    writer.add(document | {"files": _copy_files(artifacts, document, id, tenant)})

            yield from call(add)
        if not writer.jobs:
            return done, None
        digest, size = yield from call(writer.finish)
        ref = yield from call(lambda: artifacts.put_file(writer.path, digest, tenant=tenant, job_id=id))
    finally:
        writer.close()
    return done, (yield from run(store.archives.record(id, ref, size, writer.jobs, actor, tenant)))


def _copy_files(artifacts: Artifacts, document: Document, archive: str, tenant: str) -> dict[str, str | None]:
    """Copy the job's files to the archive: cleaning the job deletes them. None for a file that is missing already."""
    copies: dict[str, str | None] = {}
    for ref in artifact_refs(json.dumps(document, ensure_ascii=False), document["job"]["id"]):
        try:
            with artifacts.file(ref, tenant=tenant) as path:
                copies[ref] = artifacts.put_file(path, Reference.of(ref).digest, tenant=tenant, job_id=archive)
        except NotFound:
            copies[ref] = None
    return copies
