"""``app.archives``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from holdfast.engine.declared import Before, Help, Most, http
from holdfast.engine.ids import parse_id
from holdfast.engine.names import page_size
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import HoldfastError, InvalidSetting, NotFound
from holdfast.features.archives.model import Archive, ArchiveCheck, ArchiveRun, Document, read_documents
from holdfast.stores.artifacts import Artifacts
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace, call
from holdfast.stores.port import Caller
from holdfast.worker.retention import archive_due

_Archives = list[Archive]  # inside the class, ``list`` is an operation

ArchiveId = Annotated[str, Help("Id of the archive.", "ID", longest=100)]
OfTenant = Annotated[str | None, Help("The tenant, if it is another than the session's.", http=False, cli=False)]


class Archives(StoreNamespace):
    """Finished jobs in the artifact store, with their ledger, attempts and results. A retention policy with
    ``archive=True`` removes nothing that is not archived; workers archive what is due."""

    def __init__(self, caller: Caller, artifacts: Artifacts | None = None) -> None:
        super().__init__(caller)
        self._artifacts = artifacts

    @operation
    @http("POST /archives/run", "admin", by_hand=True)
    def run(
        self,
        *,
        limit: Annotated[int, Help("Stop after about this many jobs.", low=1, high=100_000_000, http=False)] = 100_000,
        tenant: OfTenant = None,
    ) -> Program[ArchiveRun]:
        """Archive what a retention policy wants archived and is due. Workers do it, too."""
        store, scope, most = self._store, tenant or self._tenant, page_size(limit)
        return (yield from archive_due(store, self._files(), self._actor, scope, most))

    arun = awaited(run)

    @operation
    @http("GET /archives", "read", page="id")
    def list(self, *, before: Before = None, limit: Most = 50, tenant: OfTenant = None) -> Program[_Archives]:
        """List the archives of finished jobs, those with the newest jobs first."""
        return (yield from run(self._store.archives.list(tenant or self._tenant, before, page_size(limit))))

    alist = awaited(list)

    @operation
    @http("GET /archives/{archive_id}", "read", name="show_archive")
    def get(self, archive_id: ArchiveId, *, tenant: OfTenant = None) -> Program[Archive]:
        """Show an archive: its file, its jobs and its seal."""
        found = yield from run(self._store.archives.get(parse_id(archive_id), tenant or self._tenant))
        if found is None:
            raise NotFound(f"no archive {archive_id} in this tenant", code="archive_not_found")
        return found

    aget = awaited(get)

    @operation
    @http("POST /archives/{archive_id}/verify", "admin", by_hand=True)
    def verify(self, archive_id: ArchiveId, *, tenant: OfTenant = None) -> Program[ArchiveCheck]:
        """Read an archive and check its hashes, its number of jobs, its files and its seal.

        That is: the SHA-256 of its file and of its lines, the files that it refers to, and that the seal it names is
        still in the chain of the ledger.
        """
        found = yield from Archives.get.program(self, archive_id, tenant=tenant)
        files, scope = self._files(), tenant or self._tenant
        problems: list[str] = []
        jobs = 0

        def check() -> int:
            count = 0
            with files.file(found.ref, tenant=found.tenant) as path:
                for document in read_documents(found.id, path):
                    count += 1
                    for ref, copy in document["files"].items():
                        if copy is None:
                            problems.append(f"{ref} was missing when job {document['job']['id']} was archived")
                        else:
                            with files.file(copy, tenant=found.tenant):
                                pass
            return count

        try:
            jobs = yield from call(check)
        except HoldfastError as error:
            problems.append(error.message)
        else:
            if jobs != found.jobs:
                problems.append(f"it has {jobs:,} jobs, and {found.jobs:,} were recorded")
        if found.seal is not None:
            digest = yield from run(self._store.archives.seal_digest(found.seal, scope))
            if digest != found.seal_digest:
                problems.append(f"seal {found.seal} of the ledger is another one than when it was recorded")
        return ArchiveCheck(found.id, jobs, tuple(problems))

    averify = awaited(verify)

    @operation
    @http("GET /archives/jobs/{job_id}", "admin", by_hand=True)
    def read(
        self, job_id: Annotated[str, Help("Id of the job.", "JOB", longest=100)], *, tenant: OfTenant = None
    ) -> Program[Document]:
        """Read an archived job: its rows by table, as they were stored; also after it was purged."""
        wanted, scope, skip = parse_id(job_id), tenant or self._tenant, 0

        def search(archives: _Archives) -> Document | None:
            files = self._files()
            for archive in archives:
                with files.file(archive.ref, tenant=archive.tenant) as path:
                    for document in read_documents(archive.id, path):
                        if document["job"]["id"] == wanted:
                            return document
            return None

        while page := (yield from run(self._store.archives.with_job(wanted, scope, skip))):
            document = yield from call(partial(search, page))
            if document is not None:
                return document
            skip += len(page)
        raise NotFound(f"no archive of this tenant has job {job_id}", code="archive_not_found")

    aread = awaited(read)

    def _files(self) -> Artifacts:
        if self._artifacts is None:
            raise InvalidSetting(
                "no artifact store is configured",
                code="no_artifact_store",
                fix="Set App(artifacts=…) or HOLDFAST_ARTIFACTS to a directory or s3://bucket/prefix.",
            )
        return self._artifacts
