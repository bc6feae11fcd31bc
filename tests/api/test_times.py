"""A time outside of the UTC years 1 to 9999 is refused over HTTP. The fields come from the document of the API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import App, Retry, State
from holdfast.app.internals import kinds_of
from holdfast.server.app import make_service
from tests.api.conftest import client_of

pytestmark = pytest.mark.req("JF-14", "DP-9")

API = "/api/v1"
OUT_OF_RANGE = ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00")
IN_RANGE = (datetime.now(UTC) + timedelta(days=9)).isoformat()


def bodies(at: str) -> dict[tuple[str, str], dict[str, Any]]:
    """For every path and field that takes a time, a request body that is otherwise accepted."""
    found: dict[tuple[str, str], dict[str, Any]] = {
        ("/jobs/{job_id}/reschedule", "at"): {"at": at},
        ("/jobs/{job_id}/redrive", "at"): {"at": at},
        ("/dead-letters/{group}/redrive", "at"): {"at": at},
        ("/operations", "at"): {"action": "redrive", "everything": True, "at": at},
        ("/pauses", "until"): {"queue": "mail", "reason": "maintenance", "until": at},
        ("/tokens", "expires"): {"name": "ci", "roles": ["viewer"], "expires": at},
    }
    for field in ("run_at", "deadline"):
        job = {"kind": "mail", field: at}
        found |= {
            ("/jobs", field): job,
            ("/jobs/batch", f"jobs.{field}"): {"jobs": [{"kind": "mail"}, job]},
            ("/templates/{name}/enqueue", field): {field: at},
            ("/workflows", f"nodes.{field}"): {"kind": "publish", "nodes": [{"name": field, **job}]},
            ("/workflows/{workflow_id}/jobs", f"nodes.{field}"): {"nodes": [{"name": field, **job}]},
        }
    return found


def times(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None:
                for field in _times(document, content["schema"]):
                    yield path.removeprefix(API), ".".join(field)


def _times(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    if "$ref" in schema:
        yield from _times(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    elif schema.get("format") == "date-time":
        yield ()
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _times(document, choice)
    if "items" in schema:
        yield from _times(document, schema["items"])
    for name, field in schema.get("properties", {}).items():
        yield from ((name, *inner) for inner in _times(document, field))


def test_every_field_that_takes_a_time_is_known(app: App) -> None:
    document = make_service(app, authenticate=lambda _: None).openapi()
    assert set(times(document)) == set(bodies(IN_RANGE))


async def test_a_time_out_of_range_is_refused_in_every_field(app: App) -> None:
    @app.job("mail")
    async def mail() -> None: ...

    @app.job("broken")
    async def broken() -> None:
        raise ValueError

    waiting = app.enqueue("mail", delay="1h").id
    dead = app.enqueue("broken", retry=Retry(max_attempts=1)).id
    await asyncio.to_thread(app.run_worker, burst=True)
    app.templates.set("letter", "mail")
    flow = app.workflow("publish")
    flow.add(kinds_of(app)["mail"].kind.using(delay="1h"))
    names = {"name": "letter", "workflow_id": flow.start().id}
    names["group"] = app.dead_letters.groups()[0].fingerprint
    async with client_of(app, role="admin") as http:

        async def send(path: str, body: dict[str, Any]) -> tuple[int, str]:
            job = dead if path.endswith("/redrive") else waiting
            method = "PUT" if path == "/pauses" else "POST"
            answer = await http.request(method, API + path.format(job_id=job, **names), json=body)
            document = answer.json()
            if path == "/jobs/batch":  # each job has its own result
                code = document["items"][-1]["reason"]
                return (422, code) if code else (200, "")
            return answer.status_code, document.get("code", "")

        for at in OUT_OF_RANGE:
            for (path, field), body in bodies(at).items():
                assert await send(path, body) == (422, "invalid_time"), (path, field, at)
        # The same requests with a time in range are accepted, so it was the time that was refused.
        for (path, field), body in bodies(IN_RANGE).items():
            status, code = await send(path, body)
            assert status in (200, 201, 202), (path, field, code)
        assert (await http.get(f"{API}/jobs")).status_code == 200
    last = app.enqueue("mail", queue="later")
    await asyncio.to_thread(app.run_worker, burst=True, queues=("later",))
    assert last.state() is State.SUCCEEDED
