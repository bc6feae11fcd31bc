"""Rendering of pages: the Jinja environment, the menu, and the tag ``{% around %}``.

``{% around ui.table(…) %} … {% endaround %}`` is like ``{% call %}``, but its body is rendered piece by piece. With
``{% call %}`` the whole body is rendered before the macro runs, and the event loop waits meanwhile. ``around`` calls
the macro with a placeholder as its body, splits the result there, and renders the body between the two halves.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit, urlunsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.errors import Refused
from holdfast.features.health.statistics import Activity
from holdfast.features.tokens.model import Scope
from holdfast.server import formatting
from holdfast.server.auth import Identity, TenantNames, chosen_tenant, identity_of
from holdfast.server.formatting import FILTERS
from holdfast.stores.flow import read_large, read_slowly

# Random, so that no user text can contain it.
PLACEHOLDER: Final = Markup(secrets.token_hex(16))


class Around(Extension):
    tags = {"around"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        call = parser.parse_expression()
        if not isinstance(call, nodes.Call):
            parser.fail("around needs a call of a macro", line)
        call.kwargs.append(nodes.Keyword("caller", self.attr("placeholder", lineno=line)))
        body = parser.parse_statements(("name:endaround",), drop_needle=True)
        halves = parser.free_identifier(line)
        return [
            nodes.Assign(halves, self.call_method("split", [call], lineno=line), lineno=line),
            _half(halves, 0, line),
            *body,
            _half(halves, 1, line),
        ]

    def placeholder(self) -> Markup:
        return PLACEHOLDER

    def split(self, text: Markup) -> tuple[Markup, Markup]:
        before, _, after = text.partition(PLACEHOLDER)
        return before, after


def _half(halves: nodes.Node, which: int, line: int) -> nodes.Output:
    half = nodes.Getitem(halves, nodes.Const(which), "load", lineno=line)
    return nodes.Output([half], lineno=line)


FLASH = "holdfast_flash"
THEME = "holdfast_theme"
THEMES = ("light", "auto", "dark")
PIECES = 400
"""Pieces of a page that are rendered without a break: about half a millisecond."""
INDENTED = 64 * 1024
"""Characters of the longest payload that a form indents."""
HERE = Path(__file__).parent
STATIC = HERE / "static"
TEMPLATES = [HERE / "templates", *(HERE.parent / "features").iterdir()]

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
    ("/versions", "Versions"),
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
"""The menu entry of pages whose path is not below that entry."""


def section_of(path: str) -> str:
    """The current menu entry."""
    first = "/" + path.strip("/").partition("/")[0]
    return BELOW.get(first, first)


class Renderer:
    def __init__(self, app: App) -> None:
        self.app = app
        self.pages = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.do", Around],
            auto_reload=False,  # the templates are part of the package and do not change
        )
        self.pages.filters |= FILTERS
        self.pages.globals["draw"] = formatting
        self.edition = edition()
        self._names = TenantNames(session_of(app))

    async def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        root: str = request.scope.get("root_path", "")

        def link(path: str, **query: Any) -> str:
            return root + with_tenant(request, link_of(path, **query))

        def asset(name: str) -> str:
            return f"{root}/static/{name}?v={self.edition}"

        path = request.scope["path"].removeprefix(root) or "/"
        query = request.url.query
        identity: Identity | None = None  # on the login page
        with suppress(Refused):
            identity = identity_of(request)
        pieces = self.pages.get_template(template).generate(
            root=root,
            link=link,
            asset=asset,
            menu=MENU,
            here=path,
            section=section_of(path),
            system_tabs=TABS,
            current_url=f"{path}?{query}" if query else path,
            theme=theme_of(request),
            identity=identity,
            tenant_names=await self._names.get() if identity is not None and identity.operates_all else (),
            may=lambda scope: identity is not None and identity.may(Scope(scope)),
            flash=unquote(request.cookies.get(FLASH, "")) or None,
            now=datetime.now(UTC),
            **values,
        )
        response = HTMLResponse(await joined(pieces), status_code=status)
        if FLASH in request.cookies:
            response.delete_cookie(FLASH, path=root or "/")
        return response


async def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    renderer: Renderer = request.app.state.renderer
    return await renderer.page(request, template, status=status, **values)


async def joined(pieces: Iterator[str]) -> str:
    """Render the whole page before any of it is sent, so that an error in its last row becomes an error page. Other
    requests run in between, so that a short page does not wait for a long one."""
    parts: list[str] = []
    while batch := list(islice(pieces, PIECES)):
        parts += batch
        if len(batch) == PIECES:
            await asyncio.sleep(0)
    return "".join(parts)


def link_of(path: str, **query: Any) -> str:
    """A path relative to the mount, with a query string. Parameters that are None, empty or False are left out."""
    given = {name: value for name, value in query.items() if value not in (None, "", False)}
    return path + (f"?{urlencode(given, doseq=True)}" if given else "")


def with_tenant(request: Request, path: str) -> str:
    """The path with the tenant that the user chose (``?tenant=``), which so stays chosen from page to page."""
    with suppress(Refused):
        tenant, parts = chosen_tenant(request, identity_of(request)), urlsplit(path)
        if tenant is not None and "tenant" not in parse_qs(parts.query):
            query = "&".join(filter(None, [parts.query, urlencode({"tenant": tenant})]))
            return urlunsplit(parts._replace(query=query))
    return path


def chart_rows(activity: Activity, by: str | None = None) -> list[tuple[datetime, list[float]]]:
    """Points of a chart as rates per minute: enqueued, succeeded and failed, or one number for each series."""
    rows = []
    for n, point in enumerate(activity.points):
        counts = (
            [line[n] for line in activity.series.values()] if by else [point.enqueued, point.succeeded, point.failed]
        )
        rows.append((point.at, [activity.per_minute(point.at, count) for count in counts]))
    return rows


def theme_of(request: Request) -> str:
    chosen = request.cookies.get(THEME)
    return chosen if chosen in THEMES else "auto"


def edition() -> str:
    """A digest of the static files, which is part of their URLs: browsers never use a cached file of another
    release."""
    digest = hashlib.sha256()
    for file in sorted(STATIC.rglob("*.*")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:10]


def the_app(request: Request) -> App:
    app: App = request.app.state.app
    return app


async def payload_text(app: App, job_id: str) -> str:
    """The whole payload, for a form to edit it; indented unless it is large."""

    def read() -> str:
        payload = app.jobs.get(job_id).payload
        text = json.dumps(payload, ensure_ascii=False)
        return text if len(text) > INDENTED else json.dumps(payload, indent=2, ensure_ascii=False)

    return await read_large(read)


CHUNK = 256 * 1024


async def attachment(read: Callable[[], bytes], name: str, media_type: str = "application/octet-stream") -> Response:
    """The response with the bytes that ``read`` returns. A large file is sent from disk, piece by piece: clients may be
    slow, and there may be many."""
    ascii_name = re.sub(r"[^A-Za-z0-9._ -]", "_", name.rsplit("/", 1)[-1]) or "file"
    headers = {
        "content-disposition": f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(name, safe='')}",
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; sandbox",
        "cache-control": "no-store",
    }
    contents = await read_slowly(lambda: _spooled(read()))
    if isinstance(contents, bytes):
        return Response(contents, media_type=media_type, headers=headers)
    file, size = contents
    return StreamingResponse(_pieces(file), media_type=media_type, headers=headers | {"content-length": str(size)})


def _spooled(data: bytes) -> bytes | tuple[IO[bytes], int]:
    if len(data) <= CHUNK:
        return data
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed when it has been sent
    file.write(data)
    file.seek(0)
    return file, len(data)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(CHUNK):
            yield piece
