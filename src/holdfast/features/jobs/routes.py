"""HTTP routes of jobs: enqueue, list, read; those that change jobs come from the declarations.

``FastEnqueue`` answers ``POST /api/v1/jobs`` without FastAPI's routing and parameter handling, which costs as much as
the rest of the request. It is a middleware behind authentication and before all routes, and responds exactly as the
route does. The route remains for the OpenAPI document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import FailFast, Field
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.engine.ids import parse_id
from holdfast.engine.job import Attempt, Event, Job
from holdfast.engine.states import State
from holdfast.engine.steps import Step
from holdfast.errors import HoldfastError, InvalidSetting, NotFound, WaitTimeout
from holdfast.features.attempts.model import READ_LIMIT, AttemptLog, check_window
from holdfast.features.jobs.attempt_files import artifact_of, log_parts, raw_log, read_artifact, read_log
from holdfast.features.jobs.handle import Handle
from holdfast.features.jobs.model import Outcome, Story
from holdfast.features.jobs.operations import Jobs
from holdfast.features.jobs.search import matching
from holdfast.features.jobs.store import attempts_of, checkpoints_of, ledger_of, steps_of
from holdfast.features.payloads.model import HIDDEN
from holdfast.features.tokens.model import Scope
from holdfast.kind import Prepared
from holdfast.server.auth import path_below, require_one_tenant
from holdfast.server.bodies import Body, read, refuse_unknown_fields
from holdfast.server.derived import routes
from holdfast.server.job_bodies import Enqueue
from holdfast.server.json_body import SMALL_BODY, Router, run_off_loop
from holdfast.server.parameters import (
    PAGE,
    PREFIX,
    After,
    Id,
    JobSearch,
    Limit,
    Name,
    Page,
    TheApp,
    allowed,
    allowed_one_tenant,
    api_path,
    as_json,
    paged,
)
from holdfast.server.problems import invalid_request, refusal_of
from holdfast.server.rendering import attachment
from holdfast.stores.flow import VALUE, read_large, read_slowly
from holdfast.stores.requests import Counted
from holdfast.stores.vault import NAME

router = Router(tags=["jobs"])

COUNTED = 1_000
"""The most jobs of a state that are counted."""
MANY = 1_000
MAX_WAIT = 60.0
"""Seconds that a request may wait for a result."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The job for an enqueue request; ``reason`` says why it is not a new one."""

    id: str
    tenant: str
    created: bool
    reason: str | None


@router.post(
    "/jobs",
    dependencies=[allowed_one_tenant(Scope.ENQUEUE)],
    status_code=201,
    response_model=Accepted,
    responses={200: {"model": Accepted, "description": "There was such a job already."}},
    openapi_extra={
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "As `key` in the body.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Enqueue"}}},
        },
    },
)
async def enqueue_job(request: Request) -> Response:
    """Enqueue one job. The same key (in the body, or as `Idempotency-Key`) with the same body returns the same job;
    with another body it is refused (`idempotency_conflict`)."""
    app: App = request.app.state.app
    body = await request.body()
    wanted = read(Enqueue, body) if len(body) <= SMALL_BODY else await run_off_loop(body, partial(read, Enqueue, body))
    options, idempotency_key = wanted.options("kind", "payload"), request.headers.get("idempotency-key")
    if idempotency_key is not None and options.setdefault("key", idempotency_key) != idempotency_key:
        raise InvalidSetting("the header and the body name different idempotency keys", code="conflicting_options")
    if len(body) <= SMALL_BODY:
        handle = await app.aenqueue(wanted.kind, wanted.payload, **options)
    else:
        prepared = await run_off_loop(body, partial(app.prepare, wanted.kind, wanted.payload, **options))
        handle = await prepared.aenqueue(session_of(app))
    return Response(
        as_json(Accepted(handle.id, handle.tenant, handle.created, handle.reason)),
        201 if handle.created else 200,
        {"location": api_path(request, f"/jobs/{handle.id}")},
        media_type="application/json",
    )


