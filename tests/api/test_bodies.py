"""Request bodies: who may send one, how large, how slow and how intricate. The routes come from the application itself,
so one that is added is tried here without anybody thinking of it."""

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
from holdfast.features.tokens.model import EVERY_SCOPE
from holdfast.server import json_body
from holdfast.server.app import OPEN, make_service
from holdfast.server.auth import Identity
from holdfast.server.dashboard import make_dashboard
from holdfast.server.middleware import MAX_BODY, MAX_BODY_OPEN
from holdfast.server.openapi import every_route
from holdfast.server.pages import MAX_FIELDS
from holdfast.server.sessions import tokens_of
from tests.api.conftest import HERE, client_of
from tests.api.test_approvals import asked
from tests.api.test_matrix import ENDLESS, filled
from tests.unit.test_parsing import HOSTILE

pytestmark = [pytest.mark.req("JF-14"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]

PIECE = 16 * 1024
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


@dataclass
class Asked:
    """One request, sent in pieces: what was taken of it, and what was answered."""

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


async def ask(
    service: ASGIApp,
    method: str,
    path: str,
    *,
    size: int = 0,
    said: str = JSON,
    headers: dict[str, str] | None = None,
    declared: bool = False,
    receive: Callable[[], Awaitable[Message]] | None = None,
) -> Asked:
    """``declared``: with a Content-Length; else in chunks, the length of which nobody knows before."""
    request = Asked(iter([b" " * PIECE] * (size // PIECE)))
    given = {"host": "127.0.0.1:8000", "content-type": said, **(headers or {})}
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
class Place:
    method: str
    path: str
    said: str
    reads: bool
    """Whether the route takes a body."""


def places(app: App, service: FastAPI) -> list[Place]:
    """Every route of the API and every page, by method."""
    found = [
        Place(method, filled(route.path_format), JSON, method != "GET")
        for route in every_route(service)
        for method in sorted(route.methods)
        if route.name not in ENDLESS
    ]
    for route in make_dashboard(app).routes:
        if isinstance(route, Route):
            path = filled(route.path_format)
            found += [
                Place(method, path, FORM, method == "POST") for method in sorted((route.methods or set()) - {"HEAD"})
            ]
        elif isinstance(route, Mount):
            found.append(Place("GET", f"{route.path}/holdfast.css", FORM, False))
    assert len(found) > 150
    return found


@pytest.fixture(params=["alone", "mounted"])
def below(request: pytest.FixtureRequest) -> Callable[[ASGIApp], tuple[ASGIApp, str]]:
    """The service alone, and mounted in an application of somebody else's."""

    def wrapped(service: ASGIApp) -> tuple[ASGIApp, str]:
        if request.param == "alone":
            return service, ""
        return Starlette(routes=[Mount("/their/jobs", service)]), "/their/jobs"

    return wrapped


Below = Callable[[ASGIApp], tuple[ASGIApp, str]]


async def test_every_open_route_refuses_a_body_over_64_kib(app: App, below: Below) -> None:
    app._session.make_ready()
    made = make_service(app, authenticate=tokens_of(app))
    service, root = below(made)
    open_to_all = [place for place in places(app, made) if place.path in OPEN]
    assert {place.path.split("/")[1] for place in open_to_all} == {
        "livez",
        "readyz",
        "api",
        "decide",
        "login",
        "static",
    }
    for place in open_to_all:
        path, what = root + place.path, (place.method, place.path)
        large = await ask(service, place.method, path, size=MAX_BODY_OPEN + PIECE, said=place.said, declared=True)
        assert (large.status, large.taken, large.code) == (413, 0, "body_too_large"), what
        endless = await ask(service, place.method, path, size=100 * MAX_BODY_OPEN, said=place.said)
        assert endless.taken <= MAX_BODY_OPEN + PIECE, what
        if endless.status < 400:
            assert not place.reads, f"{what} was answered with {endless.status}"
    absurd = await ask(service, "POST", f"{root}/login", said=FORM, headers={"content-length": "9" * 5_000})
    assert (absurd.status, absurd.code) == (413, "body_too_large")


@pytest.mark.slow
async def test_an_approval_token_is_looked_at_before_the_body_and_opens_no_large_one(app: App) -> None:
    approval = await asked(app)
    token = app.approvals.issue_token(approval)
    service = make_service(app, authenticate=lambda _: None)
    for path, said in ((f"/api/v1/approvals/by-token/{token}", JSON), (f"/decide/{token}", FORM), ("/login", FORM)):
        if path != "/login":
            unknown = await ask(service, "POST", path[:-4] + "AAAA", size=MAX_BODY_OPEN // 2, said=said)
            assert (unknown.status, unknown.taken) == (404, 0), path
        endless = await ask(service, "POST", path, size=100 * MAX_BODY_OPEN, said=said)
        assert endless.taken == MAX_BODY_OPEN + PIECE or path == "/login", path
        assert endless.status == (413 if path != "/login" else 404), "there is no log-in here"
    tokens = make_service(app, authenticate=tokens_of(app))
    endless = await ask(tokens, "POST", "/login", size=100 * MAX_BODY_OPEN, said=FORM)
    assert (endless.status, endless.taken, endless.code) == (413, MAX_BODY_OPEN + PIECE, "body_too_large")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the bodies that were looked at."""
    sizes: list[int] = []
    check = json_body.check_shape

    def counted(body: bytes, *most: int) -> None:
        sizes.append(len(body))
        check(body, *most)

    monkeypatch.setattr(json_body, "check_shape", counted)
    monkeypatch.setattr("holdfast.server.bodies.check_shape", counted)
    return sizes


@pytest.mark.req("JF-16")
async def test_nothing_is_read_of_what_somebody_unknown_sends(app: App, below: Below, parsed: list[int]) -> None:
    app._session.make_ready()
    made = make_service(app, authenticate=tokens_of(app))
    service, root = below(made)
    wrong: list[dict[str, str]] = [{}, {"authorization": "Bearer hf_wrong"}, {"cookie": "holdfast_session=hfs_wrong"}]
    closed = [place for place in places(app, made) if place.path not in OPEN]
    assert len(closed) > 140
    for place in closed:
        for headers in wrong:
            asked = await ask(service, place.method, root + place.path, size=MAX_BODY, said=place.said, headers=headers)
            assert (asked.status, asked.taken) == (401, 0), (place, headers, asked.body[:200])
    assert parsed == []


@pytest.mark.slow
@pytest.mark.req("JF-16")
async def test_nothing_is_read_of_what_somebody_sends_who_may_not(app: App, parsed: list[int]) -> None:
    app._session.make_ready()
    nobody = Identity("eve", "default", frozenset())
    service = make_service(app, authenticate=lambda _: nobody)
    tried = 0
    for place in places(app, service):
        if place.path in OPEN or place.path == "/logout" or not place.reads:
            continue
        asked = await ask(service, place.method, place.path, size=MAX_BODY // 2, said=place.said)
        assert (asked.status, asked.taken) == (403, 0), (place, asked.body[:200])
        tried += 1
    assert tried > 100
    assert parsed == []


async def test_a_body_of_somebody_known_ends_at_the_limit(app: App) -> None:
    app._session.make_ready()
    known = Identity("ada", "default", frozenset({"enqueue", "operate"}))  # type: ignore[arg-type]
    service = make_service(app, authenticate=lambda _: known)
    for path, said in (("/api/v1/jobs", JSON), ("/api/v1/jobs/batch", JSON), ("/jobs/act", FORM)):
        endless = await ask(service, "POST", path, size=10 * MAX_BODY, said=said)
        assert (endless.status, endless.taken, endless.code) == (413, MAX_BODY + PIECE, "body_too_large"), path


# --- slow ones ---


async def test_a_body_that_does_not_come_is_not_waited_for(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app._session.make_ready()
    known = Identity("ada", "default", frozenset({"enqueue", "operate"}))  # type: ignore[arg-type]
    service = make_service(app, authenticate=lambda _: known, body_timeout=0.05)
    approval = await asked(app)
    link = f"/decide/{app.approvals.issue_token(approval)}"
    for path, said in (("/api/v1/jobs", JSON), ("/api/v1/jobs/batch", JSON), ("/jobs/act", FORM), (link, FORM)):
        sent = iter([b"{", b'"'])

        async def receive(sent: Iterator[bytes] = sent) -> Message:
            piece = next(sent, None)
            if piece is None:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": piece, "more_body": True}

        async with asyncio.timeout(30):
            slow = await ask(service, "POST", path, said=said, receive=receive)
        assert (slow.status, slow.code, slow.headers["connection"]) == (408, "body_too_slow", "close"), path
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_large_body_has_time_by_its_size(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes at the least rate or faster is read to its end, however long that takes."""
    app._session.make_ready()
    known = Identity("ada", "default", frozenset({"enqueue"}))  # type: ignore[arg-type]
    monkeypatch.setattr("holdfast.server.middleware.MIN_RATE", 10)
    service = make_service(app, authenticate=lambda _: known, body_timeout=0.01)
    sent = iter([b'{"kind": "x"', b" " * 10_000, b"}"])

    async def receive() -> Message:
        piece = next(sent, b"")
        if piece == b"}":
            await asyncio.sleep(0.1)  # ten times what a small body has
        return {"type": "http.request", "body": piece, "more_body": piece != b"}"}

    assert (await ask(service, "POST", "/api/v1/jobs", receive=receive)).status == 201


# --- intricate ones ---


@pytest.mark.slow
@pytest.mark.req("DP-3")
async def test_hostile_bodies_are_refused_with_a_code_on_every_path(app: App) -> None:
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
def test_a_body_has_few_errors_however_wrong_it_is(app: App) -> None:
    """Describing an error costs thirty times as much as finding it, so it must not be done for each of many."""
    tried = 0
    for route in every_route(make_service(app, authenticate=lambda _: None)):
        if route.body_field is None:
            continue
        schema = route.body_field.field_info.annotation
        kind = TypeAdapter(schema)
        models = [each for each in (getattr(schema, "__args__", None) or [schema]) if hasattr(each, "model_fields")]
        for model in models or [None]:
            for name, body in attacks(model):
                found = errors(kind, body)
                assert found <= 210, (route.name, name, found)
                tried += found > 0
    assert tried > 300


# --- forms ---


async def test_forms_have_few_fields_and_no_files(app: App) -> None:
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
    app._session.make_ready()
    known = Identity("ada", "default", EVERY_SCOPE, whole=True)
    service = make_service(app, authenticate=lambda _: known)
    parsed: list[tuple[int, bool]] = []
    check = json_body.check_shape

    def recorded(body: bytes, *most: int) -> None:
        parsed.append((len(body), threading.current_thread() is threading.main_thread()))
        check(body, *most)

    monkeypatch.setattr(json_body, "check_shape", recorded)
    monkeypatch.setattr("holdfast.server.bodies.check_shape", recorded)
    large = b'{"unknown": "' + b"x" * json_body.AT_ONCE + b'"}'
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
