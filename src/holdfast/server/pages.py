"""Page routes with one scope each, form fields, redirects, error pages, the page stream.

The stream of a page (server-sent events) only signals that something changed, at most once per second: the page then
fetches itself again, with the rights of its user. A message every 15 seconds keeps proxies from closing the connection
and shows the page that it is up to date.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.app.internals import session_of
from holdfast.engine.declared import inputs_of_options
from holdfast.engine.payload import DEFAULT_LIMIT
from holdfast.errors import HoldfastError, InvalidInput, Refused
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import Identity, StreamAccess, identity_of, require
from holdfast.server.live import LedgerFeed
from holdfast.server.middleware import CLOSED, pattern_of
from holdfast.server.problems import status_of
from holdfast.server.rendering import FLASH, render, the_app, with_tenant

FORM = "application/x-www-form-urlencoded"
MAX_FIELDS = 2_000
SMALL_FORM = 64 * 1024
PAGE = 50
MAX_TEXT = 500


async def posted_form(request: Request) -> ImmutableMultiDict[str, str]:
    """The posted form, URL-encoded. It is read once per request. Multipart forms are refused: there are no files."""
    state = request.scope.setdefault("state", {})
    if "holdfast_form" not in state:
        state["holdfast_form"] = await _read(request)
    form: ImmutableMultiDict[str, str] = state["holdfast_form"]
    return form


async def _read(request: Request) -> ImmutableMultiDict[str, str]:
    kind = request.headers.get("content-type", FORM).partition(";")[0].strip().lower()
    body = await request.body()
    if kind != FORM and body:
        raise InvalidInput(f"Expected a form encoded as {FORM}.", code="not_a_form")
    if body.count(b"&") >= MAX_FIELDS:
        raise InvalidInput(f"The form has more than {MAX_FIELDS:,} fields.", code="body_too_complex")
    read = partial(parse_qsl, body.decode(errors="replace"), keep_blank_values=True)
    # The time of unescaping grows with the text; a payload of 1 MiB may be three times as long in a form.
    pairs = read() if len(body) <= SMALL_FORM else await asyncio.to_thread(read)
    return ImmutableMultiDict(pairs)


async def fields(request: Request) -> dict[str, str]:
    """The fields of the form; the last value of each name."""
    return {name: value.strip() for name, value in (await posted_form(request)).items()}


def text_field(given: Mapping[str, str], name: str, most: int = MAX_TEXT) -> str | None:
    """A text field, or None if it is empty."""
    text = given.get(name, "").strip()
    if len(text) > most:
        raise InvalidInput(f"{name} is too long: at most {most:,} characters", code="invalid_request")
    return text or None


def choice_field(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of the choices; the first if the value is none of them."""
    value = given.get(name, "")
    return value if value in choices else choices[0]


