"""Retention: archive, clean and purge the jobs past their retention, and delete the files they leave behind.

Jobs that a policy wants archived become files in the artifact store first, one tenant per file. A file is stored first
and recorded then. A process that dies in between leaves a file that the next one writes again, byte by byte, under the
same name; nothing is removed before it is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.operation import Program
from holdfast.errors import InvalidInput, NotFound, Refused
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
from holdfast.features.attempts.model import FILE_SCHEME
from holdfast.features.payloads.model import effective
from holdfast.features.retention.model import OrphanedFile
from holdfast.stores.artifacts import Artifacts, Reference
from holdfast.stores.flow import in_thread, run
from holdfast.stores.host_files import host_name, remove_directory
from holdfast.stores.namespace import call

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")

SLICES, PAGES = 20, 50
"""Slices and pages per run; the next run continues."""
SWEEP_JOBS, SWEEP_ROWS, USAGE_PAGE = 200, 2000, 2000
REST = 19.0
"""The pause after a slice, as a multiple of its duration: retention uses a twentieth of one connection at most."""
LONGEST_REST = 2.0


async def sweep(store: Store, *, tenant: str, slices: int = SLICES) -> int:
    """Count usage, then clean and purge jobs past their retention, one slice per transaction.

    After a very busy hour counting falls behind, and jobs that are not counted yet are not purged yet. Returns 0, as it
    makes no job ready. Usually it is two queries of two small tables.
    """
    pages = PAGES if slices > 1 else 1
    with unless_pinned():
        await _count_usage(store, pages)
    for left in range(slices, 0, -1):
        began = time.monotonic()
        swept = await store.arun(store.retention.sweep(SWEEP_JOBS, SWEEP_ROWS, tenant))
        if swept.held_by is not None and swept.held_by.startswith(("consumer", "subscription")):
            log.warning("%s jobs are past their retention, but %s has not read their events", swept.held, swept.held_by)
        if swept.action == "idle" or left == 1:
            break
        if swept.looked:
            await asyncio.sleep(min(LONGEST_REST, REST * (time.monotonic() - began)))
    return 0


@contextlib.contextmanager
def unless_pinned() -> Iterator[None]:
    """Skip work for all tenants if the database login is pinned to one tenant: other workers do it."""
    try:
        yield
    except Refused as error:
        if error.code != "tenant_pinned":
            raise


async def _count_usage(store: Store, pages: int) -> None:
    for left in range(pages, 0, -1):
        began = time.monotonic()
        if await store.arun(store.usage.count(USAGE_PAGE)) < USAGE_PAGE or left == 1:
            return
        await asyncio.sleep(min(LONGEST_REST, REST * (time.monotonic() - began)))


# --- orphaned files ---

# Files that jobs no longer refer to: payloads, results, artifacts, steps, checkpoints and logs in the artifact store,
# and directories of command jobs on this host. The transaction that cleans a job or replaces its checkpoint lists them.
# They are deleted first and removed from the list then: after a crash in between they are deleted again, which is
# harmless.
BATCH, BATCHES = 100, 20


async def delete_orphans(store: Store, *, artifacts: Artifacts | None, tenant: str, batches: int = BATCHES) -> int:
    """Delete orphaned files. Returns 0, as it makes no job ready. Usually it is one query of a small table."""
    for _ in range(batches):
        orphans = await store.arun(store.retention.orphans(BATCH, tenant, host_name(), artifacts is not None))
        if not orphans:
            break
        deleted = await in_thread(_delete, artifacts, orphans)
        await store.arun(store.retention.forget_orphans(deleted, tenant))
    return 0


def delete_all_orphans(store: Store, artifacts: Artifacts | None, tenant: str) -> Program[int]:
    """Delete all orphaned files that can be reached from here. Returns their number."""
    count, stored = 0, artifacts is not None
    while orphans := (yield from run(store.retention.orphans(BATCH, tenant, host_name(), stored))):
        deleted = yield from call(partial(_delete, artifacts, orphans))
        count += yield from run(store.retention.forget_orphans(deleted, tenant))
    return count


def _delete(artifacts: Artifacts | None, orphans: Sequence[OrphanedFile]) -> list[str]:
    """Delete the files that exist here, and return their references. The others may be in an artifact store or on a
    host that another worker reaches; the database drops them from the list if no worker does."""
    return [orphan.ref for orphan in orphans if _delete_one(artifacts, orphan)]


def _delete_one(artifacts: Artifacts | None, orphan: OrphanedFile) -> bool:
    if orphan.ref.startswith(FILE_SCHEME):
        try:
            return remove_directory(orphan.ref, orphan.job_id)
        except Refused:  # a row that was written by hand
            return False
    if artifacts is None or not _is_own(orphan) or not artifacts.exists(orphan.ref, tenant=orphan.tenant):
        return False
    artifacts.delete(orphan.ref, tenant=orphan.tenant)
    return True


def _is_own(orphan: OrphanedFile) -> bool:
    """Workers that write SQL may have listed any text. It must not stop the deletion of the others."""
    try:
        return Reference.of(orphan.ref).tenant == orphan.tenant
    except InvalidInput:
        return False


# --- archives ---

ARCHIVE_EVERY, WORKER_JOBS = 60.0, 5_000
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
        self._again_at = time.monotonic() + max(ARCHIVE_EVERY, REST * (time.monotonic() - began))
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
