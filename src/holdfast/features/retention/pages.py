"""Retention policies, and usage by day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.features.retention.model import ANY, Usage
from holdfast.features.tokens.model import Scope
from holdfast.server.pages import ask_first, chosen, does, fields, go, said, shows
from holdfast.server.rendering import render, the_app

SHOWN: Final = 200
STATES: Final = ("", "succeeded", "failed", "cancelled", "dead_letter")
DAYS: Final = ("30", "7", "90")
NOTHING: Final = Usage(None, None, None, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)


async def policies(request: Request) -> Response:
    found = await the_app(request).retention.alist()
    return await render(request, "retention.html", policies=found[:SHOWN], states=STATES[1:])


async def keep(request: Request) -> Response:
    given = await fields(request)
    await the_app(request).retention.aset(
        kind=said(given, "kind", 255),
        state=chosen(given, "state", STATES) or None,
        clean_after=said(given, "clean_after", 30),
        purge_after=said(given, "purge_after", 30),
    )
    return go(request, "/retention", "Policy saved. Workers apply it with their next sweep.")


async def forget(request: Request) -> Response:
    given = await fields(request)
    kind, state = said(given, "kind", 255) or ANY, said(given, "state", 50) or ANY
    question = "Remove this policy? The next wider one applies; without one, jobs are kept for ever."
    if (asks := await ask_first(request, question, back="/retention")) is not None:
        return asks
    await the_app(request).retention.aremove(kind=kind, state=state)
    return go(request, "/retention", "Policy removed.")


async def usage(request: Request) -> Response:
    """Sums as far as they are counted. The page only reads: workers and ``holdfast usage`` do the counting."""
    app, asked = the_app(request), request.query_params
    days = int(chosen(asked, "days", DAYS))
    daily = await app.usage.alist(by="day", since=days, count=False)
    kinds = await app.usage.alist(by="kind", since=days, count=False)
    now = await app._session.arun(app._session.store.clock.now())
    known = {each.day: each for each in daily}
    dates = [_midnight(now) - timedelta(days=n) for n in range(days, -1, -1)]
    drawn = [(at, known.get(at.date(), NOTHING)) for at in dates]
    return await render(
        request,
        "usage.html",
        days=days,
        choices=sorted(map(int, DAYS)),
        daily=daily,
        kinds=sorted(kinds, key=lambda each: -each.run_time)[:SHOWN],
        jobs_rows=[(at, [each.enqueued, each.succeeded, each.failed + each.crashed]) for at, each in drawn],
        time_rows=[(at, [round(each.run_time / 60, 2)]) for at, each in drawn],
    )


def _midnight(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


routes = [
    shows("/retention", policies),
    does("/retention", keep, Scope.ADMIN),
    does("/retention/remove", forget, Scope.ADMIN),
    shows("/usage", usage),
]
