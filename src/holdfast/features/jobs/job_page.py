"""One job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Event, Job, Verdict
from holdfast.engine.names import check_name
from holdfast.engine.states import State
from holdfast.engine.steps import RESERVED, Progress
from holdfast.errors import HoldfastError, InvalidInput, NotFound, Refused
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.jobs.read_routes import artifact_file, log_file, log_piece
from holdfast.features.jobs.views import Story, view
from holdfast.features.payloads.model import HIDDEN, effective
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import require
from holdfast.server.pages import ask_first, field, go
from holdfast.server.rendering import render, the_app
from holdfast.stores.vault import shown

# Shown elsewhere, or too long for a line.
ELSEWHERE = frozenset({"error_code", "error_message", "reason", "traceback", "log"})
LEAST = 0.6
"""Percent: what took no time at all is still to be seen."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A while in one state; ``left`` and ``width`` are percent of the whole, as attributes of a drawing."""

    state: State
    since: datetime
    took: float
    over: bool
    left: float
    width: float


def stretches(history: Sequence[Event], now: datetime) -> list[Stretch]:
    """Each state once for as long as it lasted in one go. What has ended stays as it is, and takes no more time."""
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
    widths = [max(LEAST, 100 * span / whole) for span in spans]
    scale, left, found = 100 / sum(widths), 0.0, []
    for n, ((state, since), span, width) in enumerate(zip(merged, spans, widths, strict=True)):
        over = n < len(merged) - 1
        found.append(Stretch(state, since, span, over, round(left, 3), round(width * scale, 3)))
        left += width * scale
    return found


def special(event: Event) -> str:
    """What was particular about this step: the error, the reason, and whatever else is noted."""
    meta = event.meta
    parts = []
    if event.type in ("fail", "lapse", "crash", "expire", "deny") and meta.get("error_code"):
        parts.append(f"{meta['error_code']}: {meta.get('error_message') or ''}".rstrip(": "))
    if meta.get("reason"):
        parts.append(str(meta["reason"]))
    parts += [f"{name}: {value}" for name, value in meta.items() if name not in ELSEWHERE]
    return "; ".join(parts)


CHILDREN, EVENTS, ATTEMPTS = 20, 200, 20
LOG_TAIL = 32 * 1024
"""Bytes of a log that the page shows; the rest can be downloaded."""
REFUSED = {
    "not_found": "the job no longer exists",
    "not_dead": "it is no longer a dead letter",
    "not_waiting": "it is no longer waiting",
    "finished": "it has already finished",
}


async def show(request: Request) -> Response:
    require(request, Scope.READ)
    client, job_id = the_app(request)._session, parse_id(request.path_params["id"])
    seen = await client.arun(view(client.store, job_id, client.tenant, CHILDREN + 1))
    if seen is None:
        raise NotFound(f"no job {job_id} in this tenant")
    found, job = seen.story, seen.story.job
    number, log, log_error = await _log(request, seen.story)
    return await render(
        request,
        "job.html",
        job=job,
        story=found,
        reasons=seen.reasons,
        children=seen.children,
        most_children=CHILDREN,
        stretches=stretches(found.history, seen.now),
        events=[(event, special(event)) for event in found.history[-EVENTS:]],
        attempts=found.attempts[-ATTEMPTS:][::-1],
        progress=Progress.saved(found.checkpoints),
        checkpoints={name: shown(value) for name, value in found.checkpoints.items() if name != RESERVED},
        payload=shown(job.payload),
        result=None if found.result is None else shown(found.result.value),
        hidden=HIDDEN,
        can=await _allowed(request, job),
        log_attempt=number,
        log=log,
        log_error=log_error,
    )


async def _log(request: Request, story: Story) -> tuple[int, AttemptLog | None, str | None]:
    """The end of the log of the attempt that is asked for, or of the last one that has a log; or why it cannot be
    shown."""
    logged = [each.attempt for each in story.attempts if each.log is not None]
    asked = request.query_params.get("attempt", "")
    number = next((each for each in logged if str(each) == asked), max(logged, default=0))
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
    asked = request.query_params.get("attempt")
    if asked is None:
        return None
    if not asked.isascii() or not asked.isdecimal() or len(asked) > 9:
        raise InvalidInput("attempt is the number of an attempt", code="invalid_request")
    return int(asked)


