"""Dashboard pages of schedules and templates: list, create, edit, run, pause, delete."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.engine.names import PagePosition
from holdfast.errors import HoldfastError, InvalidInput, InvalidSetting
from holdfast.features.payloads.model import HIDDEN, effective
from holdfast.features.schedules.model import Schedule
from holdfast.features.schedules.recurrence import Coming, Timing, preview, zone_of
from holdfast.features.tokens.model import Scope
from holdfast.server.pages import (
    PAGE,
    action_route,
    choice_field,
    confirm,
    fields,
    json_field,
    page_route,
    redirect,
    text_field,
    time_field,
)
from holdfast.server.rendering import render, the_app
from holdfast.stores.flow import read_flows, read_large

LISTED: Final = 500
SEARCHED: Final = 5_000
"""Schedules that a search by name reads."""
NEXT: Final = 10
STATES: Final = ("", "active", "paused", "ended")
TEXTS: Final = ("timing", "tz", "kind", "template", "missed", "overlap", "jitter", "queue", "priority")


async def index(request: Request) -> Response:
    query = request.query_params
    state, kind, name = choice_field(query, "state", STATES), text_field(query, "kind"), text_field(query, "name")
    schedules = await _matching(the_app(request), state or None, kind, name)
    return await render(
        request,
        "schedules.html",
        schedules=schedules[:LISTED],
        in_words=lambda schedule: schedule.in_words,
        trouble_of=lambda schedule: schedule.trouble,
        more=len(schedules) > LISTED,
        state=state,
        states=STATES[1:],
        kind=kind,
        name=name,
    )


async def _matching(app: App, state: str | None, kind: str | None, name: str | None) -> list[Schedule]:
    """The schedules to list, and one more if there are more. Names are compared here, page by page, so that other
    requests run in between."""
    result: list[Schedule] = []
    last: PagePosition | None = None
    for _ in range(SEARCHED // LISTED):
        page = await app.schedules.alist(state=state, kind=kind, after=last, limit=LISTED + 1)
        result += [schedule for schedule in page if name is None or name.lower() in schedule.name.lower()]
        if len(page) <= LISTED or len(result) > LISTED:
            break
        last = PagePosition(page[-1].tenant, page[-1].name)
    return result


async def show(request: Request) -> Response:
    app, query = the_app(request), request.query_params
    schedule = await _schedule(request)
    if query.get("edit"):
        hides = await _hides(request, schedule)
        given = await read_large(partial(_form_values, schedule, hides))
        return await _form(request, given, schedule=schedule, hides=hides)
    zone = _zone(query.get("zone"))
    client, store = session_of(app), session_of(app).store
    before = time_field(query, "before")
    fires, rules, now = await client.arun(
        read_flows(
            store.schedules.fires(schedule.id, client.tenant, PAGE, before),
            store.payload_rules.list(schedule.tenant),
            store.clock.now(),
        )
    )
    hides = effective(rules, schedule.tenant, schedule.kind).restricted
    return await render(
        request,
        "schedule.html",
        schedule=schedule,
        words=schedule.in_words,
        trouble=schedule.trouble,
        payload=HIDDEN if hides else schedule.payload,
        coming=_coming(schedule, now),
        zone=zone,
        other=zone_of(zone),
        fires=fires,
        earlier=fires[-1].due_at.isoformat() if len(fires) == PAGE else None,
    )


async def new(request: Request) -> Response:
    return await _form(request, {"tz": "UTC", "missed": "once", "overlap": "allow", "payload": "{}"})


async def create(request: Request) -> Response:
    given = await fields(request)
    if given.get("do") != "save":
        return await _form(request, given, tried=True)
    try:
        name = text_field(given, "name") or ""
        made = await the_app(request).schedules.aadd(name, **_definition(given))
    except HoldfastError as error:
        return await _form(request, given, wrong=error, tried=True)
    return redirect(request, path_of(made.name), f"Created schedule {made.name}.")


async def act(request: Request) -> Response:
    """Apply an action to a schedule. The name is the rest of the path, so the form names the action."""
    given, schedules = await fields(request), the_app(request).schedules
    schedule = await _schedule(request)
    here = path_of(schedule.name) + (f"?{request.url.query}" if request.url.query else "")
    match given.get("do"):
        case "run":
            job = await schedules.arun(schedule.name, anyway=bool(given.get("anyway")))
            return redirect(request, f"/jobs/{job}", f"Ran schedule {schedule.name}. This is the job.")
        case "pause":
            await schedules.apause(schedule.name)
            return redirect(request, here, f"Paused schedule {schedule.name}.")
        case "resume":
            await schedules.aresume(schedule.name)
            return redirect(request, here, f"Resumed schedule {schedule.name}.")
        case "delete":
            question = f"Delete schedule {schedule.name}? Its jobs and its history stay."
            if (confirmation := await confirm(request, question, back=here)) is not None:
                return confirmation
            await schedules.aremove(schedule.name)
            return redirect(request, "/schedules", f"Deleted schedule {schedule.name}.")
        case "preview":
            return await _form(request, given, schedule=schedule, hides=await _hides(request, schedule), tried=True)
        case "save":
            hides = await _hides(request, schedule)
            try:
                await schedules.aedit(schedule.name, **_definition(given, keep_payload=hides))
            except HoldfastError as error:
                return await _form(request, given, schedule=schedule, hides=hides, wrong=error, tried=True)
            return redirect(request, here, f"Saved schedule {schedule.name}.")
    raise InvalidInput("do must be one of run, pause, resume, delete, preview, save", code="invalid_request")


async def _form(
    request: Request,
    given: dict[str, str],
    *,
    schedule: Schedule | None = None,
    hides: bool = False,
    wrong: HoldfastError | None = None,
    tried: bool = False,
) -> Response:
    """The form with a preview of the next times."""
    coming: list[Coming] = []
    words = None
    if tried or schedule is not None:
        try:
            timing = Timing.of(given.get("timing", ""), given.get("tz") or "UTC")
            words = timing.words
            now = await _now(request)
            coming = preview(timing, now, now.replace(microsecond=0), NEXT)
        except InvalidSetting as error:
            wrong = wrong or (error if tried else None)
    return await render(
        request,
        "schedule_form.html",
        status=200 if wrong is None else 422,
        schedule=schedule,
        given={name: given.get(name, "") for name in ("name", "payload", *TEXTS)},
        hides=hides,
        words=words,
        coming=coming,
        utc=zone_of("UTC"),
        wrong=wrong,
    )


def _definition(given: dict[str, str], *, keep_payload: bool = False) -> dict[str, Any]:
    """The posted values as arguments of ``app.schedules``. An empty field has its default."""
    definition: dict[str, Any] = {name: text_field(given, name) for name in TEXTS}
    definition["timing"] = definition["timing"] or ""
    if definition["priority"] is not None:
        definition["priority"] = _whole(definition["priority"])
    for name in ("kind", "template"):
        if definition[name] is None:
            del definition[name]
    if not keep_payload or text_field(given, "payload", 1_048_576) is not None:
        definition["payload"] = json_field(given, "payload")
    return definition


def _whole(text: str) -> int:
    try:
        return int(text[:20])
    except ValueError:
        raise InvalidInput("priority must be a whole number", code="invalid_request") from None


def _form_values(schedule: Schedule, hides: bool) -> dict[str, str]:
    values = schedule.options | {name: getattr(schedule, name) for name in TEXTS if hasattr(schedule, name)}
    values |= {
        "tz": schedule.zone,
        "kind": None if schedule.template else schedule.kind,
        "jitter": f"{schedule.jitter:g}s" if schedule.jitter else None,
        "payload": None if hides else json.dumps(schedule.payload, indent=2, ensure_ascii=False),
    }
    return {name: str(value) for name, value in values.items() if value is not None}


async def _schedule(request: Request) -> Schedule:
    return await the_app(request).schedules.aget(request.path_params["name"])


def _coming(schedule: Schedule, now: datetime) -> list[Coming]:
    if schedule.state != "active":
        return []
    try:
        return preview(schedule.timed, now, schedule.anchor_at, NEXT)
    except InvalidSetting:  # written by hand, or in a zone that this machine does not have
        return []


async def _hides(request: Request, schedule: Schedule) -> bool:
    """Whether the payload of the schedule must not be shown."""
    client = session_of(the_app(request))
    rules = await client.arun(client.store.payload_rules.list(schedule.tenant))
    return effective(rules, schedule.tenant, schedule.kind).restricted


async def _now(request: Request) -> datetime:
    client = session_of(the_app(request))
    return await client.arun(client.store.clock.now())


def _zone(name: str | None) -> str:
    try:
        return zone_of(name or "UTC").key
    except InvalidSetting:
        return "UTC"


def path_of(name: str) -> str:
    return f"/schedules/{quote(name, safe='')}"


async def templates(request: Request) -> Response:
    page = await the_app(request).templates.alist(limit=LISTED + 1)
    return await render(request, "templates.html", templates=page[:LISTED], more=len(page) > LISTED)


async def use_template(request: Request) -> Response:
    """Enqueue a job from a template, or remove the template."""
    given, app = await fields(request), the_app(request)
    name = text_field(given, "name") or ""
    if given.get("do") == "remove":
        question = f"Remove template {name}? Its versions and its jobs stay."
        if (confirmation := await confirm(request, question, back="/templates")) is not None:
            return confirmation
        await app.templates.aremove(name)
        return redirect(request, "/templates", f"Removed template {name}.")
    job = await app.templates.aenqueue(name)
    return redirect(request, f"/jobs/{job.id}", f"Enqueued a job from template {name}.")


routes = [
    page_route("/templates", templates),
    action_route("/templates", use_template, Scope.OPERATE),
    page_route("/schedules", index),
    page_route("/new/schedule", new, Scope.OPERATE),
    action_route("/new/schedule", create, Scope.OPERATE),
    page_route("/schedules/{name:path}", show),
    action_route("/schedules/{name:path}", act, Scope.OPERATE),
]
