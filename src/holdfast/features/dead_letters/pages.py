"""The pages of dead letter groups and of bulk operations."""

from __future__ import annotations

from typing import Final, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.app.internals import session_of
from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.engine.states import State
from holdfast.errors import Conflict, InvalidInput, NotFound
from holdfast.features.dead_letters.model import NOTE_LIMIT, ORDERS, DeadLetterGroup, Operation, Order
from holdfast.features.dead_letters.operations import GroupOptions
from holdfast.features.payloads.model import HIDDEN
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import require
from holdfast.server.pages import (
    PAGE,
    action_route,
    choice_field,
    confirm,
    fields,
    integer_field,
    json_field,
    number,
    page_route,
    redirect,
    text_field,
)
from holdfast.server.rendering import payload_text, render, the_app

MAX_ATTEMPTS: Final = 1_000
REASON_LIMIT: Final = 1_000


async def groups(request: Request) -> Response:
    params = request.query_params
    options: GroupOptions = {
        "order": cast(Order, choice_field(params, "order", ORDERS)),
        "resolved": bool(params.get("resolved")),
        "limit": PAGE + 1,
    }
    for name in ("kind", "queue", "text", "after"):
        value = text_field(params, name)
        if value is not None:
            options[name] = value
    result = await the_app(request).dead_letters.agroups(**options)
    following = result[PAGE - 1].cursor if len(result) > PAGE else None
    query = {name: params.get(name) for name in ("kind", "queue", "text", "order", "resolved")}
    return await render(
        request, "dead_letters.html", groups=result[:PAGE], following=following, wanted=options, query=query
    )


async def group(request: Request) -> Response:
    app, before = the_app(request), text_field(request.query_params, "before", 50)
    result = await _group(request)
    jobs = await app.dead_letters.ajobs(result.fingerprint, limit=PAGE + 1, before=before)
    client = session_of(app)
    sample = await client.arun(client.store.jobs.get(result.sample_job, client.tenant))  # may be purged
    running = [
        operation
        for operation in await app.operations.alist(running=True, limit=PAGE)
        if operation.wanted.get("fingerprint") == result.fingerprint
    ]
    following = jobs[PAGE - 1].id if len(jobs) > PAGE else None
    return await render(
        request,
        "dead_letter_group.html",
        group=result,
        jobs=jobs[:PAGE],
        following=following,
        sample=sample,
        running=running,
        note_limit=NOTE_LIMIT,
    )


async def note(request: Request) -> Response:
    group, form = await _group(request), await fields(request)
    await the_app(request).dead_letters.anote(group.fingerprint, text_field(form, "note", NOTE_LIMIT))
    return redirect(request, _path(request, group), "Note saved.")


async def redrive(request: Request) -> Response:
    """Redrive all open dead letters of the group, as a bulk operation."""
    group, form = await _group(request), await fields(request)
    started = await the_app(request).dead_letters.aredrive(
        group.fingerprint,
        reason=text_field(form, "reason", REASON_LIMIT),
        rate=number(form, "rate"),
        max_attempts=integer_field(form, "max_attempts", 1, MAX_ATTEMPTS),
        delay=text_field(form, "delay", 40),
    )
    return redirect(request, f"/operations/{started.id}", "Redriving the jobs of this group.")


async def discard(request: Request) -> Response:
    group, form = await _group(request), await fields(request)
    reason = _required_reason(form)
    question = f"Discard all {group.open:,} dead letters of this group permanently?"
    if (confirmation := await confirm(request, question, back=_path(request, group))) is not None:
        return confirmation
    started = await the_app(request).dead_letters.adiscard(group.fingerprint, reason=reason, rate=number(form, "rate"))
    return redirect(request, f"/operations/{started.id}", "Discarding the jobs of this group.")