class EnqueueMany(Body):
    jobs: Annotated[list[Annotated[Enqueue, refuse_unknown_fields(Enqueue)]], FailFast()] = Field(
        min_length=1, max_length=MANY
    )


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """The result for one job of a batch: without an ``id`` it was refused, for ``reason``."""

    id: str | None
    created: bool
    reason: str | None
    detail: str | None


@router.post("/jobs/batch", dependencies=[allowed_one_tenant(Scope.ENQUEUE)], response_model=Page[EnqueueResult])
async def enqueue_jobs(app: TheApp, many: EnqueueMany) -> Response:
    """Enqueue many jobs in one transaction. Results come in the order of the request."""
    prepared = await asyncio.to_thread(_prepare, app, many)
    handles = iter(await app.aenqueue_many([job for job in prepared if not isinstance(job, EnqueueResult)]))
    items = []
    for job in prepared:
        if isinstance(job, EnqueueResult):
            items.append(job)
        else:
            handle = next(handles)
            items.append(EnqueueResult(handle.id or None, handle.created, handle.reason, handle.detail))
    return Response(as_json({"items": items, "next": None}), media_type="application/json")


def _prepare(app: App, many: EnqueueMany) -> list[Prepared[Any] | EnqueueResult]:
    """Check and pack the payloads; an invalid job becomes its refusal. Runs in a thread: there may be a thousand
    payloads, and some kinds write theirs to the artifact store."""
    prepared: list[Prepared[Any] | EnqueueResult] = []
    for job in many.jobs:
        try:
            prepared.append(app.prepare(job.kind, job.payload, **job.options("kind", "payload")))
        except HoldfastError as error:
            prepared.append(EnqueueResult(None, False, error.code, error.message))
    return prepared


@router.get("/jobs", dependencies=[allowed(Scope.READ)], response_model=Page[Job])
async def list_jobs(app: TheApp, search: JobSearch, after: After = None, limit: Limit = PAGE) -> Response:
    """List jobs, newest first, without payloads (null). `q` takes the parameters as qualifiers (state: kind: tag:
    since: …), keys of the payload (payload.customer.id:7) and words of the error. Words and keys without an index are
    compared with 2,000 jobs per request: a page may be short or empty and still have a `next`."""
    client = session_of(app)
    before = None if after is None else parse_id(after)
    page = matching(client.store, search, client.tenant, limit, before)
    # A search that examines jobs one by one must not occupy the threads of other reads.
    result = await (read_slowly(partial(client.run, page)) if search.examines else client.arun(page))
    return Response(as_json({"items": result.jobs, "next": result.next}), media_type="application/json")


@router.get("/jobs/counts", dependencies=[allowed(Scope.READ)], response_model=Counted)
async def count_jobs(app: TheApp, search: JobSearch) -> Counted:
    """Count jobs in each state, up to `most`. The state and the words of a search are ignored."""
    client = session_of(app)
    return await client.arun(client.store.jobs.capped_counts(search.filter(client.tenant), COUNTED))


@router.get("/jobs/{job_id}", dependencies=[allowed(Scope.READ)], response_model=Story)
async def show_job(app: TheApp, job_id: Id) -> Response:
    """Show a job: state, timeline, attempts, steps, result, approval, workflow and dead letter group. If the results of
    its steps, its checkpoints or the results that it depends on are larger than 1 MB together, `{"$holdfast":
    {"omitted": bytes}}` stands for some of them."""

    def read() -> Story:
        details = app.jobs.details(job_id)
        return replace(details, chain=[replace(job, payload=None) for job in details.chain])  # as in other lists

    return await _large(read)


