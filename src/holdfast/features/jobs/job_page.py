"""The page of one job, its actions and downloads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.app.internals import session_of
from holdfast.engine.ids import parse_id
from holdfast.engine.job import Event, Job, Verdict
from holdfast.engine.names import check_name
from holdfast.engine.states import State
from holdfast.engine.steps import RESERVED, Progress
from holdfast.errors import HoldfastError, InvalidInput, NotFound, Refused
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.jobs.model import Story
from holdfast.features.jobs.routes import artifact_file, log_file, log_piece
from holdfast.features.jobs.store import view
from holdfast.features.payloads.model import HIDDEN, effective
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import require
from holdfast.server.pages import confirm, field, redirect
from holdfast.server.rendering import payload_text, render, the_app
from holdfast.stores.flow import reading_at_most
from holdfast.stores.requests import new_id
from holdfast.stores.vault import is_omitted, shown

# Shown in other columns or sections, or too long for a line.
ELSEWHERE = frozenset({"error_code", "error_message", "reason", "traceback", "log"})
MIN_WIDTH = 0.6
"""Percent. A state that took no time remains visible."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A period in one state. ``left`` and ``width`` are percent of the whole drawing."""

    state: State
    since: datetime
    took: float
    over: bool
    left: float
    width: float


def stretches(history: Sequence[Event], now: datetime) -> list[Stretch]:
    """The consecutive states of a job with their durations. A final state has no duration."""
    merged: list[tuple[State, datetime]] = []
    for event in history:
        if not merged or merged[-1][0] is not event.to_state:
            merged.append((event.to_state, event.at))
    if not merged:
        return []
    ends = [at for _, at in merged[1:]]
    last = merged[-1][0]
    ends.append(merged[-1][1] if last.finished else max(now, merged[-1][1]))
    spans = [max(0.0, (end - since).total_seconds()) for (_, since), end in zip(merged, ends, strict=True)]
    whole = sum(spans) or 1.0
    widths = [max(MIN_WIDTH, 100 * span / whole) for span in spans]
    scale, left, result = 100 / sum(widths), 0.0, []
    for n, ((state, since), span, width) in enumerate(zip(merged, spans, widths, strict=True)):
        over = n < len(merged) - 1
        result.append(Stretch(state, since, span, over, round(left, 3), round(width * scale, 3)))
        left += width * scale
    return result


def special(event: Event) -> str:
    """The details of an event: the error, the reason, and the rest of its metadata."""
    meta = event.meta
    parts = []
    if event.type in ("fail", "lease_expired", "crash", "expire", "deny") and meta.get("error_code"):
        parts.append(f"{meta['error_code']}: {meta.get('error_message') or ''}".rstrip(": "))
    if meta.get("reason"):
        parts.append(str(meta["reason"]))
    parts += [f"{name}: {value}" for name, value in meta.items() if name not in ELSEWHERE]
    return "; ".join(parts)


CHILDREN, EVENTS, ATTEMPTS = 20, 200, 20
SHOWN = 64 * 1024
"""Bytes of the payload, the result, the step results and the checkpoints that the page shows, each."""
LOG_TAIL = 32 * 1024
"""Bytes of a log that the page shows. The whole log can be downloaded."""
REFUSED = {
    "not_found": "the job no longer exists",
    "not_dead": "it is no longer a dead letter",
    "not_waiting": "it is no longer waiting",
    "finished": "it has already finished",
}


async def show(request: Request) -> Response:
    require(request, Scope.READ)
    client, job_id = session_of(the_app(request)), parse_id(request.path_params["id"])
    with reading_at_most(SHOWN):
        page = await client.arun(view(client.store, job_id, client.tenant, CHILDREN + 1))
    if page is None:
        raise NotFound(f"no job {job_id} in this tenant")
    story, job = page.story, page.story.job
    number, log, log_error = await _log(request, story)
    return await render(
        request,
        "job.html",
        job=job,
        story=story,
        reasons=page.reasons,
        children=page.children,
        most_children=CHILDREN,
        stretches=stretches(story.history, page.now),
        events=[(event, special(event)) for event in story.history[-EVENTS:]],
        attempts=story.attempts[-ATTEMPTS:][::-1],
        progress=Progress.saved(story.checkpoints),
        checkpoints={name: shown(value) for name, value in story.checkpoints.items() if name != RESERVED},
        payload=shown(job.payload),
        result=None if story.result is None else shown(story.result.value),
        hidden=HIDDEN,
        can=await _allowed(request, job),
        fork_key=new_id(),
        log_attempt=number,
        log=log,
        log_error=log_error,
    )


