"""Request bodies: who may send one, and limits on size, time and structure.

The routes come from the application, so that a new route is tested without a change here.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.tokens.model import EVERY_SCOPE
from holdfast.server import json_body
from holdfast.server.api import every_route
from holdfast.server.app import OPEN, make_dashboard, make_service
from holdfast.server.auth import Identity
from holdfast.server.middleware import MAX_BODY, MAX_BODY_OPEN
from holdfast.server.pages import MAX_FIELDS
from holdfast.server.sessions import tokens_of
from tests.api.conftest import HERE, client_of
from tests.api.test_approvals import asked
from tests.api.test_scopes import ENDLESS, filled
from tests.unit.test_json_body import HOSTILE

pytestmark = [pytest.mark.req("JF-14"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]

PIECE = 16 * 1024
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


@dataclass
class SentRequest:
    """A request sent in pieces, with the bytes read of it and the response."""

    pieces: Iterator[bytes]
    taken: int = 0
    status: int = 0
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    async def receive(self) -> Message:
        piece = next(self.pieces, b"")
        self.taken += len(piece)
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        self.body += message.get("body", b"")

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["code"])


async def send(
    service: ASGIApp,
    method: str,
    path: str,
    *,
    size: int = 0,
    content_type: str = JSON,
    headers: dict[str, str] | None = None,
    declared: bool = False,
    receive: Callable[[], Awaitable[Message]] | None = None,
) -> SentRequest:
    """``declared``: with a Content-Length; otherwise in chunks of unknown total length."""
    request = SentRequest(iter([b" " * PIECE] * (size // PIECE)))
    given = {"host": "127.0.0.1:8000", "content-type": content_type, **(headers or {})}
    if declared:
        given["content-length"] = str(size)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    await service(scope, receive or request.receive, request.send)
    return request


@dataclass(frozen=True)
class Endpoint:
    method: str
    path: str
    content_type: str
    reads: bool
    """Whether the route takes a body."""


def endpoints(app: App, service: FastAPI) -> list[Endpoint]:
    """Every route of the API and every page, by method."""
    result = [
        Endpoint(method, filled(route.path_format), JSON, method != "GET")
        for route in every_route(service)
        for method in sorted(route.methods)
        if route.name not in ENDLESS
    ]
    for route in make_dashboard(app).routes:
        if isinstance(route, Route):
            path = filled(route.path_format)
            result += [
                Endpoint(method, path, FORM, method == "POST") for method in sorted((route.methods or set()) - {"HEAD"})
            ]
        elif isinstance(route, Mount):
            result.append(Endpoint("GET", f"{route.path}/holdfast.css", FORM, False))
    assert len(result) > 150
    return result


@pytest.fixture(params=["alone", "mounted"])
def below(request: pytest.FixtureRequest) -> Callable[[ASGIApp], tuple[ASGIApp, str]]:
    """The service alone, and mounted in another application."""

    def wrapped(service: ASGIApp) -> tuple[ASGIApp, str]:
        if request.param == "alone":
            return service, ""
        return Starlette(routes=[Mount("/outer/jobs", service)]), "/outer/jobs"

    return wrapped


Below = Callable[[ASGIApp], tuple[ASGIApp, str]]


async def test_every_open_route_rejects_a_body_over_64_kib(app: App, below: Below) -> None:
    session_of(app).make_ready()
    made = make_service(app, authenticate=tokens_of(app))
    service, root = below(made)
    open_to_all = [endpoint for endpoint in endpoints(app, made) if endpoint.path in OPEN]
    assert {endpoint.path.split("/")[1] for endpoint in open_to_all} == {
        "livez",
        "readyz",
        "api",
        "decide",
        "login",
        "static",
    }
    for endpoint in open_to_all:
        path, what = root + endpoint.path, (endpoint.method, endpoint.path)
        large = await send(
            service,
            endpoint.method,
            path,
            size=MAX_BODY_OPEN + PIECE,
            content_type=endpoint.content_type,
            declared=True,
        )
        assert (large.status, large.taken, large.code) == (413, 0, "body_too_large"), what
        endless = await send(
            service, endpoint.method, path, size=100 * MAX_BODY_OPEN, content_type=endpoint.content_type
        )
        assert endless.taken <= MAX_BODY_OPEN + PIECE, what
        if endless.status < 400:
            assert not endpoint.reads, f"{what} was answered with {endless.status}"
    absurd = await send(service, "POST", f"{root}/login", content_type=FORM, headers={"content-length": "9" * 5_000})
    assert (absurd.status, absurd.code) == (413, "body_too_large")


@pytest.mark.slow
async def test_approval_token_is_checked_before_the_body_and_limits_its_size(app: App) -> None:
    approval = await asked(app)
    token = app.approvals.issue_token(approval)
    service = make_service(app, authenticate=lambda _: None)
    for path, content_type in (
        (f"/api/v1/approvals/by-token/{token}", JSON),
        (f"/decide/{token}", FORM),
        ("/login", FORM),
    ):
        if path != "/login":
            unknown = await send(
                service, "POST", path[:-4] + "AAAA", size=MAX_BODY_OPEN // 2, content_type=content_type
            )
            assert (unknown.status, unknown.taken) == (404, 0), path
        endless = await send(service, "POST", path, size=100 * MAX_BODY_OPEN, content_type=content_type)
        assert endless.taken == MAX_BODY_OPEN + PIECE or path == "/login", path
        assert endless.status == (413 if path != "/login" else 404), "there is no login page here"
    tokens = make_service(app, authenticate=tokens_of(app))
    endless = await send(tokens, "POST", "/login", size=100 * MAX_BODY_OPEN, content_type=FORM)
    assert (endless.status, endless.taken, endless.code) == (413, MAX_BODY_OPEN + PIECE, "body_too_large")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the parsed bodies."""
    sizes: list[int] = []
    check = json_body.check_shape

    def counted(body: bytes, *most: int) -> None:
        sizes.append(len(body))
        check(body, *most)

    monkeypatch.setattr(json_body, "check_shape", counted)
    monkeypatch.setattr("holdfast.server.bodies.check_shape", counted)
    return sizes


