"""Schedules with their next runs in two time zones: run, pause, edit and create them. Templates of jobs."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from holdfast.app import App
from holdfast.engine.names import Place
from holdfast.errors import HoldfastError, InvalidInput, InvalidSetting
from holdfast.features.payloads.model import HIDDEN, effective
from holdfast.features.schedules.model import Schedule
from holdfast.features.schedules.recurrence import Coming, Timing, preview, zone_of
from holdfast.features.tokens.model import Scope
from holdfast.server.pages import PAGE, ask_first, chosen, document, does, fields, go, said, shows, time_of
from holdfast.server.rendering import render, the_app
from holdfast.stores.flow import beside

LISTED: Final = 500
LOOKED_AT: Final = 5_000
NEXT: Final = 10
STATES: Final = ("", "active", "paused", "ended")
TEXTS: Final = ("timing", "tz", "kind", "template", "missed", "overlap", "jitter", "queue", "priority")


async def index(request: Request) -> Response:
    asked = request.query_params
    state, kind, name = chosen(asked, "state", STATES), said(asked, "kind"), said(asked, "name")
    named = await _found(the_app(request), state or None, kind, name)
    return await render(
        request,
        "schedules.html",
        schedules=named[:LISTED],
        in_words=in_words,  # of each when its row is written: that is done a few rows at a time
        trouble_of=trouble,
        more=len(named) > LISTED,
        state=state,
        states=STATES[1:],
        kind=kind,
        name=name,
    )


async def _found(app: App, state: str | None, kind: str | None, name: str | None) -> list[Schedule]:
    """One more than is listed, where there are more. A name is looked for here, page by page: others have their turn in
    between."""
    named: list[Schedule] = []
    place: Place | None = None
    for _ in range(LOOKED_AT // LISTED):
        page = await app.schedules.alist(state=state, kind=kind, after=place, limit=LISTED + 1)
        named += [each for each in page if name is None or name.lower() in each.name.lower()]
        if len(page) <= LISTED or len(named) > LISTED:
            break
        place = Place(page[-1].tenant, page[-1].name)
    return named


async def show(request: Request) -> Response:
    app, asked = the_app(request), request.query_params
    schedule = await _schedule(request)
    if asked.get("edit"):
        hides = await _hides(request, schedule)
        return await _form(request, _written(schedule, hides), schedule=schedule, hides=hides)
    zone = _zone(asked.get("zone"))
    client, store = app._session, app._session.store
    before = time_of(asked, "before")
    fires, rules, now = await client.arun(
        beside(
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
        words=in_words(schedule),
        trouble=trouble(schedule),
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
        name = said(given, "name") or ""
        made = await the_app(request).schedules.aadd(name, **_definition(given))
    except HoldfastError as error:
        return await _form(request, given, wrong=error, tried=True)
    return go(request, path_of(made.name), f"Created schedule {made.name}.")


async def act(request: Request) -> Response:
    """What is done to one: its name is all of the rest of the address, so the form says what."""
    given, schedules = await fields(request), the_app(request).schedules
    schedule = await _schedule(request)
    here = path_of(schedule.name) + (f"?{request.url.query}" if request.url.query else "")
    match given.get("do"):
        case "run":
            job = await schedules.arun(schedule.name, anyway=bool(given.get("anyway")))
            return go(request, f"/jobs/{job}", f"Ran schedule {schedule.name}. This is the job.")
        case "pause":
            await schedules.apause(schedule.name)
            return go(request, here, f"Paused schedule {schedule.name}.")
        case "resume":
            await schedules.aresume(schedule.name)
            return go(request, here, f"Resumed schedule {schedule.name}.")
        case "delete":
            question = f"Delete schedule {schedule.name}? Its jobs and its history stay."
            if (asks := await ask_first(request, question, back=here)) is not None:
                return asks
            await schedules.aremove(schedule.name)
            return go(request, "/schedules", f"Deleted schedule {schedule.name}.")
        case "preview":
            return await _form(request, given, schedule=schedule, hides=await _hides(request, schedule), tried=True)
        case "save":
            hides = await _hides(request, schedule)
            try:
                await schedules.aedit(schedule.name, **_definition(given, keep_payload=hides))
            except HoldfastError as error:
                return await _form(request, given, schedule=schedule, hides=hides, wrong=error, tried=True)
            return go(request, here, f"Saved schedule {schedule.name}.")
    raise InvalidInput("do is run, pause, resume, delete, preview or save", code="invalid_request")


async def _form(
    request: Request,
    given: dict[str, str],
    *,
    schedule: Schedule | None = None,
    hides: bool = False,
    wrong: HoldfastError | None = None,
    tried: bool = False,
) -> Response:
    """With what it would do, before anything is saved."""
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
    """What was filled in, in the words of ``app.schedules``; what is empty is not said, or taken away."""
    found: dict[str, Any] = {name: said(given, name) for name in ("kind", "template")}
    found = {name: value for name, value in found.items() if value is not None}
    found["timing"] = said(given, "timing") or ""
    found["tz"] = said(given, "tz") or "UTC"
    found["missed"] = said(given, "missed") or "once"
    found["overlap"] = said(given, "overlap") or "allow"
    found["jitter"] = said(given, "jitter", 30) or 0
    if not keep_payload or said(given, "payload", 1_048_576) is not None:
        found["payload"] = document(given, "payload")
    for name in ("queue", "priority"):
        text = said(given, name)
        if text is not None:
            found[name] = _whole(text) if name == "priority" else text
    return found


def _whole(text: str) -> int:
    try:
        return int(text[:20])
    except ValueError:
        raise InvalidInput("priority is a whole number", code="invalid_request") from None


def _written(schedule: Schedule, hides: bool) -> dict[str, str]:
    own = {
        "timing": schedule.timing,
        "tz": schedule.zone,
        "kind": "" if schedule.template else schedule.kind,
        "template": schedule.template or "",
        "missed": schedule.missed,
        "overlap": schedule.overlap,
        "jitter": f"{schedule.jitter:g}s" if schedule.jitter else "",
        "payload": "" if hides else json.dumps(schedule.payload, indent=2, ensure_ascii=False),
    }
    return own | {name: str(schedule.options.get(name, "")) for name in ("queue", "priority")}


async def _schedule(request: Request) -> Schedule:
    return await the_app(request).schedules.aget(request.path_params["name"])


def _coming(schedule: Schedule, now: datetime) -> list[Coming]:
    if schedule.state != "active":
        return []
    try:
        return preview(schedule.timed, now, schedule.anchor_at, NEXT)
    except InvalidSetting:  # written by hand, or in a zone that this machine does not know
        return []


async def _hides(request: Request, schedule: Schedule) -> bool:
    """Whether what the schedule gives to its jobs may not be seen (rule 24)."""
    client = the_app(request)._session
    rules = await client.arun(client.store.payload_rules.list(schedule.tenant))
    return effective(rules, schedule.tenant, schedule.kind).restricted


async def _now(request: Request) -> datetime:
    client = the_app(request)._session
    return await client.arun(client.store.clock.now())


def _zone(name: str | None) -> str:
    try:
        return zone_of(name or "UTC").key
    except InvalidSetting:
        return "UTC"


def path_of(name: str) -> str:
    return f"/schedules/{quote(name, safe='')}"


def in_words(schedule: Schedule) -> str:
    try:
        return schedule.timed.words
    except InvalidSetting as error:
        return error.message


def trouble(schedule: Schedule) -> str | None:
    if schedule.problem == "unknown_kind":
        return f"no running worker has a handler for {schedule.kind}"
    if schedule.problem is not None:
        return f"the last run failed: {schedule.problem}"
    if schedule.undeclared_at is not None:
        return f"the code of {schedule.declared_by} no longer declares it"
    return None


async def templates(request: Request) -> Response:
    found = await the_app(request).templates.alist(limit=LISTED + 1)
    return await render(request, "templates.html", templates=found[:LISTED], more=len(found) > LISTED)


async def use_template(request: Request) -> Response:
    """Enqueue a job from a template, or remove the template."""
    given, app = await fields(request), the_app(request)
    name = said(given, "name") or ""
    if given.get("do") == "remove":
        question = f"Remove template {name}? Its versions and its jobs stay."
        if (asks := await ask_first(request, question, back="/templates")) is not None:
            return asks
        await app.templates.aremove(name)
        return go(request, "/templates", f"Removed template {name}.")
    job = await app.templates.aenqueue(name)
    return go(request, f"/jobs/{job.id}", f"Enqueued a job from template {name}.")


routes = [
    shows("/templates", templates),
    does("/templates", use_template, Scope.OPERATE),
    shows("/schedules", index),
    shows("/new/schedule", new, Scope.OPERATE),
    does("/new/schedule", create, Scope.OPERATE),
    shows("/schedules/{name:path}", show),
    does("/schedules/{name:path}", act, Scope.OPERATE),
]