async def _allowed(request: Request, job: Job) -> frozenset[str]:
    """The same, without the payload of a waiting job whose kind does not let it be replaced."""
    can = _can(job)
    if "edit" in can and job.state is not State.DEAD_LETTER:
        client = the_app(request)._session
        rules = await client.arun(client.store.payload_rules.list(job.tenant))
        can = can if effective(rules, job.tenant, job.kind).replaceable else can - {"edit"}
    return can


def _can(job: Job) -> frozenset[str]:
    """What may be done to it as it is now."""
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
    if job.payload == HIDDEN or shown(job.payload) is not job.payload:
        can.discard("edit")
    return frozenset(can)


async def cancel(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    if (asked := await ask_first(request, f"Cancel this job ({job.kind})?", back=page)) is not None:
        return asked
    verdicts = await the_app(request).jobs.acancel(job.id, reason=await _reason(request), tenant=job.tenant)
    return go(request, page, _said(verdicts, "Cancelled. If the job is running, it was told to stop."))


async def redrive(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    step = await field(request, "from_step")
    from_step = int(step) if step.isascii() and step.isdecimal() and len(step) < 8 else step or None
    delay = await field(request, "delay") or None
    try:
        verdicts = await the_app(request).jobs.aredrive(
            job.id, reason=await _reason(request), from_step=from_step, delay=delay, tenant=job.tenant
        )
    except InvalidInput as refused:
        return go(request, page, f"Not redriven: {refused.message}.")
    return go(request, page, _said(verdicts, "Redriven: the job is queued again."))


async def discard(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    reason = await _reason(request)
    if reason is None:
        return go(request, page, "Discarding needs a reason. Enter one and try again.")
    if (
        asked := await ask_first(request, f"Discard this dead letter ({job.kind}) permanently?", back=page)
    ) is not None:
        return asked
    verdicts = await the_app(request).jobs.adiscard(job.id, reason=reason, tenant=job.tenant)
    return go(request, page, _said(verdicts, "Discarded."))


async def move(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    where = await field(request, "to")
    if where not in ("first", "last"):
        raise InvalidInput("to is first or last", code="invalid_request")
    verdict = await the_app(request).jobs.amove(
        job.id, first=where == "first", last=where == "last", reason=await _reason(request), tenant=job.tenant
    )
    return go(request, page, _said([verdict], f"Moved: the job is {where} in its queue."))


async def run_now(request: Request) -> Response:
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    verdicts = await the_app(request).jobs.areschedule(job.id, reason=await _reason(request), tenant=job.tenant)
    return go(request, page, _said(verdicts, "The job can start now."))


async def edit(request: Request) -> Response:
    """The payload in a form. Of a dead letter, what is sent makes a new job in its place; that of a waiting job is
    replaced, where its kind allows it."""
    require(request, Scope.OPERATE)
    job, page = await _job(request)
    if "edit" not in await _allowed(request, job):
        return go(request, page, "This payload cannot be changed: the job runs, has ended, or its kind forbids it.")
    if request.method == "GET":
        return await _form(request, job, json.dumps(job.payload, indent=2, ensure_ascii=False), None)
    text = await field(request, "payload")
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError) as error:
        return await _form(request, job, text, f"Invalid JSON: {error}")
    app, reason = the_app(request), await _reason(request)
    try:
        if job.state is not State.DEAD_LETTER:
            await app.jobs.areplace_payload(job.id, payload, reason=reason or "", tenant=job.tenant)
            return go(request, page, "Payload replaced.")
        new = await app.dead_letters.aredrive_as(job.id, payload, reason=reason)
    except (InvalidInput, Refused) as refused:
        return await _form(request, job, text, refused.message)
    return go(request, f"/jobs/{new}", "This job replaces the dead letter.")


async def _form(request: Request, job: Job, text: str, error: str | None) -> Response:
    return await render(request, "job_edit.html", status=422 if error else 200, job=job, text=text, error=error)


async def _job(request: Request) -> tuple[Job, str]:
    job = await the_app(request).jobs.aget(parse_id(request.path_params["id"]))
    return job, f"/jobs/{job.id}"


async def _reason(request: Request) -> str | None:
    return (await field(request, "reason"))[:500] or None


def _said(verdicts: list[Verdict], done: str) -> str:
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
            "discard": discard,
            "move": move,
            "run-now": run_now,
        }.items()
    ),
]
