"""Jinja environment, menu, ``{% around %}``.

``{% around ui.table(…) %} … {% endaround %}``: what stands around a part of a page, written so that the part can be
rendered piece by piece.

``{% call %}`` hands the whole of it to a macro at once, and nothing else happens in the process until it is there. Here
the macro is asked with a hole in the place of the part, which is then rendered between the two halves.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from holdfast.app import App
from holdfast.errors import Refused
from holdfast.features.health.statistics import Activity
from holdfast.features.tokens.model import Scope
from holdfast.server import formatting
from holdfast.server.auth import Identity, identity_of
from holdfast.server.formatting import FILTERS

# Nobody who writes into a field can know it.
HOLE: Final = Markup(secrets.token_hex(16))


class Around(Extension):
    tags = {"around"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        call = parser.parse_expression()
        if not isinstance(call, nodes.Call):
            parser.fail("around needs a call of a macro", line)
        call.kwargs.append(nodes.Keyword("caller", self.attr("hole", lineno=line)))
        part = parser.parse_statements(("name:endaround",), drop_needle=True)
        halves = parser.free_identifier(line)
        return [
            nodes.Assign(halves, self.call_method("halved", [call], lineno=line), lineno=line),
            _half(halves, 0, line),
            *part,
            _half(halves, 1, line),
        ]

    def hole(self) -> Markup:
        return HOLE

    def halved(self, text: Markup) -> tuple[Markup, Markup]:
        before, _, after = text.partition(HOLE)
        return before, after


def _half(halves: nodes.Node, which: int, line: int) -> nodes.Output:
    half = nodes.Getitem(halves, nodes.Const(which), "load", lineno=line)
    return nodes.Output([half], lineno=line)


SAID = "holdfast_said"
THEME = "holdfast_theme"
THEMES = ("light", "auto", "dark")
PIECES = 400
"""Of a page, rendered in one go: about half a millisecond."""
STATIC = Path(__file__).parent / "static"

MENU: tuple[tuple[str, str], ...] = (
    ("/", "Overview"),
    ("/jobs", "Jobs"),
    ("/approvals", "Approvals"),
    ("/dead-letters", "Dead letters"),
    ("/workflows", "Workflows"),
    ("/schedules", "Schedules"),
    ("/queues", "Queues"),
    ("/workers", "Workers"),
    ("/limits", "Limits & pauses"),
    ("/tenants", "Tenants"),
    ("/usage", "Usage"),
    ("/audit", "Audit"),
    ("/system", "System"),
)
TABS: tuple[tuple[str, str], ...] = (
    ("/system", "Health"),
    ("/agents", "Agents"),
    ("/executors", "Executors"),
    ("/registry", "Registry"),
    ("/templates", "Templates"),
    ("/subscriptions", "Subscriptions"),
    ("/webhooks", "Webhooks"),
    ("/connectors", "Connectors"),
    ("/payload-rules", "Payload rules"),
    ("/retention", "Retention"),
    ("/tokens", "API tokens"),
)
"""Pages of the section System."""
BELOW = {"/kinds": "/jobs", "/operations": "/jobs"} | {path: "/system" for path, _ in TABS}
"""Which entry of the menu a page belongs to that is not below one."""


def section_of(path: str) -> str:
    """The entry of the menu that is current."""
    first = "/" + path.strip("/").partition("/")[0]
    return BELOW.get(first, first)


class Renderer:
    def __init__(self, app: App) -> None:
        self.app = app
        self.pages = Environment(
            loader=PackageLoader("holdfast.server"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.do", Around],
            auto_reload=False,  # they are of this release: nobody has to look at each view whether they still are
        )
        self.pages.filters |= FILTERS
        self.pages.globals["draw"] = formatting
        self.edition = edition()

    async def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        root: str = request.scope.get("root_path", "")

        def link(path: str, **query: Any) -> str:
            return root + link_of(path, **query)

        def asset(name: str) -> str:
            return f"{root}/static/{name}?v={self.edition}"

        path = request.scope["path"].removeprefix(root) or "/"
        query = request.url.query
        identity: Identity | None = None  # on the page to log in at
        with suppress(Refused):
            identity = identity_of(request)
        pieces = self.pages.get_template(template).generate(
            link=link,
            asset=asset,
            menu=MENU,
            here=path,
            section=section_of(path),
            system_tabs=TABS,
            asked=f"{path}?{query}" if query else path,
            theme=theme_of(request),
            identity=identity,
            may=lambda scope: identity is not None and identity.may(Scope(scope)),
            said=unquote(request.cookies.get(SAID, "")) or None,
            now=datetime.now(UTC),
            **values,
        )
        answer = HTMLResponse(await joined(pieces), status_code=status)
        if SAID in request.cookies:
            answer.delete_cookie(SAID, path=root or "/")
        return answer


async def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    renderer: Renderer = request.app.state.renderer
    return await renderer.page(request, template, status=status, **values)


async def joined(pieces: Iterator[str]) -> str:
    """A page, of which nothing is sent before it is whole: if its last row fails, that is a page of its own. In between
    others have their turn, so that a short page does not wait for all of a long one."""
    found: list[str] = []
    while part := list(islice(pieces, PIECES)):
        found += part
        if len(part) == PIECES:
            await asyncio.sleep(0)
    return "".join(found)


def link_of(path: str, **query: Any) -> str:
    """A path below what we are mounted under, with what is asked for; what is None or empty is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "", False)}
    return path + (f"?{urlencode(given, doseq=True)}" if given else "")


def chart_rows(activity: Activity, by: str | None = None) -> list[tuple[datetime, list[float]]]:
    """Points of a chart as rates per minute: enqueued, succeeded and failed, or one number for each series."""
    rows = []
    for n, point in enumerate(activity.points):
        counts = (
            [each[n] for each in activity.series.values()] if by else [point.enqueued, point.succeeded, point.failed]
        )
        rows.append((point.at, [activity.per_minute(point.at, count) for count in counts]))
    return rows


def theme_of(request: Request) -> str:
    chosen = request.cookies.get(THEME)
    return chosen if chosen in THEMES else "auto"


def edition() -> str:
    """Changes with the files that browsers keep, so that none is used beyond its release."""
    digest = hashlib.sha256()
    for file in sorted(STATIC.rglob("*.*")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:10]


def the_app(request: Request) -> App:
    app: App = request.app.state.app
    return app
