"""Artifacts: what attempts of a job left behind, to be looked at and downloaded."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated
from urllib.parse import quote

from fastapi import Query
from starlette.responses import Response

from holdfast.engine.job import Artifact
from holdfast.errors import NotFound, Refused
from holdfast.features.jobs.views import artifacts_of
from holdfast.features.payloads.model import HIDDEN
from holdfast.features.tokens.model import Scope
from holdfast.server.json_body import Router
from holdfast.server.parameters import Id, Name, Page, TheApp, allowed
from holdfast.stores.artifacts import SCHEME

router = Router(prefix="/jobs/{job_id}/artifacts", tags=["jobs"], dependencies=[allowed(Scope.READ)])


@router.get("", response_model=Page[Artifact])
async def list_artifacts(app: TheApp, job_id: Id) -> Page[Artifact]:
    """List a job's artifacts with their locations."""
    return Page(items=await app._session.arun(artifacts_of(app._session.store, job_id, app._session.tenant)))


@router.get(
    "/{name:path}",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def download_artifact(
    app: TheApp, job_id: Id, name: Name, attempt: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None
) -> Response:
    """The bytes, always as an attachment and never as something that a browser would show; without an attempt, the
    last that has one of this name."""
    client = app._session
    job = await app.jobs.aget(job_id)
    those = await client.arun(client.store.jobs.artifacts(job_id, client.tenant))
    fits = [each for each in those if each.name == name and attempt in (None, each.attempt)]
    if not fits:
        raise NotFound(f"this job has no artifact {name!r}", code="artifact_not_found")
    if job.payload == HIDDEN:
        raise Refused("artifacts of a restricted kind are not shown", code="restricted")
    ref = fits[-1].ref
    if app.artifacts is None or not ref.startswith(SCHEME):
        raise Refused(
            "the artifact is not in this service's artifact store",
            code="artifact_elsewhere",
            fix=f"Its location is {ref}.",
        )
    data = await asyncio.to_thread(app.artifacts.get, ref, tenant=job.tenant)
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name.rsplit("/", 1)[-1]) or "artifact"
    return Response(
        data,
        media_type="application/octet-stream",
        headers={
            "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
            "x-content-type-options": "nosniff",
            "content-security-policy": "default-src 'none'; sandbox",
        },
    )