async def _log(request: Request, story: Story) -> tuple[int, AttemptLog | None, str | None]:
    """The end of the log of the requested attempt, or of the last one with a log; or why it cannot be shown."""
    logged = [attempt.attempt for attempt in story.attempts if attempt.log is not None]
    requested = request.query_params.get("attempt", "")
    number = next((attempt for attempt in logged if str(attempt) == requested), max(logged, default=0))
    if not number or story.job.payload == HIDDEN:
        return number, None, None
    try:
        return number, await log_piece(the_app(request), story.job.id, number, None, LOG_TAIL), None
    except HoldfastError as error:
        return number, None, f"{error.message[:1].upper()}{error.message[1:]}. {error.fix or ''}".strip()


async def download_log(request: Request) -> Response:
    require(request, Scope.READ)
    return await log_file(the_app(request), parse_id(request.path_params["id"]), _attempt(request))


async def download_artifact(request: Request) -> Response:
    require(request, Scope.READ)
    name = check_name(request.path_params["name"], "name", limit=1_000)
    return await artifact_file(the_app(request), parse_id(request.path_params["id"]), name, _attempt(request))


def _attempt(request: Request) -> int | None:
    text = request.query_params.get("attempt")
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InvalidInput("attempt is the number of an attempt", code="invalid_request")
    return int(text)


async def _allowed(request: Request, job: Job) -> frozenset[str]:
    """The actions that the page offers. Editing the payload of a waiting job needs a payload rule that allows it."""
    can = _can(job)
    if "edit" in can and job.state is not State.DEAD_LETTER:
        client = session_of(the_app(request))
        rules = await client.arun(client.store.payload_rules.list(job.tenant))
        can = can if effective(rules, job.tenant, job.kind).replaceable else can - {"edit"}
    return can


def _can(job: Job) -> frozenset[str]:
    """The actions that the state of the job allows."""
    can = set()
    if job.state.active:
        can.add("cancel")
    if job.state is State.DEAD_LETTER:
        can |= {"redrive", "discard"}
        if job.workflow_id is None:
            can.add("edit")
    if job.state is State.QUEUED:
        can.add("move")
    if job.state is State.RETRY_WAITING or (job.state is State.QUEUED and job.due_at is not None):
        can.add("run-now")
    if job.state in (State.QUEUED, State.RETRY_WAITING):
        can.add("edit")
    if job.workflow_id is None and job.state is not State.CLEANED and job.payload != HIDDEN:
        can.add("fork")
    if job.payload == HIDDEN or not (is_omitted(job.payload) or shown(job.payload) is job.payload):
        can.discard("edit")
    return frozenset(can)


