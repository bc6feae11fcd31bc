"""Routes that read and download logs and artifacts of a job."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.app import App
from holdfast.engine.job import Artifact
from holdfast.features.attempts.model import READ_LIMIT, AttemptLog, check_window
from holdfast.features.jobs.attempt_files import artifact_of, log_parts, raw_log, read_artifact, read_log
from holdfast.features.jobs.views import artifacts_of
from holdfast.features.tokens.model import Scope
from holdfast.server.attachments import attachment
from holdfast.server.json_body import Router
from holdfast.server.parameters import Id, Name, Page, TheApp, allowed
from holdfast.stores.flow import read_slowly

router = Router(prefix="/jobs/{job_id}", tags=["jobs"], dependencies=[allowed(Scope.READ)])

AttemptNumber = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="The last attempt by default.")]
TEXT = "text/plain; charset=utf-8"


@router.get("/log", response_model=AttemptLog)
async def read_job_log(
    app: TheApp,
    job_id: Id,
    attempt: AttemptNumber = None,
    offset: Annotated[int | None, Query(ge=0, lt=2**53, description="Bytes to skip: `next` of the last read.")] = None,
    tail: Annotated[int | None, Query(ge=0, le=READ_LIMIT, description="Only the last bytes.")] = None,
) -> AttemptLog:
    """Read the log of an attempt, up to 1 MB: what the handler wrote with `ctx.log`, or the output of a command job,
    also while it runs. Continue at `next`."""
    check_window(offset, tail)
    return await log_piece(app, job_id, attempt, offset, tail)


@router.get(
    "/log/download",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def download_job_log(app: TheApp, job_id: Id, attempt: AttemptNumber = None) -> Response:
    """Download the log of an attempt as a text file, up to 64 MB."""
    return await log_file(app, job_id, attempt)


@router.get("/artifacts", response_model=Page[Artifact])
async def list_artifacts(app: TheApp, job_id: Id) -> Page[Artifact]:
    """List a job's artifacts with their locations."""
    return Page(items=await app._session.arun(artifacts_of(app._session.store, job_id, app._session.tenant)))


@router.get(
    "/artifacts/{name:path}",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def download_artifact(
    app: TheApp, job_id: Id, name: Name, attempt: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None
) -> Response:
    """Download an artifact, up to 64 MB, always as an attachment that browsers do not display; without an attempt, from
    the last attempt that has one of this name."""
    return await artifact_file(app, job_id, name, attempt)


# --- shared with the dashboard ---


async def log_piece(app: App, job_id: str, attempt: int | None, offset: int | None, tail: int | None) -> AttemptLog:
    client = app._session
    log = await client.arun(log_parts(client.store, job_id, attempt, client.tenant))
    return await read_slowly(partial(read_log, client.vault, log, offset, tail, opens=False))


async def log_file(app: App, job_id: str, attempt: int | None) -> Response:
    client = app._session
    log = await client.arun(log_parts(client.store, job_id, attempt, client.tenant))
    return await attachment(partial(raw_log, client.vault, log, opens=False), f"{log[0].id}-{log[1]}.log", TEXT)


async def artifact_file(app: App, job_id: str, name: str, attempt: int | None) -> Response:
    client = app._session
    location = await client.arun(artifact_of(client.store, job_id, name, attempt, client.tenant))
    return await attachment(partial(read_artifact, client.vault, location), name)
