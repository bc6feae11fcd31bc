"""Lists below an unknown object, or one of another tenant, are not found rather than empty."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.errors import NotFound
from tests.api.conftest import client_of

pytestmark = pytest.mark.req("JF-14", "SC-6")

UNKNOWN = "01900000-0000-7000-8000-000000000000"


@pytest.mark.slow
async def test_every_list_below_an_unknown_object_is_not_found(app: App) -> None:
    """Over all routes of the OpenAPI document, so that new routes are covered."""
    async with client_of(app) as http:
        document: dict[str, Any] = (await http.get("/api/v1/openapi.json")).json()
        paths = [path for path, event_types in document["paths"].items() if "get" in event_types and "{" in path]
        assert f"{'/api/v1/jobs/{job_id}'}/chain" in paths
        for path in paths:
            named = re.sub(r"\{\w+\}", "nobody", re.sub(r"\{\w*_id\}", UNKNOWN, path))
            answer = await http.get(named)
            assert answer.status_code == 404, (path, answer.text)
            assert answer.json()["code"].endswith(("not_found", "token_unknown")), (path, answer.text)


async def test_job_of_another_tenant_is_not_found(app: App) -> None:
    with session_of(app).acting_for("acme"):
        theirs = app.enqueue("mail", {}).id
    async with client_of(app, role="admin") as http:
        for path in ("chain", "artifacts", "history", "attempts"):
            answer = await http.get(f"/api/v1/jobs/{theirs}/{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), (path, answer.text)
    async with client_of(app, role="admin", tenant="acme") as http:
        assert (await http.get(f"/api/v1/jobs/{theirs}/artifacts")).json() == {"items": [], "next": None}
        chain = (await http.get(f"/api/v1/jobs/{theirs}/chain")).json()["items"]
        assert [job["id"] for job in chain] == [theirs]


async def test_unknown_objects_are_not_found_in_process(app: App) -> None:
    with pytest.raises(NotFound):
        app.jobs.chain(UNKNOWN)
    with pytest.raises(NotFound):
        app.dead_letters.jobs("nobody")
    with pytest.raises(NotFound) as refused:
        await app.jobs.achain(UNKNOWN)
    assert refused.value.code == "not_found"
    with pytest.raises(NotFound) as refused:
        await app.dead_letters.ajobs("nobody")
    assert refused.value.code == "group_not_found"
