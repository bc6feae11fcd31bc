"""The trace of a request is passed to the job it enqueues (JF-13)."""

from __future__ import annotations

import httpx2
import pytest

from holdfast import App, Trace
from holdfast.app.internals import session_of
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.req("JF-13")
async def test_trace_header_of_a_request_is_the_trace_of_its_job(sqlite_url: str) -> None:
    app = App(sqlite_url, name="tests")
    session_of(app).make_ready()
    service = make_service(app, authenticate=at_this_machine(app), dashboard=False)
    traces = []
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url="http://127.0.0.1:1") as http:
        for header in (PARENT, "00-broken", None):
            headers = {} if header is None else {"traceparent": header, "tracestate": "a=1"}
            made = await http.post("/api/v1/jobs", json={"kind": "any"}, headers=headers)
            assert made.status_code == 201, made.text
            job = await session_of(app).arun(session_of(app).store.jobs.get(made.json()["id"], "default"))
            assert job is not None
            traces.append(Trace.of_tags(job.tags))
    await app.aclose()
    assert traces == [Trace.parse(PARENT, "a=1"), None, None]