@router.get("/jobs/{job_id}/history", dependencies=[allowed(Scope.READ)], response_model=Page[Event])
async def job_history(
    app: TheApp, job_id: Id, after: Annotated[int | None, Query(ge=0, le=2**62)] = None, limit: Limit = 200
) -> Page[Event]:
    """Show the events of a job, oldest first. `after` is the `seq` of the last one seen."""
    client, last = session_of(app), -1 if after is None else after
    events = await client.arun(ledger_of(client.store, job_id, client.tenant))
    if not events:
        raise NotFound(f"no job {parse_id(job_id)} in this tenant")
    return paged([event for event in events if event.seq > last], limit, lambda event: event.seq)


@router.get("/jobs/{job_id}/attempts", dependencies=[allowed(Scope.READ)], response_model=Page[Attempt])
async def job_attempts(
    app: TheApp, job_id: Id, after: Annotated[int | None, Query(ge=0, le=2**31)] = None, limit: Limit = PAGE
) -> Response:
    """List a job's attempts: parameters, worker, times, outcome, exit code, error and location of the log. `after` is
    the number of the last one seen. Parameters beyond 1 MB together are omitted, beginning with the oldest."""
    client, last = session_of(app), -1 if after is None else after

    def read() -> Page[Attempt]:
        attempts = client.run(attempts_of(client.store, job_id, client.tenant, last, limit))
        page = paged(attempts, limit, lambda attempt: attempt.attempt)
        page.items = _bounded(page.items)
        return page

    return await _large(read)


def _bounded(attempts: list[Attempt]) -> list[Attempt]:
    """The attempts, with payloads of at most ``VALUE`` bytes."""
    kept: list[Attempt] = []
    left = VALUE
    sizes: dict[int, int] = {}  # by the identity of the payload, which most attempts share
    for attempt in reversed(attempts):
        same = id(attempt.payload)
        size = sizes[same] if same in sizes else sizes.setdefault(same, len(as_json(attempt.payload)))
        left -= size
        kept.append(attempt if left >= 0 else replace(attempt, payload={NAME: {"omitted": size}}))
    return kept[::-1]


@router.get("/jobs/{job_id}/steps", dependencies=[allowed(Scope.READ)], response_model=Page[Step])
async def job_steps(app: TheApp, job_id: Id) -> Response:
    """List the durable steps of a job in order, with their values. Sealed values are not opened."""
    session = session_of(app)
    return await _large(lambda: Page(items=session.run(steps_of(session.store, job_id, session.tenant))[1]))


@router.get("/jobs/{job_id}/checkpoints", dependencies=[allowed(Scope.READ)], response_model=dict[str, Any])
async def job_checkpoints(app: TheApp, job_id: Id) -> Response:
    """Show the named checkpoints of a job, with their values. Sealed values are not opened."""
    session = session_of(app)
    return await _large(lambda: session.run(checkpoints_of(session.store, job_id, session.tenant))[1])


async def _large(read: Callable[[], object]) -> Response:
    """The response with what ``read`` returns, which may be large: read, decoded and encoded off the event loop."""
    return Response(await read_large(lambda: as_json(read())), media_type="application/json")


@router.get(
    "/jobs/{job_id}/result",
    dependencies=[allowed(Scope.READ)],
    response_model=Outcome,
    responses={202: {"model": Outcome, "description": "It has not ended yet."}},
)
async def job_result(
    request: Request,
    app: TheApp,
    job_id: Id,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds.")] = 0.0,
) -> Response:
    """Show a job's result. With `wait`, the response comes when the job has ended or the time is over."""
    client = session_of(app)
    job = await app.jobs.aget(job_id)
    if wait > 0 and (job.retried or not job.state.finished):
        handle: Handle[Any] = Handle(job.id, job.tenant, False, None, client, lambda value: value)
        job = await _waited(handle, wait, request.app.state.stopping) or await app.jobs.aget(job_id)
    finished, body = await read_large(partial(_outcome, app, job))
    return Response(body, 200 if finished else 202, media_type="application/json")


