"""From a page's facts to HTML: one environment, escaping everywhere, links that know what we are mounted under."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from holdfast.access import Identity, Scope, identity_of
from holdfast.app import App
from holdfast.domain.errors import Refused

SAID = "holdfast_said"
THEME = "holdfast_theme"
THEMES = ("light", "auto", "dark")
# An actor's UUIDs are cut to what tells them apart.
_UUID = re.compile(r"\b([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
STATIC = Path(__file__).parent / "static"

MENU: tuple[tuple[str, str], ...] = (
    ("/", "Overview"),
    ("/jobs", "Jobs"),
    ("/approvals", "Approvals"),
    ("/dead-letters", "Dead letters"),
    ("/workflows", "Workflows"),
    ("/schedules", "Schedules"),
    ("/queues", "Queues & workers"),
    ("/tenants", "Tenants"),
    ("/audit", "Audit"),
    ("/system", "System"),
)


class Renderer:
    def __init__(self, app: App) -> None:
        self.app = app
        self.pages = Environment(
            loader=PackageLoader("holdfast.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.do"],
        )
        self.pages.filters |= {
            "ago": ago,
            "span": span,
            "moment": moment,
            "amount": amount,
            "capped": capped,
            "json": as_json,
            "short": short,
            "actor": lambda text: short(_UUID.sub(r"\1", str(text)), 80),
            "path": lambda text: quote(str(text), safe=""),
            "quoted": quoted,
        }
        self.edition = edition()

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
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
        text = self.pages.get_template(template).render(
            link=link,
            asset=asset,
            menu=MENU,
            here=path,
            asked=f"{path}?{query}" if query else path,
            theme=theme_of(request),
            identity=identity,
            may=lambda scope: identity is not None and identity.may(Scope(scope)),
            said=unquote(request.cookies.get(SAID, "")) or None,
            now=datetime.now(UTC),
            **values,
        )
        answer = HTMLResponse(text, status_code=status)
        if SAID in request.cookies:
            answer.delete_cookie(SAID, path=root or "/")
        return answer


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    renderer: Renderer = request.app.state.renderer
    return renderer.page(request, template, status=status, **values)


def link_of(path: str, **query: Any) -> str:
    """A path below what we are mounted under, with what is asked for; what is None or empty is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "", False)}
    return path + (f"?{urlencode(given, doseq=True)}" if given else "")


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


def span(value: timedelta | float | None) -> str:
    """A duration as people say it: 350 ms, 4.2 s, 12 min, 3 h 20 min, 5 d."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d"


def ago(at: datetime | None) -> str:
    if at is None:
        return "–"
    seconds = (datetime.now(UTC) - at).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def moment(at: datetime | None) -> str:
    return "–" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def amount(value: float | None) -> str:
    """A number as people read it: 12,345; 0.25; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}".rstrip("0").rstrip(".")


def capped(count: int, cap: int = 10_000) -> str:
    """What was counted up to a limit: 10,000+ where there is more."""
    return f"{cap:,}+" if count >= cap else f"{count:,}"


def as_json(value: Any, most: int = 100_000) -> str:
    """For reading; it is escaped like any other text, and what is very long is cut."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return text if len(text) <= most else f"{text[:most]}\n… {len(text) - most:,} characters more"


def short(text: object, most: int = 80) -> str:
    """One line of it."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def quoted(text: object) -> str:
    """As a value in a search."""
    said = str(text).replace('"', "")
    return f'"{said}"' if any(each.isspace() for each in said) else said