async def resolve(request: Request) -> Response:
    """Redrive or discard one job of the group."""
    group, form = await _group(request), await fields(request)
    job, jobs = await _job(request), the_app(request).jobs
    if form.get("action") == "redrive":
        verdicts = await jobs.aredrive(job.id, reason=text_field(form, "reason", REASON_LIMIT), tenant=job.tenant)
    elif form.get("action") == "discard":
        reason = _required_reason(form)
        if (
            confirmation := await confirm(request, f"Discard job {job.id} permanently?", back=_path(request, group))
        ) is not None:
            return confirmation
        verdicts = await jobs.adiscard(job.id, reason=reason, tenant=job.tenant)
    else:
        raise InvalidInput("Choose redrive or discard.", code="invalid_request")
    if verdicts[0].refused:
        raise Conflict(
            f"Cannot change job {job.id}: it is already {job.state} ({verdicts[0].reason})", code=verdicts[0].reason
        )
    done = "redriven" if form["action"] == "redrive" else "discarded"
    return redirect(request, _path(request, group), f"Job {job.id} {done}.")


async def edit(request: Request) -> Response:
    group, job = await _group(request), await _job(request)
    payload = None if job.payload == HIDDEN else await payload_text(the_app(request), job.id)
    return await render(request, "dead_letter_edit.html", group=group, job=job, payload=payload)


async def replace(request: Request) -> Response:
    """Replace the dead letter with a new job that has the edited payload."""
    job, form = await _job(request), await fields(request)
    payload = json_field(form, "payload")
    new = await the_app(request).dead_letters.aredrive_as(
        job.id, payload, reason=text_field(form, "reason", REASON_LIMIT)
    )
    return redirect(request, f"/jobs/{new}", f"This job replaces {job.id}.")


async def _group(request: Request) -> DeadLetterGroup:
    fingerprint = request.path_params["fingerprint"][:200]
    return await the_app(request).dead_letters.agroup(fingerprint)


async def _job(request: Request) -> Job:
    job = await the_app(request).jobs.aget(request.path_params["job"])
    if job.state is not State.DEAD_LETTER:
        raise NotFound("no such dead letter in this tenant", code="not_dead")
    return job


def _required_reason(form: dict[str, str]) -> str:
    reason = text_field(form, "reason", REASON_LIMIT)
    if reason is None:
        raise InvalidInput("Discarding dead letters needs a reason.", code="reason_required")
    return reason


def _path(request: Request, group: DeadLetterGroup) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    return f"/dead-letters/{group.fingerprint}{query}"


ONE: Final = "/dead-letters/{fingerprint}"
routes = [
    page_route("/dead-letters", groups),
    page_route(ONE, group),
    action_route(ONE + "/note", note, Scope.OPERATE),
    action_route(ONE + "/redrive", redrive, Scope.OPERATE),
    action_route(ONE + "/discard", discard, Scope.OPERATE),
    action_route(ONE + "/jobs/{job}", resolve, Scope.OPERATE),
    page_route(ONE + "/jobs/{job}/edit", edit, Scope.OPERATE),
    action_route(ONE + "/jobs/{job}/edit", replace, Scope.OPERATE),
]


OPERATION_PAGE = 50


async def list_operations(request: Request) -> Response:
    require(request, Scope.READ)
    before = request.query_params.get("before")
    operations = await the_app(request).operations.alist(
        limit=OPERATION_PAGE + 1, before=parse_id(before) if before else None
    )
    return await render(
        request,
        "operations.html",
        operations=operations[:OPERATION_PAGE],
        more=len(operations) > OPERATION_PAGE,
        before=before,
    )


async def show(request: Request) -> Response:
    require(request, Scope.READ)
    return await render(request, "operation.html", operation=await _operation(request))


async def cancel(request: Request) -> Response:
    require(request, Scope.OPERATE)
    operation = await _operation(request)
    page = f"/operations/{operation.id}"
    question = f"Cancel this operation? {operation.done:,} finished jobs are not undone."
    if (confirmation := await confirm(request, question, back=page)) is not None:
        return confirmation
    await the_app(request).operations.acancel(operation.id)
    return redirect(request, page, "Operation cancelled.")


async def _operation(request: Request) -> Operation:
    id = parse_id(request.path_params["id"])
    return await the_app(request).operations.aget(id)


operation_routes = [
    Route("/operations", list_operations),
    Route("/operations/{id}", show),
    Route("/operations/{id}/cancel", cancel, methods=["POST"]),
]
