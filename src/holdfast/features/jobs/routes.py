"""HTTP routes of jobs: enqueue, list, read, cancel, redrive, discard, move, reschedule.

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
from holdfast.engine.ids import parse_id
from holdfast.engine.job import Attempt, Event, Job, Verdict
from holdfast.engine.states import State
from holdfast.errors import HoldfastError, InvalidInput, InvalidSetting, NotFound, WaitTimeout
from holdfast.features.jobs.changes import accepted
from holdfast.features.jobs.handle import Handle
from holdfast.features.jobs.search import matching
from holdfast.features.jobs.views import Story, Why, attempts_of, ledger_of, story
from holdfast.features.payloads.model import HIDDEN
from holdfast.features.tokens.model import Scope
from holdfast.features.tokens.model import Scope as Allowed
from holdfast.kind import Prepared
from holdfast.server.api_problems import invalid_request
from holdfast.server.auth import path_below, require_one_tenant
from holdfast.server.bodies import Body, Enqueue, Instant, LongText, Span, Text, WithReason, read, refuse_unknown_fields
from holdfast.server.json_body import SMALL_BODY, Router, run_off_loop
from holdfast.server.parameters import (
    PAGE,
    PREFIX,
    After,
    Id,
    JobSearch,
    Limit,
    Page,
    TheApp,
    allowed,
    allowed_one_tenant,
    api_path,
    as_json,
    paged,
)
from holdfast.server.problems import refusal_of
from holdfast.stores.flow import VALUE, read_large, read_slowly
from holdfast.stores.requests import Counted
from holdfast.stores.vault import NAME

router = Router(prefix="/jobs", tags=["jobs"])

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
    "",
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
        handle = await app._session.aenqueue(prepared.spec, prepared.tenant, prepared.decode)
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
class Judged:
    """The result for one job of a batch: without an ``id`` it was refused, for ``reason``."""

    id: str | None
    created: bool
    reason: str | None
    detail: str | None


@router.post("/batch", dependencies=[allowed_one_tenant(Scope.ENQUEUE)], response_model=Page[Judged])
async def enqueue_jobs(app: TheApp, many: EnqueueMany) -> Response:
    """Enqueue many jobs in one transaction. Results come in the order of the request."""
    prepared = await asyncio.to_thread(_prepare, app, many)
    handles = iter(await app.aenqueue_many([job for job in prepared if not isinstance(job, Judged)]))
    items = []
    for job in prepared:
        if isinstance(job, Judged):
            items.append(job)
        else:
            handle = next(handles)
            items.append(Judged(handle.id or None, handle.created, handle.reason, handle.detail))
    return Response(as_json({"items": items, "next": None}), media_type="application/json")


def _prepare(app: App, many: EnqueueMany) -> list[Prepared[Any] | Judged]:
    """Check and pack the payloads; an invalid job becomes its refusal. Runs in a thread: there may be a thousand
    payloads, and some kinds write theirs to the artifact store."""
    prepared: list[Prepared[Any] | Judged] = []
    for job in many.jobs:
        try:
            prepared.append(app.prepare(job.kind, job.payload, **job.options("kind", "payload")))
        except HoldfastError as error:
            prepared.append(Judged(None, False, error.code, error.message))
    return prepared


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Job])
async def list_jobs(app: TheApp, search: JobSearch, after: After = None, limit: Limit = PAGE) -> Response:
    """List jobs, newest first, without payloads (null). `q` takes the parameters as qualifiers (state: kind: tag:
    since: …), keys of the payload (payload.customer.id:7) and words of the error. Words and keys without an index are
    compared with 2,000 jobs per request: a page may be short or empty and still have a `next`."""
    client = app._session
    before = None if after is None else parse_id(after)
    page = matching(client.store, search, client.tenant, limit, before)
    # A search that examines jobs one by one must not occupy the threads of other reads.
    result = await (read_slowly(partial(client.run, page)) if search.examines else client.arun(page))
    return Response(as_json({"items": result.jobs, "next": result.next}), media_type="application/json")


@router.get("/counts", dependencies=[allowed(Scope.READ)], response_model=Counted)
async def count_jobs(app: TheApp, search: JobSearch) -> Counted:
    """Count jobs in each state, up to `most`. The state and the words of a search are ignored."""
    client = app._session
    return await client.arun(client.store.jobs.capped_counts(search.filter(client.tenant), COUNTED))


@router.get("/{job_id}", dependencies=[allowed(Scope.READ)], response_model=Story)
async def show_job(app: TheApp, job_id: Id) -> Response:
    """Show a job: state, timeline, attempts, steps, result, approval, workflow and dead letter group. If the results of
    its steps, its checkpoints or the results that it depends on are larger than 1 MB together, `{"$holdfast":
    {"omitted": bytes}}` stands for some of them."""
    return await _large(lambda: _story(app, job_id))


@router.get("/{job_id}/history", dependencies=[allowed(Scope.READ)], response_model=Page[Event])
async def job_history(
    app: TheApp, job_id: Id, after: Annotated[int | None, Query(ge=0, le=2**62)] = None, limit: Limit = 200
) -> Page[Event]:
    """List a job's events, oldest first. `after` is the `seq` of the last one seen."""
    client, last = app._session, -1 if after is None else after
    events = await client.arun(ledger_of(client.store, job_id, client.tenant))
    if not events:
        raise _missing(job_id)
    return paged([event for event in events if event.seq > last], limit, lambda event: event.seq)


