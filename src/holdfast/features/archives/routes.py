"""``/archives``."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import Response

from holdfast.features.archives.model import ArchiveCheck, ArchiveRun, shortened
from holdfast.features.archives.operations import Archives
from holdfast.features.tokens.model import Scope
from holdfast.server.derived import routes
from holdfast.server.json_body import Router
from holdfast.server.parameters import Id, TheApp, allowed, as_json
from holdfast.stores.flow import VALUE, read_slowly

router = Router(prefix="/archives", tags=["archives"])
derived_router = routes("archives", Archives)  # after the others: /archives/{archive_id}

MOST = 10_000
"""Jobs that one request archives. Workers, or the next request, continue."""


@router.post("/run", dependencies=[allowed(Scope.ADMIN)], response_model=ArchiveRun)
async def run_archives(app: TheApp) -> ArchiveRun:
    """Archive what a retention policy wants archived and is due, as far as one request may."""
    return await app.archives.arun(limit=MOST)


@router.post("/{archive_id}/verify", dependencies=[allowed(Scope.ADMIN)], response_model=ArchiveCheck)
async def verify_archive(app: TheApp, archive_id: Id) -> ArchiveCheck:
    """Read an archive and check its hashes, its number of jobs, its files and its seal."""
    return await read_slowly(partial(app.archives.verify, archive_id))


@router.get("/jobs/{job_id}", dependencies=[allowed(Scope.ADMIN)], response_model=dict[str, Any])
async def read_archived_job(app: TheApp, job_id: Id) -> Response:
    """Show an archived job: its rows by table, as they were stored, restricted payloads too. Of values beyond 1 MB
    together, only the sizes."""
    read = partial(app.archives.read, job_id)
    body = await read_slowly(lambda: as_json(shortened(read(), VALUE)))
    return Response(body, media_type="application/json")
