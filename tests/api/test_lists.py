"""Lists of schedules, templates and agents, page by page, for one tenant and for all."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from tests.api.conftest import client_of

pytestmark = pytest.mark.req("JF-14")

NAMES = ("a", "B", "c/d", "é", "z z")


def furnish(app: App) -> None:
    for tenant in ("acme", "default"):
        with session_of(app).acting_for(tenant):
            for name in NAMES:
                app.schedules.add(name, "@daily", kind="report")
                app.templates.set(name, "report")
                app.templates.set(name, "report", {"n": 2})
                app.agents.set(name)
    app.templates.set("gone", "report")
    app.templates.remove("gone")
    app.schedules.add("gone", "@daily", kind="report")
    app.schedules.remove("gone")


async def every(http: httpx2.AsyncClient, noun: str, **filters: Any) -> list[tuple[str, str]]:
    items: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    for _ in range(20):
        answer = await http.get(f"/api/v1/{noun}", params={**filters, **after, "limit": 2})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= 2
        items += page["items"]
        if page["next"] is None:
            return [(item["tenant"], item.get("name") or item["id"]) for item in items]
        after = {"after": page["next"]}
    raise AssertionError("the pages do not end")


@pytest.mark.slow
async def test_each_row_appears_once_across_pages(app: App) -> None:
    furnish(app)
    every_row = {(tenant, name) for tenant in ("acme", "default") for name in NAMES}
    for noun in ("schedules", "templates", "agents"):
        async with client_of(app, role="admin", tenant="acme") as http:
            own = await every(http, noun)
            assert len(own) == len(set(own)) == 5, own
            assert set(own) == {row for row in every_row if row[0] == "acme"}
        async with client_of(app, role="admin", tenant="*") as http:
            of_all_tenants = await every(http, noun)
            assert len(of_all_tenants) == 10
            assert set(of_all_tenants) == every_row
            for wrong in ("x", "[1, 2]", '["a"]', '["a", "b\\u0000"]', "[" * 7_900, '["a", "\\ud800"]', '"ab"'):
                refused = await http.get(f"/api/v1/{noun}", params={"after": wrong})
                assert (refused.status_code, refused.json()["code"]) == (422, "invalid_cursor")
    async with client_of(app, role="admin", tenant="acme") as http:
        assert await every(http, "schedules", state="paused") == []
        assert len(await every(http, "schedules", kind="report", state="active")) == 5
        assert await every(http, "agents", disabled=True) == []
        assert (await http.get("/api/v1/schedules", params={"after": "a\0"})).status_code == 422