@router.get("/{job_id}/attempts", dependencies=[allowed(Scope.READ)], response_model=Page[Attempt])
async def job_attempts(
    app: TheApp, job_id: Id, after: Annotated[int | None, Query(ge=0, le=2**31)] = None, limit: Limit = PAGE
) -> Response:
    """List a job's attempts: parameters, worker, times, outcome, exit code, error and location of the log. `after` is
    the number of the last one seen. Parameters beyond 1 MB together are omitted, beginning with the oldest."""
    client, last = app._session, -1 if after is None else after

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


@router.get("/{job_id}/chain", dependencies=[allowed(Scope.READ)], response_model=Page[Job])
async def job_chain(app: TheApp, job_id: Id) -> Response:
    """List a job and its retries as new jobs, oldest first. Payloads beyond 1 MB together are omitted."""
    return await _large(lambda: Page(items=app.jobs.chain(job_id)))


@router.get("/{job_id}/why", dependencies=[allowed(Scope.READ)], response_model=Why)
async def why_job(app: TheApp, job_id: Id) -> Response:
    """Explain why a job is not running: every reason that applies, and what would change it."""
    return await _large(lambda: app.jobs.why(job_id))


async def _large(read: Callable[[], object]) -> Response:
    """The response with what ``read`` returns, which may be large: read, decoded and encoded off the event loop."""
    return Response(await read_large(lambda: as_json(read())), media_type="application/json")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, if it has. ``id`` is that of the last retry, if retries are new jobs. ``sealed`` means that
    there is a value that only the program can unseal."""

    id: str
    state: State
    finished: bool
    value: Any = None
    ref: str | None = None
    sealed: bool = False
    error_code: str | None = None
    error_message: str | None = None


@router.get(
    "/{job_id}/result",
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
    client = app._session
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
    client, outcome = app._session, Outcome(job.id, job.state, True)
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


def _story(app: App, job_id: str) -> Story:
    details = app._session.run(story(app._session.store, job_id, app._session.tenant))
    if details is None:
        raise _missing(job_id)
    return replace(details, chain=[replace(job, payload=None) for job in details.chain])  # as in other lists of jobs


def _missing(job_id: str) -> NotFound:
    return NotFound(f"no job {parse_id(job_id)} in this tenant")


operator_router = Router(prefix="/jobs/{job_id}", tags=["jobs"], dependencies=[allowed(Scope.OPERATE)])


@operator_router.post("/cancel", response_model=Verdict)
async def cancel_job(app: TheApp, job_id: Id, body: WithReason | None = None) -> Verdict:
    """Cancel a job that has not finished. The worker of a running job is notified to stop."""
    return accepted(await app.jobs.acancel(job_id, reason=None if body is None else body.reason))


class Redrive(WithReason):
    max_attempts: int | None = Field(default=None, ge=1, le=101, description="Another limit than it had.")
    from_step: int | Text | None = Field(
        default=None, description="Do this step, by number or name, and those after it again."
    )
    at: Instant | None = Field(default=None, description="Start not before this time.")
    delay: Span | None = Field(default=None, description="Start this long from now.")


@operator_router.post("/redrive", response_model=Verdict)
async def redrive_job(app: TheApp, job_id: Id, body: Redrive | None = None) -> Verdict:
    """Redrive a dead letter: put it back into its queue with all attempts restored."""
    return accepted(await app.jobs.aredrive(job_id, **({} if body is None else body.given())))


class RedriveAs(WithReason):
    payload: Any


@dataclass(frozen=True, slots=True)
class RedrivenAs:
    id: str
    redriven_as: str


@operator_router.post("/redrive-as", response_model=RedrivenAs)
async def redrive_job_as(app: TheApp, job_id: Id, body: RedriveAs) -> RedrivenAs:
    """Redrive a dead letter with another payload: a new job, and the old one is discarded."""
    return RedrivenAs(job_id, await app.dead_letters.aredrive_as(job_id, body.payload, reason=body.reason))


class Discard(Body):
    reason: LongText


@operator_router.post("/discard", response_model=Verdict)
async def discard_job(app: TheApp, job_id: Id, body: Discard) -> Verdict:
    """Discard a dead letter."""
    if not body.reason.strip():
        raise InvalidInput("discarding a dead letter needs a reason", code="reason_required")
    return accepted(await app.jobs.adiscard(job_id, reason=body.reason))


class ReplacePayload(Body):
    payload: Any
    reason: LongText


@operator_router.post("/replace-payload", response_model=Verdict)
async def replace_job_payload(app: TheApp, job_id: Id, body: ReplacePayload) -> Verdict:
    """Replace the payload of a waiting job whose kind allows it."""
    return await app.jobs.areplace_payload(job_id, body.payload, reason=body.reason)


class SetExternalRef(Body):
    external_ref: Text | None = Field(description="Null removes it.")


@operator_router.put("/external-ref", response_model=Verdict)
async def set_external_ref(app: TheApp, job_id: Id, body: SetExternalRef) -> Verdict:
    """Set the reference to the same work in another system, in any state of the job. The audit trail records it."""
    return await app.jobs.aset_external_ref(job_id, body.external_ref)


class MoveTo(WithReason):
    """One of the four positions, within the job's priority or another one. A priority alone means behind all others of
    it."""

    first: bool = False
    last: bool = False
    before: Text | None = None
    after: Text | None = None
    priority: int | None = Field(default=None, ge=-32_768, le=32_767)


@operator_router.post("/move", response_model=Verdict)
async def move_job(app: TheApp, job_id: Id, body: MoveTo) -> Verdict:
    "Move a waiting job within its queue."
    return accepted([await app.jobs.amove(job_id, **body.given())])


class RescheduleTo(WithReason):
    """The new start: at a time, or after a delay."""

    at: Instant | None = None
    delay: Span | None = None
    max_attempts: int | None = Field(default=None, ge=1, le=101)


@operator_router.post("/reschedule", response_model=Verdict)
async def reschedule_job(app: TheApp, job_id: Id, body: RescheduleTo) -> Verdict:
    """Change the start time of a waiting job; without a time or a delay, to now."""
    verdicts = await app.jobs.areschedule(
        job_id, at=body.at, delay=body.delay, max_attempts=body.max_attempts, reason=body.reason
    )
    return accepted(verdicts)


@operator_router.post("/run-now", response_model=Verdict)
async def run_job_now(app: TheApp, job_id: Id, body: WithReason | None = None) -> Verdict:
    """Run a delayed or retrying job now."""
    return accepted(await app.jobs.areschedule(job_id, reason=None if body is None else body.reason))


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
            require_one_tenant(request, Allowed.ENQUEUE)
            response = await enqueue_job(request)
        except HoldfastError as error:
            response = refusal_of(error)
        except RequestValidationError as error:
            response = invalid_request(error)
        await response(scope, receive, send)
