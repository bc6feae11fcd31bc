"""The pages of retention policies and of usage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, cast

from starlette.requests import Request
from starlette.responses import Response

from holdfast.app.internals import session_of
from holdfast.features.retention.model import End, Usage
from holdfast.features.tokens.model import Scope
from holdfast.server.pages import action_route, choice_field, confirm, fields, page_route, redirect, text_field
from holdfast.server.rendering import render, the_app

SHOWN: Final = 200
STATES: Final = ("", "succeeded", "failed", "cancelled", "dead_letter")
DAYS: Final = ("30", "7", "90")
NOTHING: Final = Usage(None, None, None, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)


async def policies(request: Request) -> Response:
    result = await the_app(request).retention.alist()
    return await render(request, "retention.html", policies=result[:SHOWN], states=STATES[1:])


async def set_policy(request: Request) -> Response:
    form = await fields(request)
    await the_app(request).retention.aset(
        kind=text_field(form, "kind", 255),
        state=cast(End | None, choice_field(form, "state", STATES) or None),
        clean_after=text_field(form, "clean_after", 30),
        purge_after=text_field(form, "purge_after", 30),
        archive=form.get("archive") == "yes",
    )
    return redirect(request, "/retention", "Policy saved. Workers apply it with their next sweep.")


async def remove_policy(request: Request) -> Response:
    form = await fields(request)
    kind, state = text_field(form, "kind", 255), cast(End | None, text_field(form, "state", 50))
    question = "Remove this policy? The next wider one applies; without one, jobs are kept for ever."
    if (confirmation := await confirm(request, question, back="/retention")) is not None:
        return confirmation
    await the_app(request).retention.aremove(kind=kind, state=state)
    return redirect(request, "/retention", "Policy removed.")


async def usage(request: Request) -> Response:
    """Show the sums counted so far. The page only reads: workers and ``holdfast usage`` count."""
    app, params = the_app(request), request.query_params
    days = int(choice_field(params, "days", DAYS))
    daily = await app.usage.alist(by="day", since=days, count=False)
    kinds = await app.usage.alist(by="kind", since=days, count=False)
    now = await session_of(app).arun(session_of(app).store.clock.now())
    by_date = {row.day: row for row in daily}
    dates = [_midnight(now) - timedelta(days=n) for n in range(days, -1, -1)]
    rows = [(at, by_date.get(at.date(), NOTHING)) for at in dates]
    return await render(
        request,
        "usage.html",
        days=days,
        choices=sorted(map(int, DAYS)),
        daily=daily,
        kinds=sorted(kinds, key=lambda row: -row.run_time)[:SHOWN],
        jobs_rows=[(at, [row.enqueued, row.succeeded, row.failed + row.crashed]) for at, row in rows],
        time_rows=[(at, [round(row.run_time / 60, 2)]) for at, row in rows],
    )


def _midnight(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


routes = [
    page_route("/retention", policies),
    action_route("/retention", set_policy, Scope.ADMIN),
    action_route("/retention/remove", remove_policy, Scope.ADMIN),
    page_route("/usage", usage),
]