def integer_field(given: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = text_field(given, name, 20)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise InvalidInput(f"{name} must be a whole number from {least:,} to {most:,}", code="invalid_request")
    return value


def option_fields(given: Mapping[str, str], options: Any) -> dict[str, Any]:
    """The fields that are named like the options of an operation (a TypedDict), checked as declared there; None if a
    field is empty. A checkbox has the value ``yes``."""
    values: dict[str, Any] = {}
    for each in inputs_of_options(options):
        if bool in each.members:
            values[each.name] = {"yes": True, "no": False}.get(given.get(each.name, ""))
        elif each.members == (int,):
            values[each.name] = integer_field(
                given, each.name, int(each.help.low or 0), int(each.help.high or 2**31 - 1)
            )
        else:
            values[each.name] = text_field(given, each.name, each.help.longest)
    return values


def number(given: Mapping[str, str], name: str) -> float | None:
    text = text_field(given, name, 30)
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InvalidInput(f"{name} must be a number", code="invalid_request") from None


def time_field(given: Mapping[str, str], name: str) -> datetime | None:
    """A time as browsers send it (UTC), or with an offset."""
    text = text_field(given, name, 40)
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{name} must be a time such as 2027-01-31T09:00", code="invalid_request") from None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    if not 1971 <= at.year <= 9000:
        raise InvalidInput(f"{name} must be between the years 1971 and 9000", code="invalid_request")
    return at


def json_field(given: Mapping[str, str], name: str, most: int = DEFAULT_LIMIT) -> Any:
    """A JSON field."""
    text = text_field(given, name, most) or "{}"
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "is nested too deeply" if isinstance(error, RecursionError) else f"is not valid JSON: {error}"
        raise InvalidInput(f"{name} {why}", code="invalid_request") from None


MIN_INTERVAL = 1.0
KEEPALIVE = 15.0


async def changes(request: Request) -> Response:
    require(request, Scope.READ)
    live: LedgerFeed = request.app.state.live
    tenant = session_of(the_app(request)).tenant
    # Read before the response begins: the page reads itself again when it does, and misses no later change.
    start = await live.place(tenant)
    stream = signals(live, tenant, StreamAccess(request, Scope.READ).holds, start)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def signals(
    live: LedgerFeed,
    tenant: str,
    holds: Callable[[], Awaitable[bool]],
    start: str,
    interval: float = MIN_INTERVAL,
    keepalive: float = KEEPALIVE,
) -> AsyncGenerator[str, None]:
    """Send signals of changes after the cursor ``start`` until the user loses the right to read (``holds``), or the
    service ends."""
    yield "retry: 3000\n\nevent: here\ndata: -\n\n"
    changed = asyncio.Event()

    async def listen() -> None:
        async with contextlib.aclosing(live.follow(tenant, after=start, skip=True)) as events:
            async for _ in events:
                changed.set()

    listener = asyncio.get_running_loop().create_task(listen())
    listener.add_done_callback(lambda _: changed.set())
    try:
        while await holds():
            try:
                async with asyncio.timeout(keepalive):
                    await changed.wait()
            except TimeoutError:
                yield "event: here\ndata: -\n\n"
                continue
            if listener.done():  # the service ends, or the ledger cannot be read: the page reconnects
                return
            changed.clear()
            yield "event: changed\ndata: -\n\n"
            await asyncio.sleep(interval)
    finally:
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await listener


routes = [Route("/live", changes)]


MAX_PATH = 2_000
"""Maximum characters of a path in a request."""


def redirect(request: Request, path: str, message: str | None = None) -> Response:
    """Redirect to another page, which shows ``message`` once. Every redirect of the dashboard is made here."""
    root = request.scope.get("root_path", "")
    response = RedirectResponse(root + with_tenant(request, path if is_own(path) else "/"), status_code=303)
    if message is not None:
        response.set_cookie(FLASH, quote(message[:500]), max_age=60, httponly=True, samesite="strict", path=root or "/")
    return response


async def field(request: Request, name: str, default: str = "") -> str:
    """One text field of the posted form."""
    return (await posted_form(request)).get(name, default).strip()


async def repeated_field(request: Request, name: str, most: int = 500) -> list[str]:
    """All values of a repeated field."""
    return (await posted_form(request)).getlist(name)[:most]


def local_path(path: str, otherwise: str = "/") -> str:
    """A path from a request if it stays on this service, else ``otherwise``."""
    return path if is_own(path) and len(path) <= MAX_PATH else otherwise


def is_own(path: str) -> bool:
    """Whether a browser that is redirected to this path stays on this service, even if the browser or a proxy unescapes
    the path or skips characters of it."""
    plain = unquote(path).replace("\\", "/")
    # One slash only: `//host` is another host. Browsers remove tabs and line ends before they parse the path.
    return path.startswith("/") and not plain.startswith("//") and path.isprintable() and plain[:2].isprintable()


async def confirm(request: Request, question: str, *, back: str, detail: str | None = None) -> Response | None:
    """A confirmation page that repeats the posted fields; None when the action is confirmed."""
    form = await posted_form(request)
    if form.get("confirmed") == "yes":
        return None
    root = request.scope.get("root_path", "")
    return await render(
        request,
        "confirm.html",
        question=question,
        detail=detail,
        action=quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else ""),
        fields=form.multi_items(),
        back=root + with_tenant(request, back),
    )


Endpoint = Callable[[Request], Awaitable[Response]]


def page_route(path: str, endpoint: Endpoint, scope: Scope = Scope.READ) -> Route:
    """A page that changes nothing."""
    return Route(path, guarded(endpoint, scope), methods=["GET"])


def action_route(path: str, endpoint: Endpoint, scope: Scope) -> Route:
    """An action of a posted form."""
    return Route(path, guarded(endpoint, scope), methods=["POST"])


def guarded(endpoint: Endpoint, scope: Scope) -> Endpoint:
    """Check the scope. With ``?of=``, a page of an operator of all tenants is about something of one tenant, and the
    pages after it are about all of them. Other callers cannot name a tenant."""

    async def handle(request: Request) -> Response:
        identity = require(request, scope)
        tenant = request.query_params.get("of", "")
        if not identity.operates_all or not tenant:
            return await endpoint(request)
        with session_of(the_app(request)).serving(tenant, identity.actor):
            return await endpoint(request)

    return handle


def check_all_tenants(request: Request) -> Identity:
    """The identity of the caller, if it may act for all tenants; refused otherwise."""
    identity = identity_of(request)
    if not identity.operates_all:
        raise Refused(
            f"{identity.actor} acts for tenant {identity.tenant}; this affects all tenants",
            code="missing_scope",
            fix="Use a token for all tenants (*).",
        )
    return identity


log = logging.getLogger("holdfast.dashboard")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    return await render(
        request, "error.html", status=status_of(error), code=error.code, reason=error.message, fix=error.fix
    )


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "method_not_allowed" if error.status_code == 405 else "invalid_request"
    code = "no_such_page" if error.status_code == 404 else code
    return await render(request, "error.html", status=error.status_code, code=code, reason=str(error.detail), fix=None)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLOSED)  # not delivered: the client disconnected while sending the body


async def _broken(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, pattern_of(request.scope), exc_info=error)
    reason = "Internal error. The log of the service has the details."
    return await render(request, "error.html", status=500, code="internal_error", reason=reason, fix=None)


def failures() -> Mapping[Any, Any]:
    return {HoldfastError: _refused, HTTPException: _http, ClientDisconnect: _gone, Exception: _broken}
