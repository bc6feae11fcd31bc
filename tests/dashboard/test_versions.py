"""The page of versions: contents, and moving jobs."""

from __future__ import annotations

import asyncio
from contextlib import closing

import httpx2
import pytest

from holdfast import App, Context
from tests.dashboard.scene import is_inert
from tests.support.workers import work_off

pytestmark = [pytest.mark.req("HF-10", "JF-16"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]

VERSION = "1.0 <img src=x onerror=alert(1)>\"'{{7*7}}"


async def test_versions_held_jobs_and_patches_are_shown_and_jobs_moved(url: str, http: httpx2.AsyncClient) -> None:
    assert "No versions" in (await http.get("/versions")).text
    with closing(App(url, version=VERSION)) as old, closing(App(url, version="2.0")) as new:

        @old.job("pay", on_new_version="pin")
        async def pay(ctx: Context) -> None:
            await ctx.patched(f"stock {VERSION}")
            await ctx.step(f"charge {VERSION}", lambda: None)
            await ctx.wait_for_event("go")

        @new.job("pay", on_new_version="pin")
        async def pays(ctx: Context) -> None:
            await ctx.step("reserve", lambda: None)

        job = await pay.aenqueue()
        await asyncio.to_thread(work_off, old)
        page = (await http.get("/versions")).text
        assert is_inert(page)
        assert "no worker" in page
        assert "retire it" in page
        asked = await http.post("/versions/move", data={"version": VERSION, "to": "2.0"})
        assert (asked.status_code, await asyncio.to_thread(lambda: old.versions.list()[0].version)) == (200, VERSION)
        moved = await http.post("/versions/move", data={"version": VERSION, "to": "2.0", "confirmed": "yes"})
        assert (moved.status_code, moved.headers["location"].partition("?")[0]) == (303, "/versions")
        await old.asend_event("go")
        await asyncio.to_thread(work_off, new)
    page = (await http.get("/versions")).text
    assert is_inert(page)
    assert "Held jobs" in page
    assert f"/jobs/{job.id}" in page
    assert "step reserve" in page
    assert (await http.post("/versions/move", data={"version": "2.0", "to": "", "confirmed": "yes"})).status_code == 422
