"""Hostile names, numbers and cursors get a response with a code, never an internal error."""

from __future__ import annotations

import logging
import re
from urllib.parse import quote

import httpx2
import pytest
from starlette.requests import HTTPConnection

from holdfast import App
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine
from tests.api.conftest import HERE, client_of
from tests.api.test_scopes import ENDLESS

HOSTILE = ("a\x00b", "'; drop table job; --", "\U0001d4b3\u202e<script>", "9" * 40)


@pytest.mark.slow
@pytest.mark.req("JF-14", "DP-3")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_hostile_parameters_of_every_route_get_a_code(app: App) -> None:
    app._session.make_ready()
    service = make_service(app, authenticate=lambda _: None)
    paths = service.openapi()["paths"]
    requests = 0
    async with client_of(app, role="admin", tenant="acme") as http:
        for path, methods in paths.items():
            for method, operation in methods.items():
                named = [param["name"] for param in operation.get("parameters", []) if param["in"] == "query"]
                for number, value in enumerate(HOSTILE):
                    if operation["operationId"] in {*ENDLESS, "tick"} or (method != "get" and number):
                        continue
                    filled = re.sub(r"\{\w+\}", quote(value, safe=""), path)
                    params: list[dict[str, str]] = [{name: value} for name in named] if method == "get" else [{}]
                    for given in params or [{}]:
                        body: dict[str, str] | None = {} if method in ("post", "put", "patch") else None
                        answer = await http.request(method.upper(), filled, params=given, json=body)
                        requests += 1
                        what = (method, filled, given, answer.status_code, answer.text[:200])
                        assert answer.status_code < 500 or answer.status_code == 501, what
                        if answer.status_code >= 400:
                            assert answer.headers["content-type"] == "application/problem+json", what
                            assert re.fullmatch(r"[a-z_]+", answer.json()["code"]), what
    assert requests > 300


@pytest.mark.slow
@pytest.mark.req("JF-14")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_internal_error_reveals_nothing(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app._session.make_ready()
    caplog.set_level(logging.WARNING, "httpx2")  # the client logs URLs at a lower level

    def broken(*_: object) -> None:
        raise RuntimeError("the canary")

    monkeypatch.setattr(type(app.queues), "alist", broken)
    transport = httpx2.ASGITransport(make_service(app, authenticate=at_this_machine(app)), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=HERE) as http:
        answer = await http.get("/api/v1/queues")
        # The token of an approval link is in the path and must not be logged.
        monkeypatch.setattr("holdfast.features.approvals.routes._request_of", broken)
        monkeypatch.setattr("holdfast.features.approvals.pages._request_by_token", broken)
        for path in ("/api/v1/approvals/by-token/hfg_secret-token", "/decide/hfg_secret-token"):
            assert (await http.get(path)).status_code == 500
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "secret-token" not in caplog.text
    assert {record.getMessage() for record in caplog.records if record.levelno == logging.ERROR} == {
        "GET /api/v1/queues failed",
        "GET /api/v1/approvals/by-token/{token} failed",
        "GET /decide/{token} failed",
    }
    assert "canary" not in answer.text
    assert (answer.headers["cache-control"], answer.headers["x-content-type-options"]) == ("no-store", "nosniff")


@pytest.mark.req("JF-14")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_no_cookie_with_a_backslash_is_parsed(app: App) -> None:
    """`http.cookies` takes seconds for 60 KiB of escaped quotes; other cookies reach `authenticate` as they are."""
    app._session.make_ready()
    seen: list[dict[str, str]] = []

    def authenticate(connection: HTTPConnection) -> None:
        seen.append(dict(connection.cookies))

    hostile = 'a="' + '\\"' * 30_000 + '"'
    service = make_service(app, authenticate=authenticate)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as http:
        for path, status in (("/livez", 200), ("/jobs", 401), ("/api/v1/jobs", 401)):
            answer = await http.get(path, headers={"Cookie": f"theirs=1; {hostile}; holdfast_theme=dark"})
            assert answer.status_code == status, path
    assert seen, "the caller is identified by its cookies"
    assert all(cookies == {"theirs": "1", "holdfast_theme": "dark"} for cookies in seen)