async def _waited(handle: Handle[Any], longest: float, stopping: asyncio.Event) -> Job | None:
    """The ended job; None if the time is up or the server stops, which must not wait for its clients."""
    ending = asyncio.create_task(handle.await_end(longest))
    leaving = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((ending, leaving), return_when=asyncio.FIRST_COMPLETED)
        with suppress(WaitTimeout):
            return ending.result() if ending.done() else None
        return None
    finally:
        ending.cancel()
        leaving.cancel()
        await asyncio.gather(ending, leaving, return_exceptions=True)


def _outcome(app: App, job: Job) -> tuple[bool, bytes]:
    """Whether the job has ended, and its outcome as JSON."""
    client, outcome = session_of(app), Outcome(job.id, job.state, True)
    if job.state is not State.SUCCEEDED:
        over = job.state.finished and not job.retried
        return over, as_json(
            replace(outcome, finished=over, error_code=job.error_code, error_message=job.error_message)
        )
    result = client.run(client.store.jobs.result(job.id, job.tenant))
    if result is None:
        return True, as_json(outcome)
    if job.payload == HIDDEN:
        return True, as_json(replace(outcome, value=HIDDEN, ref=result.ref))
    value, outcome = result.value, replace(outcome, ref=result.ref)
    envelope = value.get(NAME) if isinstance(value, dict) and value.keys() == {NAME} else None
    if isinstance(envelope, dict) and "key" in envelope:
        return True, as_json(replace(outcome, sealed=True))
    if envelope is None and result.ref is None:
        return True, as_json(replace(outcome, value=value))
    value = client.vault.open_value(value, result.ref, tenant=job.tenant, job_id=job.id)
    return True, as_json(replace(outcome, value=value))


# --- logs and artifacts ---

AttemptNumber = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="The last attempt by default.")]
TEXT = "text/plain; charset=utf-8"


@router.get("/jobs/{job_id}/log", dependencies=[allowed(Scope.READ)], response_model=AttemptLog)
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
    "/jobs/{job_id}/log/download",
    dependencies=[allowed(Scope.READ)],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def download_job_log(app: TheApp, job_id: Id, attempt: AttemptNumber = None) -> Response:
    """Download the log of an attempt as a text file, up to 64 MB."""
    return await log_file(app, job_id, attempt)


@router.get(
    "/jobs/{job_id}/artifacts/{name:path}",
    dependencies=[allowed(Scope.READ)],
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
    client = session_of(app)
    log = await client.arun(log_parts(client.store, job_id, attempt, client.tenant))
    return await read_slowly(partial(read_log, client.vault, log, offset, tail, opens=False))


async def log_file(app: App, job_id: str, attempt: int | None) -> Response:
    client = session_of(app)
    log = await client.arun(log_parts(client.store, job_id, attempt, client.tenant))
    return await attachment(partial(raw_log, client.vault, log, opens=False), f"{log[0].id}-{log[1]}.log", TEXT)


async def artifact_file(app: App, job_id: str, name: str, attempt: int | None) -> Response:
    client = session_of(app)
    location = await client.arun(artifact_of(client.store, job_id, name, attempt, client.tenant))
    return await attachment(partial(read_artifact, client.vault, location), name)


declared_router = routes("jobs", Jobs)

ROUTE = Route(f"{PREFIX}/jobs", enqueue_job, methods=["POST"])
"""The route under which the request log records fast enqueues."""


class FastEnqueue:
    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or path_below(scope) != ROUTE.path:
            await self._inner(scope, receive, send)
            return
        scope["route"] = ROUTE
        request = Request(scope, receive)
        try:
            require_one_tenant(request, Scope.ENQUEUE)
            response = await enqueue_job(request)
        except HoldfastError as error:
            response = refusal_of(error)
        except RequestValidationError as error:
            response = invalid_request(error)
        await response(scope, receive, send)
