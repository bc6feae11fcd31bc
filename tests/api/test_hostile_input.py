"""Hostile names, numbers and cursors get a response with a code, never an internal error."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from starlette.requests import HTTPConnection

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine
from tests.api.conftest import HERE, client_of
from tests.api.test_scopes import ENDLESS

JSON = {"content-type": "application/json"}
HOSTILE = ("a\x00b", "'; drop table job; --", "\U0001d4b3\u202e<script>", "9" * 40)


@pytest.mark.slow
@pytest.mark.req("JF-14", "DP-3")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_hostile_parameters_of_every_route_get_a_code(app: App) -> None:
    session_of(app).make_ready()
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


LONE = "\ud800"


def spoiled(value: Any) -> Iterator[Any]:
    """The value with one part at a time that cannot be stored."""
    yield LONE
    if isinstance(value, dict):
        yield value | {LONE: 1}
        for key, inner in value.items():
            yield from (value | {key: each} for each in spoiled(inner))
    elif isinstance(value, list):
        for n, inner in enumerate(value[:3]):
            yield from ([*value[:n], each, *value[n + 1 :]] for each in spoiled(inner))


def example_of(schema: dict[str, Any], document: dict[str, Any]) -> Any:
    """A value that fits the schema, or nearly."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    for choice in schema.get("anyOf", []):
        if choice != {"type": "null"}:
            return example_of(choice, document)
    if schema.get("examples"):
        return schema["examples"][0]
    if "properties" in schema:
        return {name: example_of(part, document) for name, part in schema["properties"].items()}
    if schema.get("type") == "array":
        return [example_of(schema.get("items", {}), document)]
    return {"integer": 1, "number": 1, "boolean": True, "object": {"a": "x"}}.get(schema.get("type", ""), "x")


@pytest.mark.req("JF-14", "DP-3")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_text_that_cannot_be_stored_is_refused_in_every_body(app: App) -> None:
    session_of(app).make_ready()
    document, requests = make_service(app, authenticate=lambda _: None).openapi(), 0
    async with client_of(app, role="admin", tenant="acme") as http:
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if "requestBody" not in operation or operation["operationId"] == "tick":
                    continue
                schema = operation["requestBody"]["content"].get("application/json", {}).get("schema", {})
                filled = re.sub(r"\{\w+\}", "01900000-0000-7000-8000-000000000000", path)
                for body in islice(spoiled(example_of(schema, document)), 40):
                    answer = await http.request(method.upper(), filled, content=json.dumps(body), headers=JSON)
                    requests += 1
                    assert answer.status_code < 500, (method, path, body, answer.text[:200])
    assert requests > 300


@pytest.mark.req("JF-14", "DP-3")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_bad_jobs_of_a_batch_are_refused_by_their_place(app: App) -> None:
    @app.job("take")
    def take(object: object) -> None: ...

    @app.job("typed")
    def typed(texts: dict[str, Any]) -> None: ...

    deep = "[" * 110 + "]" * 110
    payloads = {
        '{"object": 1}': None,
        '{"object": {"\\ud800": 1}}': "payload_bad_text",
        f'{{"object": {deep}}}': "payload_too_deep",
        '{"texts": {"a": {"\\ud800": 1}}}': "payload_bad_text",
        '{"object": 2}': None,
    }
    kinds = ["typed" if "texts" in payload else "take" for payload in payloads]
    jobs = ",".join(f'{{"kind":"{kind}","payload":{payload}}}' for kind, payload in zip(kinds, payloads, strict=True))
    async with client_of(app) as http:
        answer = await http.post("/api/v1/jobs/batch", content=f'{{"jobs":[{jobs}]}}', headers=JSON)
        assert answer.status_code == 200, answer.text
        assert [each["reason"] for each in answer.json()["items"]] == [*payloads.values()]
        named = await http.post("/api/v1/jobs/batch", content=r'{"jobs":[{"kind":"a","key":"\ud800"}]}', headers=JSON)
        assert (named.status_code, "jobs.0.key" in named.json()["detail"]) == (422, True)


@pytest.mark.slow
@pytest.mark.req("JF-14")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_internal_error_reveals_nothing(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session_of(app).make_ready()
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
    session_of(app).make_ready()
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