@pytest.mark.req("JF-16")
async def test_body_of_unauthenticated_request_is_not_read(app: App, below: Below, parsed: list[int]) -> None:
    session_of(app).make_ready()
    made = make_service(app, authenticate=tokens_of(app))
    service, root = below(made)
    wrong: list[dict[str, str]] = [{}, {"authorization": "Bearer hf_wrong"}, {"cookie": "holdfast_session=hfs_wrong"}]
    closed = [endpoint for endpoint in endpoints(app, made) if endpoint.path not in OPEN]
    assert len(closed) > 140
    for endpoint in closed:
        for headers in wrong:
            request = await send(
                service,
                endpoint.method,
                root + endpoint.path,
                size=MAX_BODY,
                content_type=endpoint.content_type,
                headers=headers,
            )
            assert (request.status, request.taken) == (401, 0), (endpoint, headers, request.body[:200])
    assert parsed == []


@pytest.mark.slow
@pytest.mark.req("JF-16")
async def test_body_of_unauthorized_request_is_not_read(app: App, parsed: list[int]) -> None:
    session_of(app).make_ready()
    powerless = Identity("eve", "default", frozenset())
    service = make_service(app, authenticate=lambda _: powerless)
    tried = 0
    for endpoint in endpoints(app, service):
        if endpoint.path in OPEN or endpoint.path == "/logout" or not endpoint.reads:
            continue
        request = await send(
            service, endpoint.method, endpoint.path, size=MAX_BODY // 2, content_type=endpoint.content_type
        )
        assert (request.status, request.taken) == (403, 0), (endpoint, request.body[:200])
        tried += 1
    assert tried > 100
    assert parsed == []