async def cancel(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    if (question := await confirm(request, f"Cancel this job ({job.kind})?", back=page)) is not None:
        return question
    verdicts = await the_app(request).jobs.acancel(job.id, reason=await _reason(request), tenant=job.tenant)
    return redirect(request, page, _message(verdicts, "Cancelled. If the job is running, its worker was notified."))


async def _from_step(request: Request) -> int | str | None:
    step = await field(request, "from_step")
    return int(step) if step.isascii() and step.isdecimal() and len(step) < 8 else step or None


async def fork(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    from_step, key = await _from_step(request), await field(request, "key") or None
    try:
        made = await the_app(request).jobs.afork(
            job.id, from_step or "", key=key, reason=await _reason(request), tenant=job.tenant
        )
    except (InvalidInput, Refused) as refused:
        return redirect(request, page, f"Not forked: {refused.message}.")
    return redirect(request, f"/jobs/{made.id}", f"Forked from job {job.id}.")


async def redrive(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    from_step = await _from_step(request)
    delay = await field(request, "delay") or None
    try:
        verdicts = await the_app(request).jobs.aredrive(
            job.id, reason=await _reason(request), from_step=from_step, delay=delay, tenant=job.tenant
        )
    except InvalidInput as refused:
        return redirect(request, page, f"Not redriven: {refused.message}.")
    return redirect(request, page, _message(verdicts, "Redriven: the job is queued again."))


async def discard(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    reason = await _reason(request)
    if reason is None:
        return redirect(request, page, "Discarding needs a reason. Enter one and try again.")
    if (
        question := await confirm(request, f"Discard this dead letter ({job.kind}) permanently?", back=page)
    ) is not None:
        return question
    verdicts = await the_app(request).jobs.adiscard(job.id, reason=reason, tenant=job.tenant)
    return redirect(request, page, _message(verdicts, "Discarded."))


async def move(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    where = await field(request, "to")
    if where not in ("first", "last"):
        raise InvalidInput("to is first or last", code="invalid_request")
    verdict = await the_app(request).jobs.amove(
        job.id, first=where == "first", last=where == "last", reason=await _reason(request), tenant=job.tenant
    )
    return redirect(request, page, _message([verdict], f"Moved: the job is {where} in its queue."))


async def run_now(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    verdicts = await the_app(request).jobs.areschedule(job.id, reason=await _reason(request), tenant=job.tenant)
    return redirect(request, page, _message(verdicts, "The job can start now."))


async def set_external_ref(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    ref = (await field(request, "external_ref")).strip() or None
    try:
        await the_app(request).jobs.aset_external_ref(job.id, ref, tenant=job.tenant)
    except InvalidInput as refused:
        return redirect(request, page, f"Refused: {refused.message}.")
    return redirect(request, page, "External reference set." if ref else "External reference removed.")


async def edit(request: Request) -> Response:
    """Show the payload in a form, and store it. For a dead letter this creates a new job in its place; for a waiting
    job it replaces the payload, if its kind allows that."""
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    if "edit" not in await _allowed(request, job):
        return redirect(
            request, page, "This payload cannot be changed: the job runs, has ended, or its kind forbids it."
        )
    if request.method == "GET":
        return await _form(request, job, await payload_text(the_app(request), job.id), None)
    text = await field(request, "payload")
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError) as error:
        return await _form(request, job, text, f"Invalid JSON: {error}")
    app, reason = the_app(request), await _reason(request)
    try:
        if job.state is not State.DEAD_LETTER:
            await app.jobs.areplace_payload(job.id, payload, reason=reason or "", tenant=job.tenant)
            return redirect(request, page, "Payload replaced.")
        new = await app.dead_letters.aredrive_as(job.id, payload, reason=reason)
    except (InvalidInput, Refused) as refused:
        return await _form(request, job, text, refused.message)
    return redirect(request, f"/jobs/{new}", "This job replaces the dead letter.")


async def _form(request: Request, job: Job, text: str, error: str | None) -> Response:
    return await render(request, "job_edit.html", status=422 if error else 200, job=job, text=text, error=error)


async def _job(request: Request) -> tuple[Job, str]:
    job = await the_app(request).jobs.aget(parse_id(request.path_params["id"]))
    return job, f"/jobs/{job.id}"


async def _reason(request: Request) -> str | None:
    return (await field(request, "reason"))[:500] or None


def _message(verdicts: list[Verdict], done: str) -> str:
    verdict = verdicts[0]
    why: Any = verdict.reason or "refused"
    return f"Refused: {REFUSED.get(why, why.replace('_', ' '))}." if verdict.refused else done


routes = [
    Route("/jobs/{id}", show),
    Route("/jobs/{id}/edit", edit, methods=["GET", "POST"]),
    Route("/jobs/{id}/log", download_log),
    Route("/jobs/{id}/artifacts/{name:path}", download_artifact),
    *(
        Route(f"/jobs/{{id}}/{name}", act, methods=["POST"])
        for name, act in {
            "cancel": cancel,
            "redrive": redrive,
            "fork": fork,
            "discard": discard,
            "move": move,
            "run-now": run_now,
            "external-ref": set_external_ref,
        }.items()
    ),
]