async def test_body_of_authenticated_request_ends_at_the_limit(app: App) -> None:
    session_of(app).make_ready()
    known = Identity("ada", "default", frozenset({"enqueue", "operate"}))  # type: ignore[arg-type]
    service = make_service(app, authenticate=lambda _: known)
    for path, content_type in (("/api/v1/jobs", JSON), ("/api/v1/jobs/batch", JSON), ("/jobs/act", FORM)):
        endless = await send(service, "POST", path, size=10 * MAX_BODY, content_type=content_type)
        assert (endless.status, endless.taken, endless.code) == (413, MAX_BODY + PIECE, "body_too_large"), path


# --- slow bodies ---


async def test_stalled_body_times_out(app: App, caplog: pytest.LogCaptureFixture) -> None:
    session_of(app).make_ready()
    known = Identity("ada", "default", frozenset({"enqueue", "operate"}))  # type: ignore[arg-type]
    service = make_service(app, authenticate=lambda _: known, body_timeout=0.05)
    approval = await asked(app)
    link = f"/decide/{app.approvals.issue_token(approval)}"
    for path, content_type in (("/api/v1/jobs", JSON), ("/api/v1/jobs/batch", JSON), ("/jobs/act", FORM), (link, FORM)):
        sent = iter([b"{", b'"'])

        async def receive(sent: Iterator[bytes] = sent) -> Message:
            piece = next(sent, None)
            if piece is None:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": piece, "more_body": True}

        async with asyncio.timeout(30):
            slow = await send(service, "POST", path, content_type=content_type, receive=receive)
        assert (slow.status, slow.code, slow.headers["connection"]) == (408, "body_too_slow", "close"), path
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_time_limit_of_a_body_grows_with_its_size(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that arrives at the minimum rate is read to its end, however long that takes."""
    session_of(app).make_ready()
    known = Identity("ada", "default", frozenset({"enqueue"}))  # type: ignore[arg-type]
    monkeypatch.setattr("holdfast.server.middleware.MIN_RATE", 10)
    service = make_service(app, authenticate=lambda _: known, body_timeout=0.01)
    sent = iter([b'{"kind": "x"', b" " * 10_000, b"}"])

    async def receive() -> Message:
        piece = next(sent, b"")
        if piece == b"}":
            await asyncio.sleep(0.1)  # ten times the limit of a small body
        return {"type": "http.request", "body": piece, "more_body": piece != b"}"}

    assert (await send(service, "POST", "/api/v1/jobs", receive=receive)).status == 201


# --- hostile structure ---


@pytest.mark.slow
@pytest.mark.req("DP-3")
async def test_hostile_bodies_are_rejected_with_a_code_on_every_route(app: App) -> None:
    approval = await asked(app)
    link = f"/api/v1/approvals/by-token/{app.approvals.issue_token(approval)}"
    async with client_of(app, role="admin") as http:
        for body, code in HOSTILE.values():
            for path in ("/api/v1/jobs", "/api/v1/jobs/batch", "/api/v1/schedules", link):
                answer = await http.post(path, content=body, headers={"content-type": JSON})
                fits = path != link or len(body) <= MAX_BODY_OPEN
                assert answer.json()["code"] == (code if fits else "body_too_large"), (path, code, answer.text)
                assert answer.is_client_error
        many = b'{"verdict": "approve", "data": {' + b",".join(b'"%x":1' % n for n in range(1_001)) + b"}}"
        assert (await http.post(link, content=many, headers={"content-type": JSON})).json()[
            "code"
        ] == "body_too_complex"
        few = b'{"verdict": "approve", "x": {' + b",".join(b'"%x":1' % n for n in range(900)) + b"}}"
        answer = await http.post(link, content=few, headers={"content-type": JSON})
        assert (answer.status_code, answer.json()["code"], "'x'" in answer.text) == (422, "invalid_request", True)


def attacks(model: Any) -> Iterator[tuple[str, Any]]:
    many = 1_500
    yield "unknown keys", {f"x{n}": n for n in range(many)}
    for name in getattr(model, "model_fields", {}):
        yield f"{name}: empty objects", {name: [{}] * many}
        yield f"{name}: nulls", {name: [None] * many}
        yield f"{name}: unknown keys in each", {name: [{f"x{n}": 1 for n in range(50)}] * 100}
        yield f"{name}: an object of many", {name: {f"x{n}": [] for n in range(many)}}


def errors(kind: TypeAdapter[Any], body: Any) -> int:
    try:
        kind.validate_python(body)
    except ValidationError as wrong:
        return wrong.error_count()
    return 0


@pytest.mark.slow
def test_number_of_validation_errors_is_limited_on_every_route(app: App) -> None:
    """Describing an error costs thirty times as much as finding it, so few may be described."""
    tried = 0
    for route in every_route(make_service(app, authenticate=lambda _: None)):
        if route.body_field is None:
            continue
        schema = route.body_field.field_info.annotation
        kind = TypeAdapter(schema)
        models = [arg for arg in (getattr(schema, "__args__", None) or [schema]) if hasattr(arg, "model_fields")]
        for model in models or [None]:
            for name, body in attacks(model):
                count = errors(kind, body)
                assert count <= 210, (route.name, name, count)
                tried += count > 0
    assert tried > 300


# --- forms ---


async def test_forms_have_a_field_limit_and_no_files(app: App) -> None:
    approval = await asked(app)
    link = f"/decide/{app.approvals.issue_token(approval)}"
    service = make_service(app, authenticate=tokens_of(app))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as http:
        http.headers["origin"] = HERE
        for path in ("/login", link):
            many = await http.post(path, content=b"&".join([b"a=1"] * (MAX_FIELDS + 1)), headers={"content-type": FORM})
            assert (many.status_code, "body_too_complex" in many.text) == (413, True), path
            nothing = await http.post(path, content=b"&" * (MAX_BODY_OPEN - 10), headers={"content-type": FORM})
            assert nothing.status_code == 413, path
            parts = await http.post(path, files={"token": b"x"})
            assert (parts.status_code, "not_a_form" in parts.text) == (415, True), path
        escaped = await http.post("/login", content=b"token=" + b"%41" * 20_000, headers={"content-type": FORM})
        assert escaped.status_code == 401
    assert app.approvals.get(approval).approval.state == "open"


async def test_a_large_body_is_parsed_beside_the_event_loop(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or every other request would wait while it is parsed. The body of each route is tried."""
    session_of(app).make_ready()
    known = Identity("ada", "default", EVERY_SCOPE, whole=True)
    service = make_service(app, authenticate=lambda _: known)
    parsed: list[tuple[int, bool]] = []
    check = json_body.check_shape

    def recorded(body: bytes, *most: int) -> None:
        parsed.append((len(body), threading.current_thread() is threading.main_thread()))
        check(body, *most)

    monkeypatch.setattr(json_body, "check_shape", recorded)
    monkeypatch.setattr("holdfast.server.bodies.check_shape", recorded)
    large = b'{"unknown": "' + b"x" * json_body.SMALL_BODY + b'"}'
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as http:
        routes = [route for route in every_route(service) if route.body_field is not None]
        for route in routes:
            path = filled(route.path_format)
            if path not in OPEN:  # those take no large body
                (method,) = route.methods
                answer = await http.request(method, path, content=large, headers={"content-type": JSON})
                assert answer.is_client_error, (method, path, answer.status_code)
        assert len(parsed) > 40
        assert {on_loop for _, on_loop in parsed} == {False}
        await http.post("/api/v1/jobs", json={"kind": "mail"})
        assert parsed[-1][1], "a small one is parsed at once"
